"""Mini-buckets: which functions are eliminated together, their messages with matched max-marginals, cost shifting."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.elimination.elimination_kernels import BLOCK, MARGINAL, PLAIN, fold
from mapmrf.kernels.jit import bare, compiled, inlined


@inlined
def united_size(scopes, r, n_a, scope_b, begin_b, end_b, log_card):
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
def unite(scopes, r, n_a, scope_b, begin_b, end_b, out):
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
def choose_mini_bucket(scopes, lengths, n_mini, fn_var, begin, end, log_card, max_vars, max_log):
    """The mini-bucket that a function joins: one that grows by nothing, else the first with room, else a fresh one."""
    first = -1
    x = fn_var[end - 1]
    for r in range(n_mini):
        n, size = united_size(scopes, r, lengths[r], fn_var, begin, end, log_card)
        if n == lengths[r]:
            return r
        if first < 0 and n - 1 <= max_vars and size - log_card[x] <= max_log:
            first = r
    return first if first >= 0 else n_mini


@compiled
def enlarged(array: Ints, room: int) -> Ints:
    """The array, or a copy with twice that room if it has not room enough."""
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
def partition(
    mine: Ints, longest: int, fn_ptr: Ints, fn_var: Ints, log_card: Floats, max_vars: int, max_log: float
) -> tuple[int, Ints, Ints, Ints]:
    """Put functions, one after another, into mini-buckets: their number, which is whose, their scopes and lengths."""
    n_mine = len(mine)
    room = 2 + max(longest, min(max_vars, int(min(max_log, 1e6))))
    scopes, lengths = np.empty((n_mine, room), np.int64), np.zeros(n_mine, np.int64)
    spare, of = np.empty(room, np.int64), np.empty(n_mine, np.int64)
    n_mini = 0
    for k in range(n_mine):
        begin, end = fn_ptr[mine[k]], fn_ptr[mine[k] + 1]
        r = choose_mini_bucket(scopes, lengths, n_mini, fn_var, begin, end, log_card, max_vars, max_log)
        n_mini = max(n_mini, r + 1)
        lengths[r] = unite(scopes, r, lengths[r], fn_var, begin, end, spare)
        for d in range(lengths[r]):
            scopes[r, d] = spare[d]
        of[k] = r
    return n_mini, of, scopes, lengths


@compiled
def plan(
    card: Ints, given_ptr: Ints, given_var: Ints, max_vars: int, max_log: float, max_entries: float
) -> tuple[bool, Ints, Ints, Ints, Ints, Ints, Ints]:
    """Partition every bucket, the last position first, into mini-buckets whose messages keep to the limits.

    A message has at most `max_vars` variables and 2^max_log entries (unless a single function has more). Returns
    whether all messages have at most `max_entries` together; scopes of given functions and messages (fn_ptr, fn_var);
    where the mini-buckets of every bucket start (mini_ptr, by n - 1 - position); the members of every mini-bucket.
    The message of mini-bucket `m` is the function ``n_given + m``; `bucket_of` is where it goes (-1: a constant).
    """
    n, n_given = len(card), len(given_ptr) - 1
    log_card = np.log2(card.astype(np.float64))
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
        n_mini, of, scopes, lengths = partition(mine, longest, fn_ptr, fn_var, log_card, max_vars, max_log)
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
            return False, fn_ptr, fn_var, mini_ptr, member_ptr, member, bucket_of
    n_mini = n_fn - n_given
    return (
        True, fn_ptr[: n_fn + 1], fn_var[:n_var], mini_ptr, member_ptr[: n_mini + 1], member[:n_member],
        bucket_of[:n_fn],
    )  # fmt: skip


@bare
def common_scope(first, last, fn_ptr, fn_var, n_given, x, matched):
    """Write what the mini-buckets from `first` to `last` have in common, ascending, `x` at the end; return how many."""
    begin, n = fn_ptr[n_given + first], fn_ptr[n_given + first + 1] - fn_ptr[n_given + first]
    for d in range(n):
        matched[d] = fn_var[begin + d]
    for m in range(first + 1, last):
        at, end, left = fn_ptr[n_given + m], fn_ptr[n_given + m + 1], 0
        for d in range(n):
            while at < end and fn_var[at] < matched[d]:
                at += 1
            if at < end and fn_var[at] == matched[d]:
                matched[left] = matched[d]
                left += 1
        n = left
    matched[n] = x
    return n + 1


@bare
def match(shift, n_minis, size):
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
    cursor: Ints, budget: int, until: int, card: Ints, mini_ptr: Ints, member_ptr: Ints, member: Ints, fn_ptr: Ints,
    fn_var: Ints, fn_stride: Ints, fn_at: Ints, n_given: int, theta: Floats, arena: Floats, shift: Floats, inner: Ints,
) -> None:  # fmt: skip
    """Compute messages, bucket after bucket, up to bucket `until` or until some `budget` of additions is spent.

    A bucket with several mini-buckets first gets their max-marginals on the variables that all of them have, then the
    messages of the matched mini-buckets. `cursor` holds the bucket (n - 1 - position), the phase (0: max-marginals, 1:
    messages), the mini-bucket in it and the block to go on with.
    """
    n = len(card)
    nothing, room = np.zeros(1, np.uint8), np.empty(n + 1, np.int64)
    while cursor[0] < until and budget > 0:
        t = cursor[0]
        x = n - 1 - t
        n_minis = mini_ptr[t + 1] - mini_ptr[t]
        n_matched, size = 0, 1
        if n_minis > 1:
            n_matched = common_scope(mini_ptr[t], mini_ptr[t + 1], fn_ptr, fn_var, n_given, x, room)
            for d in range(n_matched):
                size *= card[room[d]]
            if cursor[1] == 0 and cursor[2] == 0 and cursor[3] == 0:
                for s in range(size * n_minis):
                    shift[s] = -np.inf
        else:
            cursor[1] = 1
        m = mini_ptr[t] + cursor[2]
        mine = member[member_ptr[m] : member_ptr[m + 1]]
        message = n_given + m
        dims = fn_var[fn_ptr[message] : fn_ptr[message + 1]]
        entries = card[x]
        for v in dims:
            entries *= card[v]
        cost = BLOCK * card[x] * (len(mine) + 1)
        n_blocks = 1 + budget // cost
        cursor[3] = fold(
            MARGINAL if cursor[1] == 0 else PLAIN, mine, dims, x, room[:n_matched], cursor[3], n_blocks, card, fn_ptr,
            fn_var, fn_stride, fn_at, n_given, theta, arena, shift, cursor[2] * size, fn_at[message], nothing, 0, inner,
        )  # fmt: skip
        budget -= min(n_blocks * cost, entries * (len(mine) + 1) + 100)
        if cursor[3] >= 0:
            continue
        cursor[2], cursor[3] = cursor[2] + 1, 0
        if cursor[2] == n_minis and cursor[1] == 0:
            match(shift, n_minis, size)
            cursor[1], cursor[2] = 1, 0
        elif cursor[2] == n_minis:
            cursor[0], cursor[1], cursor[2] = t + 1, 0, 0


@compiled
def shift_costs(
    order: Ints, rank: Ints, card: Ints, var_ptr: Ints, theta_v: Floats, nbr_ptr: Ints, factor_of: Ints,
    stride_of: Ints, scope_ptr: Ints, scope: Ints, table_ptr: Ints, theta_f: Floats, gathered: Floats,
    labels: Ints,
) -> None:  # fmt: skip
    """One sequential pass of cost shifting between variables and factors, in place; the model stays the same.

    Each variable takes the max-marginals of all its factors and hands an equal share on to those that have a variable
    later in the order. The bound sum_i max theta_i + sum_a max theta_a does not rise in a pass to and fro. `labels`
    receives the best state of every variable at the moment when it holds all the max-marginals.
    """
    for i in order:
        at_v, k_i = var_ptr[i], card[i]
        n_in, n_out = 0, 0
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            a = factor_of[e]
            least, most = rank[i], rank[i]
            for j_at in range(scope_ptr[a], scope_ptr[a + 1]):
                least, most = min(least, rank[scope[j_at]]), max(most, rank[scope[j_at]])
            n_in += least < rank[i]
            n_out += most > rank[i]
            take_marginals(e, a, k_i, at_v, stride_of, table_ptr, theta_f, theta_v, gathered)
        labels[i] = 0
        for k in range(1, k_i):
            if theta_v[at_v + k] > theta_v[at_v + labels[i]]:
                labels[i] = k
        if n_out == 0:
            continue
        share = 1.0 / max(n_in, n_out)
        for k in range(k_i):
            gathered[k] = share * theta_v[at_v + k]
            if gathered[k] > -np.inf:
                theta_v[at_v + k] -= n_out * gathered[k]
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            a = factor_of[e]
            most = rank[i]
            for j_at in range(scope_ptr[a], scope_ptr[a + 1]):
                most = max(most, rank[scope[j_at]])
            if most > rank[i]:
                stride = stride_of[e]
                for t in range(table_ptr[a], table_ptr[a + 1]):
                    theta_f[t] += gathered[(t - table_ptr[a]) // stride % k_i]


@inlined
def take_marginals(e, a, k_i, at_v, stride_of, table_ptr, theta_f, theta_v, gathered):
    """Move the max-marginals of factor `a` at its edge `e` into the unary potentials."""
    stride = stride_of[e]
    for k in range(k_i):
        gathered[k] = -np.inf
    for t in range(table_ptr[a], table_ptr[a + 1]):
        k = (t - table_ptr[a]) // stride % k_i
        gathered[k] = max(gathered[k], theta_f[t])
    for k in range(k_i):
        theta_v[at_v + k] += gathered[k]
        if gathered[k] == -np.inf:
            gathered[k] = 0.0
    for t in range(table_ptr[a], table_ptr[a + 1]):
        theta_f[t] -= gathered[(t - table_ptr[a]) // stride % k_i]


@bare
def decode(
    first: int, end: int, card: Ints, bucket_ptr: Ints, bucket: Ints, fn_ptr: Ints, fn_var: Ints, fn_stride: Ints,
    fn_at: Ints, n_given: int, theta: Floats, arena: Floats, fixed: Bools, labels: Ints,
) -> None:  # fmt: skip
    """Set the positions from `first` to `end` that are not fixed to their best state, given those before them."""
    for p in range(first, end):
        if fixed[p]:
            continue
        best, best_value = 0, -np.inf
        for k in range(card[p]):
            labels[p] = k
            value = 0.0
            for b in range(bucket_ptr[p], bucket_ptr[p + 1]):
                f = bucket[b]
                at = fn_at[f]
                for d in range(fn_ptr[f], fn_ptr[f + 1]):
                    at += fn_stride[d] * labels[fn_var[d]]
                value += theta[at] if f < n_given else arena[at]
            if value > best_value:
                best, best_value = k, value
        labels[p] = best
