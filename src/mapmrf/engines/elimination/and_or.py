"""AND/OR branch and bound with mini-bucket bounds: the state of a search and its cache."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets
from mapmrf.engines.elimination.and_or_kernels import (
    COUNT,
    ENTER,
    FINISHED,
    HITS,
    jumps,
    open_bound,
    present_labels,
    raise_needs,
    search,
)
from mapmrf.engines.elimination.elimination import BucketTree, row_major
from mapmrf.engines.elimination.mini_buckets import MiniBuckets

ROUND_OFF = 1e-12
"""Bounds that exceed what is known by less than this share of the potentials' scale count as equal."""

SLOT_BYTES = 17
"""Memory of a place in the cache without its labels."""


class AndOr:
    """A depth-first search for a labelling better than a known one; values are sums of the given functions.

    Subproblems whose messages are exact are not searched: their optimum is the message. Solved subproblems are cached
    by the labels of their context, with their labels; failed ones with the bound that their failure proves.
    """

    def __init__(self, buckets: MiniBuckets, cache_bytes: float) -> None:
        tree = buckets.tree
        n = tree.n
        self.buckets, self.tree, self.n = buckets, tree, n
        self.card = np.append(tree.card, 1)
        self.parent = np.append(np.where(tree.parent >= 0, tree.parent, n), -1)
        self.end = np.append(tree.end, n)
        self.exact = np.append(_without_splits(tree, buckets.split), False)
        self.child_ptr, self.child = _children(self.parent, self.end)
        self._lay_out_messages()
        self._lay_out_state()
        self._lay_out_cache(cache_bytes)

    @staticmethod
    def bytes_needed(tree: BucketTree) -> int:
        """Memory of the labels that the nodes under way remember."""
        return int((tree.end - np.arange(tree.n)).sum())

    def _lay_out_messages(self) -> None:
        """Where messages go, through which child, and which nodes they pass."""
        buckets, n = self.buckets, self.n
        source = n - 1 - np.repeat(np.arange(n), np.diff(buckets.plan.mini_ptr))
        target = buckets.plan.bucket_of[buckets.n_given :]
        self.through, self.pass_ptr, self.passing = jumps(self.parent, source, np.where(target >= 0, target, n))
        constants = buckets.n_given + np.flatnonzero(target < 0)
        self.bucket = np.concatenate([buckets.bucket, constants])
        self.bucket_ptr = np.append(buckets.bucket_ptr, len(self.bucket))
        self.message_value = np.zeros(len(target))
        self.place_of = np.zeros(len(buckets.fn_at), dtype=np.int64)

    def _lay_out_state(self) -> None:
        """Everything that is kept by node."""
        n = self.n + 1
        self.value_ptr = offsets(self.card).astype(np.int64)
        n_values = int(self.value_ptr[-1])
        self.value, self.own = np.zeros(n_values), np.zeros(n_values)
        self.ranked = np.zeros(n_values, dtype=np.int64)
        self.label, self.tried, self.at_child = (np.zeros(n, dtype=np.int64) for _ in range(3))
        self.beyond, self.bound, self.sum_now = np.zeros(n), np.zeros(n), np.zeros(n)
        self.found, self.need = np.full(n, -math.inf), np.full(n, -math.inf)
        sizes = np.where(self.exact, 0, self.end - np.append(np.arange(self.n), 0))
        self.best_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._small = np.uint8 if int(self.card.max()) <= 256 else np.uint16
        self.best: Ints = np.zeros(int(self.best_at[-1]), dtype=self._small)
        self.cursor = np.array([self.n, ENTER, 0, 0], dtype=np.int64)
        self._path = np.zeros(n, dtype=np.int64)
        self._unfixed = np.zeros(self.n, dtype=bool)
        finite = self.buckets.given.theta[np.isfinite(self.buckets.given.theta)]
        self.tol = ROUND_OFF * float(np.abs(finite).max(initial=0.0))

    def _lay_out_cache(self, cache_bytes: float) -> None:
        """Places for every node whose subproblem can come again under other ancestors."""
        tree, n = self.tree, self.n
        lengths = np.diff(tree.context_ptr)
        has_parent = tree.parent >= 0
        above = np.where(has_parent, tree.parent, 0)
        comes_again = has_parent & (lengths < lengths[above] + 1) if n else has_parent
        self.context_stride, size = row_major(tree.card, tree.context_ptr, tree.context)
        useful = comes_again & tree.known & tree.known[above] & ~self.exact[:n] & (size > 0) if n else has_parent
        bytes_each = SLOT_BYTES + (self.end[:n] - np.arange(n)) * np.dtype(self._small).itemsize
        slots = np.where(useful, size, 0)
        cap = 2**40
        while cap > 0 and float((np.minimum(slots, cap) * bytes_each.astype(np.float64)).sum()) > cache_bytes:
            cap //= 2
        slots = np.minimum(slots, cap)
        self.n_slots = np.append(slots, 0)
        self.slot_at = np.concatenate([[0], np.cumsum(slots)]).astype(np.int64)
        kept = np.cumsum(slots * (self.end[:n] - np.arange(n)))
        self.kept_at = np.concatenate([[0], kept]).astype(np.int64)
        total = int(slots.sum())
        self.cache_key = np.zeros(total, dtype=np.int64)
        self.cache_state = np.zeros(total, dtype=np.uint8)
        self.cache_value = np.zeros(total)
        self.cache_labels: Ints = np.zeros(int(self.kept_at[-1]), dtype=self._small)
        self.context_ptr = np.append(tree.context_ptr, tree.context_ptr[-1]).astype(np.int64)

    @property
    def n_expanded(self) -> int:
        """AND nodes expanded."""
        return int(self.cursor[COUNT])

    @property
    def n_hits(self) -> int:
        """Subproblems taken from the cache."""
        return int(self.cursor[HITS])

    @property
    def finished(self) -> bool:
        """Whether nothing better than what was found, or was known, is left."""
        return bool(self.cursor[1] == FINISHED)

    def know(self, value: float) -> None:
        """Look only for what is better than `value`."""
        if value > self.need[self.n]:
            self.need[self.n] = value
            raise_needs(self.cursor, self.parent, self.bound, self.sum_now, self.found, self.need, self._path)

    def advance(self, look_ups: int, max_expanded: int) -> None:
        """Search for about so many look-ups, but expand no more than `max_expanded` AND nodes in all."""
        mb = self.buckets
        search(
            self.cursor, look_ups, max_expanded, self.tol, self.card, self.parent, self.end, self.child_ptr, self.child,
            self.exact, self.bucket_ptr, self.bucket, mb.fn_ptr, mb.fn_var, mb.fn_stride, mb.fn_at, mb.n_given,
            mb.given.theta, mb.arena, self.through, self.pass_ptr, self.passing, self.message_value, self.place_of,
            self.beyond, self.bound, self.value_ptr, self.value, self.own, self.ranked, self.label, self.tried,
            self.at_child, self.sum_now, self.found, self.need, self.best_at, self.best, self.context_ptr,
            self.tree.context, self.context_stride, self.n_slots, self.slot_at, self.kept_at, self.cache_key,
            self.cache_state, self.cache_value, self.cache_labels, self._unfixed,
        )  # fmt: skip

    def upper_bound(self) -> float:
        """Upper bound on all labellings as the search stands; round-off that was passed over is added."""
        top = open_bound(
            self.cursor, self.parent, self.card, self.value_ptr, self.value, self.ranked, self.tried, self.bound,
            self.sum_now, self.found, self.need,
        )  # fmt: skip
        return top + self.n * self.tol

    def best_labels(self) -> Ints | None:
        """The best labelling found, by position, or None if nothing better than what was known has been."""
        if self.found[self.n] == -math.inf:
            return None
        first = self.best_at[self.n]
        return self.best[first : first + self.n].astype(np.int64)

    def present_labels(self) -> Ints:
        """What the search has set, completed by what looks best: a labelling by position."""
        labels, fixed = np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=bool)
        present_labels(
            self.cursor, self.parent, self.end, self.child_ptr, self.child, self.at_child, self.exact, self.best_at,
            self.best, self.label, labels, fixed,
        )  # fmt: skip
        self.buckets.complete(labels, fixed)
        return labels


def _without_splits(tree: BucketTree, split: Bools) -> Bools:
    """Positions below and at which no bucket is split: the messages of the whole subtree are exact."""
    before = np.concatenate([[0], np.cumsum(split)])
    return np.asarray(before[tree.end] == before[:-1])


def _children(parent: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Children of every node, the smallest subtrees first: what is soon solved sharpens the bounds of the rest."""
    n = len(parent) - 1
    child = np.arange(n)
    child = child[np.lexsort((end[:n] - child, parent[:n]))]
    return offsets(np.bincount(parent[:n], minlength=n + 1)).astype(np.int64), child
