"""Exact bucket elimination against brute force, bucket trees against sets, and the fold against numpy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elimination_models import eliminated, frustrated, grid_edges, partitioned, prepared, primal, random_graph
from mapmrf.arrays import offsets
from mapmrf.engines.elimination import elimination
from mapmrf.engines.elimination.elimination import (
    BLOCK,
    MARGINAL,
    PLAIN,
    WITH_CHOICE,
    BucketTree,
    Elimination,
    FoldedSum,
    FunctionTables,
    fold,
    inverse,
    row_major,
)
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.engines.elimination.orders import Order, fill_order, find_order
from mapmrf.model.graph import FactorGraph
from plain_python import plain, plain_kernels
from strategies import Recipe, any_recipes, brute_force, random_recipe, recipes, with_weights


def maximised(graph: FactorGraph, seed: int = 0, additions: int = 10**9) -> tuple[float, np.ndarray, int]:
    _, tree, given = prepared(graph, seed)
    run = Elimination(tree, given)
    steps = 0
    while not run.finished:
        run.advance(additions, tree.n)
        steps += 1
    return run.value + graph.constant, run.labels(), steps


@given(recipe=with_weights(recipes() | any_recipes()), seed=st.integers(0, 3))
def test_elimination_finds_the_optimum_of_any_model(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    value, labels, _ = maximised(graph, seed)
    assert value == pytest.approx(optimum, abs=1e-9)
    assert graph.value(labels) == pytest.approx(optimum, abs=1e-9)


def test_elimination_can_be_cut_anywhere() -> None:
    """Messages of several blocks, done a block at a time, are those done at once."""
    random = np.random.default_rng(3)
    side = 13
    edges = grid_edges(side, side)
    graph = FactorGraph.from_pairwise(
        random.normal(size=(side * side, 2)), edges, random.normal(size=(len(edges), 2, 2))
    )
    value, labels, steps = maximised(graph)
    again, same, more = maximised(graph, additions=1)
    assert value == again == pytest.approx(graph.value(labels))
    assert labels.tolist() == same.tolist()
    assert steps == 1 and more > side * side


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
        value, labels, _ = maximised(graph)
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


# -- the fold that all elimination shares -----------------------------------------------------------------------------


class Tables:
    """Random functions over positions 0 to n - 1, with their variables in any order in memory."""

    def __init__(self, seed: int, card: list[int], scopes: list[tuple[int, ...]], hard: float = 0.0) -> None:
        random = np.random.default_rng(seed)
        self.card, self.scopes = np.array(card), scopes
        self.dense, places, strides, flat = [], [], [], []
        for scope in scopes:
            memory = random.permutation(len(scope))
            table = random.normal(size=[card[scope[d]] for d in memory])
            table[random.random(table.shape) < hard] = -np.inf
            stride = {int(memory[d]): math.prod(table.shape[d + 1 :]) for d in range(len(scope))}
            places.append(sum(t.size for t in flat))
            strides += [stride[d] for d in range(len(scope))]
            flat.append(table)
            self.dense.append(table.transpose(np.argsort(memory)))
        self.ptr = offsets([len(scope) for scope in scopes]).astype(np.int64)
        self.var = np.array([i for scope in scopes for i in scope], dtype=np.int64)
        self.stride = np.array(strides, dtype=np.int64)
        self.at = np.array(places, dtype=np.int64)
        self.theta = np.concatenate([table.ravel() for table in flat])

    def joint(self, dims: list[int]) -> np.ndarray:
        """The sum of all functions, an axis for each of `dims`."""
        total = np.zeros([self.card[i] for i in dims])
        for scope, table in zip(self.scopes, self.dense, strict=True):
            total = total + table.reshape([self.card[i] if i in scope else 1 for i in dims])
        return total

    def fold(self, mode: int, matched: list[int], shift: np.ndarray, begin: int = 0, most: int = 2**40) -> tuple:
        """Eliminate the last position from all functions; the second half of them stands in the arena."""
        n = len(self.card)
        half = len(self.scopes) // 2
        dims = np.arange(n - 1)
        size = math.prod(self.card[:-1].tolist())
        arena = np.concatenate([self.theta, np.full(size, np.nan)])
        choice = np.full(size, 99, dtype=np.uint8)
        members = np.arange(len(self.scopes))
        inner = np.zeros((len(members) + 1, BLOCK), dtype=np.int32)
        unused = np.zeros(0, dtype=np.int64)
        places = self.ptr, self.var, self.stride, self.at
        fns = FunctionTables(self.card, *places, half, self.theta, arena, unused, unused)
        scope = np.array(matched, dtype=np.int64)
        terms = FoldedSum(members, dims, n - 1, scope, shift, 0, len(self.theta), choice, 0)
        following = plain(fold)(mode, fns, terms, begin, most, inner)
        return arena[len(self.theta) :], choice, following


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    n = draw(st.integers(1, 6))
    card = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    others = st.lists(st.integers(0, n - 2), unique=True, max_size=4) if n > 1 else st.just([])
    scopes = [(*sorted(scope), n - 1) for scope in draw(st.lists(others, min_size=1, max_size=4))]
    return Tables(draw(st.integers(0, 2**20)), card, scopes, draw(st.sampled_from([0.0, 0.4])))


@given(given_tables=tables())
@settings(max_examples=40)
def test_a_fold_is_the_maximum_of_the_sum_and_the_first_state_that_attains_it(given_tables: Tables) -> None:
    joint = given_tables.joint(list(range(len(given_tables.card))))
    unused = np.zeros(1)
    for mode in (PLAIN, WITH_CHOICE):
        out, choice, following = given_tables.fold(mode, [], unused)
        assert following == -1
        assert out == pytest.approx(joint.max(axis=-1).ravel())
    sums = joint.reshape(-1, joint.shape[-1])
    assert np.all(sums[np.arange(len(sums)), choice] == pytest.approx(sums.max(axis=1)))


@given(given_tables=tables(), data=st.data())
@settings(max_examples=40)
def test_max_marginals_and_shifts_are_those_of_the_whole_table(given_tables: Tables, data: st.DataObject) -> None:
    n = len(given_tables.card)
    shared = data.draw(st.lists(st.integers(0, n - 2), unique=True)) if n > 1 else []
    matched = [*sorted(shared), n - 1]
    shape = [given_tables.card[i] for i in matched]
    joint = given_tables.joint(list(range(n)))
    shift = np.full(math.prod(shape), -np.inf)
    given_tables.fold(MARGINAL, matched, shift)
    away = tuple(i for i in range(n) if i not in matched)
    assert shift == pytest.approx(joint.max(axis=away).ravel())
    shift = np.random.default_rng(0).normal(size=math.prod(shape))
    out, _, _ = given_tables.fold(PLAIN, matched, shift)
    spread = shift.reshape([given_tables.card[i] if i in matched else 1 for i in range(n)])
    assert out == pytest.approx((joint + spread).max(axis=-1).ravel())


def test_a_fold_in_pieces_is_the_fold_at_once() -> None:
    """Twelve variables: several blocks, which can be done one by one from anywhere."""
    n = 13
    some = Tables(1, [2] * n, [(0, 3, 5, 12), (1, 2, 4, 6, 12), (7, 8, 9, 10, 11, 12), (12,)])
    whole, _, following = some.fold(PLAIN, [], np.zeros(1))
    assert following == -1
    begin, pieces = 0, np.full(len(whole), np.nan)
    while begin >= 0:
        out, _, begin = some.fold(PLAIN, [], np.zeros(1), begin, 1)
        pieces = np.where(np.isnan(out), pieces, out)
    assert pieces.tolist() == whole.tolist()
    assert len(whole) > 2 * BLOCK
