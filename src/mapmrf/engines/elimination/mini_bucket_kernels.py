"""Mini-buckets: a partition of the functions of every bucket, and their messages with matched max-marginals."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.elimination_kernels import (
    BLOCK,
    MARGINAL,
    NOWHERE,
    PLAIN,
    Buckets,
    FoldedSum,
    FoldTarget,
    FunctionTables,
    MatchedTable,
    fold,
)


class BucketPartition(NamedTuple):
    """The mini-buckets of all buckets, the last position first; the message of `m` is the function ``n_given + m``.

    Attributes
    ----------
    fn_ptr, fn_var
        Scopes of given functions and messages.
    mini_ptr
        The mini-buckets of position `p` are those from ``mini_ptr[n - 1 - p]`` on.
    member_ptr, member
        The functions of every mini-bucket.
    bucket_of
        The bucket that a function belongs to; -1 for a constant.
    """

    fn_ptr: Ints
    fn_var: Ints
    mini_ptr: Ints
    member_ptr: Ints
    member: Ints
    bucket_of: Ints


class MessageLimits(NamedTuple):
    """Limits of a message: its variables, and log2 of its entries; log_card is log2 of all cardinalities."""

    log_card: Floats
    max_vars: int
    max_log: float


class BuildCursor(NamedTuple):
    """Progress of the computation of messages.

    Attributes
    ----------
    bucket
        Buckets done, which is the bucket (n - 1 - position) to continue with.
    matched
        Whether the max-marginals of its mini-buckets have been matched.
    mini, block
        The mini-bucket to continue with, and the block of its table.
    """

    bucket: int
    matched: bool
    mini: int
    block: int


@inlined
def united_size(
    scopes: Ints, r: int, n_a: int, scope_b: Ints, begin_b: int, end_b: int, log_card: Floats
) -> tuple[int, float]:
    """Number of variables of two ascending scopes together, and log2 of their configurations."""
    i, j = 0, begin_b
    n, size = 0, 0.0
    while i < n_a or j < end_b:
        if j >= end_b or (i < n_a and scopes[r, i] < scope_b[j]):
            v = scopes[r, i]
            i += 1
        else:
            v = scope_b[j]
            if i < n_a and scopes[r, i] == v:
                i += 1
            j += 1
        n += 1
        size += log_card[v]
    return n, size


@inlined
def unite(scopes: Ints, r: int, n_a: int, scope_b: Ints, begin_b: int, end_b: int, out: Ints) -> int:
    """Write the union of two ascending scopes, one of them row `r` of `scopes`, to `out`; return its length."""
    i, j, n = 0, begin_b, 0
    while i < n_a or j < end_b:
        if j >= end_b or (i < n_a and scopes[r, i] < scope_b[j]):
            out[n] = scopes[r, i]
            i += 1
        else:
            out[n] = scope_b[j]
            if i < n_a and scopes[r, i] == scope_b[j]:
                i += 1
            j += 1
        n += 1
    return n


@inlined
def choose_mini_bucket(
    scopes: Ints, lengths: Ints, n_mini: int, fn_var: Ints, begin: int, end: int, limits: MessageLimits
) -> int:
    """The mini-bucket that a function joins: one that need not grow, else the first with room, else a new one."""
    first = -1
    x = fn_var[end - 1]
    for r in range(n_mini):
        n, size = united_size(scopes, r, lengths[r], fn_var, begin, end, limits.log_card)
        if n == lengths[r]:
            return r
        if first < 0 and n - 1 <= limits.max_vars and size - limits.log_card[x] <= limits.max_log:
            first = r
    return first if first >= 0 else n_mini


@compiled
def enlarged(array: Ints, room: int) -> Ints:
    """The array if it has enough room, else a copy with twice the room that is needed."""
    if len(array) >= room:
        return array
    bigger = np.empty(2 * room, np.int64)
    for at in range(len(array)):
        bigger[at] = array[at]
    return bigger


@compiled
def by_scope(first: int, after: Ints, fn_ptr: Ints) -> tuple[Ints, int]:
    """The functions of a linked list, the largest scopes first, among equals the smallest number; the largest scope."""
    n_mine, longest = 0, 0
    f = first
    while f >= 0:
        n_mine += 1
        longest = max(longest, fn_ptr[f + 1] - fn_ptr[f])
        f = after[f]
    listed, mine = np.empty(n_mine, np.int64), np.empty(n_mine, np.int64)
    f = first
    for k in range(n_mine):  # the list has the smallest number last
        listed[n_mine - 1 - k] = f
        f = after[f]
    n_sorted = 0
    for length in range(longest, 0, -1):
        for k in range(n_mine):
            if fn_ptr[listed[k] + 1] - fn_ptr[listed[k]] == length:
                mine[n_sorted] = listed[k]
                n_sorted += 1
    return mine, longest


@compiled
def partition_bucket(
    mine: Ints, longest: int, fn_ptr: Ints, fn_var: Ints, limits: MessageLimits
) -> tuple[int, Ints, Ints, Ints]:
    """Put functions, one after another, into mini-buckets: their number, which is whose, their scopes and lengths."""
    n_mine = len(mine)
    room = 2 + max(longest, min(limits.max_vars, int(min(limits.max_log, 1e6))))
    scopes, lengths = np.empty((n_mine, room), np.int64), np.zeros(n_mine, np.int64)
    spare, of = np.empty(room, np.int64), np.empty(n_mine, np.int64)
    n_mini = 0
    for k in range(n_mine):
        begin, end = fn_ptr[mine[k]], fn_ptr[mine[k] + 1]
        r = choose_mini_bucket(scopes, lengths, n_mini, fn_var, begin, end, limits)
        n_mini = max(n_mini, r + 1)
        lengths[r] = unite(scopes, r, lengths[r], fn_var, begin, end, spare)
        for d in range(lengths[r]):
            scopes[r, d] = spare[d]
        of[k] = r
    return n_mini, of, scopes, lengths


@compiled
def partition_buckets(
    card: Ints, given_ptr: Ints, given_var: Ints, max_vars: int, max_log: float, max_entries: float
) -> tuple[bool, BucketPartition]:
    """Partition every bucket, the last position first, into mini-buckets whose messages keep to the limits.

    A message has at most `max_vars` variables and 2^max_log entries (unless a single function has more). Returns
    whether all messages have at most `max_entries` together; if not, the partition is not complete.
    """
    n, n_given = len(card), len(given_ptr) - 1
    log_card = np.log2(card.astype(np.float64))
    limits = MessageLimits(log_card, max_vars, max_log)
    fn_ptr, fn_var = enlarged(given_ptr, n_given + 1), enlarged(given_var, len(given_var))
    bucket_of: Ints = np.empty(n_given, np.int64)
    after: Ints = np.empty(n_given, np.int64)
    head = np.full(n, -1, np.int64)
    for f in range(n_given):
        p = given_var[given_ptr[f + 1] - 1]
        bucket_of[f] = p
        after[f], head[p] = head[p], f
    n_fn, n_var, n_member, entries = n_given, len(given_var), 0, 0.0
    mini_ptr = np.zeros(n + 1, np.int64)
    member_ptr: Ints = np.zeros(n_given, np.int64)
    member: Ints = np.zeros(n_given, np.int64)
    for t in range(n):
        mine, longest = by_scope(head[n - 1 - t], after, fn_ptr)
        n_mini, of, scopes, lengths = partition_bucket(mine, longest, fn_ptr, fn_var, limits)
        fn_ptr, member_ptr = enlarged(fn_ptr, n_fn + n_mini + 1), enlarged(member_ptr, n_fn + n_mini + 1)
        bucket_of, after = enlarged(bucket_of, n_fn + n_mini), enlarged(after, n_fn + n_mini)
        member = enlarged(member, n_member + len(mine))
        for r in range(n_mini):
            for k in range(len(mine)):
                if of[k] == r:
                    member[n_member] = mine[k]
                    n_member += 1
            member_ptr[n_fn - n_given + 1] = n_member
            length = lengths[r] - 1  # the last variable is the one that is eliminated
            fn_var = enlarged(fn_var, n_var + length)
            size = 0.0
            for d in range(length):
                fn_var[n_var + d] = scopes[r, d]
                size += log_card[scopes[r, d]]
            n_var += length
            fn_ptr[n_fn + 1] = n_var
            entries += 2.0 ** min(size, 1000.0)
            bucket_of[n_fn] = -1
            if length > 0:
                q = scopes[r, length - 1]
                bucket_of[n_fn] = q
                after[n_fn], head[q] = head[q], n_fn
            n_fn += 1
        mini_ptr[t + 1] = n_fn - n_given
        if entries > max_entries:
            return False, BucketPartition(fn_ptr, fn_var, mini_ptr, member_ptr, member, bucket_of)
    n_mini = n_fn - n_given
    return True, BucketPartition(
        fn_ptr[: n_fn + 1], fn_var[:n_var], mini_ptr, member_ptr[: n_mini + 1], member[:n_member], bucket_of[:n_fn]
    )


@bare
def common_scope(first: int, last: int, fns: FunctionTables, x: int, scope: Ints) -> int:
    """Write the variables that mini-buckets `first` to `last` share, ascending, `x` at the end; return how many."""
    ptr, var, n_given = fns.ptr, fns.var, fns.n_given
    begin, n = ptr[n_given + first], ptr[n_given + first + 1] - ptr[n_given + first]
    for d in range(n):
        scope[d] = var[begin + d]
    for m in range(first + 1, last):
        at, end, left = ptr[n_given + m], ptr[n_given + m + 1], 0
        for d in range(n):
            while at < end and var[at] < scope[d]:
                at += 1
            if at < end and var[at] == scope[d]:
                scope[left] = scope[d]
                left += 1
        n = left
    scope[n] = x
    return int(n + 1)


@bare
def match(shift: Floats, n_minis: int, size: int) -> None:
    """Turn max-marginals into what each mini-bucket gains so that all have their mean; -inf in one is -inf in all."""
    for s in range(size):
        mean, possible = 0.0, True
        for r in range(n_minis):
            mean += shift[r * size + s] / n_minis
            possible = possible and shift[r * size + s] > -np.inf
        for r in range(n_minis):
            shift[r * size + s] = mean - shift[r * size + s] if possible else -np.inf


@compiled
def build(
    cursor: BuildCursor, budget: int, until: int, fns: FunctionTables, partition: BucketPartition, shift: Floats,
    inner: Ints,
) -> BuildCursor:  # fmt: skip
    """Compute messages, bucket after bucket, up to bucket `until` or until some `budget` of additions is spent.

    A bucket with several mini-buckets first gets their max-marginals on the variables that all of them have, then the
    messages of the matched mini-buckets.
    """
    card, mini_ptr, member_ptr = fns.card, partition.mini_ptr, partition.member_ptr
    n = len(card)
    no_choice, scope = np.zeros(1, np.uint8), np.empty(n + 1, np.int64)
    t, matched, mini, block = cursor.bucket, cursor.matched, cursor.mini, cursor.block
    while t < until and budget > 0:
        x = n - 1 - t
        n_minis = mini_ptr[t + 1] - mini_ptr[t]
        n_scope, size = 0, 1
        matched = matched or n_minis == 1
        if n_minis > 1:
            n_scope = common_scope(mini_ptr[t], mini_ptr[t + 1], fns, x, scope)
            for d in range(n_scope):
                size *= card[scope[d]]
            if not matched and mini == 0 and block == 0:
                for s in range(size * n_minis):
                    shift[s] = -np.inf
        m = mini_ptr[t] + mini
        mine = partition.member[member_ptr[m] : member_ptr[m + 1]]
        message = fns.n_given + m
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        entries = card[x]
        for v in dims:
            entries *= card[v]
        cost = BLOCK * card[x] * (len(mine) + 1)
        n_blocks = 1 + budget // cost
        mode = PLAIN if matched else MARGINAL
        own_shift = MatchedTable(scope[:n_scope], shift, mini * size)
        target = FoldTarget(fns.at[message], no_choice, NOWHERE)
        block = fold(mode, fns, FoldedSum(mine, dims, x), own_shift, target, block, n_blocks, inner)
        budget -= min(n_blocks * cost, entries * (len(mine) + 1) + 100)
        if block >= 0:
            continue
        mini, block = mini + 1, 0
        if mini == n_minis and not matched:
            match(shift, n_minis, size)
            matched, mini = True, 0
        elif mini == n_minis:
            t, matched, mini = t + 1, False, 0
    return BuildCursor(t, matched, mini, block)


@inlined
def best_state(p: int, fns: FunctionTables, buckets: Buckets, labels: Ints) -> int:
    """The state of position `p` with the largest sum of its bucket, given the labels before it; `labels[p]` changes."""
    ptr, var, stride, at_f = fns.ptr, fns.var, fns.stride, fns.at
    best, best_value = 0, -np.inf
    for k in range(fns.card[p]):
        labels[p] = k
        value = 0.0
        for b in range(buckets.ptr[p], buckets.ptr[p + 1]):
            f = buckets.member[b]
            at = at_f[f]
            for d in range(ptr[f], ptr[f + 1]):
                at += stride[d] * labels[var[d]]
            value += fns.theta[at] if f < fns.n_given else fns.arena[at]
        if value > best_value:
            best, best_value = k, value
    return best


@compiled
def complete(fns: FunctionTables, buckets: Buckets, fixed: Bools, labels: Ints) -> None:
    """Set the positions that are not fixed to their best states, given those before them."""
    for p in range(len(fixed)):
        if not fixed[p]:
            labels[p] = best_state(p, fns, buckets, labels)
