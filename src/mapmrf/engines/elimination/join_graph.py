"""Cost shifting on the join graph of small mini-buckets, which gives tighter functions for larger mini-buckets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from mapmrf.arrays import Ints, offsets, segment_max
from mapmrf.engines.elimination.bucket_tree import BucketTree, row_major
from mapmrf.engines.elimination.elimination_kernels import FunctionTables
from mapmrf.engines.elimination.functions import Functions
from mapmrf.engines.elimination.join_graph_kernels import (
    WIDTH,
    JoinClusters,
    JoinLinks,
    SeparatorScratch,
    SweepCursor,
    fill_clusters,
    sweep_clusters,
)
from mapmrf.engines.elimination.mini_bucket_kernels import BucketPartition

FILL_ENTRIES = 1_000_000
"""Table entries filled per step: some hundredths of a second."""


class JoinGraph:
    """The mini-buckets of a partition as clusters with tables that sum to the given functions."""

    def __init__(self, tree: BucketTree, given: Functions, partition: BucketPartition) -> None:
        self.tree = tree
        n_clusters = len(partition.member_ptr) - 1
        bucket = tree.n - 1 - np.repeat(np.arange(tree.n), np.diff(partition.mini_ptr))
        ends = partition.fn_ptr[given.n + 1 :] - partition.fn_ptr[given.n]
        var = np.insert(partition.fn_var[partition.fn_ptr[given.n] :], ends, bucket)
        ptr = np.concatenate([[0], ends + np.arange(1, n_clusters + 1)]).astype(np.int64)
        self._stride, sizes = row_major(tree.card, ptr, var)
        at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._clusters = JoinClusters(tree.card, ptr, var, at, np.empty(int(at[-1])))
        self._links = _links(partition, given.n)
        self._buffer, self._scratch = _scratch(tree, partition, ptr, sizes)
        self._cursor = SweepCursor(bucket=0, to_leaves=False, n_sweeps=0)
        self._partition = partition
        self._given = FunctionTables(
            tree.card, partition.fn_ptr, partition.fn_var, given.stride, given.at, given.n, given.theta, np.empty(0)
        )

    def fill(self) -> Iterator[None]:
        """Sum the given functions into the clusters, in steps of some table entries; must run first."""
        at = self._clusters.at
        ends = np.flatnonzero(np.diff(at // FILL_ENTRIES)) + 1
        for first, last in pairwise([0, *ends.tolist(), len(at) - 1]):
            fill_clusters(first, last, self._clusters, self._partition, self._given, self._scratch)
            yield

    @property
    def sweeps(self) -> int:
        """Number of completed sweeps."""
        return self._cursor.n_sweeps

    def advance(self, entries: int) -> None:
        """Continue the current sweep for about this many table entries, at most to its end."""
        self._cursor = sweep_clusters(
            self._cursor, entries, self._links, self._clusters, self._buffer, self._scratch
        )  # fmt: skip

    def bound(self) -> float:
        """Upper bound on the sum of the given functions: the sum of the tables' maxima."""
        clusters = self._clusters
        return float(segment_max(clusters.tables, clusters.at).sum())

    def functions(self) -> Functions:
        """The clusters' tables as functions of the bucket tree."""
        clusters = self._clusters
        return Functions(clusters.ptr, clusters.var, self._stride, clusters.at[:-1], clusters.tables)


def _links(partition: BucketPartition, n_given: int) -> JoinLinks:
    """Return which cluster receives whose message."""
    n_clusters = len(partition.member_ptr) - 1
    owner = np.repeat(np.arange(n_clusters), np.diff(partition.member_ptr))
    messages = partition.member >= n_given
    child = partition.member[messages] - n_given
    parent = np.full(n_clusters, -1, dtype=np.int64)
    parent[child] = owner[messages]
    child_ptr = offsets(np.bincount(owner[messages], minlength=n_clusters)).astype(np.int64)
    return JoinLinks(partition.mini_ptr, parent, child_ptr, child)


def _scratch(
    tree: BucketTree, partition: BucketPartition, ptr: Ints, sizes: Ints
) -> tuple[np.ndarray, SeparatorScratch]:
    """Allocate scratch for the max-marginals of all clusters that meet, and for a separator."""
    counts = np.diff(partition.mini_ptr)
    longest = int(np.diff(ptr).max(initial=1))
    largest = np.maximum.reduceat(sizes, partition.mini_ptr[:-1]) if tree.n else np.ones(1, dtype=np.int64)
    buffer = np.empty(int(max((largest * counts).max(initial=1), 2 * sizes.max(initial=1))))
    stride, digit, scope, sides = np.zeros((4, max(longest, int(counts.max(initial=1)), 2) + 1), dtype=np.int64)
    inner = np.zeros(max(WIDTH, int(tree.card.max(initial=1))), dtype=np.int64)
    return buffer, SeparatorScratch(stride, digit, scope, sides, inner)
