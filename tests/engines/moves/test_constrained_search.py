"""Local search with counters: what it counts, and what it finds."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mapmrf
from constrained_recipes import SUMS, random_constrained
from mapmrf import FactorGraph, constraints
from mapmrf.engines.moves.constrained_search import ConstrainedAscent, ConstrainedSearch
from mapmrf.model.problem import Problem
from strategies import one_changed


@pytest.mark.parametrize("seed", range(20))
def test_sums_are_those_of_the_labels(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=2 + seed % 4, n_constraints=4, kinds=SUMS)
    graph = recipe.graph()
    search = ConstrainedSearch(Problem.compile(graph), graph.unary_labels, seed)
    search.run(137)
    rows, total = search._state.rows, search._state.rows.total.copy()
    output = rows.output.copy()
    search.restart(search.labels.copy())
    assert total == pytest.approx(rows.total)
    assert output.tolist() == rows.output.tolist()


def test_most_small_models_are_solved() -> None:
    solved = 0
    for seed in range(60):
        recipe = random_constrained(seed, n_vars=1 + seed % 5, n_constraints=1 + seed % 4, kinds=SUMS)
        graph, optimum = recipe.graph(), recipe.optimum()
        search = ConstrainedSearch(Problem.compile(graph), graph.unary_labels, seed)
        for _ in range(5):
            search.run(200)
            search.kick()
        assert search.incumbent.value <= optimum + 1e-9
        assert search.incumbent.value == graph.value(search.incumbent.labels)
        solved += search.incumbent.value == optimum or math.isclose(search.incumbent.value, optimum)
    assert solved >= 54


@pytest.mark.parametrize("seed", range(20))
def test_an_ascent_ends_where_no_change_helps(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=2 + seed % 4, n_constraints=2, soft=1.0, kinds=SUMS)
    recipe.stated = [each for each in recipe.stated if each.name != "all_different"]
    graph = recipe.graph()
    ascent = ConstrainedAscent(Problem.compile(graph))
    ascent.restart(graph.unary_labels)
    while not ascent.at_optimum:
        ascent.run(10**6)
    value = graph.value(ascent.labels)
    if value == -math.inf:
        return
    assert all(graph.value(other) <= value + 1e-5 for _, _, other in one_changed(graph, ascent.labels))


def test_a_tight_count_is_no_obstacle() -> None:
    """From any two of six items the search comes to the best two: a swap breaks the count for a moment."""
    gains = [[0, g] for g in (1.0, 5.0, 2.0, 4.0, 3.0, 0.5)]
    graph = FactorGraph.from_tables([2] * 6, [(i,) for i in range(6)], gains)
    graph = graph.with_constraints([constraints.exactly_k(range(6), 2)])
    search = ConstrainedSearch(Problem.compile(graph), graph.check_labels([1, 0, 0, 0, 0, 1]), 0)
    search.run(200)
    assert search.incumbent.labels.tolist() == [0, 1, 0, 1, 0, 0]


def test_runs_with_a_seed_are_the_same() -> None:
    graph = random_constrained(3, kinds=SUMS).graph()
    first, second = (mapmrf.solve(graph, "tabu", seed=5, trajectories=20) for _ in range(2))
    assert first.labels.tolist() == second.labels.tolist()
    assert first.iterations == second.iterations


def test_a_model_without_variables_or_choices_is_handled() -> None:
    graph = FactorGraph.from_tables([1, 1], [], []).with_constraints([constraints.exactly_one([(0, 0), (1, 0)], 2.0)])
    assert mapmrf.solve(graph, "tabu").value == -2.0
    assert mapmrf.solve(graph, "icm").value == -2.0
    assert np.array_equal(mapmrf.solve(graph, "auto").labels, [0, 0])
