"""ICM, flips, chains and blocks: what holds at rest, whatever the model, and what larger changes reach."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark
from mapmrf import ICM, FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.chains import Chains
from mapmrf.methods.flips import Flips
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
    random_recipe,
    recipes,
    soft_recipes,
    some_labels,
    with_weights,
)


def test_broken_constraints_are_mended_one_by_one_against_any_finite_gain() -> None:
    """Every pair forbids state 1 of its first variable, which the unary potentials love."""
    n = 6
    unary = np.tile([0.0, 100.0], (n, 1))
    edges = chain_edges(n)
    graph = FactorGraph.from_pairwise(unary, edges, np.array([[0.0, 0.0], [-np.inf, -np.inf]]))
    assert at_rest(ICM(), graph, np.ones(n, dtype=np.int64)).tolist() == [0] * (n - 1) + [1]


@given(recipe=with_weights(soft_recipes()))
def test_the_first_start_is_the_best_unary_labelling(recipe: Recipe) -> None:
    graph = recipe.graph()
    best = [int(graph.theta_v[b:e].argmax()) for b, e in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True)]
    assert at_rest(ICM(), graph).tolist() == at_rest(ICM(), graph, np.array(best, dtype=np.int64)).tolist()


def test_more_starts_find_more() -> None:
    """A model whose best unary labelling is a poor local optimum."""
    graph = FactorGraph.from_pairwise([[0.1, 0.0], [0.1, 0.0]], [[0, 1]], [[0.0, -5.0], [-5.0, 3.0]])
    one = mapmrf.solve(graph, "icm")
    many = mapmrf.solve(graph, "icm", starts=20)
    assert one.labels.tolist() == [0, 0]
    assert many.value == brute_force(graph)[0]
    assert (one.details["starts"], many.details["starts"]) == (1, 20)


def test_random_starts_depend_on_the_seed_alone() -> None:
    graph = random_recipe(8, 7, 12).graph()
    first, again, other = (mapmrf.solve(graph, "icm", starts=5, seed=seed) for seed in (1, 1, 2))
    assert [point.candidate for point in first.trace] == [point.candidate for point in again.trace]
    assert [point.candidate for point in first.trace] != [point.candidate for point in other.trace]


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


def test_the_first_start_can_be_zeros() -> None:
    graph = random_recipe(8, 7, 12).graph()
    assert at_rest(ICM(init="zeros"), graph).tolist() == at_rest(ICM(), graph, np.zeros(7, dtype=np.int64)).tolist()


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


def test_sets_as_large_as_the_model_are_an_exhaustive_search() -> None:
    for seed in range(8):
        graph = random_recipe(seed, 6, 12, hard=0.1, max_card=3).graph()
        solved = mapmrf.solve(graph, "flips", depth=6)
        pieces = mapmrf.solve(graph, "exhaustive")
        assert solved.value == pytest.approx(pieces.value)


def test_larger_sets_reach_more_on_a_frustrated_grid() -> None:
    graph = grid(20, 20, 3.0, seed=2)
    values = [mapmrf.solve(graph, "flips", depth=depth).value for depth in (1, 2, 3, 5)]
    assert values == sorted(values) and values[0] < values[-1]


def test_single_flips_are_made_best_first() -> None:
    """The middle of a chain gains most by flipping, and then its neighbours have no reason to."""
    pair = np.array([[0.0, 0.0], [0.0, -10.0]])
    graph = FactorGraph.from_pairwise([[0.0, 1.0], [0.0, 3.0], [0.0, 1.0]], [[0, 1], [1, 2]], pair)
    assert at_rest(Flips(depth=1), graph, np.zeros(3, dtype=np.int64)).tolist() == [0, 1, 0]


def test_a_pair_that_only_helps_together_is_found_by_depth_two_alone() -> None:
    graph = FactorGraph.from_pairwise([[0.1, 0.0], [0.1, 0.0]], [[0, 1]], [[0.0, -5.0], [-5.0, 3.0]])
    assert mapmrf.solve(graph, "flips", depth=1).labels.tolist() == [0, 0]
    assert mapmrf.solve(graph, "flips", depth=2).labels.tolist() == [1, 1]


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
        for i in range(n):
            changed = rest.copy()
            changed[i] = 1 - changed[i]
            assert graph.value(changed) <= graph.value(rest) + 1e-6
        values.append(graph.value(rest))
    assert max(values) > -1e6


def test_a_dense_model_with_many_states_can_be_stopped_at_any_time() -> None:
    random = np.random.default_rng(1)
    pairs = [(i, j) for i in range(12) for j in range(i)]
    graph = FactorGraph.from_pairwise(np.zeros((12, 20)), pairs, random.normal(size=(len(pairs), 20, 20)))
    result = mapmrf.solve(graph, "flips", depth=4, callback=lambda point, labels: len(labels) > 0)
    assert result.status is Status.INTERRUPTED
    assert result.value == graph.value(result.labels)


def test_the_run_converges_and_counts_sweeps() -> None:
    result = mapmrf.solve(grid(10, 10, 2.0), "flips")
    assert result.status is Status.CONVERGED
    assert 1 <= result.iterations < 20
    cut = mapmrf.solve(grid(10, 10, 2.0), "flips", max_iterations=1)
    assert (cut.status, cut.iterations) == (Status.ITERATION_LIMIT, 1)


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


def test_chains_reach_more_than_flips_on_a_frustrated_grid() -> None:
    graph = grid(20, 20, 3.0, seed=2)
    assert mapmrf.solve(graph, "chains").value > mapmrf.solve(graph, "flips", depth=3).value


def test_the_order_depends_on_the_seed_alone() -> None:
    graph = grid(12, 12, 3.0, seed=4)
    found = [at_rest(Chains(length=6), graph, seed=seed).tolist() for seed in (1, 1, 2, 3, 4)]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])


def test_the_run_converges_by_itself() -> None:
    result = mapmrf.solve(grid(10, 10, 2.0), "chains")
    assert result.status is Status.CONVERGED
    again = mapmrf.solve(grid(10, 10, 2.0), "chains", initial=result)
    assert again.value == result.value


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


# -- block moves ------------------------------------------------------------------------------------------------------


def test_wider_blocks_reach_more_on_a_frustrated_grid() -> None:
    graph = grid(14, 14, 3.0, seed=3)
    values = [mapmrf.solve(graph, "blocks", width=width).value for width in (1, 3, 8)]
    assert values[0] <= values[1] <= values[2]
    assert mapmrf.solve(graph, "icm").value < values[1]


def test_a_run_ends_when_passes_no_longer_help() -> None:
    result = mapmrf.solve(grid(6, 6, 2.0), "blocks", patience=3, width=30)
    assert result.status is Status.CONVERGED
    assert result.iterations == 4 and result.details["passes"] == 4
    best = mapmrf.solve(grid(6, 6, 2.0), "branch").value
    assert result.value == pytest.approx(best)
