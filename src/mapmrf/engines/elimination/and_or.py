"""AND/OR branch and bound with mini-bucket bounds: the state of a search, and its cache."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets
from mapmrf.engines.elimination.and_or_kernels import (
    ENTER,
    FINISHED,
    SearchCache,
    SearchCursor,
    SearchSpace,
    SearchState,
    SearchTree,
    current_labels,
    message_paths,
    open_bound,
    raise_needs,
    search,
)
from mapmrf.engines.elimination.bucket_tree import BucketTree, row_major
from mapmrf.engines.elimination.elimination import label_type
from mapmrf.engines.elimination.elimination_kernels import Buckets
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.engines.elimination.path_rules import RuleForm, RuleForms, lay_out_paths, new_marks
from mapmrf.engines.elimination.path_rules_kernels import PathRules, settle

ROUND_OFF = 2e-15
"""Bounds that exceed the best value by less than this share of the potentials' scale count as equal to it."""

SLOT_BYTES = 17
"""Bytes per slot of the cache, without its labels."""


class AndOrSearch:
    """A depth-first search for a labelling better than a known one; values are sums of the given functions.

    With rules, each of which has its variables on one path of the tree, values are reduced by the rules' losses against
    their roots. Subproblems whose messages are exact are not searched: their optimum is the message. Solved subproblems
    are cached by the labels of their context, with their labels; failed ones with the bound that the failure proves.
    """

    def __init__(self, buckets: MiniBuckets, cache_bytes: float, rules: RuleForms | None = None) -> None:
        self.buckets, self.tree, self.n = buckets, buckets.tree, buckets.tree.n
        forms = [] if rules is None else rules.forms
        self._space = _search_space(buckets, forms)
        self._state = _search_state(self._space, None if rules is None else rules.possible(self.tree))
        self._cache = _search_cache(self.tree, self._space, cache_bytes)
        possible = settle(self._space.rules, self._state.marks)
        self._cursor = SearchCursor(node=self.n, action=ENTER if possible else FINISHED, n_expanded=0, n_hits=0)
        self._path = np.zeros(self.n + 1, dtype=np.int64)
        finite = buckets.given.theta[np.isfinite(buckets.given.theta)]
        scale = max([float(np.abs(finite).max(initial=0.0)), *(form.scale for form in forms)])
        self._tol = ROUND_OFF * scale

    @staticmethod
    def bytes_needed(tree: BucketTree) -> int:
        """Return the memory of the labels that the open nodes keep."""
        return int((tree.end - np.arange(tree.n)).sum())

    @property
    def n_expanded(self) -> int:
        """Number of AND nodes expanded."""
        return self._cursor.n_expanded

    @property
    def n_hits(self) -> int:
        """Number of subproblems taken from the cache."""
        return self._cursor.n_hits

    @property
    def finished(self) -> bool:
        """Whether nothing better than the best labelling, found or known, is left."""
        return self._cursor.action == FINISHED

    def require(self, value: float) -> None:
        """Search only for labellings better than `value`."""
        if value > self._state.need[self.n]:
            self._state.need[self.n] = value
            raise_needs(self._cursor.node, self._space.tree.parent, self._state, self._path)

    def advance(self, look_ups: int, max_expanded: int) -> None:
        """Search for about this many look-ups, expanding no more than `max_expanded` AND nodes in total."""
        self._cursor = search(
            self._cursor, look_ups, max_expanded, self._tol, self._space, self._state, self._cache
        )  # fmt: skip

    def upper_bound(self) -> float:
        """Upper bound on all labellings at this point of the search, with a margin for skipped round-off."""
        return open_bound(self._cursor, self._space.tree, self._state) + self.n * self._tol

    def best_labels(self) -> Ints | None:
        """Return the best labelling found, by position, or None if none was better than the known one."""
        if self._state.found[self.n] == -math.inf:
            return None
        first = self._state.best_at[self.n]
        return self._state.best[first : first + self.n].astype(np.int64)

    def current_labels(self) -> Ints:
        """Return the partial labelling of the search, completed greedily: a labelling by position."""
        labels, fixed = np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=bool)
        current_labels(self._cursor, self._space.tree, self._state, labels, fixed)
        self.buckets.complete(labels, fixed)
        return labels


def _search_space(buckets: MiniBuckets, forms: Sequence[RuleForm]) -> SearchSpace:
    """Add a node above all roots, whose bucket holds the constants, to the tree, and find the paths of messages."""
    tree, n, partition = buckets.tree, buckets.tree.n, buckets.partition
    parent = np.append(np.where(tree.parent >= 0, tree.parent, n), -1)
    end = np.append(tree.end, n)
    child_ptr, child = _children(parent, end)
    rules = lay_out_paths(tree, forms)
    ruled = np.diff(rules.link_ptr)[:n] > 0
    exact = np.append(_without_splits(tree, buckets.split | ruled), False)
    source = n - 1 - np.repeat(np.arange(n), np.diff(partition.mini_ptr))
    target = partition.bucket_of[buckets.n_given :]
    member = np.concatenate([buckets.buckets.member, buckets.n_given + np.flatnonzero(target < 0)])
    return SearchSpace(
        tree=SearchTree(np.append(tree.card, 1), parent, end, child_ptr, child, exact),
        fns=buckets.tables,
        buckets=Buckets(np.append(buckets.buckets.ptr, len(member)), member),
        paths=message_paths(parent, source, np.where(target >= 0, target, n)),
        rules=rules,
    )


def _search_state(space: SearchSpace, possible: Bools | None) -> SearchState:
    """Allocate the state of every node."""
    tree = space.tree
    n = len(tree.card)
    value_ptr = offsets(tree.card).astype(np.int64)
    n_values = int(value_ptr[-1])
    sizes = np.where(tree.exact, 0, tree.end - np.append(np.arange(n - 1), 0))
    best_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    return SearchState(
        label=np.zeros(n, dtype=np.int64),
        tried=np.zeros(n, dtype=np.int64),
        at_child=np.zeros(n, dtype=np.int64),
        need=np.full(n, -math.inf),
        found=np.full(n, -math.inf),
        sum_now=np.zeros(n),
        bound=np.zeros(n),
        beyond=np.zeros(n),
        value_ptr=value_ptr,
        value=np.zeros(n_values),
        own=np.zeros(n_values),
        ranked=np.zeros(n_values, dtype=np.int64),
        message_value=np.zeros(len(space.paths.through)),
        place_of=np.zeros(len(space.fns.at), dtype=np.int64),
        best_at=best_at,
        best=np.zeros(int(best_at[-1]), dtype=label_type(tree.card)),
        marks=new_marks(space.rules, np.ones(n_values, dtype=np.bool_) if possible is None else possible),
    )


def _crossed(tree: BucketTree, rules: PathRules) -> Bools:
    """Return the positions with variables of a rule both above and within their subtree."""
    top = np.arange(tree.n)
    for c in range(len(rules.rules)):
        first, last = rules.member[rules.member_ptr[c]], rules.member[rules.member_ptr[c + 1] - 1]
        top[last] = min(top[last], first)
    for p in range(tree.n - 1, -1, -1) if len(rules.rules) else ():
        if top[p] < p:
            top[tree.parent[p]] = min(top[tree.parent[p]], top[p])
    return np.asarray(top < np.arange(tree.n))


def _search_cache(tree: BucketTree, space: SearchSpace, cache_bytes: float) -> SearchCache:
    """Allocate slots for every node whose subproblem can recur under other ancestors, halved until all of them fit."""
    n, labels = tree.n, label_type(tree.card)
    stride, n_contexts = row_major(tree.card, tree.context_ptr, tree.context)
    size = tree.end - np.arange(n)
    bytes_each = (SLOT_BYTES + size * labels.itemsize).astype(np.float64)
    slots = np.where(_recurs(tree) & ~space.tree.exact[:n] & ~_crossed(tree, space.rules), n_contexts, 0)
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


def _recurs(tree: BucketTree) -> Bools:
    """Return the positions whose subproblem can recur: their context lacks an ancestor that their parent depends on."""
    if tree.n == 0:
        return np.zeros(0, dtype=np.bool_)
    lengths = np.diff(tree.context_ptr)
    above = np.maximum(tree.parent, 0)
    recurs = (tree.parent >= 0) & (lengths < lengths[above] + 1)
    return np.asarray(recurs & tree.known & tree.known[above])


def _without_splits(tree: BucketTree, split: Bools) -> Bools:
    """Return the positions at and below which no bucket is split: the messages of the whole subtree are exact."""
    before = np.concatenate([[0], np.cumsum(split)])
    return np.asarray(before[tree.end] == before[:-1])


def _children(parent: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the children of every node, smallest subtrees first: solving them early tightens the other bounds."""
    n = len(parent) - 1
    child = np.arange(n)
    child = child[np.lexsort((end[:n] - child, parent[:n]))]
    return offsets(np.bincount(parent[:n], minlength=n + 1)).astype(np.int64), child
