"""Exact bucket elimination against brute force, bucket trees against sets, and the fold against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import eliminated, frustrated, grid_edges, partitioned, prepared, primal, random_graph
from mapmrf.engines.elimination import elimination
from mapmrf.engines.elimination.elimination import (
    BucketTree,
    Elimination,
    row_major,
)
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.engines.elimination.orders import Order, fill_order, find_order
from mapmrf.model.graph import FactorGraph
from plain_python import plain_kernels
from strategies import Recipe, any_recipes, brute_force, random_recipe, recipes, with_weights


def maximised(graph: FactorGraph, seed: int = 0, additions: int = 10**9) -> tuple[float, np.ndarray]:
    _, tree, given = prepared(graph, seed)
    run = Elimination(tree, given)
    while not run.finished:
        run.advance(additions, tree.n)
    return run.value + graph.constant, run.labels()


@given(
    recipe=with_weights(recipes() | any_recipes()), seed=st.integers(0, 3), additions=st.sampled_from([1, 50, 10**9])
)
def test_elimination_finds_the_optimum_of_any_model_wherever_it_is_cut(
    recipe: Recipe, seed: int, additions: int
) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    value, labels = maximised(graph, seed, additions)
    assert value == pytest.approx(optimum, abs=1e-9)
    assert graph.value(labels) == pytest.approx(optimum, abs=1e-9)


@pytest.mark.parametrize("mini", [False, True])
def test_buckets_are_counted_and_the_count_limited(mini: bool) -> None:
    tree, given, partition = partitioned(frustrated(4, 4), 2)
    run = MiniBuckets(tree, given, partition) if mini else Elimination(tree, given)
    for done in (1, 5, 16):
        run.advance(10**9, done)
        assert run.n_done == done
    assert run.finished


def test_more_states_than_a_byte_holds() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_tables(
        [300, 3, 300], [(0, 1), (1, 2), (0,)], [random.normal(size=s) for s in ((300, 3), (3, 300), (300,))]
    )
    with plain_kernels(elimination):  # compiled for wider integers they take seconds
        value, labels = maximised(graph)
    joint = graph.table(0)[:, :, None] + graph.table(1)[None] + graph.theta_v[:300, None, None]
    assert value == pytest.approx(joint.max())
    assert labels.tolist() == list(np.unravel_index(joint.argmax(), joint.shape))


def test_the_stack_stays_within_the_peak_that_was_announced() -> None:
    """Two heavy branches below a root: with both messages alive and the next one written, no more is needed."""
    graph = random_recipe(11, 9, 14, max_card=3).graph()
    _, tree, _ = prepared(graph)
    sizes = row_major(tree.card, tree.context_ptr, tree.context)[1]
    alive = peak = 0
    for p in range(tree.n - 1, -1, -1):
        peak = max(peak, alive + int(sizes[p]))
        alive += int(sizes[p]) * (tree.parent[p] >= 0) - sum(int(sizes[q]) for q in np.flatnonzero(tree.parent == p))
    assert peak <= tree.peak
    assert Elimination.bytes_needed(tree) == 8 * tree.peak + sizes.sum()


# -- bucket trees -----------------------------------------------------------------------------------------------------


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


def test_sizes_beyond_62_bits_are_reported_as_0() -> None:
    stride, size = row_major(np.full(70, 2), np.array([0, 70]), np.arange(70))
    assert size.tolist() == [0]
    assert len(stride) == 70
