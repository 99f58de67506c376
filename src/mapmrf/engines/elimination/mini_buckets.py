"""Mini-bucket elimination with moment matching: messages that bound every subproblem of a bucket tree."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.engines.elimination.bucket_tree import BucketTree, row_major
from mapmrf.engines.elimination.elimination import gathered
from mapmrf.engines.elimination.elimination_kernels import BLOCK, FunctionTables
from mapmrf.engines.elimination.functions import Functions
from mapmrf.engines.elimination.mini_bucket_kernels import (
    BucketPartition,
    BuildCursor,
    build,
    complete,
    partition_buckets,
)

MAX_LOG = 60
"""No table has 2^60 entries."""


def find_partition(
    tree: BucketTree, given: Functions, max_vars: int, max_log: float, max_entries: float = math.inf
) -> BucketPartition | None:
    """Partition all buckets with messages of limited size; None if they exceed `max_entries` in total."""
    fits, partition = partition_buckets(tree.card, given.ptr, given.var, max_vars, float(max_log), float(max_entries))
    return partition if fits else None


def largest_partition(tree: BucketTree, given: Functions, max_entries: float) -> BucketPartition:
    """Return the partition with the largest tables whose messages have at most `max_entries` in total."""
    low = max(1, int(math.log2(max(2.0, max_entries / max(1, tree.n)))) - 1)
    best = None
    while best is None and low > 0:
        best = find_partition(tree, given, tree.n, low, max_entries)
        low -= best is None
    while best is not None and low < MAX_LOG:
        bigger = find_partition(tree, given, tree.n, low + 1, max_entries)
        if bigger is None:
            break
        best, low = bigger, low + 1
    smallest = best if best is not None else find_partition(tree, given, 0, 0.0)
    assert smallest is not None
    return smallest


class MiniBuckets:
    """The messages of all mini-buckets, computed in steps.

    Attributes
    ----------
    tree, given, partition
        The buckets, the initial functions, and the mini-buckets.
    tables
        Given functions and messages.
    buckets
        The functions of every position's bucket.
    """

    def __init__(self, tree: BucketTree, given: Functions, partition: BucketPartition) -> None:
        self.tree, self.given, self.partition = tree, given, partition
        strides, sizes = row_major(tree.card, partition.fn_ptr[given.n :], partition.fn_var)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.tables = FunctionTables(
            card=tree.card,
            ptr=partition.fn_ptr,
            var=partition.fn_var,
            stride=np.concatenate([given.stride, strides]),
            at=np.concatenate([given.at, starts[:-1]]),
            n_given=given.n,
            theta=given.theta,
            arena=np.empty(int(starts[-1])),
        )
        self.buckets = gathered(partition.bucket_of, tree.n)
        counts = np.diff(partition.mini_ptr)
        largest = np.maximum.reduceat(sizes, partition.mini_ptr[:-1]) if tree.n else np.zeros(0)
        room = (largest * tree.card[::-1] * counts)[counts > 1].max(initial=1)
        self._shift = np.empty(int(room))
        self._inner = np.empty((1 + int(np.diff(partition.member_ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = BuildCursor(bucket=0, matched=False, mini=0, block=0)

    @property
    def n_given(self) -> int:
        """Number of given functions; message `m` is the function ``n_given + m``."""
        return self.given.n

    @property
    def n_done(self) -> int:
        """Number of completed buckets."""
        return self._cursor.bucket

    @property
    def finished(self) -> bool:
        """Whether all messages are computed."""
        return self.n_done == self.tree.n

    @property
    def split(self) -> Bools:
        """Mask of the positions whose bucket has several mini-buckets, so that their messages are not exact."""
        return np.asarray(np.diff(self.partition.mini_ptr)[::-1] > 1)

    @property
    def largest_scope(self) -> int:
        """Number of variables of the largest message: the effective i-bound."""
        return int(np.diff(self.tables.ptr[self.n_given :]).max(initial=0))

    def advance(self, additions: int, max_done: int) -> None:
        """Do about this many additions of table entries, at least a block, until `max_done` buckets are complete."""
        until = min(self.tree.n, max_done)
        self._cursor = build(
            self._cursor, additions, until, self.tables, self.partition, self._shift, self._inner
        )  # fmt: skip

    def bound(self) -> float:
        """Upper bound on the sum of all given functions, once finished."""
        constants = np.flatnonzero(self.partition.bucket_of[self.n_given :] < 0)
        return float(self.tables.arena[self.tables.at[self.n_given + constants]].sum())

    def complete(self, labels: Ints, fixed: Bools) -> None:
        """Set all positions that are not fixed to their most promising state, from the roots down."""
        complete(self.tables, self.buckets, fixed, labels)
