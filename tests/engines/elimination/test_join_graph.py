"""Join graphs: cost shifting between clusters keeps every value and lowers the bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import partitioned
from mapmrf.engines.elimination.join_graph import (
    WIDTH,
    JoinClusters,
    JoinGraph,
    SeparatorScratch,
    visit_runs,
)
from mapmrf.model.graph import FactorGraph
from plain_python import plain
from strategies import Recipe, brute_force, recipes, with_weights


def join_graph_of(graph: FactorGraph, max_vars: int) -> JoinGraph:
    join = JoinGraph(*partitioned(graph, max_vars))
    list(join.fill())
    return join


@given(recipe=with_weights(recipes()), max_vars=st.integers(0, 7))
def test_join_graph_shifting_keeps_every_value_and_never_raises_the_bound(recipe: Recipe, max_vars: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    join = join_graph_of(graph, max_vars)
    bounds = [join.bound() + graph.constant]
    for k in range(3):
        while join.sweeps == k:
            join.advance(1)
        bounds.append(join.bound() + graph.constant)
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    assert bounds[-1] >= optimum - 1e-9
    if max_vars == 7:
        assert bounds[-1] == pytest.approx(optimum, abs=1e-9), "a sweep over unsplit buckets is exact elimination"
    fns, random = join.functions(), np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        at = labels[join.tree.var_of]
        places = fns.at + np.add.reduceat(fns.stride * at[fns.var], fns.ptr[:-1])
        total = graph.constant + float(fns.theta[places].sum())
        assert total == pytest.approx(graph.value(labels), abs=1e-9)


@pytest.mark.parametrize("card", [(2, 3, 2, 4, 2), (5, 4, 3, 9, 2), (3, 2, 5, 2, 2, 3, 2, 2, 2, 2, 2, 2), (2, 1500, 3)])
def test_max_marginals_on_every_separator_are_those_of_numpy(card: tuple[int, ...]) -> None:
    n, random = len(card), np.random.default_rng(1)
    table = random.normal(size=card)
    table[random.random(card) < 0.2] = -np.inf
    at, unused = np.array([0, table.size]), [np.zeros(0, dtype=np.int64)] * 4
    clusters = JoinClusters(np.array(card), np.array([0, n]), np.arange(n), at, table.ravel().copy(), *unused)
    for inside in itertools.islice(itertools.product((False, True), repeat=n), 0, None, 1 if n < 8 else 2**n // 12 - 1):
        scope = np.flatnonzero(inside)
        wide = np.zeros(n, dtype=np.int64)
        wide[: len(scope)] = scope
        stride, digit, sides, inner = (np.zeros(size, dtype=np.int64) for size in (n, n, 2, WIDTH))
        expected = table.max(axis=tuple(np.flatnonzero(~np.array(inside)).tolist()), keepdims=True)
        out = np.append(np.zeros(3), np.full(expected.size, -np.inf))
        scratch = SeparatorScratch(stride, digit, wide, sides, inner, out)
        plain(visit_runs)(0, clusters, len(scope), 3, scratch, False)
        assert out[3:].tolist() == expected.ravel().tolist() and not out[:3].any()
        given = random.normal(size=expected.shape)
        clusters.tables[:] = table.ravel()
        plain(visit_runs)(0, clusters, len(scope), 0, scratch._replace(buffer=given.ravel()), True)
        assert clusters.tables.tolist() == (table + given).ravel().tolist()
        clusters.tables[:] = table.ravel()
