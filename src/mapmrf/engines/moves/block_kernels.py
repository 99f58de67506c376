"""Exact optimisation over large low-width parts of a model, all other variables as they are.

Variables are eliminated one after another, cheapest first. Where even the cheapest would make too large a table, the
dearest variable is frozen at its present label. What is left is solved by dynamic programming, so a pass never lowers
the value. Graphs are in compressed rows: the neighbours of `v` are ``nbr[ptr[v]:ptr[v + 1]]``.
"""

from __future__ import annotations

import numpy as np

from mapmrf.engines.elimination.order_kernels import append
from mapmrf.kernels.jit import bare, compiled, inlined

BUCKETS = 512
"""Weights that are told apart; a weight is a logarithm of a table size, in steps of `PER_BIT`."""
PER_BIT = 8


@inlined
def draw(seed):
    """Next number of a small random sequence (xorshift); `seed` holds its state."""
    x = seed[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    seed[0] = x
    return x


@bare
def unlink(v, weight, head, after, before):
    """Take `v` out of the list of its weight."""
    if before[v] >= 0:
        after[before[v]] = after[v]
    else:
        head[weight[v]] = after[v]
    if after[v] >= 0:
        before[after[v]] = before[v]


@bare
def link(v, weight, head, after, before):
    """Put `v` in front of the list of its weight."""
    first = head[weight[v]]
    after[v] = first
    before[v] = -1
    if first >= 0:
        before[first] = v
    head[weight[v]] = v


@bare
def reweigh(v, size, weight, head, after, before):
    """Move `v` to the list of its new size."""
    new = min(size[v], BUCKETS - 1)
    if new != weight[v]:
        unlink(v, weight, head, after, before)
        weight[v] = new
        link(v, weight, head, after, before)


@bare
def drop(a, v, pool, start, count):
    """Take `v` off the list of `a`."""
    last = start[a] + count[a] - 1
    for at in range(start[a], last + 1):
        if pool[at] == v:
            pool[at] = pool[last]
            break
    count[a] -= 1


@compiled
def inner_lists(ptr, nbr, region, local):
    """Neighbours within a region, in numbers of the region, with room to grow: start, length, room, and the lists."""
    n = len(region)
    start, count, room = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    most = 0
    for i in range(n):
        most += 2 * (ptr[region[i] + 1] - ptr[region[i]]) + 4
    pool = np.empty(2 * most + 16, np.int32)
    free = 0
    for i in range(n):
        start[i] = free
        end = free
        for at in range(ptr[region[i]], ptr[region[i] + 1]):
            j = local[nbr[at]]
            if j >= 0:
                pool[end] = j
                end += 1
        count[i] = end - free
        room[i] = 2 * count[i] + 4
        free += room[i]
    return start, count, room, pool, free


@compiled
def plan_pass(ptr, nbr, bits, region, limit, local, seed):
    """Choose who of a region is eliminated, in which order, over which neighbours; all others are frozen.

    `bits` is the weight of each variable, `limit` that of the largest table; earlier in the region goes before equals.
    `local` is scratch of -1, left so. Returns the eliminated variables in order, and their neighbours at that time in
    compressed rows.
    """
    n = len(region)
    for i in range(n):
        local[region[i]] = i
    start, count, room, pool, free = inner_lists(ptr, nbr, region, local)
    head = np.full(BUCKETS, -1, np.int32)
    after, before, weight = np.empty(n, np.int32), np.empty(n, np.int32), np.zeros(n, np.int32)
    size = np.zeros(n, np.int64)
    for i in range(n - 1, -1, -1):
        local[region[i]] = -1
        size[i] = bits[region[i]]
        for at in range(start[i], start[i] + count[i]):
            size[i] += bits[region[pool[at]]]
        weight[i] = min(size[i], BUCKETS - 1)
        link(i, weight, head, after, before)
    mark = np.zeros(n, np.int64)
    stamp, low, n_done = 0, 0, 0
    done = np.empty(n, np.int32)
    scope_ptr = np.zeros(n + 1, np.int64)
    scope = np.empty(8 * n + 64, np.int32)
    for _ in range(n):
        while head[low] < 0:
            low += 1
        freeze = low > limit
        if freeze:
            high = BUCKETS - 1
            while head[high] < 0:
                high -= 1
            v = head[high]
            if draw(seed) & np.uint64(1) and after[v] >= 0:
                v = after[v]
        else:
            v = head[low]
        unlink(v, weight, head, after, before)
        for at in range(start[v], start[v] + count[v]):
            a = pool[at]
            drop(a, v, pool, start, count)
            size[a] -= bits[region[v]]
        if not freeze:
            begin, end = scope_ptr[n_done], scope_ptr[n_done] + count[v]
            if end > len(scope):
                bigger = np.empty(2 * end, np.int32)
                for at in range(begin):
                    bigger[at] = scope[at]
                scope = bigger
            for k in range(count[v]):
                scope[begin + k] = pool[start[v] + k]
            done[n_done] = region[v]
            n_done += 1
            scope_ptr[n_done] = end
            for i in range(begin, end):
                a = scope[i]
                stamp += 1
                for at in range(start[a], start[a] + count[a]):
                    mark[pool[at]] = stamp
                for j in range(i + 1, end):
                    b = scope[j]
                    if mark[b] != stamp:
                        pool, free = append(a, b, pool, start, count, room, free)
                        pool, free = append(b, a, pool, start, count, room, free)
                        size[a] += bits[region[b]]
                        size[b] += bits[region[a]]
        for at in range(start[v], start[v] + count[v]):
            a = pool[at]
            reweigh(a, size, weight, head, after, before)
            low = min(low, weight[a])
    for at in range(scope_ptr[n_done]):
        scope[at] = region[scope[at]]
    return done[:n_done], scope_ptr[: n_done + 1], scope


@bare
def sort_by(values, begin, end, place):
    """Sort a short stretch by place."""
    for i in range(begin + 1, end):
        v = values[i]
        j = i - 1
        while j >= begin and place[values[j]] > place[v]:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = v


@bare
def spread(offset, begin, end, scope, card, step):
    """Offsets of a function in all states of `scope`, the last variable fastest; `step` is its stride per variable."""
    offset[0] = 0
    size = 1
    for at in range(end - 1, begin - 1, -1):
        u = scope[at]
        shift = step[u]
        for k in range(1, card[u]):
            for j in range(size):
                offset[k * size + j] = offset[j] + k * shift
        size *= card[u]
    return size


@bare
def add_function(total, table, base, stride, states, size, offset):
    """Add a function to the sums of all states of a variable and of its scope."""
    for k in range(states):
        first = base + k * stride
        row = k * size
        for j in range(size):
            total[row + j] += table[first + offset[j]]


@bare
def lay_out(done, scope_ptr, scope, card, place, at_ptr):
    """Leave those out of the scopes who were frozen later, sort the rest by elimination, and size the tables.

    Returns the largest number of sums that one elimination needs.
    """
    largest, kept = 1, 0
    begin = 0
    for at in range(len(done)):
        end = scope_ptr[at + 1]
        scope_ptr[at] = kept
        size = 1
        for k in range(begin, end):
            u = scope[k]
            if place[u] >= 0:
                scope[kept] = u
                kept += 1
                size *= card[u]
        sort_by(scope, scope_ptr[at], kept, place)
        at_ptr[at + 1] = at_ptr[at] + size
        largest = max(largest, size * card[done[at]])
        begin = end
    scope_ptr[len(done)] = kept
    return largest


@bare
def add_factor(
    a, v, at, begin, end, size, scope, card, theta_t, factor_ptr, factor_scope, factor_stride, table_at, place, labels,
    step, offset, total,
):  # fmt: skip
    """Add a factor to the sums of `v`, if `v` is the first of its variables to be eliminated."""
    base = table_at[a]
    least = at
    for p in range(factor_ptr[a], factor_ptr[a + 1]):
        u = factor_scope[p]
        if place[u] < 0:
            base += factor_stride[p] * labels[u]
        else:
            least = min(least, place[u])
            step[u] = factor_stride[p]
    if least == at:
        mine = step[v]
        spread(offset, begin, end, scope, card, step)
        add_function(total, theta_t, base, mine, card[v], size, offset)
    for p in range(factor_ptr[a], factor_ptr[a + 1]):
        step[factor_scope[p]] = 0


@bare
def add_message(
    child, v, begin, end, size, scope_ptr, scope, card, at_ptr, message, step, offset, total
):  # fmt: skip
    """Add the message of an eliminated variable to the sums of `v`."""
    stride = 1
    for k in range(scope_ptr[child + 1] - 1, scope_ptr[child] - 1, -1):
        step[scope[k]] = stride
        stride *= card[scope[k]]
    mine = step[v]
    spread(offset, begin, end, scope, card, step)
    add_function(total, message, at_ptr[child], mine, card[v], size, offset)
    for k in range(scope_ptr[child], scope_ptr[child + 1]):
        step[scope[k]] = 0


@compiled
def solve_pass(
    done, scope_ptr, scope, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, factor_ptr, factor_scope,
    factor_stride, table_at, labels, place, step,
):  # fmt: skip
    """Solve what `plan_pass` left free, exactly, and write the labels; returns how many changed.

    `place` and `step` are scratch of -1 and 0, left so.
    """
    n_done = len(done)
    for at in range(n_done):
        place[done[at]] = at
    at_ptr = np.zeros(n_done + 1, np.int64)
    largest = lay_out(done, scope_ptr, scope, card, place, at_ptr)
    message, choice = np.empty(at_ptr[n_done]), np.empty(at_ptr[n_done], np.uint16)
    total, offset = np.empty(largest), np.empty(largest, np.int64)
    first, following = np.full(n_done, -1, np.int32), np.full(n_done, -1, np.int32)
    for at in range(n_done):
        v = done[at]
        begin, end = scope_ptr[at], scope_ptr[at + 1]
        size = at_ptr[at + 1] - at_ptr[at]
        for k in range(card[v]):
            theta = theta_v[var_ptr[v] + k]
            for j in range(size):
                total[k * size + j] = theta
        for e in range(nbr_ptr[v], nbr_ptr[v + 1]):
            add_factor(
                factor_of[e], v, at, begin, end, size, scope, card, theta_t, factor_ptr, factor_scope, factor_stride,
                table_at, place, labels, step, offset, total,
            )  # fmt: skip
        child = first[at]
        while child >= 0:
            add_message(child, v, begin, end, size, scope_ptr, scope, card, at_ptr, message, step, offset, total)
            child = following[child]
        maximise(total, card[v], size, labels[v], at_ptr[at], message, choice)
        if end > begin:
            parent = place[scope[begin]]
            following[at] = first[parent]
            first[parent] = at
    for at in range(n_done):
        place[done[at]] = -1
    return follow(done, scope_ptr, scope, at_ptr, choice, card, labels)


@bare
def maximise(total, states, size, label, at, message, choice):
    """Best state of a variable for every state of its scope; the present label wins over equals."""
    for j in range(size):
        message[at + j] = total[label * size + j]
        choice[at + j] = label
    for k in range(states):
        row = k * size
        for j in range(size):
            value = total[row + j]
            if value > message[at + j]:
                message[at + j] = value
                choice[at + j] = k


@bare
def follow(done, scope_ptr, scope, at_ptr, choice, card, labels):
    """Read the labels off, last eliminated first; returns how many changed."""
    changed = 0
    for at in range(len(done) - 1, -1, -1):
        j = 0
        for k in range(scope_ptr[at], scope_ptr[at + 1]):
            j = j * card[scope[k]] + labels[scope[k]]
        new = choice[at_ptr[at] + j]
        if new != labels[done[at]]:
            labels[done[at]] = new
            changed += 1
    return changed
