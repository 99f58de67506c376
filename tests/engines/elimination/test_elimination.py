"""Elimination orders, bucket trees and exact bucket elimination, against plain-Python truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.engines.elimination.elimination import (
    BucketTree,
    Elimination,
    Functions,
    Order,
    PrimalGraph,
    fill_orders,
    find_order,
    front_orders,
    induced_width,
    measured,
    row_major,
)
from mapmrf.engines.elimination.order_kernels import ball, fill_order
from mapmrf.graph import FactorGraph
from mapmrf.problem import Problem
from strategies import Recipe, any_recipes, brute_force, random_recipe, recipes


def primal(n: int, edges: list[tuple[int, int]]) -> PrimalGraph:
    tables = [np.zeros((2, 2))] * len(edges)
    return PrimalGraph.of(Problem.compile(FactorGraph.from_tables([2] * n, edges, tables)))


def grid_edges(rows: int, columns: int) -> list[tuple[int, int]]:
    place = np.arange(rows * columns).reshape(rows, columns)
    across = zip(place[:, :-1].ravel().tolist(), place[:, 1:].ravel().tolist(), strict=True)
    down = zip(place[:-1].ravel().tolist(), place[1:].ravel().tolist(), strict=True)
    return [*across, *down]


def random_graph(seed: int, n: int, share: float) -> tuple[PrimalGraph, set[tuple[int, int]]]:
    random = np.random.default_rng(seed)
    edges = {pair for pair in itertools.combinations(range(n), 2) if random.random() < share}
    return primal(n, sorted(edges)), edges


def eliminated(n: int, edges: set[tuple[int, int]], order: list[int]) -> list[set[int]]:
    """Neighbours of every variable when its turn comes, by sets."""
    beside: list[set[int]] = [set() for _ in range(n)]
    for i, j in edges:
        beside[i].add(j)
        beside[j].add(i)
    found = []
    for i in order:
        found.append(set(beside[i]))
        for j in beside[i]:
            beside[j] |= beside[i]
            beside[j] -= {i, j}
    return found


# -- orders -----------------------------------------------------------------------------------------------------------


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


def test_no_order_of_a_grid_is_narrower_than_its_side() -> None:
    graph = primal(25, grid_edges(5, 5))
    found = [*fill_orders(graph, np.full(25, 2)), *front_orders(graph, np.full(25, 2))]
    assert min(order.width for order in found if order.n_known == 25) == 5


@given(seed=st.integers(0, 2**20), n=st.integers(1, 12), share=st.sampled_from([0.1, 0.3, 0.7]))
def test_widths_and_table_sizes_are_those_of_elimination_by_sets(seed: int, n: int, share: float) -> None:
    graph, edges = random_graph(seed, n, share)
    card = np.random.default_rng(seed).integers(1, 5, n)
    for order in [*fill_orders(graph, card, seed, 2), *front_orders(graph, card)]:
        if order.n_known < n:
            continue  # given up, since another has smaller tables
        assert sorted(order.order.tolist()) == list(range(n))
        truth = eliminated(n, edges, order.order.tolist())
        assert order.width == max(len(beside) for beside in truth) == induced_width(graph, order.order)
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


def test_an_order_is_given_up_at_a_limit_and_the_rest_still_listed() -> None:
    graph = primal(36, grid_edges(6, 6))
    noise = np.arange(36) / 36
    args = graph.ptr, graph.nbr, np.ones(36), np.ones(36), noise
    for limits in ((2**40, 4, math.inf), (2**40, 2**40, 500.0), (0, 2**40, math.inf)):
        order, done, width, _ = fill_order(*args, *limits)
        assert sorted(order.tolist()) == list(range(36))
        assert done < 36 and width <= 6


def test_orders_depend_on_the_seed_alone() -> None:
    graph = primal(64, grid_edges(8, 8))
    card = np.full(64, 2)
    first, again, other = (find_order(graph, card, seed, 1).order.tolist() for seed in (1, 1, 2))
    assert first == again
    by_fill = [next(fill_orders(graph, card, seed)).order.tolist() for seed in (1, 2)]
    assert by_fill[0] != by_fill[1]
    assert sorted(other) == list(range(64))


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


# -- the tree ---------------------------------------------------------------------------------------------------------


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


def test_what_an_order_gave_up_is_a_chain_above_the_rest() -> None:
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


def test_sizes_beyond_62_bits_are_told() -> None:
    stride, size = row_major(np.full(70, 2), np.array([0, 70]), np.arange(70))
    assert size.tolist() == [0]
    assert len(stride) == 70


# -- elimination ------------------------------------------------------------------------------------------------------


def maximised(graph: FactorGraph, seed: int = 0, additions: int = 10**9) -> tuple[float, np.ndarray, int]:
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card, seed))
    given = Functions.of(problem, tree, graph.theta_v, graph.theta_t, problem.table_at)
    elimination = Elimination(tree, given)
    steps = 0
    while not elimination.finished:
        elimination.advance(additions, tree.n)
        steps += 1
    return elimination.value + graph.constant, elimination.labels(), steps


@given(recipe=recipes() | any_recipes(), seed=st.integers(0, 3))
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


def test_buckets_are_counted_and_the_count_limited() -> None:
    graph = random_recipe(4, 7, 12).graph()
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card))
    given = Functions.of(problem, tree, graph.theta_v, graph.theta_t, problem.table_at)
    elimination = Elimination(tree, given)
    for done in (1, 3, 7):
        elimination.advance(10**9, done)
        assert elimination.n_done == done
    assert elimination.finished


def test_more_states_than_a_byte_holds() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_tables(
        [300, 3, 300], [(0, 1), (1, 2), (0,)], [random.normal(size=s) for s in ((300, 3), (3, 300), (300,))]
    )
    value, labels, _ = maximised(graph)
    joint = graph.table(0)[:, :, None] + graph.table(1)[None] + graph.theta_v[:300, None, None]
    assert value == pytest.approx(joint.max())
    assert labels.tolist() == list(np.unravel_index(joint.argmax(), joint.shape))


def test_the_stack_stays_within_the_peak_that_was_foretold() -> None:
    """Two heavy branches below a root: with both messages alive and the next one written, no more is needed."""
    graph = random_recipe(11, 9, 14, max_card=3).graph()
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card))
    sizes = row_major(tree.card, tree.context_ptr, tree.context)[1]
    alive = peak = 0
    for p in range(tree.n - 1, -1, -1):
        peak = max(peak, alive + int(sizes[p]))
        alive += int(sizes[p]) * (tree.parent[p] >= 0) - sum(int(sizes[q]) for q in np.flatnonzero(tree.parent == p))
    assert peak <= tree.peak
    assert Elimination.bytes_needed(tree) == 8 * tree.peak + sizes.sum()
