"""Restarts, fusion and annealing: kicks never cost anything, optima are combined, and temperatures fall."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid, potts_image
from mapmrf.methods.annealing import Annealing
from mapmrf.methods.fusion import Fusion
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, random_recipe

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


@pytest.mark.parametrize("move", MOVES)
def test_small_grids_are_solved(move: str) -> None:
    graph = grid(8, 8, 2.0, seed=5)
    best = mapmrf.solve(graph, "branch").value
    result = mapmrf.solve(graph, "restarts", move=move)
    assert result.status is Status.CONVERGED
    assert result.value == pytest.approx(best)


def test_parts_of_a_change_are_judged_one_by_one() -> None:
    """Two coupled pairs that both must flip together: one gains by that, the other loses."""
    unary = np.zeros((4, 2))
    edges = [[0, 1], [2, 3], [1, 2]]
    tables = [[[0.0, -4.0], [-4.0, 1.0]], [[0.0, -4.0], [-4.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    graph = FactorGraph.from_pairwise(unary, edges, np.array(tables))
    result = mapmrf.solve(graph, "restarts", depth=1, kick=4, initial=[0, 0, 0, 0], patience=30)
    assert result.labels.tolist() == [1, 1, 0, 0]


def test_a_temperature_lets_worse_parts_stay_and_keeps_the_best() -> None:
    graph = grid(10, 10, 3.0, seed=3)
    cold = mapmrf.solve(graph, "restarts", move="flips", max_iterations=15, patience=15)
    warm = mapmrf.solve(graph, "restarts", move="flips", max_iterations=15, temperature=0.3)
    assert warm.details["kicks_taken"] > cold.details["kicks_taken"]
    assert (warm.status, warm.iterations) == (Status.CONVERGED, 15)
    first = mapmrf.solve(graph, "flips", depth=2)
    assert warm.value >= first.value
    blocks = mapmrf.solve(graph, "restarts", max_iterations=3, temperature=0.3, move="blocks", initial=first)
    assert blocks.value >= first.value


def test_a_round_kicks_every_variable_once_on_average() -> None:
    graph = grid(9, 11, 2.0)
    result = mapmrf.solve(graph, "restarts", kick=7, max_iterations=2, patience=5)
    assert result.iterations == 2
    assert result.details["kicks"] == 2 * np.ceil(2 * 99 / 8)


def test_patience_ends_the_run() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1]], np.zeros((2, 2)))
    result = mapmrf.solve(graph, "restarts", patience=4)
    assert result.status is Status.CONVERGED
    assert result.iterations == 5


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


def test_starts_depend_on_the_seed_alone() -> None:
    graph = grid(12, 12, 3.0, seed=2)
    runs = [mapmrf.solve(graph, "fusion", descent="flips", depth=1, starts=3, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].labels.tolist() == runs[1].labels.tolist()
    assert runs[0].labels.tolist() != runs[2].labels.tolist()


# -- simulated annealing ----------------------------------------------------------------------------------------------


def test_slow_cooling_solves_a_small_grid() -> None:
    graph = grid(8, 8, 2.0, seed=5)
    result = mapmrf.solve(graph, "annealing")
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)
    assert result.status is Status.CONVERGED
    assert (result.iterations, result.details["reads"]) == (10_000, 10)


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
