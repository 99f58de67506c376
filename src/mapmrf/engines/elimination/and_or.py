"""AND/OR branch and bound with mini-bucket bounds: the state of a search, and its cache."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, offsets
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.elimination import BucketTree, FunctionTables, best_state, label_type, row_major
from mapmrf.engines.elimination.mini_buckets import MiniBuckets


class AndOrSearch:
    """A depth-first search for a labelling better than a known one; values are sums of the given functions.

    Subproblems whose messages are exact are not searched: their optimum is the message. Solved subproblems are cached
    by the labels of their context, with their labels; failed ones with the bound that the failure proves.
    """

    def __init__(self, buckets: MiniBuckets, cache_bytes: float) -> None:
        self.buckets, self.tree, self.n = buckets, buckets.tree, buckets.tree.n
        self._space = _search_space(buckets)
        self._state = _search_state(self._space)
        self._cache = _search_cache(self.tree, self._space, cache_bytes)
        self._cursor = blank(SearchCursor)
        self._cursor.node = self.n
        finite = buckets.given.theta[np.isfinite(buckets.given.theta)]
        # Bounds that exceed the best value by less than this share of the potentials' scale count as equal to it
        self._tol = 2e-15 * float(np.abs(finite).max(initial=0.0))

    @staticmethod
    def bytes_needed(tree: BucketTree) -> int:
        """Return the memory of the labels that the open nodes keep."""
        return int((tree.end - np.arange(tree.n)).sum())

    @property
    def n_expanded(self) -> int:
        return int(self._cursor.n_expanded)

    @property
    def n_hits(self) -> int:
        """Number of subproblems taken from the cache."""
        return int(self._cursor.n_hits)

    @property
    def finished(self) -> bool:
        """Whether nothing better than the best labelling, found or known, is left."""
        return bool(self._cursor.action == FINISHED)

    def require(self, value: float) -> None:
        """Raise what labellings must exceed, for all open nodes from the top down."""
        state, parent, path = self._state, self._space.parent, [int(self._cursor.node)]
        if value > state.need[self.n]:
            state.need[self.n] = value
            while path[-1] < self.n:
                path.append(int(parent[path[-1]]))
            for d, a in reversed(list(pairwise(path))):
                state.need[d] = max(state.need[a], state.found[a]) - (state.sum_now[a] - state.bound[d])

    def advance(self, look_ups: int, max_expanded: int) -> None:
        """Search for about this many look-ups, expanding no more than `max_expanded` AND nodes in total."""
        search(self._cursor, look_ups, max_expanded, self._tol, self._space, self._state, self._cache)

    def upper_bound(self) -> float:
        """Upper bound on all labellings at this point of the search, with a margin for skipped round-off."""
        return open_bound(self._cursor, self._space, self._state) + self.n * self._tol

    def best_labels(self) -> Ints | None:
        """Return the best labelling found, by position, or None if none was better than the known one."""
        if self._state.found[self.n] == -math.inf:
            return None
        first = self._state.best_at[self.n]
        return self._state.best[first : first + self.n].astype(np.int64)

    def current_labels(self) -> Ints:
        """Return the partial labelling of the search, completed greedily: a labelling by position."""
        labels, fixed = np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=bool)
        current_labels(self._cursor, self._space, self._state, labels, fixed)
        self.buckets.complete(labels, fixed)
        return labels


def _search_space(buckets: MiniBuckets) -> SearchSpace:
    """Add a node above all roots, whose bucket holds the constants, to the tree, and find the paths of messages."""
    tree, n, partition = buckets.tree, buckets.tree.n, buckets.partition
    parent = np.append(np.where(tree.parent >= 0, tree.parent, n), -1)
    end = np.append(tree.end, n)
    child = np.arange(n)
    child = child[np.lexsort((end[:n] - child, parent[:n]))]  # small subtrees first: their optima tighten other bounds
    child_ptr = offsets(np.bincount(parent[:n], minlength=n + 1)).astype(np.int64)
    splits_before = np.concatenate([[0], np.cumsum(buckets.split)])
    exact = np.append(splits_before[tree.end] == splits_before[:-1], False)  # no bucket of the subtree is split
    source = n - 1 - np.repeat(np.arange(n), np.diff(partition.mini_ptr))
    target = partition.bucket_of[buckets.given.n :]
    member = np.concatenate([buckets.tables.member, buckets.given.n + np.flatnonzero(target < 0)])
    fns = buckets.tables._replace(bucket_ptr=np.append(buckets.tables.bucket_ptr, len(member)), member=member)
    paths = message_paths(parent, source, np.where(target >= 0, target, n))
    return SearchSpace(np.append(tree.card, 1), parent, end, child_ptr, child, exact, fns, *paths)


def _search_state(space: SearchSpace) -> SearchState:
    n = len(space.card)
    value_ptr = offsets(space.card).astype(np.int64)
    n_values = int(value_ptr[-1])
    sizes = np.where(space.exact, 0, space.end - np.append(np.arange(n - 1), 0))
    best_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    label, tried, at_child = np.zeros((3, n), dtype=np.int64)
    (need, found), (sum_now, bound, beyond) = np.full((2, n), -math.inf), np.zeros((3, n))
    (value, own), ranked = np.zeros((2, n_values)), np.zeros(n_values, dtype=np.int64)
    return SearchState(
        label, tried, at_child, need, found, sum_now, bound, beyond, value_ptr, value, own, ranked,
        message_value=np.zeros(len(space.through)),
        place_of=np.zeros(len(space.fns.at), dtype=np.int64),
        best_at=best_at,
        best=np.zeros(int(best_at[-1]), dtype=label_type(space.card)),
    )  # fmt: skip


def _search_cache(tree: BucketTree, space: SearchSpace, cache_bytes: float) -> SearchCache:
    """Allocate slots for every node whose subproblem can recur under other ancestors, halved until all of them fit."""
    n, labels = tree.n, label_type(tree.card)
    stride, n_contexts = row_major(tree.card, tree.context_ptr, tree.context)
    size = tree.end - np.arange(n)
    # bytes per slot of the cache, without its labels
    bytes_each = (17 + size * labels.itemsize).astype(np.float64)
    lengths, above = np.diff(tree.context_ptr), np.maximum(tree.parent, 0)
    # a subproblem can recur if its context lacks an ancestor that its parent depends on
    recurs = (tree.parent >= 0) & (lengths < lengths[above] + 1) & tree.known & tree.known[above]
    slots = np.where(recurs & ~space.exact[:n], n_contexts, 0)
    cap = 2**40
    while cap > 0 and float((np.minimum(slots, cap) * bytes_each).sum()) > cache_bytes:
        cap //= 2
    slots = np.minimum(slots, cap)
    labels_at = np.concatenate([[0], np.cumsum(slots * size)]).astype(np.int64)
    total = int(slots.sum())
    return SearchCache(
        context_ptr=np.append(tree.context_ptr, tree.context_ptr[-1]).astype(np.int64),
        context=tree.context,
        context_stride=stride,
        n_slots=np.append(slots, 0),
        slot_at=np.concatenate([[0], np.cumsum(slots)]).astype(np.int64),
        key=np.zeros(total, dtype=np.int64),
        kind=np.zeros(total, dtype=np.uint8),
        value=np.zeros(total),
        labels_at=labels_at,
        labels=np.zeros(int(labels_at[-1]), dtype=labels),
    )


# -- Depth-first branch and bound over the AND/OR search space of a bucket tree ---------------------------------------
# Nodes are positions of the tree; one more, the last, stands above all roots. An OR node is a position to be
# labelled under the labels of its ancestors; an AND node is one label of it, below which the children are
# independent. At most one OR node of every position is open at a time, so all state is kept by position.

ENTER, NEXT_VALUE, NEXT_CHILD, LEAVE, FINISHED = 0, 1, 2, 3, 4  # the next action at the current node
EMPTY, EXACT, CEILING = 0, 1, 2
"""Contents of a cache slot: nothing, an optimum with its labels, or an upper bound from a failed search."""


class SearchSpace(NamedTuple):
    """The fixed data of a search: the tree, its functions and messages, and the paths of messages."""

    card: Ints  # (n + 1,): states of every node
    parent: Ints  # (n + 1,)
    end: Ints  # (n + 1,): end of the subtree's range of every node
    child_ptr: Ints
    child: Ints  # the children of every node, in the order in which they are searched
    exact: Bools  # (n + 1,): whether the messages of the whole subtree are exact, so that it need not be searched
    fns: FunctionTables
    through: Ints  # the child of its target that a message comes through
    pass_ptr: Ints
    passing: Ints  # the messages that pass a node: from its subtree to above its parent


class SearchState(NamedTuple):
    label: Ints  # (n + 1,): the current label of a node
    tried: Ints  # (n + 1,): how many of its labels have been tried
    at_child: Ints  # (n + 1,): the child (in `child`) to search next
    need: Floats  # (n + 1,): what the subproblem of an OR node must exceed to be of use above
    found: Floats  # (n + 1,): its best value so far
    sum_now: Floats  # (n + 1,): the bound of the current label, with the children solved so far exact
    bound: Floats  # (n + 1,): upper bound of a node's subproblem under the label of its parent
    beyond: Floats  # (n + 1,): the part of it that passes the parent
    value_ptr: Ints
    value: Floats  # for every label of a node its bound
    own: Floats  # for every label of a node the sum of its given functions
    ranked: Ints  # the labels of a node by falling bound
    message_value: Floats  # value of every message under the current labels
    place_of: Ints  # where the table of every function is looked up
    best_at: Ints
    best: Ints  # the labels of the best solution of a node's subproblem, from ``best[best_at[a]]`` on


class SearchCache(NamedTuple):
    """Solved and failed subproblems by the labels of their context."""

    context_ptr: Ints
    context: Ints  # the context of every node
    context_stride: Ints  # its strides in the number of a configuration, the key
    n_slots: Ints  # (n + 1,): slots of every node
    slot_at: Ints  # (n + 1,): the first of them
    key: Ints  # (all slots,): the key of a subproblem
    kind: Ints  # (all slots,): what is known about it: EMPTY, EXACT or CEILING
    value: Floats  # (all slots,)
    labels_at: Ints
    labels: Ints  # the labels of solved subproblems, those of a node's first slot from ``labels[labels_at[a]]`` on


class SearchCursor:
    node: int
    action: int  # the next one at the node
    n_expanded: int  # AND nodes expanded
    n_hits: int  # subproblems found in the cache


@compiled
def message_paths(parent: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
    """Return `through`, `pass_ptr` and `passing` of a search space."""
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
def evaluate(a: int, space: SearchSpace, state: SearchState) -> int:
    """Bound every label of position `a` from above, and rank them, the highest bound first; return the look-ups.

    A bound is the sum of its functions, its messages and those that pass its children.
    """
    fns, value, own, ranked = space.fns, state.value, state.own, state.ranked
    at_v, n_k = state.value_ptr[a], space.card[a]
    constant = 0.0
    work = n_k
    for c in range(space.child_ptr[a], space.child_ptr[a + 1]):
        d = space.child[c]
        total = 0.0
        work += 1 + space.pass_ptr[d + 1] - space.pass_ptr[d]
        for j in range(space.pass_ptr[d], space.pass_ptr[d + 1]):
            total += state.message_value[space.passing[j]]
        state.beyond[d] = total
        constant += total
    for k in range(n_k):
        own[at_v + k] = 0.0
        value[at_v + k] = constant
    for b in range(fns.bucket_ptr[a], fns.bucket_ptr[a + 1]):
        f = fns.member[b]
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
    for k in range(n_k):
        value[at_v + k] += own[at_v + k]
        j = k
        while j > 0 and value[at_v + k] > value[at_v + ranked[at_v + j - 1]]:
            ranked[at_v + j] = ranked[at_v + j - 1]
            j -= 1
        ranked[at_v + j] = k
    return int(work)


@inlined
def assign(a: int, k: int, space: SearchSpace, state: SearchState) -> None:
    """Give position `a` the label `k`: bounds of its children's subproblems, and of all of it."""
    fns, child_ptr, child, through = space.fns, space.child_ptr, space.child, space.through
    bound, message_value = state.bound, state.message_value
    state.label[a] = k
    for c in range(child_ptr[a], child_ptr[a + 1]):
        bound[child[c]] = state.beyond[child[c]]
    for b in range(fns.bucket_ptr[a], fns.bucket_ptr[a + 1]):
        f = fns.member[b]
        m = f - fns.n_given
        if m >= 0:
            last = fns.ptr[f + 1] - 1
            stride = fns.stride[last] if last >= fns.ptr[f] else 0
            message_value[m] = fns.arena[state.place_of[f] + k * stride]
            bound[through[m]] += message_value[m]
    total = state.own[state.value_ptr[a] + k]
    for c in range(child_ptr[a], child_ptr[a + 1]):
        total += bound[child[c]]
    state.sum_now[a] = total
    state.at_child[a] = child_ptr[a]


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
    label, best = state.label, state.best
    first, at = 0, state.best_at[a]
    if a < len(space.card) - 1:
        best[at] = label[a]
        first = a
    for c in range(space.child_ptr[a], space.child_ptr[a + 1]):
        d = space.child[c]
        to = at + d - first
        if space.exact[d]:
            for p in range(d, space.end[d]):
                label[p] = best_state(p, space.fns, label)
                best[to + p - d] = label[p]
        else:
            for j in range(space.end[d] - d):
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
) -> None:  # fmt: skip
    """Search until the end, until `max_expanded` AND nodes are expanded, or until a `budget` of look-ups is spent.

    A label is skipped when its bound exceeds the larger of need and found by no more than `tol`.
    """
    card, end, child_ptr, child, bucket_ptr = space.card, space.end, space.child_ptr, space.child, space.fns.bucket_ptr
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

        elif action == NEXT_VALUE:
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
            budget -= 1 + bucket_ptr[a + 1] - bucket_ptr[a] + child_ptr[a + 1] - child_ptr[a]
            action = NEXT_CHILD
        elif action == NEXT_CHILD:
            while at_child[a] < child_ptr[a + 1] and space.exact[child[at_child[a]]]:
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
            a = space.parent[d]
            action = NEXT_VALUE
            if found[d] > need[d]:
                sum_now[a] += found[d] - state.bound[d]
                at_child[a] += 1
                action = NEXT_CHILD
    cursor.node, cursor.action, cursor.n_expanded, cursor.n_hits = a, action, n_expanded, n_hits


@compiled
def open_bound(cursor: SearchCursor, space: SearchSpace, state: SearchState) -> float:
    """Upper bound on the whole problem at this point of the search: what is found, what was skipped, what is open."""
    found, need, sum_now = state.found, state.need, state.sum_now
    a, action = cursor.node, cursor.action
    n = len(space.card) - 1
    if action == ENTER:
        top = state.bound[a] if a < n else np.inf
    else:
        top = max(found[a], need[a])
        if action == NEXT_CHILD:
            top = max(top, sum_now[a])
        if action != LEAVE and action != FINISHED:
            top = max(top, next_label_bound(a, space.card, state))
    while a < n:
        d, a = a, space.parent[a]
        top = max(found[a], need[a], sum_now[a] - state.bound[d] + top)
        top = max(top, next_label_bound(a, space.card, state))
    return float(top)


@compiled
def current_labels(cursor: SearchCursor, space: SearchSpace, state: SearchState, labels: Ints, fixed: Bools) -> None:
    """Labels that the search has set: those of the path and of the subproblems solved beside it."""
    n = len(space.card) - 1
    a = cursor.node
    inside = cursor.action == NEXT_CHILD
    while True:
        if inside:
            if a < n:
                labels[a], fixed[a] = state.label[a], True
            for c in range(space.child_ptr[a], state.at_child[a]):
                d = space.child[c]
                if not space.exact[d]:
                    for p in range(d, space.end[d]):
                        labels[p], fixed[p] = state.best[state.best_at[d] + p - d], True
        if a == n:
            break
        a = space.parent[a]
        inside = True
