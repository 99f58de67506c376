"""Flips of sets and chains of flips: the table of gains is exact, and pieces of work add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.flip_state import floor_of, local_scale
from mapmrf.model.problem import Problem
from strategies import Recipe, cost, recipes, with_weights


def climb(search: FlipSearch | ChainSearch, start: np.ndarray, entries: int) -> list[int]:
    """Where a search ends, in runs of so many table entries."""
    search.restart(start)
    while not search.at_rest:
        search.run(entries)
    return search.labels().tolist()


@given(recipe=with_weights(recipes()), entries=st.integers(1, 30), depth=st.integers(1, 3))
@settings(max_examples=15)
def test_short_runs_of_flips_end_where_a_long_one_does(recipe: Recipe, entries: int, depth: int) -> None:
    graph = recipe.graph()
    search, start = FlipSearch(Problem.compile(graph), depth), np.zeros(graph.n_vars, dtype=np.int64)
    assert climb(search, start, entries) == climb(search, start, 10**9)


@given(recipe=with_weights(recipes()), entries=st.integers(1, 30), breadth=st.integers(1, 3))
@settings(max_examples=15)
def test_short_runs_of_chains_end_where_a_long_one_does(recipe: Recipe, entries: int, breadth: int) -> None:
    graph = recipe.graph()
    problem, start = Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64)
    found = [climb(ChainSearch(problem, 10, breadth, 1), start, n) for n in (entries, 10**9)]
    assert found[0] == found[1]


@given(recipe=with_weights(recipes()), entries=st.integers(1, 40), data=st.data())
def test_between_runs_scores_and_labels_are_those_of_one_labelling(
    recipe: Recipe, entries: int, data: st.DataObject
) -> None:
    """The labels that are handed out never hold a trial flip, and values never fall on the way."""
    graph = recipe.graph()
    start = np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)
    search = FlipSearch(Problem.compile(graph), 3)
    search.restart(start)
    before = cost(graph, start)
    while not search.at_rest:
        search.run(entries)
        now = cost(graph, search.labels())
        assert now <= (before[0], before[1] + 1e-9) or now[0] < before[0]
        before = now
    flips = search.flips
    if np.isinf(flips.floor):
        for i in range(graph.n_vars):
            for k in range(graph.card[i]):
                changed = search.labels()
                changed[i] = k
                gain = graph.value(changed) - graph.value(search.labels())
                row = flips.score[graph.var_ptr[i] :]
                assert row[k] - row[flips.labels[i]] == pytest.approx(gain, abs=1e-9)


def test_visits_are_limited_and_counted() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((6, 2)), [[i, i + 1] for i in range(5)], [[0.0, -1.0], [-1.0, 0.5]])
    for search in (FlipSearch(Problem.compile(graph), 2), ChainSearch(Problem.compile(graph), 5, 1, 0)):
        search.restart(np.zeros(6, dtype=np.int64))
        search.run(10**6, 4)
        assert search.visits == 4 and not search.at_rest


def test_the_floor_is_below_what_a_move_can_lose() -> None:
    """Two pairs with a finite range of 3, and one forbidden entry."""
    table = np.array([[1.0, -2.0], [0.0, -np.inf]])
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], table)
    assert floor_of(Problem.compile(graph), 2) < -2 * 2 * 3
    soft = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.zeros((2, 2)))
    assert floor_of(Problem.compile(soft), 2) == -np.inf


def test_the_local_scale_is_the_mean_stake_of_a_variable() -> None:
    table = np.array([[1.0, -2.0], [0.0, -np.inf]])
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), [[0, 1], [1, 2]], table)
    assert local_scale(Problem.compile(graph)) == 2 * 2 * 3.0 / 4
