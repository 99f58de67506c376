"""Elimination of tiny models in numpy: exact, whatever the model, and refused where it would not be quick."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.elimination.numpy_elimination import MAX_FUNCTIONS, eliminate_small, small_order
from mapmrf.model.checks import MOST_VARIABLES
from strategies import Recipe, any_recipes, brute_force, with_weights


@given(recipe=with_weights(any_recipes()))
@example(recipe=Recipe([]))
@example(recipe=Recipe([], [()], [np.array(2.5)]))
@example(recipe=Recipe([2], [()], [np.array(-np.inf)]))
@example(recipe=Recipe([1, 1, 1], [(0, 1), (0, 1, 2)], [np.array([[1.5]]), np.array([[[0.25]]])]))
@example(recipe=Recipe([1, 2, 3], [(2, 0, 1)], [np.arange(6.0).reshape(3, 1, 2)]))
@example(recipe=Recipe([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [np.array([[-np.inf, 0], [0, -np.inf]])] * 3))
def test_the_value_is_the_optimum_and_the_labels_attain_it(recipe: Recipe) -> None:
    graph = recipe.graph()
    order = small_order(graph)
    assert order is not None
    found = eliminate_small(graph, order)
    assert found.value == pytest.approx(brute_force(graph)[0])
    assert found.labels.dtype == np.int64
    assert graph.value(found.labels) == pytest.approx(found.value)


def test_evidence_is_respected() -> None:
    graph = grid(3, 4, coupling=2.0, seed=0).condition({0: 1, 7: 0})
    order = small_order(graph)
    assert order is not None
    found = eliminate_small(graph, order)
    assert found.labels[[0, 7]].tolist() == [1, 0]
    assert found.value == pytest.approx(brute_force(graph)[0])


def test_factors_of_many_variables_of_one_state_are_constants() -> None:
    n = MOST_VARIABLES - 1
    graph = FactorGraph.from_tables([1] * n + [2], [range(n + 1), range(n)], [[1.0, 3.0], [0.5]])
    order = small_order(graph)
    assert order is not None and not any(order.values())
    found = eliminate_small(graph, order)
    assert (found.value, found.labels.tolist()) == (3.5, [0] * n + [1])


def test_the_order_has_every_variable_and_its_width() -> None:
    order = small_order(grid(3, 3, seed=0))
    assert order is not None
    assert (sorted(order), max(map(len, order.values()))) == (list(range(9)), 3)


@pytest.mark.parametrize(
    "graph",
    [
        grid(1, MAX_FUNCTIONS),  # narrow, but of many functions
        FactorGraph.from_pairwise(np.zeros((12, 4)), np.stack(np.triu_indices(12, 1), 1), np.eye(4)),  # wide
        FactorGraph.from_tables([200, 200], [(0, 1)], [np.zeros((200, 200))]),  # a table that is large already
        FactorGraph.from_tables([2, 2], [(0,), (1,)], [[1e308, 0.0], [1e308, 0.0]]),  # a sum that overflows
    ],
)
def test_other_models_are_left_to_the_kernels(graph: FactorGraph) -> None:
    assert small_order(graph) is None


def test_the_limit_on_entries_can_be_lowered() -> None:
    graph = grid(4, 4, seed=0)
    assert small_order(graph, math.inf) is not None
    assert small_order(graph, 0) is None
