"""Kernels of elimination and of mini-buckets, against numpy on whole tables."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf.arrays import offsets
from mapmrf.engines.elimination import elimination_kernels as kernels
from mapmrf.engines.elimination.and_or_kernels import jumps
from mapmrf.engines.elimination.elimination_kernels import BLOCK, MARGINAL, PLAIN, WITH_CHOICE, fold
from mapmrf.engines.elimination.mini_bucket_kernels import by_scope, match, partition, plan


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
        following = fold(
            mode, members, dims, n - 1, np.array(matched, dtype=np.int64), begin, most, self.card, self.ptr, self.var,
            self.stride, self.at, half, self.theta, arena, shift, 0, len(self.theta), choice, 0, inner,
        )  # fmt: skip
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


def test_the_kernel_runs_as_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Tables(2, [3, 2, 4], [(0, 2), (1, 2), (0, 1, 2)], hard=0.2)
    compiled, _, _ = some.fold(PLAIN, [0, 2], np.ones(12))
    for name in ("lay_out", "tabulate_inner", "add_tables", "next_block"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)
    monkeypatch.setitem(globals(), "fold", fold.py_func)  # type: ignore[attr-defined]
    plain, _, _ = some.fold(PLAIN, [0, 2], np.ones(12))
    assert plain == pytest.approx(compiled)


def test_matching_gives_all_the_mean_and_forbids_what_one_forbids() -> None:
    marginals = np.array([[1.0, 4.0, -np.inf], [3.0, 0.0, 2.0]])
    shift = marginals.ravel().copy()
    match(shift, 2, 3)
    after = marginals + shift.reshape(2, 3)
    assert after[:, :2].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert np.all(after[:, 2] == -np.inf)


def test_functions_are_sorted_by_scope_and_number() -> None:
    ptr = np.array([0, 1, 4, 6, 8, 11])
    after = np.array([-1, 0, 1, 2, 3])  # the list 4, 3, 2, 1, 0
    mine, longest = by_scope(4, after, ptr)
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
    fits, fn_ptr, fn_var, mini_ptr, member_ptr, member, bucket_of = plan(card, ptr, var, max_vars, max_log, math.inf)
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
    assert not plan(card, ptr, var, max_vars, max_log, 3.0)[0]


def test_a_function_joins_the_mini_bucket_that_need_not_grow() -> None:
    """Scopes 0-1-4, 2-3-4 and 2-4 with room for two variables besides 4: the last goes to the second."""
    ptr, var = np.array([0, 3, 6, 8]), np.array([0, 1, 4, 2, 3, 4, 2, 4])
    n_mini, of, _, lengths = partition(np.arange(3), 3, ptr, var, np.ones(5), 2, 60.0)
    assert (n_mini, of.tolist(), lengths[:2].tolist()) == (2, [0, 1, 1], [3, 3])


def test_messages_pass_the_nodes_between_their_bucket_and_their_target() -> None:
    """A chain 0-1-2-3 below the node 4 on top; messages from 3 to 0, from 2 to 1, and from 3 to the top."""
    parent = np.array([4, 0, 1, 2, -1])
    through, ptr, passing = jumps(parent, np.array([3, 2, 3]), np.array([0, 1, 4]))
    assert through.tolist() == [1, 2, 0]
    lists = [sorted(passing[b:e].tolist()) for b, e in itertools.pairwise(ptr)]
    assert lists == [[], [2], [0, 2], [0, 2], []]
