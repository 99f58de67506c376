"""Flips: at rest no change of a small connected set helps, whatever the model."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.flips import Flips
from strategies import Recipe, any_recipes, at_rest, cost, random_recipe, recipes, some_labels, with_weights


def alone(graph: FactorGraph, labels: np.ndarray | None = None, **options: Any) -> np.ndarray:
    return at_rest(Flips(**options), graph, labels)


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
    rest = alone(graph, start, depth=depth)
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
    assert alone(graph, np.zeros(3, dtype=np.int64), depth=1).tolist() == [0, 1, 0]


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
        rest = alone(graph, start, depth=1)
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
