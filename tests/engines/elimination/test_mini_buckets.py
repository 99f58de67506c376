"""Mini-buckets keep to their limits and bound from above; cost shifting keeps the model and lowers the bound."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import frustrated, prepared
from mapmrf.arrays import offsets
from mapmrf.engines.elimination.elimination import BucketTree, Functions
from mapmrf.engines.elimination.mini_buckets import (
    CostShifting,
    MiniBuckets,
    by_scope,
    find_partition,
    largest_partition,
    partition_bucket,
    partition_buckets,
)
from mapmrf.engines.elimination.orders import Order, PrimalGraph
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from plain_python import plain
from strategies import Recipe, brute_force, recipes, with_weights


def test_functions_are_sorted_by_scope_and_number() -> None:
    ptr = np.array([0, 1, 4, 6, 8, 11])
    after = np.array([-1, 0, 1, 2, 3])  # the list 4, 3, 2, 1, 0
    mine, longest = plain(by_scope)(4, after, ptr)
    assert (mine.tolist(), longest) == ([1, 4, 2, 3, 0], 3)


@given(seed=st.integers(0, 2**20), max_vars=st.integers(0, 4), max_log=st.sampled_from([1.0, 3.0, 60.0]))
def test_mini_buckets_keep_to_their_limits_and_hold_every_function_once(
    seed: int, max_vars: int, max_log: float
) -> None:
    random = np.random.default_rng(seed)
    n = 8
    card = random.integers(2, 4, n)
    scopes = [(i,) for i in range(n)]
    scopes += [tuple(sorted(random.permutation(n)[: random.integers(2, 4)].tolist())) for _ in range(10)]
    ptr = offsets([len(scope) for scope in scopes]).astype(np.int64)
    var = np.array([i for scope in scopes for i in scope])
    fits, found = partition_buckets(card, ptr, var, max_vars, max_log, math.inf)
    fn_ptr, fn_var, mini_ptr, member_ptr, member, bucket_of = found
    assert fits
    assert sorted(member.tolist()) == [f for f in range(len(fn_ptr) - 1) if bucket_of[f] >= 0]
    for t in range(n):
        for m in range(mini_ptr[t], mini_ptr[t + 1]):
            mine = [set(fn_var[fn_ptr[f] : fn_ptr[f + 1]]) for f in member[member_ptr[m] : member_ptr[m + 1]]]
            scope = fn_var[fn_ptr[len(scopes) + m] : fn_ptr[len(scopes) + m + 1]].tolist()
            assert sorted(set().union(*mine) - {n - 1 - t}) == scope
            assert all(n - 1 - t in one for one in mine)
            within = len(scope) <= max_vars and math.prod(card[scope].tolist()) <= 2**max_log + 1e-9
            assert within or any(one == {*scope, n - 1 - t} for one in mine)
    assert not partition_buckets(card, ptr, var, max_vars, max_log, 3.0)[0]


def test_a_function_joins_the_mini_bucket_that_need_not_grow() -> None:
    """Scopes 0-1-4, 2-3-4 and 2-4 with room for two variables besides 4: the last goes to the second."""
    ptr, var = np.array([0, 3, 6, 8]), np.array([0, 1, 4, 2, 3, 4, 2, 4])
    n_mini, of, _, lengths = plain(partition_bucket)(np.arange(3), 3, ptr, var, np.ones(5), 2, 60.0)
    assert (n_mini, of.tolist(), lengths[:2].tolist()) == (2, [0, 1, 1], [3, 3])


def buckets_of(graph: FactorGraph, max_vars: int, sweeps: int = 0, additions: int = 1000) -> MiniBuckets:
    problem, tree, given = prepared(graph)
    if sweeps:
        shifting = CostShifting(problem, np.arange(problem.n_vars))
        for _ in range(sweeps):
            list(shifting.sweep())
        given = Functions.of(problem, tree, shifting.theta_v, shifting.theta_f, shifting.table_ptr[:-1])
    partition = find_partition(tree, given, max_vars, math.inf)
    assert partition is not None
    buckets = MiniBuckets(tree, given, partition)
    while not buckets.finished:
        buckets.advance(additions, tree.n)
    return buckets


@given(recipe=with_weights(recipes()), max_vars=st.integers(0, 7), sweeps=st.integers(0, 2))
def test_mini_buckets_bound_from_above_and_large_ones_are_exact(recipe: Recipe, max_vars: int, sweeps: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    buckets = buckets_of(graph, max_vars, sweeps)
    assert buckets.bound() + graph.constant >= optimum - 1e-9
    assert buckets.largest_scope <= max(max_vars, graph.arity.max(initial=1) - 1)
    if not buckets.split.any():
        assert buckets.bound() + graph.constant == pytest.approx(optimum, abs=1e-9)
        labels = np.zeros(graph.n_vars, dtype=np.int64)
        buckets.complete(labels, np.zeros(graph.n_vars, dtype=bool))
        assert graph.value(buckets.tree.by_variable(labels)) == pytest.approx(optimum, abs=1e-9)
    if max_vars == 7:
        assert not buckets.split.any()


def test_mini_buckets_that_share_only_what_is_eliminated_are_exact() -> None:
    """They agree on its max-marginals, so that the best state of one is that of the other."""
    tables = [[[3.0, 0.0], [0.0, 2.0]], [[0.0, -1.0], [2.0, 0.0]]]  # 5 where each has its own best state
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [0, 2]], tables)
    problem = Problem.compile(graph)
    tree = BucketTree.build(PrimalGraph.of(problem), graph.card, Order(np.arange(3), 3, 2, 0.0))
    given = Functions.of_model(problem, tree)
    partition = find_partition(tree, given, 1, math.inf)
    assert partition is not None
    buckets = MiniBuckets(tree, given, partition)
    buckets.advance(10**9, 3)
    assert buckets.split.tolist() == [False, False, True]
    assert buckets.bound() == pytest.approx(brute_force(graph)[0]) == 4.0


def test_the_largest_partition_that_fits_is_taken() -> None:
    _, tree, given = prepared(frustrated(7, 7))
    largest = []
    for room in (60.0, 200.0, 2000.0, 1e9):
        buckets = MiniBuckets(tree, given, largest_partition(tree, given, room))
        assert len(buckets.tables.arena) <= max(room, 4 * tree.n)
        largest.append(buckets.largest_scope)
    assert largest == sorted(largest) and largest[0] < largest[-1]
    assert not MiniBuckets(tree, given, largest_partition(tree, given, 1e9)).split.any()


# -- cost shifting ----------------------------------------------------------------------------------------------------


@given(recipe=with_weights(recipes()))
def test_cost_shifting_keeps_every_value_and_never_raises_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    shifting = CostShifting(problem, np.arange(problem.n_vars))
    bounds = [shifting.bound()]
    for _ in range(4):
        list(shifting.sweep())
        bounds.append(shifting.bound())
    assert bounds[-1] >= brute_force(graph)[0] - 1e-9
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    random = np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        total = graph.constant + shifting.theta_v[graph.var_ptr[:-1] + labels].sum()
        for a in range(problem.n_factors):
            scope = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]]
            table = shifting.theta_f[shifting.table_ptr[a] : shifting.table_ptr[a + 1]].reshape(graph.card[scope])
            total += table[tuple(labels[scope])]
        assert total == pytest.approx(graph.value(labels), abs=1e-9)


def test_the_best_states_by_max_marginals_are_a_labelling() -> None:
    """On a tree one pass to and fro makes them optimal."""
    graph = frustrated(1, 12, states=3, seed=2)
    problem = Problem.compile(graph)
    shifting = CostShifting(problem, np.arange(12))
    list(shifting.sweep())
    assert shifting.bound() == pytest.approx(graph.value(shifting.labels))
