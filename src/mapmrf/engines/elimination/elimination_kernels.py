"""The step shared by all elimination, adding tables and maximising over one variable; and bucket elimination."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined

BLOCK = 1024
"""Entries of a result that are computed together, so that they stay in cache."""

PLAIN, WITH_CHOICE, MARGINAL = 0, 1, 2
"""Output of `fold`: maxima; maxima and maximising states; or max-marginals on the matched variables."""

NOWHERE: Any = np.int64(0)
"""The start of a table that is not used: not a plain 0, for which numba would compile functions twice."""


class FunctionTables(NamedTuple):
    """Functions over the positions of a bucket tree: the given ones first, then messages.

    Attributes
    ----------
    card : (n,)
        Number of states at every position.
    ptr, var, stride
        Function `f` has the variables ``var[ptr[f]:ptr[f + 1]]``, ascending, with these strides in its table.
    at
        Where the table of function `f` starts in `theta` (f < n_given) or in `arena`.
    n_given
        Number of given functions.
    theta, arena
        The tables of given functions, and those of messages.
    """

    card: Ints
    ptr: Ints
    var: Ints
    stride: Ints
    at: Ints
    n_given: int
    theta: Floats
    arena: Floats


class Buckets(NamedTuple):
    """The functions of every bucket: those of position `p` are ``member[ptr[p]:ptr[p + 1]]``."""

    ptr: Ints
    member: Ints


class Choices(NamedTuple):
    """The best state for every entry of every message: those of position `p` start at ``state[at[p]]``."""

    at: Ints
    state: Ints


class FoldedSum(NamedTuple):
    """A sum of functions to be maximised over one variable: the members, the variables left, and that variable."""

    members: Ints
    dims: Ints
    x: int


class MatchedTable(NamedTuple):
    """A table on some of the variables of a sum, the eliminated one last; without variables there is none.

    It starts at ``table[at]``. It is added to the sum, or receives the max-marginals of the sum.
    """

    scope: Ints
    table: Floats
    at: int


class FoldTarget(NamedTuple):
    """Destination of a message: its offset in the arena, and that of its choices."""

    at: int
    choice: Ints
    choice_at: int


class FoldLayout(NamedTuple):
    """Places of the members' tables while a sum is folded, block after block; the matched table has the last row.

    Attributes
    ----------
    stride : (n_rows, n_dims + 1)
        Strides along the variables left and, last, along the eliminated one.
    base : (n_rows,)
        Where the block begins in every table, with the eliminated variable in state 0.
    digit : (n_dims,)
        The configuration at which the block begins.
    inner : (n_rows, BLOCK)
        Places of the block's entries in every table, relative to the first.
    flat : (n_rows,)
        Whether a table does not change within a block.
    """

    stride: Ints
    base: Ints
    digit: Ints
    inner: Ints
    flat: Bools


class EliminationCursor(NamedTuple):
    """Progress of bucket elimination.

    Attributes
    ----------
    position, block
        The bucket to continue with, and the block of its message.
    height
        Height of the stack of messages in the arena.
    value
        Sum of the roots that are eliminated.
    """

    position: int
    block: int
    height: int
    value: float


@bare
def lay_out(fns: FunctionTables, terms: FoldedSum, matched: MatchedTable, layout: FoldLayout) -> None:
    """Set strides and base of every row for the first block."""
    members, dims, stride, base = terms.members, terms.dims, layout.stride, layout.base
    n_dims, n_members = len(dims), len(members)
    for r in range(n_members + 1):
        for d in range(n_dims + 1):
            stride[r, d] = 0
    for r in range(n_members):
        f = members[r]
        base[r] = fns.at[f]
        d = 0
        for at in range(fns.ptr[f], fns.ptr[f + 1]):
            while d < n_dims and dims[d] != fns.var[at]:
                d += 1
            stride[r, d] = fns.stride[at]
    base[n_members] = matched.at
    step, d = 1, n_dims
    for m in range(len(matched.scope) - 1, -1, -1):
        if m < len(matched.scope) - 1:
            d -= 1
            while dims[d] != matched.scope[m]:
                d -= 1
        stride[n_members, d] = step
        step *= fns.card[matched.scope[m]]


@bare
def tabulate_inner(card: Ints, dims: Ints, cut: int, width: int, layout: FoldLayout) -> None:
    """Fill in the places within a block, which runs over `dims` from `cut` on, and which tables do not change in it."""
    stride, digit, inner, flat = layout.stride, layout.digit, layout.inner, layout.flat
    n_dims, n_rows = len(dims), len(layout.base)
    for d in range(n_dims):
        digit[d] = 0
    for r in range(n_rows):
        flat[r] = True
    for j in range(width):
        for r in range(n_rows):
            at = 0
            for d in range(cut, n_dims):
                at += stride[r, d] * digit[d]
            inner[r, j] = at
            flat[r] = flat[r] and at == 0
        d = n_dims - 1
        while d >= cut:
            digit[d] += 1
            if digit[d] < card[dims[d]]:
                break
            digit[d] = 0
            d -= 1


@bare
def go_to_block(block: int, card: Ints, dims: Ints, cut: int, layout: FoldLayout) -> None:
    """Move the bases from the first block to another one."""
    for d in range(cut - 1, -1, -1):
        layout.digit[d] = block % card[dims[d]]
        block //= card[dims[d]]
        for r in range(len(layout.base)):
            layout.base[r] += layout.digit[d] * layout.stride[r, d]


@bare
def next_block(card: Ints, dims: Ints, cut: int, layout: FoldLayout) -> None:
    """Move on to the next block: the last of the outer variables fastest."""
    stride, digit, base = layout.stride, layout.digit, layout.base
    d = cut - 1
    while d >= 0:
        digit[d] += 1
        for r in range(len(base)):
            base[r] += stride[r, d]
        if digit[d] < card[dims[d]]:
            break
        for r in range(len(base)):
            base[r] -= digit[d] * stride[r, d]
        digit[d] = 0
        d -= 1


@inlined
def add_tables(
    k: int, fns: FunctionTables, members: Ints, layout: FoldLayout, shift: Floats, with_shift: bool, total: Floats
) -> None:
    """The sum of all members over a block of entries, with the eliminated variable in state `k`."""
    stride, base, inner, theta, arena = layout.stride, layout.base, layout.inner, fns.theta, fns.arena
    n_members, n_given, width, x_at = len(members), fns.n_given, len(total), stride.shape[1] - 1
    constant = 0.0
    for r in range(n_members):
        if layout.flat[r]:
            at = base[r] + k * stride[r, x_at]
            constant += theta[at] if members[r] < n_given else arena[at]
    for j in range(width):
        total[j] = constant
    if with_shift:
        at = base[n_members] + k * stride[n_members, x_at]
        for j in range(width):
            total[j] += shift[at + inner[n_members, j]]
    for r in range(n_members):
        if layout.flat[r]:
            continue
        at = base[r] + k * stride[r, x_at]
        if members[r] < n_given:
            for j in range(width):
                total[j] += theta[at + inner[r, j]]
        else:
            for j in range(width):
                total[j] += arena[at + inner[r, j]]


@inlined
def raise_best(k: int, total: Floats, best: Floats, choice: Ints, choice_at: int, with_choice: bool) -> None:
    """Take the sums of state `k` into the maxima; of equal states the first is the choice."""
    width = len(total)
    if k == 0:
        for j in range(width):
            best[j] = total[j]
        if with_choice:
            for j in range(width):
                choice[choice_at + j] = 0
    elif with_choice:
        for j in range(width):
            if total[j] > best[j]:
                best[j] = total[j]
                choice[choice_at + j] = k
    else:
        for j in range(width):
            best[j] = max(best[j], total[j])


@compiled
def fold(
    mode: int, fns: FunctionTables, terms: FoldedSum, matched: MatchedTable, target: FoldTarget, begin: int,
    max_blocks: int, inner: Ints,
) -> int:  # fmt: skip
    """Maximise a sum of functions over variable `x`: out(dims) = max_x sum_f f(dims, x), some blocks of it.

    The matched table is added as well; in the mode MARGINAL it receives the max-marginals instead. Starts with block
    `begin` and does at most `max_blocks`; returns the next block, or -1 after the last. `inner` is scratch: a row of
    BLOCK places for every member, and one more.
    """
    card, dims, arena, shift = fns.card, terms.dims, fns.arena, matched.table
    n_dims, last = len(dims), len(terms.members)
    layout = FoldLayout(
        np.empty((last + 1, n_dims + 1), np.int64), np.empty(last + 1, np.int64), np.empty(n_dims, np.int64), inner,
        np.empty(last + 1, np.bool_),
    )  # fmt: skip
    lay_out(fns, terms, matched, layout)
    cut, width, n_blocks = n_dims, 1, 1
    while cut > 0 and width * card[dims[cut - 1]] <= BLOCK:
        cut -= 1
        width *= card[dims[cut]]
    for d in range(cut):
        n_blocks *= card[dims[d]]
    tabulate_inner(card, dims, cut, width, layout)
    go_to_block(begin, card, dims, cut, layout)
    end = min(n_blocks, begin + max_blocks)
    total, best = np.empty(width), np.empty(width)
    with_shift = mode != MARGINAL and len(matched.scope) > 0
    for block in range(begin, end):
        for k in range(card[terms.x]):
            add_tables(k, fns, terms.members, layout, shift, with_shift, total)
            if mode == MARGINAL:
                at = layout.base[last] + k * layout.stride[last, n_dims]
                for j in range(width):
                    shift[at + inner[last, j]] = max(shift[at + inner[last, j]], total[j])
            else:
                choice_at = target.choice_at + block * width
                raise_best(k, total, best, target.choice, choice_at, mode == WITH_CHOICE)
        if mode != MARGINAL:
            for j in range(width):
                arena[target.at + block * width + j] = best[j]
        next_block(card, dims, cut, layout)
    return end if end < n_blocks else -1


@bare
def settle(message: int, top: int, size: int, members: Ints, fns: FunctionTables) -> int:
    """Move a finished message down to the place of the messages that it replaces; return that place."""
    low = top
    for m in range(len(members)):
        if members[m] >= fns.n_given:
            low = min(low, fns.at[members[m]])
    if low < top:
        for j in range(size):
            fns.arena[low + j] = fns.arena[top + j]
    fns.at[message] = low
    return low


@compiled
def eliminate(
    cursor: EliminationCursor, budget: int, until: int, fns: FunctionTables, buckets: Buckets, choices: Choices,
    inner: Ints,
) -> EliminationCursor:  # fmt: skip
    """Eliminate buckets, the last position first, down to `until`, or until some `budget` of additions is spent.

    The message of position `p` is the function ``n_given + p``; the messages yet to be used are a stack in the arena.
    """
    card = fns.card
    unmatched = MatchedTable(np.zeros(0, np.int64), np.zeros(1), NOWHERE)
    p, block, top, total = cursor.position, cursor.block, cursor.height, 0.0
    while p >= until and budget > 0:
        mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
        message = fns.n_given + p
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        cost = BLOCK * card[p] * len(mine)
        n_blocks = 1 + budget // cost
        target = FoldTarget(top, choices.state, choices.at[p])
        block = fold(WITH_CHOICE, fns, FoldedSum(mine, dims, p), unmatched, target, block, n_blocks, inner)
        size = choices.at[p + 1] - choices.at[p]
        budget -= min(n_blocks * cost, size * card[p] * len(mine) + 100)
        if block >= 0:
            continue
        if len(dims) == 0:
            total += fns.arena[top]
            size = 0
        top = settle(message, top, size, mine, fns) + size
        p, block = p - 1, 0
    return EliminationCursor(p, block, top, cursor.value + total)


@inlined
def score_bucket(p: int, fns: FunctionTables, buckets: Buckets, labels: Ints, score: Floats) -> None:
    """The sum of the functions of a bucket for every state of its variable, the others as labelled."""
    for k in range(fns.card[p]):
        score[k] = 0.0
    for m in range(buckets.ptr[p], buckets.ptr[p + 1]):
        f = buckets.member[m]
        at, step = fns.at[f], 0
        for d in range(fns.ptr[f], fns.ptr[f + 1]):
            if fns.var[d] == p:
                step = fns.stride[d]
            else:
                at += fns.stride[d] * labels[fns.var[d]]
        if f < fns.n_given:
            for k in range(fns.card[p]):
                score[k] += fns.theta[at + k * step]
        else:
            for k in range(fns.card[p]):
                score[k] += fns.arena[at + k * step]


@compiled
def score_labellings(p: int, at: int, fns: FunctionTables, buckets: Buckets, labels: Ints, score: Floats) -> None:
    """The scores of a bucket for several labellings (n_labellings, n), into their columns from `at` on."""
    for row in range(len(labels)):
        score_bucket(p, fns, buckets, labels[row], score[row, at : at + fns.card[p]])


@compiled
def substitute(begin: int, end: int, fns: FunctionTables, choices: Choices, out: Ints) -> None:
    """Read the best labels of some positions from the choices, the roots first."""
    for p in range(begin, end):
        at = choices.at[p]
        for d in range(fns.ptr[fns.n_given + p], fns.ptr[fns.n_given + p + 1]):
            at += fns.stride[d] * out[fns.var[d]]
        out[p] = choices.state[at]
