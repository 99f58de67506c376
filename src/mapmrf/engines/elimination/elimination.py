"""Exact maximisation by bucket elimination."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.engines.elimination.bucket_tree import BucketTree, row_major
from mapmrf.engines.elimination.elimination_kernels import (
    BLOCK,
    Buckets,
    Choices,
    EliminationCursor,
    FunctionTables,
    eliminate,
    score_labellings,
    substitute,
)
from mapmrf.engines.elimination.functions import Functions


class Elimination:
    """Exact maximisation by bucket elimination, in steps.

    A message is discarded once it has been used; the maximising states of every bucket are kept for each entry.
    """

    def __init__(self, tree: BucketTree, given: Functions) -> None:
        n = tree.n
        self.tree, self.given = tree, given
        lengths = np.diff(tree.context_ptr)
        stride, sizes = row_major(tree.card, tree.context_ptr, tree.context)
        self._tables = FunctionTables(
            card=tree.card,
            ptr=np.concatenate([given.ptr, given.ptr[-1] + np.cumsum(lengths)]).astype(np.int64),
            var=np.concatenate([given.var, tree.context]),
            stride=np.concatenate([given.stride, stride]),
            at=np.concatenate([given.at, np.zeros(n, dtype=np.int64)]),
            n_given=given.n,
            theta=given.theta,
            arena=np.empty(int(tree.peak) + 1),
        )
        self._buckets = gathered(np.concatenate([given.bucket, tree.parent]), n)
        at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._choices = Choices(at, np.zeros(int(at[-1]), dtype=label_type(tree.card)))
        self._inner = np.empty((2 + int(np.diff(self._buckets.ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = EliminationCursor(position=n - 1, block=0, height=0, value=0.0)

    @staticmethod
    def bytes_needed(tree: BucketTree) -> float:
        """Return the memory of simultaneously live messages and of the choices."""
        return 8 * tree.peak + label_type(tree.card).itemsize * tree.entries

    @property
    def n_done(self) -> int:
        """Number of buckets eliminated."""
        return self.tree.n - 1 - self._cursor.position

    @property
    def finished(self) -> bool:
        """Whether elimination is complete."""
        return self._cursor.position < 0

    @property
    def value(self) -> float:
        """The maximum of the sum of all functions, once finished."""
        return self._cursor.value

    def advance(self, additions: int, max_done: int) -> None:
        """Do about this many additions of table entries, at least a block, until `max_done` buckets are eliminated."""
        until = max(0, self.tree.n - max_done)
        self._cursor = eliminate(
            self._cursor, additions, until, self._tables, self._buckets, self._choices, self._inner
        )

    def labels(self) -> Ints:
        """Return the best labels, by variable, once finished."""
        labels = np.zeros(self.tree.n, dtype=np.int64)
        self.complete(0, self.tree.n, labels)
        return self.tree.by_variable(labels)

    def complete(self, begin: int, end: int, labels: Ints) -> None:
        """Set the labels (n,) of positions `begin` to `end` to the best given those before, once finished."""
        substitute(begin, end, self._tables, self._choices, labels)

    def score(self, labels: Ints, at: int, out: Floats) -> None:
        """Write the sum of the next bucket's functions for every state of its variable, the others as labelled.

        Labels by position, (n_labellings, n); the scores go into the columns of `out` from `at` on.
        """
        score_labellings(self._cursor.position, at, self._tables, self._buckets, labels, out)


def gathered(bucket_of: Ints, n: int) -> Buckets:
    """Group functions by bucket, ascending, from the bucket of every function (-1: none)."""
    member = np.flatnonzero(bucket_of >= 0)
    member = member[np.argsort(bucket_of[member], kind="stable")]
    return Buckets(offsets(np.bincount(bucket_of[member], minlength=n)).astype(np.int64), member)


def label_type(card: Ints) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type that holds a state of every variable."""
    return np.dtype(np.uint8 if int(card.max(initial=1)) <= 256 else np.uint16)
