"""The step that all elimination shares: add tables and maximise one variable; and bucket elimination by it."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import bare, compiled, inlined

BLOCK = 1024
"""Entries of a result that are computed together, so that they stay in the cache."""

PLAIN, WITH_CHOICE, MARGINAL = 0, 1, 2
"""What `fold` writes: the maxima; the maxima and who attained them; max-marginals on the matched variables."""


@bare
def lay_out(members, dims, matched, card, fn_ptr, fn_var, fn_stride, fn_at, shift_at, stride, base):
    """Strides of every member, and of the matched table in the last row, along `dims` and (last) the eliminated one."""
    n_dims, n_members = len(dims), len(members)
    for r in range(n_members + 1):
        for d in range(n_dims + 1):
            stride[r, d] = 0
    for r in range(n_members):
        f = members[r]
        base[r] = fn_at[f]
        d = 0
        for at in range(fn_ptr[f], fn_ptr[f + 1]):
            while d < n_dims and dims[d] != fn_var[at]:
                d += 1
            stride[r, d] = fn_stride[at]
    base[n_members] = shift_at
    step, d = 1, n_dims
    for m in range(len(matched) - 1, -1, -1):
        if m < len(matched) - 1:
            d -= 1
            while dims[d] != matched[m]:
                d -= 1
        stride[n_members, d] = step
        step *= card[matched[m]]


@bare
def tabulate_inner(n_rows, dims, cut, width, card, stride, digit, inner, flat):
    """Places of the entries of a block in every row's table, relative to the first; which rows do not change in it."""
    n_dims = len(dims)
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


@inlined
def add_tables(k, members, x_at, width, stride, base, flat, inner, n_given, theta, arena, shift, with_shift, total):
    """The sum of all members over a block of entries, with the eliminated variable at its state `k`."""
    n_members = len(members)
    constant = 0.0
    for r in range(n_members):
        if flat[r]:
            at = base[r] + k * stride[r, x_at]
            constant += theta[at] if members[r] < n_given else arena[at]
    for j in range(width):
        total[j] = constant
    if with_shift:
        at = base[n_members] + k * stride[n_members, x_at]
        for j in range(width):
            total[j] += shift[at + inner[n_members, j]]
    for r in range(n_members):
        if flat[r]:
            continue
        at = base[r] + k * stride[r, x_at]
        if members[r] < n_given:
            for j in range(width):
                total[j] += theta[at + inner[r, j]]
        else:
            for j in range(width):
                total[j] += arena[at + inner[r, j]]


@bare
def next_block(dims, cut, card, stride, n_rows, digit, base):
    """Go to the next block: the last of the outer variables fastest."""
    d = cut - 1
    while d >= 0:
        digit[d] += 1
        for r in range(n_rows):
            base[r] += stride[r, d]
        if digit[d] < card[dims[d]]:
            break
        for r in range(n_rows):
            base[r] -= digit[d] * stride[r, d]
        digit[d] = 0
        d -= 1


@compiled
def fold(
    mode: int, members: Ints, dims: Ints, x: int, matched: Ints, begin: int, max_blocks: int,
    card: Ints, fn_ptr: Ints, fn_var: Ints, fn_stride: Ints, fn_at: Ints, n_given: int, theta: Floats, arena: Floats,
    shift: Floats, shift_at: int, out_at: int, choice: Ints, choice_at: int, inner: Ints,
) -> int:  # fmt: skip
    """Maximise the sum of some functions over variable `x`: out(dims) = max_x sum_f f(dims, x), blocks of it at a time.

    Function `f` has the variables ``fn_var[fn_ptr[f]:fn_ptr[f + 1]]`` with strides `fn_stride` in its table, which
    starts at ``fn_at[f]`` of `theta` (f < n_given) or of `arena`. The table of `matched` variables (`x` the last, if
    any) at `shift_at` of `shift` is added as well; in the mode MARGINAL it receives the max-marginals instead. Blocks
    from `begin` on, at most `max_blocks`; returns the next block, or -1 after the last. `inner` is scratch of a row of
    BLOCK places for every member and one more.
    """
    n_dims, n_rows = len(dims), len(members) + 1
    stride, base = np.empty((n_rows, n_dims + 1), np.int64), np.empty(n_rows, np.int64)
    digit, flat = np.empty(n_dims, np.int64), np.empty(n_rows, np.bool_)
    lay_out(members, dims, matched, card, fn_ptr, fn_var, fn_stride, fn_at, shift_at, stride, base)
    cut, width = n_dims, 1
    while cut > 0 and width * card[dims[cut - 1]] <= BLOCK:
        cut -= 1
        width *= card[dims[cut]]
    n_blocks = 1
    for d in range(cut):
        n_blocks *= card[dims[d]]
    tabulate_inner(n_rows, dims, cut, width, card, stride, digit, inner, flat)
    rest = begin
    for d in range(cut - 1, -1, -1):
        digit[d] = rest % card[dims[d]]
        rest //= card[dims[d]]
        for r in range(n_rows):
            base[r] += digit[d] * stride[r, d]
    end = min(n_blocks, begin + max_blocks)
    total, best = np.empty(width), np.empty(width)
    with_shift = mode != MARGINAL and len(matched) > 0
    for block in range(begin, end):
        first, first_choice = out_at + block * width, choice_at + block * width
        for k in range(card[x]):
            add_tables(
                k, members, n_dims, width, stride, base, flat, inner, n_given, theta, arena, shift, with_shift, total
            )
            if mode == MARGINAL:
                at = base[n_rows - 1] + k * stride[n_rows - 1, n_dims]
                for j in range(width):
                    shift[at + inner[n_rows - 1, j]] = max(shift[at + inner[n_rows - 1, j]], total[j])
            elif k == 0:
                for j in range(width):
                    best[j] = total[j]
                if mode == WITH_CHOICE:
                    for j in range(width):
                        choice[first_choice + j] = 0
            elif mode == WITH_CHOICE:
                for j in range(width):
                    if total[j] > best[j]:
                        best[j] = total[j]
                        choice[first_choice + j] = k
            else:
                for j in range(width):
                    best[j] = max(best[j], total[j])
        if mode != MARGINAL:
            for j in range(width):
                arena[first + j] = best[j]
        next_block(dims, cut, card, stride, n_rows, digit, base)
    return end if end < n_blocks else -1


@compiled
def eliminate(
    cursor: Ints, budget: int, until: int, card: Ints, member_ptr: Ints, member: Ints, fn_ptr: Ints, fn_var: Ints,
    fn_stride: Ints, fn_at: Ints, n_given: int, theta: Floats, arena: Floats, choice: Ints, choice_at: Ints,
    inner: Ints,
) -> float:  # fmt: skip
    """Eliminate buckets, the last position first, down to `until`; return the sum of the roots among them.

    Stops earlier when some `budget` of additions is spent.

    The message of position `p` is the function ``n_given + p``; the messages yet to be used are a stack in `arena`.
    `cursor` holds the bucket to go on with, the block of its message, and the height of the stack.
    """
    none = np.zeros(0, np.int64)
    unused = np.zeros(1)
    total = 0.0
    while cursor[0] >= until and budget > 0:
        p, top = cursor[0], cursor[2]
        mine = member[member_ptr[p] : member_ptr[p + 1]]
        message = n_given + p
        dims = fn_var[fn_ptr[message] : fn_ptr[message + 1]]
        cost = BLOCK * card[p] * len(mine)
        n_blocks = 1 + budget // cost
        cursor[1] = fold(
            WITH_CHOICE, mine, dims, p, none, cursor[1], n_blocks, card, fn_ptr, fn_var, fn_stride, fn_at, n_given,
            theta, arena, unused, 0, top, choice, choice_at[p], inner,
        )  # fmt: skip
        size = choice_at[p + 1] - choice_at[p]
        budget -= min(n_blocks * cost, size * card[p] * len(mine) + 100)
        if cursor[1] >= 0:
            continue
        low = top
        for f in mine:
            if f >= n_given:
                low = min(low, fn_at[f])
        if len(dims) == 0:
            total += arena[top]
            size = 0
        elif low < top:
            for j in range(size):
                arena[low + j] = arena[top + j]
        fn_at[message] = low
        cursor[0], cursor[1], cursor[2] = p - 1, 0, low + size
    return total


@compiled
def substitute(
    n_given: int, fn_ptr: Ints, fn_var: Ints, fn_stride: Ints, choice: Ints, choice_at: Ints, out: Ints
) -> None:
    """Read the best labels from the choices, the roots first."""
    for p in range(len(out)):
        at = choice_at[p]
        for d in range(fn_ptr[n_given + p], fn_ptr[n_given + p + 1]):
            at += fn_stride[d] * out[fn_var[d]]
        out[p] = choice[at]
