"""AND/OR search: the optimum however it is cut into steps, with bounds that hold at any time."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import frustrated, partitioned, prepared
from mapmrf.datasets import grid
from mapmrf.engines.elimination.and_or import AndOrSearch
from mapmrf.engines.elimination.elimination import Elimination
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.model.graph import FactorGraph
from strategies import Recipe, brute_force, recipes, with_weights

CACHE = 2.0**20
"""Bytes: enough for the models of these tests."""


def search_of(graph: FactorGraph, max_vars: int, cache_bytes: float = CACHE) -> AndOrSearch:
    buckets = MiniBuckets(*partitioned(graph, max_vars))
    buckets.advance(10**12, buckets.tree.n)
    return AndOrSearch(buckets, cache_bytes)


def optimum_of(graph: FactorGraph) -> float:
    _, tree, given = prepared(graph)
    elimination = Elimination(tree, given)
    elimination.advance(10**12, tree.n)
    return elimination.value + graph.constant


def found_by(search: AndOrSearch, graph: FactorGraph) -> float:
    labels = search.best_labels()
    return -math.inf if labels is None else graph.value(search.tree.by_variable(labels))


@given(
    recipe=with_weights(recipes()),
    max_vars=st.integers(0, 3),
    look_ups=st.sampled_from([1, 7, 10**9]),
    cached=st.booleans(),
)
def test_the_optimum_is_found_in_steps_of_any_length(
    recipe: Recipe, max_vars: int, look_ups: int, cached: bool
) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    search = search_of(graph, max_vars, CACHE if cached else 0.0)
    while not search.finished:
        search.advance(look_ups, 10**12)
        assert search.upper_bound() + graph.constant >= optimum - 1e-9
        assert found_by(search, graph) <= optimum + 1e-9
    assert found_by(search, graph) == pytest.approx(optimum, abs=1e-9)
    assert cached or search.n_hits == 0


def test_the_bound_never_rises_and_always_holds_while_the_search_goes_on() -> None:
    graph = frustrated(7, 7, seed=3)
    optimum = optimum_of(graph)
    search = search_of(graph, 2)
    bounds, values = [], []
    while not search.finished:
        search.advance(200, 10**12)
        bounds.append(search.upper_bound() + graph.constant)
        values.append(found_by(search, graph))
    assert len(bounds) > 20
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    assert min(bounds) >= optimum - 1e-9
    assert bounds[-2] < bounds[0], "completed subtrees should have lowered the bound"
    assert values == sorted(values)
    assert values[-1] == pytest.approx(optimum, abs=1e-9)
    assert bounds[-1] == pytest.approx(optimum, abs=1e-6)


def test_the_number_of_nodes_is_limited_and_the_search_goes_on_from_there() -> None:
    graph = frustrated(5, 5, seed=1)
    search = search_of(graph, 1)
    for limit in (1, 10, 11):
        search.advance(10**9, limit)
        assert search.n_expanded == limit
    search.advance(10**9, 10**12)
    assert search.finished
    assert found_by(search, graph) == pytest.approx(optimum_of(graph), abs=1e-9)


@pytest.mark.parametrize("room", [0.0, 2000.0, 20_000.0, CACHE])
def test_a_small_cache_saves_less_and_finds_the_same_optimum(room: float) -> None:
    graph = frustrated(6, 6, seed=7)
    search, full = search_of(graph, 1, room), search_of(graph, 1)
    search.advance(10**12, 10**12)
    full.advance(10**12, 10**12)
    assert search.n_expanded >= full.n_expanded
    assert (search.n_hits == 0) == (room == 0.0)
    assert found_by(search, graph) == pytest.approx(found_by(full, graph), abs=1e-9)


def test_a_better_value_from_elsewhere_cuts_the_search_short() -> None:
    """Also in the midst of it."""
    graph = grid(7, 7, coupling=5.0)
    optimum = optimum_of(graph)
    counts = []
    for known in (-math.inf, optimum - 1e-6):
        search = search_of(graph, 1)
        search.advance(50, 10**9)
        search.require(known - graph.constant)
        while not search.finished:
            search.advance(10**6, 10**9)
        assert found_by(search, graph) == pytest.approx(optimum, abs=1e-9)
        counts.append(search.n_expanded)
    assert counts[1] < counts[0]


def test_nothing_is_found_if_the_optimum_is_required_to_be_exceeded() -> None:
    graph = frustrated(4, 4)
    search = search_of(graph, 1)
    search.require(optimum_of(graph) - graph.constant + 1e-6)
    search.advance(10**9, 10**12)
    assert search.finished
    assert search.best_labels() is None
