"""The fold that all elimination shares, against numpy on whole tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf.arrays import offsets
from mapmrf.engines.elimination.elimination import (
    BLOCK,
    MARGINAL,
    PLAIN,
    WITH_CHOICE,
    FoldedSum,
    FunctionTables,
    fold,
)
from plain_python import plain


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
        fns = FunctionTables(self.card, self.ptr, self.var, self.stride, self.at, half, self.theta, arena)
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
