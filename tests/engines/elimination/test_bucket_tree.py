"""Bucket trees against elimination by sets."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import eliminated, grid_edges, primal, random_graph
from mapmrf.engines.elimination.elimination import BucketTree, inverse, row_major
from mapmrf.engines.elimination.orders import Order, fill_order, find_order


@given(seed=st.integers(0, 2**20), n=st.integers(1, 12), share=st.sampled_from([0.1, 0.3, 0.7]))
def test_positions_are_a_preorder_and_contexts_those_of_elimination(seed: int, n: int, share: float) -> None:
    graph, edges = random_graph(seed, n, share)
    card = np.random.default_rng(seed).integers(1, 4, n)
    tree = BucketTree.build(graph, card, find_order(graph, card, seed))
    assert sorted(tree.var_of.tolist()) == list(range(n))
    truth = eliminated(n, edges, tree.var_of[::-1].tolist())[::-1]
    position = np.argsort(tree.var_of)
    for p in range(n):
        context = tree.context[tree.context_ptr[p] : tree.context_ptr[p + 1]].tolist()
        assert context == sorted(position[list(truth[p])].tolist())
        assert tree.parent[p] == (context[-1] if context else -1)
        below = [q for q in range(n) if p in ancestors(tree, q)]
        assert below == list(range(p, int(tree.end[p])))
        assert set(context) <= set(ancestors(tree, p))
    assert tree.known.all()


def ancestors(tree: BucketTree, p: int) -> list[int]:
    """A position and all above it."""
    chain = [p]
    while tree.parent[chain[-1]] >= 0:
        chain.append(int(tree.parent[chain[-1]]))
    return chain


def test_what_an_order_left_open_is_a_chain_above_the_rest() -> None:
    graph = primal(36, grid_edges(6, 6))
    order = Order(*fill_order(graph.ptr, graph.nbr, np.ones(36), np.ones(36), np.zeros(36), 2**40, 3, math.inf))
    tree = BucketTree.build(graph, np.full(36, 2), order)
    n_chain = 36 - order.n_known
    assert 0 < n_chain < 36
    assert tree.parent[:n_chain].tolist() == list(range(-1, n_chain - 1))
    assert tree.known.sum() == order.n_known
    assert tree.peak == math.inf
    for i, j in grid_edges(6, 6):
        p, q = sorted(np.argsort(tree.var_of)[[i, j]].tolist())
        assert p in ancestors(tree, q), "variables that share a factor must stand on one path"


@given(sizes=st.lists(st.integers(1, 3), min_size=0, max_size=6))
def test_row_major_strides_are_those_of_numpy(sizes: list[int]) -> None:
    stride, size = row_major(np.array(sizes, dtype=np.int64), np.array([0, len(sizes)]), np.arange(len(sizes)))
    table = np.arange(math.prod(sizes)).reshape(sizes)
    assert size.tolist() == [table.size]
    for state in itertools.product(*map(range, sizes)):
        assert table[state] == int(np.dot(stride, state))


def test_sizes_beyond_62_bits_are_reported_as_0() -> None:
    stride, size = row_major(np.full(70, 2), np.array([0, 70]), np.arange(70))
    assert size.tolist() == [0]
    assert len(stride) == 70


@given(seed=st.integers(0, 2**20), n=st.integers(1, 12))
def test_labels_by_position_become_labels_by_variable(seed: int, n: int) -> None:
    graph, _ = random_graph(seed, n, 0.3)
    card = np.full(n, 5)
    tree = BucketTree.build(graph, card, find_order(graph, card, seed))
    labels = np.random.default_rng(seed).integers(0, 5, n)
    by_variable = tree.by_variable(labels)
    assert all(by_variable[tree.var_of[p]] == labels[p] for p in range(n))
    assert np.array_equal(by_variable[tree.var_of], labels)
    assert np.array_equal(inverse(tree.var_of)[tree.var_of], np.arange(n))
