"""Depth-first branch and bound over the AND/OR search space of a bucket tree.

Nodes are positions of the tree; one more, the last, stands above all roots. An OR node is a position to be labelled
under the labels of its ancestors; an AND node is one label of it, below which the children are independent. At most one
OR node of every position is open at a time, so all state is kept by position.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.elimination_kernels import Buckets, FunctionTables
from mapmrf.engines.elimination.mini_bucket_kernels import best_state
from mapmrf.engines.elimination.path_rules_kernels import PathMarks, PathRules, add_worths, drop_label, take_label

ENTER, NEXT_VALUE, NEXT_CHILD, LEAVE, FINISHED = 0, 1, 2, 3, 4
"""The next action at the current node."""

EMPTY, EXACT, CEILING = 0, 1, 2
"""Contents of a cache slot: nothing, an optimum with its labels, or an upper bound from a failed search."""


class SearchTree(NamedTuple):
    """The tree of positions, with the node above all roots last.

    Attributes
    ----------
    card, parent, end : (n + 1,)
        States, parent and end of the subtree's range of every node.
    child_ptr, child
        The children of every node, in the order in which they are searched.
    exact : (n + 1,)
        Whether the messages of the whole subtree are exact, so that it need not be searched.
    """

    card: Ints
    parent: Ints
    end: Ints
    child_ptr: Ints
    child: Ints
    exact: Bools


class MessagePaths(NamedTuple):
    """The way of messages through the tree.

    Attributes
    ----------
    through
        The child of its target that a message comes through.
    pass_ptr, passing
        The messages that pass a node: from its subtree to above its parent.
    """

    through: Ints
    pass_ptr: Ints
    passing: Ints


class SearchSpace(NamedTuple):
    """The fixed data of a search: the tree, functions and messages, buckets, paths of messages, and rules."""

    tree: SearchTree
    fns: FunctionTables
    buckets: Buckets
    paths: MessagePaths
    rules: PathRules


class SearchState(NamedTuple):
    """The open nodes of a search.

    Attributes
    ----------
    label, tried, at_child : (n + 1,)
        The current label of a node, how many of its labels have been tried, and the child (in `child`) to search next.
    need, found : (n + 1,)
        What the subproblem of an OR node must exceed to be of use above, and its best value so far.
    sum_now : (n + 1,)
        The bound of the current label, with the children solved so far exact.
    bound, beyond : (n + 1,)
        Upper bound of a node's subproblem under the label of its parent, and the part of it that passes the parent.
    value_ptr, value, own, ranked
        For every label of a node its bound, the sum of its given functions, and the labels by falling bound.
    message_value, place_of
        Value of every message under the current labels; where the table of every function is looked up.
    best_at, best
        The labels of the best solution of a node's subproblem, from ``best[best_at[a]]`` on.
    marks
        What the rules know.
    """

    label: Ints
    tried: Ints
    at_child: Ints
    need: Floats
    found: Floats
    sum_now: Floats
    bound: Floats
    beyond: Floats
    value_ptr: Ints
    value: Floats
    own: Floats
    ranked: Ints
    message_value: Floats
    place_of: Ints
    best_at: Ints
    best: Ints
    marks: PathMarks


class SearchCache(NamedTuple):
    """Solved and failed subproblems by the labels of their context.

    Attributes
    ----------
    context_ptr, context, context_stride
        The context of every node, and its strides in the number of a configuration, the key.
    n_slots, slot_at : (n + 1,)
        Slots of every node, and the first of them.
    key, kind, value : (all slots,)
        The key of a subproblem, what is known about it (EMPTY, EXACT or CEILING), and the value.
    labels_at, labels
        The labels of solved subproblems, those of a node's first slot from ``labels[labels_at[a]]`` on.
    """

    context_ptr: Ints
    context: Ints
    context_stride: Ints
    n_slots: Ints
    slot_at: Ints
    key: Ints
    kind: Ints
    value: Floats
    labels_at: Ints
    labels: Ints


class SearchCursor(NamedTuple):
    """Progress of a search: the node, its next action, AND nodes expanded, subproblems found in the cache."""

    node: int
    action: int
    n_expanded: int
    n_hits: int


@compiled
def message_paths(parent: Ints, source: Ints, target: Ints) -> MessagePaths:
    """The ways of messages from their buckets up to those that receive them."""
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
    return MessagePaths(through, ptr, passing)


@inlined
def evaluate(a: int, space: SearchSpace, state: SearchState) -> int:
    """Bound every label of position `a` from above: its functions, its messages and those that pass its children.

    Returns the number of look-ups.
    """
    tree, fns, buckets, paths = space.tree, space.fns, space.buckets, space.paths
    value, own = state.value, state.own
    at_v, n_k = state.value_ptr[a], tree.card[a]
    constant = 0.0
    work = n_k
    for c in range(tree.child_ptr[a], tree.child_ptr[a + 1]):
        d = tree.child[c]
        total = 0.0
        work += 1 + paths.pass_ptr[d + 1] - paths.pass_ptr[d]
        for j in range(paths.pass_ptr[d], paths.pass_ptr[d + 1]):
            total += state.message_value[paths.passing[j]]
        state.beyond[d] = total
        constant += total
    for k in range(n_k):
        own[at_v + k] = 0.0
        value[at_v + k] = constant
    for b in range(buckets.ptr[a], buckets.ptr[a + 1]):
        f = buckets.member[b]
        last = fns.ptr[f + 1] - 1
        at = fns.at[f]
        for d in range(fns.ptr[f], last):
            at += fns.stride[d] * state.label[fns.var[d]]
        state.place_of[f] = at
        stride = fns.stride[last] if last >= fns.ptr[f] else 0
        if f < fns.n_given:
            for k in range(n_k):
                own[at_v + k] += fns.theta[at + k * stride]
        else:
            for k in range(n_k):
                value[at_v + k] += fns.arena[at + k * stride]
        work += last - fns.ptr[f] + n_k
    work += n_k * (space.rules.link_ptr[a + 1] - space.rules.link_ptr[a])
    if space.rules.link_ptr[a + 1] > space.rules.link_ptr[a]:
        add_worths(a, space.rules, state.marks, own)
    for k in range(n_k):
        value[at_v + k] += own[at_v + k]
    return int(work)


@inlined
def rank_labels(a: int, card: Ints, state: SearchState) -> None:
    """Rank the labels of position `a`, the highest bound first, the smaller label on ties."""
    at_v, value, ranked = state.value_ptr[a], state.value, state.ranked
    for k in range(card[a]):
        j = k
        while j > 0 and value[at_v + k] > value[at_v + ranked[at_v + j - 1]]:
            ranked[at_v + j] = ranked[at_v + j - 1]
            j -= 1
        ranked[at_v + j] = k


@inlined
def assign(a: int, k: int, space: SearchSpace, state: SearchState) -> None:
    """Give position `a` the label `k`: bounds of its children's subproblems, and of all of it."""
    tree, fns, buckets, through = space.tree, space.fns, space.buckets, space.paths.through
    bound, message_value = state.bound, state.message_value
    state.label[a] = k
    for c in range(tree.child_ptr[a], tree.child_ptr[a + 1]):
        bound[tree.child[c]] = state.beyond[tree.child[c]]
    for b in range(buckets.ptr[a], buckets.ptr[a + 1]):
        f = buckets.member[b]
        m = f - fns.n_given
        if m >= 0:
            last = fns.ptr[f + 1] - 1
            stride = fns.stride[last] if last >= fns.ptr[f] else 0
            message_value[m] = fns.arena[state.place_of[f] + k * stride]
            bound[through[m]] += message_value[m]
    total = state.own[state.value_ptr[a] + k]
    for c in range(tree.child_ptr[a], tree.child_ptr[a + 1]):
        total += bound[tree.child[c]]
    state.sum_now[a] = total
    state.at_child[a] = tree.child_ptr[a]


@inlined
def find_slot(a: int, label: Ints, cache: SearchCache) -> tuple[int, int]:
    """The number of the labels of a position's context, and the slot of the cache where it belongs."""
    key = 0
    for c in range(cache.context_ptr[a], cache.context_ptr[a + 1]):
        key += cache.context_stride[c] * label[cache.context[c]]
    return key, cache.slot_at[a] + key % cache.n_slots[a]


@inlined
def recall(a: int, end: Ints, tol: float, state: SearchState, cache: SearchCache) -> bool:
    """Return whether the cache settles the subproblem of `a`: its solution is copied, or its bound is too low."""
    key, slot = find_slot(a, state.label, cache)
    if cache.kind[slot] == EMPTY or cache.key[slot] != key:
        return False
    if cache.kind[slot] == CEILING:
        return bool(cache.value[slot] <= state.need[a] + tol)
    state.found[a] = cache.value[slot]
    size = end[a] - a
    at, to = cache.labels_at[a] + (slot - cache.slot_at[a]) * size, state.best_at[a]
    for j in range(size):
        state.best[to + j] = cache.labels[at + j]
    return True


@inlined
def remember(a: int, end: Ints, tol: float, state: SearchState, cache: SearchCache) -> None:
    """Put the subproblem of `a`, whose search is done, into the cache."""
    key, slot = find_slot(a, state.label, cache)
    cache.key[slot] = key
    if state.found[a] <= state.need[a]:
        cache.kind[slot], cache.value[slot] = CEILING, state.need[a] + tol
        return
    cache.kind[slot], cache.value[slot] = EXACT, state.found[a]
    size = end[a] - a
    at, to = state.best_at[a], cache.labels_at[a] + (slot - cache.slot_at[a]) * size
    for j in range(size):
        cache.labels[to + j] = state.best[at + j]


@bare
def keep_labels(a: int, space: SearchSpace, state: SearchState) -> None:
    """Keep the labels of the subtree of `a`: its own, the best of its children, and what exact messages say."""
    tree, label, best = space.tree, state.label, state.best
    first, at = 0, state.best_at[a]
    if a < len(tree.card) - 1:
        best[at] = label[a]
        first = a
    for c in range(tree.child_ptr[a], tree.child_ptr[a + 1]):
        d = tree.child[c]
        to = at + d - first
        if tree.exact[d]:
            for p in range(d, tree.end[d]):
                label[p] = best_state(p, space.fns, space.buckets, label)
                best[to + p - d] = label[p]
        else:
            for j in range(tree.end[d] - d):
                best[to + j] = best[state.best_at[d] + j]


@inlined
def next_label_bound(a: int, card: Ints, state: SearchState) -> float:
    """The bound of the best label of `a` that has not been tried; -inf if all have."""
    if state.tried[a] == card[a]:
        return -np.inf
    at_v = state.value_ptr[a]
    return float(state.value[at_v + state.ranked[at_v + state.tried[a]]])


@compiled
def search(
    cursor: SearchCursor, budget: int, max_expanded: int, tol: float, space: SearchSpace, state: SearchState,
    cache: SearchCache,
) -> SearchCursor:  # fmt: skip
    """Search until the end, until `max_expanded` AND nodes are expanded, or until a `budget` of look-ups is spent.

    A label is skipped when its bound exceeds the larger of need and found by no more than `tol`.
    """
    tree, buckets = space.tree, space.buckets
    card, end, child_ptr, child = tree.card, tree.end, tree.child_ptr, tree.child
    tried, at_child, need, found, sum_now = state.tried, state.at_child, state.need, state.found, state.sum_now
    n = len(card) - 1
    a, action, n_expanded, n_hits = cursor.node, cursor.action, cursor.n_expanded, cursor.n_hits
    while action != FINISHED and budget > 0:
        if action == ENTER:
            found[a] = -np.inf
            tried[a] = 0
            action = NEXT_VALUE
            if cache.n_slots[a] > 0:
                budget -= 4
                if recall(a, end, tol, state, cache):
                    action = LEAVE
                    n_hits += 1
            if action == NEXT_VALUE:
                budget -= evaluate(a, space, state)
                rank_labels(a, card, state)
        elif action == NEXT_VALUE:
            drop_label(a, space.rules, state.marks)
            if next_label_bound(a, card, state) <= max(need[a], found[a]) + tol:
                action = LEAVE
                if cache.n_slots[a] > 0:
                    remember(a, end, tol, state, cache)
                continue
            if n_expanded >= max_expanded:
                break
            n_expanded += 1
            assign(a, state.ranked[state.value_ptr[a] + tried[a]], space, state)
            tried[a] += 1
            budget -= 1 + buckets.ptr[a + 1] - buckets.ptr[a] + child_ptr[a + 1] - child_ptr[a]
            if space.rules.link_ptr[a + 1] > space.rules.link_ptr[a]:
                before = state.marks.tally.height
                if not take_label(a, state.label[a], space.rules, state.marks):
                    continue
                budget -= 4 * (state.marks.tally.height - before)
            action = NEXT_CHILD
        elif action == NEXT_CHILD:
            while at_child[a] < child_ptr[a + 1] and tree.exact[child[at_child[a]]]:
                at_child[a] += 1
            if sum_now[a] <= max(need[a], found[a]) + tol:
                action = NEXT_VALUE
            elif at_child[a] == child_ptr[a + 1]:
                found[a] = sum_now[a]
                keep_labels(a, space, state)
                budget -= end[a] - a + 1 if a < n else n
                action = NEXT_VALUE
            else:
                d = child[at_child[a]]
                need[d] = max(need[a], found[a]) - (sum_now[a] - state.bound[d])
                a = d
                action = ENTER
        elif a == n:
            action = FINISHED
        else:
            d = a
            a = tree.parent[d]
            action = NEXT_VALUE
            if found[d] > need[d]:
                sum_now[a] += found[d] - state.bound[d]
                at_child[a] += 1
                action = NEXT_CHILD
    return SearchCursor(a, action, n_expanded, n_hits)


@compiled
def open_bound(cursor: SearchCursor, tree: SearchTree, state: SearchState) -> float:
    """Upper bound on the whole problem at this point of the search: what is found, what was skipped, what is open."""
    found, need, sum_now = state.found, state.need, state.sum_now
    a, action = cursor.node, cursor.action
    n = len(tree.card) - 1
    if action == ENTER:
        top = state.bound[a] if a < n else np.inf
    else:
        top = max(found[a], need[a])
        if action == NEXT_CHILD:
            top = max(top, sum_now[a])
        if action != LEAVE and action != FINISHED:
            top = max(top, next_label_bound(a, tree.card, state))
    while a < n:
        d, a = a, tree.parent[a]
        top = max(found[a], need[a], sum_now[a] - state.bound[d] + top)
        top = max(top, next_label_bound(a, tree.card, state))
    return float(top)


@compiled
def raise_needs(node: int, parent: Ints, state: SearchState, path: Ints) -> None:
    """Pass a need that has risen at the top down to all open nodes; `path` is scratch."""
    a, n_path = node, 0
    n = len(parent) - 1
    while a < n:
        path[n_path] = a
        n_path += 1
        a = parent[a]
    for at in range(n_path - 1, -1, -1):
        d = path[at]
        a = parent[d]
        state.need[d] = max(state.need[a], state.found[a]) - (state.sum_now[a] - state.bound[d])


@compiled
def current_labels(cursor: SearchCursor, tree: SearchTree, state: SearchState, labels: Ints, fixed: Bools) -> None:
    """Labels that the search has set: those of the path and of the subproblems solved beside it."""
    n = len(tree.card) - 1
    a = cursor.node
    inside = cursor.action == NEXT_CHILD
    while True:
        if inside:
            if a < n:
                labels[a], fixed[a] = state.label[a], True
            for c in range(tree.child_ptr[a], state.at_child[a]):
                d = tree.child[c]
                if not tree.exact[d]:
                    for p in range(d, tree.end[d]):
                        labels[p], fixed[p] = state.best[state.best_at[d] + p - d], True
        if a == n:
            break
        a = tree.parent[a]
        inside = True
