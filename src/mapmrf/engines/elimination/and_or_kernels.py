"""Depth-first branch and bound over the AND/OR search space of a bucket tree.

Nodes are positions of the tree; one more, the last, stands above all roots. An OR node is a position to be labelled
under the labels of its ancestors; an AND node is one label of it, below which the children are independent. Of every
position at most one OR node is under way, so all state is kept by position.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.elimination.mini_bucket_kernels import decode
from mapmrf.kernels.jit import bare, compiled, inlined

ENTER, NEXT_VALUE, NEXT_CHILD, LEAVE, FINISHED = 0, 1, 2, 3, 4
"""What is to be done next at the present node."""

NODE, ACTION, COUNT, HITS = 0, 1, 2, 3
"""Places in the cursor: the node, its action, AND nodes expanded, subproblems found in the cache."""

EMPTY, EXACT, CEILING = 0, 1, 2
"""What a place of the cache holds: nothing, an optimum with its labels, or an upper bound of a failed search."""


@compiled
def jumps(parent: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
    """For every message the child of its target that it comes through, and for every node the messages that pass it.

    A message passes `d` if it comes from d's subtree and goes further than d's parent.
    """
    n = len(parent)
    through = np.empty(len(source), np.int64)
    ptr = np.zeros(n + 1, np.int64)
    for m in range(len(source)):
        u = source[m]
        while parent[u] != target[m]:
            ptr[u + 1] += 1
            u = parent[u]
        through[m] = u
    for u in range(n):
        ptr[u + 1] += ptr[u]
    passing = np.empty(ptr[n], np.int64)
    fill = ptr[:-1].copy()
    for m in range(len(source)):
        u = source[m]
        while parent[u] != target[m]:
            passing[fill[u]] = m
            fill[u] += 1
            u = parent[u]
    return through, ptr, passing


@inlined
def evaluate(
    a, card, label, bucket_ptr, bucket, fn_ptr, fn_var, fn_stride, fn_at, n_given, theta, arena, child_ptr, child,
    pass_ptr, passing, message_value, place_of, beyond, value_ptr, value, own,
):  # fmt: skip
    """Bound every label of position `a` from above: its functions, its messages and those that pass its children."""
    at_v, n_k = value_ptr[a], card[a]
    constant = 0.0
    work = n_k
    for c in range(child_ptr[a], child_ptr[a + 1]):
        d = child[c]
        total = 0.0
        work += 1 + pass_ptr[d + 1] - pass_ptr[d]
        for j in range(pass_ptr[d], pass_ptr[d + 1]):
            total += message_value[passing[j]]
        beyond[d] = total
        constant += total
    for k in range(n_k):
        own[at_v + k] = 0.0
        value[at_v + k] = constant
    for b in range(bucket_ptr[a], bucket_ptr[a + 1]):
        f = bucket[b]
        last = fn_ptr[f + 1] - 1
        at = fn_at[f]
        for d in range(fn_ptr[f], last):
            at += fn_stride[d] * label[fn_var[d]]
        place_of[f] = at
        stride = fn_stride[last] if last >= fn_ptr[f] else 0
        if f < n_given:
            for k in range(n_k):
                own[at_v + k] += theta[at + k * stride]
        else:
            for k in range(n_k):
                value[at_v + k] += arena[at + k * stride]
        work += last - fn_ptr[f] + n_k
    for k in range(n_k):
        value[at_v + k] += own[at_v + k]
    return work


@inlined
def sort_labels(a, card, value_ptr, value, ranked):
    """Rank the labels of position `a`, the highest bound first, the smaller label on ties."""
    at_v = value_ptr[a]
    for k in range(card[a]):
        j = k
        while j > 0 and value[at_v + k] > value[at_v + ranked[at_v + j - 1]]:
            ranked[at_v + j] = ranked[at_v + j - 1]
            j -= 1
        ranked[at_v + j] = k


@inlined
def descend(
    a, k, bucket_ptr, bucket, fn_ptr, fn_stride, n_given, arena, child_ptr, child, through, message_value, place_of,
    beyond, bound, value_ptr, own,
):  # fmt: skip
    """Give position `a` the label `k`: bounds of its children's subproblems, and of all of it."""
    for c in range(child_ptr[a], child_ptr[a + 1]):
        bound[child[c]] = beyond[child[c]]
    for b in range(bucket_ptr[a], bucket_ptr[a + 1]):
        f = bucket[b]
        if f >= n_given:
            last = fn_ptr[f + 1] - 1
            stride = fn_stride[last] if last >= fn_ptr[f] else 0
            message_value[f - n_given] = arena[place_of[f] + k * stride]
            bound[through[f - n_given]] += message_value[f - n_given]
    total = own[value_ptr[a] + k]
    for c in range(child_ptr[a], child_ptr[a + 1]):
        total += bound[child[c]]
    return total


@inlined
def cache_key(a, label, context_ptr, context, context_stride):
    """Number of the labels of a position's context."""
    key = 0
    for c in range(context_ptr[a], context_ptr[a + 1]):
        key += context_stride[c] * label[context[c]]
    return key


@bare
def keep_labels(
    a, n, end, child_ptr, child, exact, label, best_at, best, card, bucket_ptr, bucket, fn_ptr, fn_var, fn_stride,
    fn_at, n_given, theta, arena, fixed,
):  # fmt: skip
    """Remember the labels of the subtree of `a`: its own, its children's best, and what exact messages say."""
    if a < n:
        best[best_at[a]] = label[a]
    first = a if a < n else 0
    for c in range(child_ptr[a], child_ptr[a + 1]):
        d = child[c]
        to = best_at[a] + d - first
        if exact[d]:
            decode(
                d, end[d], card, bucket_ptr, bucket, fn_ptr, fn_var, fn_stride, fn_at, n_given, theta, arena, fixed,
                label,
            )  # fmt: skip
            for p in range(d, end[d]):
                best[to + p - d] = label[p]
        else:
            for j in range(end[d] - d):
                best[to + j] = best[best_at[d] + j]


@compiled
def search(
    cursor: Ints, budget: int, max_count: int, tol: float, card: Ints, parent: Ints, end: Ints, child_ptr: Ints,
    child: Ints, exact: Bools, bucket_ptr: Ints, bucket: Ints, fn_ptr: Ints, fn_var: Ints, fn_stride: Ints,
    fn_at: Ints, n_given: int, theta: Floats, arena: Floats, through: Ints, pass_ptr: Ints, passing: Ints,
    message_value: Floats, place_of: Ints, beyond: Floats, bound: Floats, value_ptr: Ints, value: Floats, own: Floats,
    ranked: Ints, label: Ints, tried: Ints, at_child: Ints, sum_now: Floats, found: Floats, need: Floats, best_at: Ints,
    best: Ints, context_ptr: Ints, context: Ints, context_stride: Ints, n_slots: Ints, slot_at: Ints, kept_at: Ints,
    cache_key_of: Ints, cache_state: Ints, cache_value: Floats, cache_labels: Ints, fixed: Bools,
) -> None:  # fmt: skip
    """Search until the end, until `max_count` AND nodes are expanded, or until some `budget` of look-ups is spent.

    ``need[a]`` is what the subproblem of an OR node must exceed to be of use above, ``found[a]`` its best so far,
    ``sum_now[a]`` the bound of its present label with the children solved so far exact. A label is passed over when
    its bound exceeds the larger of need and found by no more than `tol`.
    """
    n = len(card) - 1
    a, action = cursor[NODE], cursor[ACTION]
    while action != FINISHED and budget > 0:
        if action == ENTER:
            found[a] = -np.inf
            action = NEXT_VALUE
            tried[a] = 0
            if n_slots[a] > 0:
                key = cache_key(a, label, context_ptr, context, context_stride)
                slot = slot_at[a] + key % n_slots[a]
                if cache_state[slot] != EMPTY and cache_key_of[slot] == key:
                    if cache_state[slot] == EXACT:
                        found[a] = cache_value[slot]
                        size = end[a] - a
                        at = kept_at[a] + (slot - slot_at[a]) * size
                        for j in range(size):
                            best[best_at[a] + j] = cache_labels[at + j]
                        action = LEAVE
                        cursor[HITS] += 1
                    elif cache_value[slot] <= need[a] + tol:
                        action = LEAVE
                        cursor[HITS] += 1
                budget -= 4
            if action == NEXT_VALUE:
                budget -= evaluate(
                    a, card, label, bucket_ptr, bucket, fn_ptr, fn_var, fn_stride, fn_at, n_given, theta, arena,
                    child_ptr, child, pass_ptr, passing, message_value, place_of, beyond, value_ptr, value, own,
                )  # fmt: skip
                sort_labels(a, card, value_ptr, value, ranked)
        elif action == NEXT_VALUE:
            at_v = value_ptr[a]
            if tried[a] == card[a] or value[at_v + ranked[at_v + tried[a]]] <= max(need[a], found[a]) + tol:
                action = LEAVE
                if n_slots[a] > 0:
                    key = cache_key(a, label, context_ptr, context, context_stride)
                    slot = slot_at[a] + key % n_slots[a]
                    cache_key_of[slot] = key
                    if found[a] > need[a]:
                        cache_state[slot], cache_value[slot] = EXACT, found[a]
                        size = end[a] - a
                        at = kept_at[a] + (slot - slot_at[a]) * size
                        for j in range(size):
                            cache_labels[at + j] = best[best_at[a] + j]
                    else:
                        cache_state[slot], cache_value[slot] = CEILING, need[a] + tol
                continue
            if cursor[COUNT] >= max_count:
                break
            cursor[COUNT] += 1
            k = ranked[at_v + tried[a]]
            tried[a] += 1
            label[a] = k
            sum_now[a] = descend(
                a, k, bucket_ptr, bucket, fn_ptr, fn_stride, n_given, arena, child_ptr, child, through, message_value,
                place_of, beyond, bound, value_ptr, own,
            )  # fmt: skip
            budget -= bucket_ptr[a + 1] - bucket_ptr[a] + child_ptr[a + 1] - child_ptr[a]
            at_child[a] = child_ptr[a]
            action = NEXT_CHILD
        elif action == NEXT_CHILD:
            while at_child[a] < child_ptr[a + 1] and exact[child[at_child[a]]]:
                at_child[a] += 1
            if sum_now[a] <= max(need[a], found[a]) + tol:
                action = NEXT_VALUE
            elif at_child[a] == child_ptr[a + 1]:
                found[a] = sum_now[a]
                keep_labels(
                    a, n, end, child_ptr, child, exact, label, best_at, best, card, bucket_ptr, bucket, fn_ptr, fn_var,
                    fn_stride, fn_at, n_given, theta, arena, fixed,
                )  # fmt: skip
                budget -= end[a] - a + 1 if a < n else n
                action = NEXT_VALUE
            else:
                d = child[at_child[a]]
                need[d] = max(need[a], found[a]) - (sum_now[a] - bound[d])
                a = d
                action = ENTER
        else:
            if a == n:
                action = FINISHED
                continue
            d = a
            a = parent[d]
            if found[d] > need[d]:
                sum_now[a] += found[d] - bound[d]
                at_child[a] += 1
                action = NEXT_CHILD
            else:
                action = NEXT_VALUE
    cursor[NODE], cursor[ACTION] = a, action


@compiled
def open_bound(
    cursor: Ints, parent: Ints, card: Ints, value_ptr: Ints, value: Floats, ranked: Ints, tried: Ints, bound: Floats,
    sum_now: Floats, found: Floats, need: Floats,
) -> float:  # fmt: skip
    """Upper bound on the whole problem as the search stands: what is found, what was passed over, what is open."""
    a, action = cursor[NODE], cursor[ACTION]
    n = len(card) - 1
    if action == ENTER:
        top = bound[a] if a < n else np.inf
    else:
        top = max(found[a], need[a])
        if action == NEXT_CHILD:
            top = max(top, sum_now[a])
        if action != LEAVE and action != FINISHED and tried[a] < card[a]:
            top = max(top, value[value_ptr[a] + ranked[value_ptr[a] + tried[a]]])
    while a < n:
        d, a = a, parent[a]
        top = max(found[a], need[a], sum_now[a] - bound[d] + top)
        if tried[a] < card[a]:
            top = max(top, value[value_ptr[a] + ranked[value_ptr[a] + tried[a]]])
    return float(top)


@compiled
def raise_needs(
    cursor: Ints, parent: Ints, bound: Floats, sum_now: Floats, found: Floats, need: Floats, path: Ints
) -> None:
    """Hand a need that has risen at the top on to all nodes under way."""
    a, n_path = cursor[NODE], 0
    n = len(parent) - 1
    while a < n:
        path[n_path] = a
        n_path += 1
        a = parent[a]
    for at in range(n_path - 1, -1, -1):
        d = path[at]
        a = parent[d]
        need[d] = max(need[a], found[a]) - (sum_now[a] - bound[d])


@compiled
def present_labels(
    cursor: Ints, parent: Ints, end: Ints, child_ptr: Ints, child: Ints, at_child: Ints, exact: Bools, best_at: Ints,
    best: Ints, label: Ints, labels: Ints, fixed: Bools,
) -> None:  # fmt: skip
    """Labels that the search has set: those of the path and of the subproblems solved beside it."""
    n = len(parent) - 1
    a = cursor[NODE]
    inside = cursor[ACTION] == NEXT_CHILD
    while True:
        if inside:
            if a < n:
                labels[a], fixed[a] = label[a], True
            for c in range(child_ptr[a], at_child[a]):
                d = child[c]
                if not exact[d]:
                    for p in range(d, end[d]):
                        labels[p], fixed[p] = best[best_at[d] + p - d], True
        if a == n:
            break
        a = parent[a]
        inside = True
