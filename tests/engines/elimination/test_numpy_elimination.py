"""Elimination in numpy: of tiny models, exact and refused where it would not be quick; and sums over variables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph, UnsupportedModel
from mapmrf.datasets import grid
from mapmrf.engines.elimination.numpy_elimination import MAX_FUNCTIONS, eliminate_small, small_order, sum_out
from mapmrf.model.builders import MOST_VARIABLES
from strategies import Recipe, any_recipes, recipes, with_weights


def test_factors_of_many_variables_of_one_state_are_constants() -> None:
    n = MOST_VARIABLES - 1
    graph = FactorGraph.from_tables([1] * n + [2], [range(n + 1), range(n)], [[1.0, 3.0], [0.5]])
    order = small_order(graph)
    assert order is not None and not any(order.values())
    found = eliminate_small(graph, order)
    assert (found.value, found.labels.tolist()) == (3.5, [0] * n + [1])


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


# -- sums over variables, against sums over all labellings ------------------------------------------------------------


@given(with_weights(recipes() | any_recipes()), st.integers(0, 2**32 - 1))
def test_what_is_left_is_the_sum(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    gone = np.flatnonzero(np.random.default_rng(seed).random(graph.n_vars) < 0.6).tolist()
    rest, kept = sum_out(graph, gone)
    assert sorted([*kept, *gone]) == list(range(graph.n_vars))
    totals: dict[tuple[int, ...], float] = {}
    for labels in itertools.product(*(range(k) for k in graph.card.tolist())):
        key = tuple(labels[i] for i in kept)
        totals[key] = totals.get(key, 0.0) + np.exp(graph.value(labels))
    for key, total in totals.items():
        assert np.exp(rest.value(key)) == pytest.approx(total)


def test_small_numbers_do_not_vanish() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [[[-2000.0, -2001.0], [-2002.0, -np.inf]]])
    rest, _ = sum_out(graph, [1])
    assert rest.theta_v.tolist() == pytest.approx([-2000 + np.log1p(np.exp(-1)), -2002])


def test_a_sum_that_needs_a_huge_table_is_refused() -> None:
    pairs = list(itertools.combinations(range(28), 2))
    graph = FactorGraph.from_tables([2] * 28, pairs, [np.eye(2)] * len(pairs))
    with pytest.raises(UnsupportedModel, match=r"induced width 27 and needs 5\.37e\+09 bytes"):
        sum_out(graph, [3])
