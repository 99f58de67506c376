"""ICM, flips, chains, blocks, restarts, fusion and annealing: what holds at rest, and what larger changes reach."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark
from mapmrf import ICM, FactorGraph, Status
from mapmrf.datasets import grid, potts_image
from mapmrf.methods.annealing import Annealing
from mapmrf.methods.chains import Chains
from mapmrf.methods.flips import Flips
from mapmrf.methods.fusion import Fusion
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import chain_edges
from strategies import (
    Recipe,
    any_recipes,
    at_rest,
    brute_force,
    cost,
    hard_recipes,
    one_changed,
    random_recipe,
    recipes,
    soft_recipes,
    some_labels,
    with_weights,
)

# -- all of them ------------------------------------------------------------------------------------------------------


def test_larger_moves_reach_more_on_a_frustrated_grid() -> None:
    graph = grid(14, 14, 3.0, seed=3)
    flips = [mapmrf.solve(graph, "flips", depth=depth).value for depth in (1, 2, 3, 5)]
    blocks = [mapmrf.solve(graph, "blocks", width=width).value for width in (1, 3, 8)]
    for values in (flips, [flips[2], mapmrf.solve(graph, "chains").value], blocks):
        assert values == sorted(values) and values[0] < values[-1]
    assert mapmrf.solve(graph, "icm").value < blocks[1]


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("annealing", {"max_iterations": 20, "reads": 2}),
        ("chains", {"length": 6}),
        ("fusion", {"descent": "flips", "depth": 1, "starts": 3}),
        ("icm", {"starts": 5}),
    ],
)
def test_what_is_random_depends_on_the_seed_alone(method: str, options: dict[str, Any]) -> None:
    graph = grid(12, 12, 3.0, seed=4)
    results = [mapmrf.solve(graph, method, seed=seed, **options) for seed in (1, 1, 2, 3, 4)]
    found = [(result.labels.tolist(), [point.candidate for point in result.trace]) for result in results]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])


@pytest.mark.parametrize("method", ["flips", "chains"])
def test_a_run_converges_counts_sweeps_and_stays_where_it_rests(method: str) -> None:
    graph = grid(10, 10, 2.0)
    result = mapmrf.solve(graph, method)
    assert result.status is Status.CONVERGED and 1 <= result.iterations < 20
    assert mapmrf.solve(graph, method, initial=result).value == result.value
    cut = mapmrf.solve(graph, method, max_iterations=1)
    assert (cut.status, cut.iterations) == (Status.ITERATION_LIMIT, 1)


@pytest.mark.parametrize(
    ("method", "options", "iterations"),
    [
        *(("restarts", {"move": move}, None) for move in ("flips", "chains", "blocks")),
        ("restarts", {"patience": 4}, None),
        ("blocks", {"patience": 3, "width": 30}, 4),  # exact at once, and then three passes that change nothing
        ("annealing", {}, 10_000),
    ],
)
def test_small_grids_are_solved_and_patience_ends_the_run(
    method: str, options: dict[str, Any], iterations: int | None
) -> None:
    graph = grid(8, 8, 2.0, seed=5)
    result = mapmrf.solve(graph, method, **options)
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)
    assert result.status is Status.CONVERGED
    since = result.iterations - max(point.iterations for point in result.improvements)
    assert result.iterations == iterations or since - options.get("patience", 50) in (0, 1)


# -- ICM --------------------------------------------------------------------------------------------------------------


@given(recipe=with_weights(soft_recipes()))
def test_the_first_start_is_the_best_unary_labelling_or_zeros(recipe: Recipe) -> None:
    graph = recipe.graph()
    best = [int(graph.theta_v[b:e].argmax()) for b, e in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True)]
    zeros = np.zeros(graph.n_vars, dtype=np.int64)
    assert at_rest(ICM(), graph).tolist() == at_rest(ICM(), graph, np.array(best, dtype=np.int64)).tolist()
    assert at_rest(ICM(init="zeros"), graph).tolist() == at_rest(ICM(), graph, zeros).tolist()


def test_more_starts_find_more() -> None:
    """A model whose best unary labelling is a poor local optimum."""
    graph = FactorGraph.from_pairwise([[0.1, 0.0], [0.1, 0.0]], [[0, 1]], [[0.0, -5.0], [-5.0, 3.0]])
    one = mapmrf.solve(graph, "icm")
    many = mapmrf.solve(graph, "icm", starts=20)
    assert one.labels.tolist() == [0, 0]
    assert many.value == brute_force(graph)[0]
    assert (one.details["starts"], many.details["starts"]) == (1, 20)


def test_an_iteration_is_as_many_visits_as_there_are_variables() -> None:
    """A chain along which a single change travels backwards, one variable in each round."""
    n = 50
    unary = np.zeros((n, 2))
    unary[-1] = [0.0, 10.0]
    edges = chain_edges(n)
    graph = FactorGraph.from_pairwise(unary, edges, [[0.0, -1.0], [-1.0, 0.5]])
    problem, method = Problem.compile(graph), ICM(max_iterations=1)
    state = method.start(problem, 0, Start(np.zeros(n, dtype=np.int64)))
    progress = method.step(problem, state)
    assert (state.ascent.visits, progress.iterations, progress.finished) == (n, 1, None)
    assert mapmrf.solve(graph, method, initial=np.zeros(n, dtype=np.int64)).status is Status.ITERATION_LIMIT
    assert mapmrf.solve(graph, "icm", initial=np.zeros(n, dtype=np.int64)).status is Status.CONVERGED


@given(recipe=with_weights(hard_recipes()), data=st.data())
def test_the_order_is_that_of_sweeps_which_skip_what_cannot_have_changed(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    assert at_rest(ICM(), graph, start).tolist() == sweeps(graph, start).tolist()


def sweeps(graph: FactorGraph, labels: np.ndarray) -> np.ndarray:
    """ICM as anybody would write it: full sweeps, every labelling evaluated from scratch."""
    labels = labels.copy()
    changed = True
    while changed:
        changed = False
        for i in range(graph.n_vars):
            trials = [np.concatenate([labels[:i], [k], labels[i + 1 :]]) for k in range(graph.card[i])]
            costs = [cost(graph, trial) for trial in trials]
            best = min(costs)
            if (best[0], best[1] + 1e-9) < costs[labels[i]]:
                labels[i] = costs.index(best)
                changed = True
    return labels


@pytest.mark.data
@pytest.mark.parametrize(
    ("model", "figure"),
    [("grid20x20.f10", 2708.9), ("grid20x20.f15.wrap", 3837.12), ("grid40x40.f2", 2255.38), ("grid80x80.f10", 43538.9)],
)
def test_the_papers_figures_for_icm_are_reproduced(model: str, figure: float) -> None:
    graph = benchmark(f"grids/{model}.uai.gz")
    assert graph.value(at_rest(ICM(), graph, np.zeros(graph.n_vars, dtype=np.int64))) == pytest.approx(
        figure, rel=1e-5, abs=0.06
    )


# -- flips ------------------------------------------------------------------------------------------------------------


def connected_sets(graph: FactorGraph, largest: int) -> set[frozenset[int]]:
    """All sets of variables that hang together by factors, by growing them one variable at a time."""
    beside: dict[int, set[int]] = {i: set() for i in range(graph.n_vars)}
    for a in range(graph.n_factors):
        for i, j in itertools.permutations(graph.scope_of(a).tolist(), 2):
            beside[i].add(j)
    found = level = {frozenset([i]) for i in range(graph.n_vars)}
    for _ in range(largest - 1):
        level = {s | {j} for s in level for i in s for j in beside[i] - s}
        found = found | level
    return found


@given(recipe=with_weights(recipes() | any_recipes(max_vars=6)), depth=st.integers(1, 4), data=st.data())
def test_at_rest_no_change_of_a_connected_set_helps(recipe: Recipe, depth: int, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    rest = at_rest(Flips(depth=depth), graph, start)
    broken, lost = cost(graph, rest)
    assert (broken, lost - 1e-9) <= cost(graph, start)
    for members in connected_sets(graph, depth):
        for states in itertools.product(*(range(recipe.card[i]) for i in members)):
            changed = rest.copy()
            changed[list(members)] = states
            assert cost(graph, changed) >= (broken, lost - 1e-9)


def test_single_flips_are_made_best_first() -> None:
    """The middle of a chain gains most by flipping, and then its neighbours have no reason to."""
    pair = np.array([[0.0, 0.0], [0.0, -10.0]])
    graph = FactorGraph.from_pairwise([[0.0, 1.0], [0.0, 3.0], [0.0, 1.0]], [[0, 1], [1, 2]], pair)
    assert at_rest(Flips(depth=1), graph, np.zeros(3, dtype=np.int64)).tolist() == [0, 1, 0]


def test_rows_stay_exact_over_thousands_of_flips() -> None:
    """An entry of 1e9 that comes and goes leaves no trace in the scores."""
    random = np.random.default_rng(0)
    n = 60
    pairs = [(i, j) for i in range(n) for j in range(i)]
    tables = random.normal(size=(len(pairs), 2, 2))
    tables[::7, 0, 1] -= 1e9
    graph = FactorGraph.from_pairwise(np.zeros((n, 2)), pairs, tables)
    values = []
    for seed in range(20):
        start = np.random.default_rng(seed).integers(0, 2, n)
        rest = at_rest(Flips(depth=1), graph, start)
        assert all(graph.value(other) <= graph.value(rest) + 1e-6 for _, _, other in one_changed(graph, rest))
        values.append(graph.value(rest))
    assert max(values) > -1e6


# -- chains -----------------------------------------------------------------------------------------------------------


def best_of_chain(graph: FactorGraph, labels: np.ndarray, i: int, k: int, length: int, second: int) -> float:
    """Gain of the best beginning of a chain, every labelling evaluated from scratch."""
    scopes = [graph.scope_of(a).tolist() for a in range(graph.n_factors)]
    before, now = graph.value(labels), labels.copy()
    used: set[int] = set()
    best = 0.0
    for step in range(length):
        now[i] = k
        used.add(i)
        best = max(best, graph.value(now) - before)
        beside = {j for scope in scopes if used & set(scope) for j in scope} - used
        gains = []
        for j in beside:
            others = [s for s in range(graph.card[j]) if s != now[j]]
            trials = [np.concatenate([now[:j], [s], now[j + 1 :]]) for s in others]
            if others:
                values = [graph.value(trial) for trial in trials]
                gains.append((max(values), j, others[int(np.argmax(values))]))
        gains.sort(reverse=True)
        skip = second if step == 0 else 0
        if len(gains) <= skip:
            break
        _, i, k = gains[skip]
    return best


@given(recipe=with_weights(soft_recipes()), length=st.integers(1, 5), breadth=st.integers(1, 3), data=st.data())
@settings(max_examples=15)
def test_at_rest_no_chain_helps(recipe: Recipe, length: int, breadth: int, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    rest = at_rest(Chains(length=length, breadth=breadth), graph, start)
    assert graph.value(rest) >= graph.value(start) - 1e-9
    for i, r in enumerate(recipe.card):
        for k in range(r):
            if k != rest[i]:
                for second in range(breadth):
                    assert best_of_chain(graph, rest, i, k, min(length, graph.n_vars), second) <= 1e-9


def test_a_chain_crosses_a_valley_as_long_as_itself() -> None:
    """A ferromagnetic chain in its worse state: every flip but the last loses or gains nothing."""
    n = 8
    unary = np.zeros((n, 2))
    unary[:, 1] = 0.5
    edges = chain_edges(n)
    graph = FactorGraph.from_pairwise(unary, edges, [[2.0, 0.0], [0.0, 2.0]])
    zeros = np.zeros(n, dtype=np.int64)
    assert at_rest(Chains(length=3), graph, zeros).tolist() == [0] * n
    assert at_rest(Chains(length=8), graph, zeros).tolist() == [1] * n


@pytest.mark.data
@pytest.mark.parametrize(
    ("model", "best", "share"),
    [("grid20x20.f10", 3015.7447, 0.985), ("grid40x40.f2", 2689.0028, 0.99), ("grid80x80.f10", 50494.0752, 0.99)],
)
def test_chains_come_near_the_best_known_values_of_the_grids(model: str, best: float, share: float) -> None:
    graph = benchmark(f"grids/{model}.uai.gz")
    single = mapmrf.solve(graph, "flips", depth=1)
    result = mapmrf.solve(graph, "chains", initial=single)
    assert single.value < share * best < result.value <= best + 1e-3


# -- restarts ---------------------------------------------------------------------------------------------------------


MOVES = ["flips", "chains", "blocks"]


@pytest.mark.parametrize(
    ("move", "option", "size"), [("flips", "depth", 2), ("chains", "length", 5), ("blocks", "width", 3)]
)
def test_kicks_raise_what_the_move_alone_reaches(move: str, option: str, size: int) -> None:
    graph = grid(20, 20, 3.0, seed=3)
    alone = mapmrf.solve(graph, move, **{option: size})
    kicked = mapmrf.solve(graph, "restarts", move=move, initial=alone, max_iterations=10, **{option: size})
    assert kicked.value > alone.value
    assert kicked.details["kicks"] > 0 and kicked.details["kicks_taken"] > 0


def test_parts_of_a_change_are_judged_one_by_one() -> None:
    """Two coupled pairs that both must flip together: one gains by that, the other loses."""
    unary = np.zeros((4, 2))
    edges = [[0, 1], [2, 3], [1, 2]]
    tables = [[[0.0, -4.0], [-4.0, 1.0]], [[0.0, -4.0], [-4.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    graph = FactorGraph.from_pairwise(unary, edges, np.array(tables))
    result = mapmrf.solve(graph, "restarts", depth=1, kick=4, initial=[0, 0, 0, 0], patience=30)
    assert result.labels.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("move", MOVES)
def test_a_temperature_lets_worse_parts_stay_and_keeps_the_best(move: str) -> None:
    graph = grid(10, 10, 3.0, seed=3)
    first = mapmrf.solve(graph, "flips", depth=2)
    options = {"move": move, "initial": first, "max_iterations": 15, "patience": 15}
    cold, warm = (mapmrf.solve(graph, "restarts", temperature=t, **options) for t in (0.0, 5.0))
    assert warm.details["kicks_taken"] > cold.details["kicks_taken"]
    assert (warm.status, warm.iterations) == (Status.CONVERGED, 15)
    assert warm.value >= first.value


def test_a_round_kicks_every_variable_once_on_average() -> None:
    graph = grid(9, 11, 2.0)
    result = mapmrf.solve(graph, "restarts", kick=7, max_iterations=2, patience=5)
    assert result.iterations == 2
    assert result.details["kicks"] == 2 * np.ceil(2 * 99 / 8)


# -- fusion -----------------------------------------------------------------------------------------------------------


def islands(n: int) -> FactorGraph:
    """Frustrated rings without contact, each with a poor local optimum beside the best one."""
    random = np.random.default_rng(0)
    recipe = Recipe([2] * (4 * n))
    for b in range(n):
        for i in range(4):
            recipe.add((4 * b + i,), 0.3 * random.normal(size=2))
            recipe.add((4 * b + i, 4 * b + (i + 1) % 4), 2 * np.eye(2) + 0.1 * random.normal(size=(2, 2)))
    return recipe.graph()


def test_independent_parts_are_each_taken_from_where_they_are_best() -> None:
    """No single start has all twelve islands right, but the combination has."""
    graph = islands(12)
    best = mapmrf.solve(graph, "branch").value
    one = max(mapmrf.solve(graph, "icm", starts=30, seed=seed).value for seed in range(3))
    fused = mapmrf.solve(graph, "fusion", descent="flips", depth=1, starts=30)
    assert fused.value == pytest.approx(best)
    assert one < best - 1e-6


@pytest.mark.parametrize("descent", ["flips", "chains", "blocks"])
def test_every_kind_of_descent_ends_after_its_starts(descent: str) -> None:
    graph = grid(8, 8, 3.0, seed=1)
    few = mapmrf.solve(graph, "fusion", descent=descent, starts=2)
    many = mapmrf.solve(graph, "fusion", descent=descent, starts=12)
    assert (few.status, many.status) == (Status.CONVERGED, Status.CONVERGED)
    assert (few.iterations, many.details["starts"]) == (2, 12)
    assert many.value >= few.value
    assert many.value <= mapmrf.solve(graph, "branch").value + 1e-9


def test_a_pool_lets_earlier_optima_help_again() -> None:
    """A better labelling has other differences from an earlier optimum, and so other parts."""
    graphs = [grid(16, 16, 3.0, seed=seed) for seed in range(4)]
    options = {"descent": "flips", "depth": 2, "starts": 25}
    without = sum(mapmrf.solve(graph, "fusion", pool=0, **options).value for graph in graphs)
    with_pool = sum(mapmrf.solve(graph, "fusion", pool=20, **options).value for graph in graphs)
    assert with_pool >= without


def test_crossing_by_flows_finds_combinations_that_parts_do_not() -> None:
    """Potts models from random labellings, with hardly any search: the labellings differ in one large part."""
    graphs = [potts_image(12, 12, labels=4, noise=1.2, smoothness=0.8, seed=seed).graph for seed in range(3)]
    options = {"descent": "flips", "depth": 1, "starts": 4}
    parts = [mapmrf.solve(graph, "fusion", **options).value for graph in graphs]
    flows = [mapmrf.solve(graph, "fusion", crossover="flow", **options).value for graph in graphs]
    assert all(flow >= part - 1e-9 for flow, part in zip(flows, parts, strict=True))
    assert sum(flows) > sum(parts)


def test_the_pool_keeps_the_best_and_no_more_than_it_may() -> None:
    graph = grid(8, 8, 3.0, seed=1)
    problem, method = Problem.compile(graph), Fusion(descent="flips", depth=1, starts=20, pool=5)
    state = method.start(problem, 0, Start())
    while method.step(problem, state).finished is None:
        pass
    values = [value for value, _ in state.pool]
    assert len(values) == 5 and values == sorted(values, reverse=True)
    assert all(graph.value(labels) == value for value, labels in state.pool)
    assert state.best.value >= values[0]


# -- simulated annealing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["metropolis", "heat_bath"])
def test_models_of_any_arity_and_cardinality_are_solved(rule: str) -> None:
    for seed in range(6):
        graph = random_recipe(seed, 7, 12, hard=0.1).graph()
        optimum = mapmrf.solve(graph, "exhaustive").value
        result = mapmrf.solve(graph, "annealing", rule=rule, max_iterations=10_000, reads=50)
        assert result.value == pytest.approx(optimum)


def test_more_sweeps_reach_more() -> None:
    graph = grid(30, 30, 3.0, seed=1)
    values = [mapmrf.solve(graph, "annealing", reads=1, max_iterations=n).value for n in (20, 200, 2000)]
    assert values[0] < values[1] < values[2]


def test_every_read_ends_in_a_local_optimum() -> None:
    graph = grid(12, 12, 3.0, seed=1)
    result = mapmrf.solve(graph, "annealing", reads=1, max_iterations=5)
    assert mapmrf.solve(graph, "icm", initial=result).value == result.value


def test_the_temperature_falls_by_the_same_factor_from_hot_to_cold_in_every_read() -> None:
    graph = grid(3, 3, 2.0)
    problem, method = Problem.compile(graph), Annealing(max_iterations=9, reads=2, hot=1.0, cold=0.1)
    state = method.start(problem, 0, Start())
    assert state.ends.tolist() == [0, 5, 9]
    falling = method.temperatures(state, 5) / state.unit
    assert falling == pytest.approx(10.0 ** -np.linspace(0, 1, 5))


def test_a_read_that_is_cut_short_counts_as_well() -> None:
    """Stopped in the middle of the only read, the run still has more than where it began."""
    graph = grid(40, 40, 3.0, seed=1)
    options = {"reads": 1, "max_iterations": 100_000, "cold": 0.02}
    result = mapmrf.solve(graph, "annealing", callback=lambda point, labels: point.iterations > 2000, **options)
    assert result.status is Status.INTERRUPTED and result.details["reads"] == 0
    began = graph.value(np.array([graph.theta_v[2 * i : 2 * i + 2].argmax() for i in range(graph.n_vars)]))
    assert result.value > began
