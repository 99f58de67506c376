"""Elimination orders against plain-Python truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import eliminated, grid_edges, primal, random_graph
from mapmrf.engines.elimination.orders import (
    ball,
    fill_order,
    fill_orders,
    find_order,
    front_orders,
    measured,
)


def test_known_widths_are_found() -> None:
    """A tree has width 1, a cycle 2, a k x k grid k, a complete graph n - 1, a graph without edges 0."""
    ones = np.full(60, 2)
    random = np.random.default_rng(1)
    tree = primal(60, [(int(random.integers(i)), i) for i in range(1, 60)])
    assert find_order(tree, ones).width == 1
    cycle = primal(60, [(i, (i + 1) % 60) for i in range(60)])
    assert find_order(cycle, ones).width == 2
    complete = primal(9, list(itertools.combinations(range(9), 2)))
    assert find_order(complete, ones[:9]).width == 8
    assert find_order(primal(5, []), ones[:5]).width == 0
    for k in (3, 6):
        assert find_order(primal(k * k, grid_edges(k, k)), np.full(k * k, 2)).width == k
    assert find_order(primal(4 * 30, grid_edges(30, 4)), np.full(120, 2)).width == 4


@given(seed=st.integers(0, 2**20), n=st.integers(1, 12), share=st.sampled_from([0.1, 0.3, 0.7]))
def test_widths_and_table_sizes_are_those_of_elimination_by_sets(seed: int, n: int, share: float) -> None:
    graph, edges = random_graph(seed, n, share)
    card = np.random.default_rng(seed).integers(1, 5, n)
    for order in [*fill_orders(graph, card, seed, 2), *front_orders(graph, card)]:
        if order.n_known < n:
            continue  # abandoned, since another has smaller tables
        assert sorted(order.order.tolist()) == list(range(n))
        truth = eliminated(n, edges, order.order.tolist())
        assert order.width == max(len(beside) for beside in truth) == measured(graph, card, order.order).width
        sizes = [card[i] * math.prod(card[list(b)].tolist()) for i, b in zip(order.order, truth, strict=True)]
        assert order.entries == pytest.approx(sum(sizes))
        assert measured(graph, card, order.order).entries == pytest.approx(sum(sizes))


@given(seed=st.integers(0, 2**20), n=st.integers(2, 12), share=st.sampled_from([0.2, 0.5]))
def test_min_fill_takes_a_variable_that_lacks_the_least_weight_of_edges(seed: int, n: int, share: float) -> None:
    graph, edges = random_graph(seed, n, share)
    random = np.random.default_rng(seed)
    weight, noise = random.integers(1, 4, n).astype(float), random.random(n)
    order, done, *_ = fill_order(graph.ptr, graph.nbr, weight, np.ones(n), noise, 2**40, 2**40, math.inf)
    assert done == n
    beside: list[set[int]] = [set() for _ in range(n)]
    for i, j in edges:
        beside[i].add(j)
        beside[j].add(i)
    left = set(range(n))
    for i in order.tolist():
        lacking = {
            j: sum(weight[a] * weight[b] for a, b in itertools.combinations(beside[j], 2) if b not in beside[a])
            for j in left
        }
        assert (lacking[i], noise[i]) == min((lacking[j], noise[j]) for j in left)
        left.remove(i)
        for j in beside[i]:
            beside[j] |= beside[i]
            beside[j] -= {i, j}


def test_an_order_is_abandoned_at_a_limit_and_the_rest_still_listed() -> None:
    graph = primal(36, grid_edges(6, 6))
    noise = np.arange(36) / 36
    args = graph.ptr, graph.nbr, np.ones(36), np.ones(36), noise
    for limits in ((2**40, 4, math.inf), (2**40, 2**40, 500.0), (0, 2**40, math.inf)):
        order, done, width, _ = fill_order(*args, *limits)
        assert sorted(order.tolist()) == list(range(36))
        assert done < 36 and width <= 6


def test_weights_count_the_states() -> None:
    """A cycle of small and large variables: the two large ones go first, so that they never share a table."""
    edges = [(0, 1), (1, 2), (2, 3), (3, 0)]
    graph = primal(4, edges)
    order = find_order(graph, np.array([2, 50, 2, 50]))
    assert order.entries == pytest.approx(2 * (2 * 50 * 2) + 2 * 2 + 2)


def test_a_ball_grows_from_its_centre() -> None:
    graph = primal(25, grid_edges(5, 5))
    assert ball(graph.ptr, graph.nbr, 12, 5).tolist() == [12, 7, 11, 13, 17]
    assert sorted(ball(graph.ptr, graph.nbr, 3, 99).tolist()) == list(range(25))
