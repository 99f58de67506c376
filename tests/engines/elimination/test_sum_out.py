"""Summing variables out, against sums over all labellings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph, UnsupportedModel
from mapmrf.engines.elimination.numpy_elimination import sum_out
from strategies import Recipe, any_recipes, recipes, with_weights


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
