"""Partition crossover: the best of all combinations of two labellings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.model.problem import Problem
from strategies import Recipe, recipes, some_labels, with_weights


@given(recipe=with_weights(recipes()), data=st.data())
def test_fusion_is_the_best_of_all_combinations_of_the_parts(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    one, other = some_labels(recipe, data), some_labels(recipe, data)
    best = max(graph.value(np.array(mix)) for mix in combinations(graph, one, other))
    before = graph.value(one)
    crossover = Crossover(Problem.compile(graph))
    gain = crossover.fuse(one, other)
    assert graph.value(one) == pytest.approx(best)
    if np.isfinite(before):
        assert gain == pytest.approx(best - before, abs=1e-9)
    if np.isfinite(best):
        assert crossover.fuse(one, other) == 0.0


def combinations(graph: FactorGraph, one: np.ndarray, other: np.ndarray) -> list[list[int]]:
    """Every way to take whole parts of the difference from one or the other, parts found by plain search."""
    differs = set(np.flatnonzero(one != other).tolist())
    scopes = [set(graph.scope_of(a).tolist()) & differs for a in range(graph.n_factors)]
    parts: list[set[int]] = []
    for i in sorted(differs):
        part = {i}.union(*(old for old in parts if any(i in s and old & s for s in scopes)))
        parts = [old for old in parts if not old & part] + [part]
    mixes = [one.tolist()]
    for part in parts:
        mixes += [[other[i] if i in part else x for i, x in enumerate(mix)] for mix in mixes]
    return mixes


def test_a_region_limits_what_is_taken_over() -> None:
    graph = FactorGraph.from_pairwise([[0.0, 1.0]] * 4, [[0, 1]], np.zeros((2, 2)))
    labels, ones = np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64)
    assert Crossover(Problem.compile(graph)).fuse(labels, ones, np.array([2])) == 1.0
    assert labels.tolist() == [0, 0, 1, 0]


def test_round_off_is_no_gain_unless_it_is_asked_for() -> None:
    graph = FactorGraph.from_pairwise([[0.0, 1e-10], [0.0, 0.0]], [[0, 1]], np.full((2, 2), 1e6))
    for tol, taken in ((1e-12, 0), (0.0, 1)):
        labels = np.zeros(2, dtype=np.int64)
        Crossover(Problem.compile(graph), tol=tol).fuse(labels, np.array([1, 0]))
        assert labels.tolist() == [taken, 0]
