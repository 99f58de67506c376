"""Cost shifting on the join graph of small mini-buckets, which gives tighter functions for larger mini-buckets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, segment_max
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.elimination.elimination import BucketTree, Functions, row_major
from mapmrf.engines.elimination.mini_buckets import BucketPartition
from mapmrf.run import pace


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
        self._clusters = JoinClusters(tree.card, ptr, var, at, np.empty(int(at[-1])), *_links(partition, given.n))
        self._scratch = _scratch(tree, partition, ptr, sizes)
        self._bucket, self._to_leaves, self.sweeps = 0, False, 0
        self._partition, self._given = partition, given

    def fill(self) -> Iterator[None]:
        """Sum the given functions into the clusters, in steps of some table entries; must run first."""
        at, given = self._clusters.at, self._given
        ends = np.flatnonzero(np.diff(at // pace.JOIN_TABLES)) + 1
        for first, last in pairwise([0, *ends.tolist(), len(at) - 1]):
            fill_clusters(
                first, last, self._clusters, self._partition, given.stride, given.at, given.theta, self._scratch
            )
            yield

    def advance(self, entries: int) -> None:
        """Continue the current sweep for about this many table entries, at most to its end."""
        self._bucket, self._to_leaves, ended = sweep_clusters(
            self._bucket, self._to_leaves, entries, self._clusters, self._scratch
        )
        self.sweeps += ended

    def bound(self) -> float:
        """Upper bound on the sum of the given functions: the sum of the tables' maxima."""
        clusters = self._clusters
        return float(segment_max(clusters.tables, clusters.at).sum())

    def functions(self) -> Functions:
        clusters = self._clusters
        return Functions(clusters.ptr, clusters.var, self._stride, clusters.at[:-1], clusters.tables)


def _links(partition: BucketPartition, n_given: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the last four arrays of `JoinClusters`."""
    n_clusters = len(partition.member_ptr) - 1
    owner = np.repeat(np.arange(n_clusters), np.diff(partition.member_ptr))
    messages = partition.member >= n_given
    child = partition.member[messages] - n_given
    parent = np.full(n_clusters, -1, dtype=np.int64)
    parent[child] = owner[messages]
    child_ptr = offsets(np.bincount(owner[messages], minlength=n_clusters)).astype(np.int64)
    return partition.mini_ptr, parent, child_ptr, child


def _scratch(tree: BucketTree, partition: BucketPartition, ptr: Ints, sizes: Ints) -> SeparatorScratch:
    counts = np.diff(partition.mini_ptr)
    longest = int(np.diff(ptr).max(initial=1))
    largest = np.maximum.reduceat(sizes, partition.mini_ptr[:-1]) if tree.n else np.ones(1, dtype=np.int64)
    buffer = np.empty(int(max((largest * counts).max(initial=1), 2 * sizes.max(initial=1))))
    stride, digit, scope, sides = np.zeros((4, max(longest, int(counts.max(initial=1)), 2) + 1), dtype=np.int64)
    inner = np.zeros(max(WIDTH, int(tree.card.max(initial=1))), dtype=np.int64)
    return SeparatorScratch(stride, digit, scope, sides, inner, buffer)


# -- Cost shifting on a join graph: clusters of variables with tables, whose max-marginals agree on separators --------
# The clusters are mini-buckets. A cluster is joined with the cluster that receives its message, on all its
# variables but the last, and with the other mini-buckets of its bucket, on their common variables.

WIDTH = 1024  # runs of a table's entries whose places in a separator's table are computed once
LONG = 8  # length from which a run of entries is processed as a vector; shorter ones are processed entry by entry


class JoinClusters(NamedTuple):
    card: Ints  # (n,): number of states at every position
    ptr: Ints
    var: Ints  # cluster `m` has the variables ``var[ptr[m]:ptr[m + 1]]``, the one that is eliminated last
    at: Ints
    tables: Floats  # its table is ``tables[at[m]:at[m + 1]]``
    bucket_ptr: Ints  # the clusters of every bucket, the first eliminated first
    parent: Ints  # the cluster that receives the message of a cluster, or -1
    child_ptr: Ints
    child: Ints  # the clusters whose messages a cluster receives


class SeparatorScratch(NamedTuple):
    stride: Ints
    digit: Ints  # a configuration
    scope: Ints  # its variables
    sides: Ints  # the clusters that share it
    inner: Ints  # places in it
    buffer: Floats  # its max-marginals in all of these


@bare
def entry_runs(m: int, clusters: JoinClusters, n_scope: int, scratch: SeparatorScratch) -> tuple[int, int, int, int]:
    """Map a cluster's table entries to those of a separator, and write the offsets of its runs.

    Returns the length of a run, whose entries follow each other in both tables; how often it is repeated on the same
    places; the number of repeated runs whose places are computed at once; and of the variables left to count.
    """
    card, var, scope, stride, inner = clusters.card, clusters.var, scratch.scope, scratch.stride, scratch.inner
    first, last = clusters.ptr[m], clusters.ptr[m + 1] - clusters.ptr[m] - 1
    step, s = 1, n_scope - 1
    for d in range(last, -1, -1):  # strides of the separator's table: 0 along variables that it does not have
        stride[d] = 0
        if s >= 0 and scope[s] == var[first + d]:
            stride[d] = step
            step *= card[scope[s]]
            s -= 1
    d, length, times = last, 1, 1
    while d >= 0 and stride[d] > 0:
        length *= card[var[first + d]]
        d -= 1
    while d >= 0 and stride[d] == 0:
        times *= card[var[first + d]]
        d -= 1
    cut, width = d + 1, 1
    inner[0] = 0
    while cut > 0 and width * card[var[first + cut - 1]] <= WIDTH:
        cut -= 1
        n_k = card[var[first + cut]]
        for k in range(n_k - 1, -1, -1):
            for j in range(width):
                inner[k * width + j] = inner[j] + k * stride[cut]
        width *= n_k
    return length, times, width, cut


@bare
def next_base(m: int, clusters: JoinClusters, cut: int, stride: Ints, digit: Ints, base: int) -> int:
    """The place in the separator's table where the next run of a cluster's entries starts."""
    for d in range(cut - 1, -1, -1):
        digit[d] += 1
        base += stride[d]
        if digit[d] < clusters.card[clusters.var[clusters.ptr[m] + d]]:
            break
        base -= digit[d] * stride[d]
        digit[d] = 0
    return base


@inlined
def max_run(length: int, times: int, tables: Floats, at: int, out: Floats, to: int) -> None:
    """Maxima of a run of entries: as many as it is long, each over as many entries as it is repeated."""
    n, step, row, place = np.uintp(length), np.uintp(length), np.uintp(at), np.uintp(to)
    if length < LONG:
        for i in range(n):
            best, t = out[place + i], row + i
            for _ in range(times):
                best = max(best, tables[t])
                t += step
            out[place + i] = best
    else:
        for _ in range(times):
            for i in range(n):
                out[place + i] = max(out[place + i], tables[row + i])
            row += step


@inlined
def add_run(length: int, times: int, tables: Floats, at: int, given: Floats, given_at: int) -> None:
    n, step, row, place = np.uintp(length), np.uintp(length), np.uintp(at), np.uintp(given_at)
    if length < LONG:
        for i in range(n):
            shift, t = given[place + i], row + i
            for _ in range(times):
                tables[t] += shift
                t += step
    else:
        for _ in range(times):
            for i in range(n):
                tables[row + i] += given[place + i]
            row += step


@bare
def visit_runs(m: int, clusters: JoinClusters, n_scope: int, base: int, scratch: SeparatorScratch, add: bool) -> None:
    """Raise the buffer from `base` on to the max-marginals of a cluster on a separator, or add it to the cluster."""
    tables, buffer, inner, digit = clusters.tables, scratch.buffer, scratch.inner, scratch.digit
    length, times, width, cut = entry_runs(m, clusters, n_scope, scratch)
    for d in range(cut):
        digit[d] = 0
    at = clusters.at[m]
    while at < clusters.at[m + 1]:
        for j in range(width):
            if add:
                add_run(length, times, tables, at, buffer, base + inner[j])
            else:
                max_run(length, times, tables, at, buffer, base + inner[j])
            at += length * times
        base = next_base(m, clusters, cut, scratch.stride, digit, base)


@bare
def agree(n_sides: int, share_of_first: float, n_scope: int, clusters: JoinClusters, scratch: SeparatorScratch) -> None:
    """Make the max-marginals of the clusters in `sides` on a separator shares of their sum.

    The first has the share given and the others equal ones. A state impossible for one cluster becomes so for all.
    """
    buffer, size = scratch.buffer, 1
    for s in range(n_scope):
        size *= clusters.card[scratch.scope[s]]
    buffer[: n_sides * size] = -np.inf
    for r in range(n_sides):
        visit_runs(scratch.sides[r], clusters, n_scope, r * size, scratch, False)
    for s in range(size):
        total, possible = 0.0, True
        for r in range(n_sides):
            total += buffer[r * size + s]
            possible = possible and buffer[r * size + s] > -np.inf
        for r in range(n_sides):
            share = share_of_first if r == 0 else (1.0 - share_of_first) / (n_sides - 1)
            buffer[r * size + s] = share * total - buffer[r * size + s] if possible else -np.inf
    for r in range(n_sides):
        visit_runs(scratch.sides[r], clusters, n_scope, r * size, scratch, True)


@compiled
def fill_clusters(
    first: int, last: int, clusters: JoinClusters, partition: BucketPartition, given_stride: Ints, given_at: Ints,
    theta: Floats, scratch: SeparatorScratch,
) -> None:  # fmt: skip
    """Sum the given functions, of which these are strides, offsets and tables, into some clusters."""
    fn_ptr, fn_var, tables, digit, stride = (
        partition.fn_ptr,
        partition.fn_var,
        clusters.tables,
        scratch.digit,
        scratch.stride,
    )
    for m in range(first, last):
        for at in range(clusters.at[m], clusters.at[m + 1]):
            tables[at] = 0.0
        n_dims = clusters.ptr[m + 1] - clusters.ptr[m]
        for b in range(partition.member_ptr[m], partition.member_ptr[m + 1]):
            f = partition.member[b]
            if f >= len(given_at):
                continue
            v = fn_ptr[f]
            for d in range(n_dims):
                digit[d], stride[d] = 0, 0
                if v < fn_ptr[f + 1] and fn_var[v] == clusters.var[clusters.ptr[m] + d]:
                    stride[d] = given_stride[v]
                    v += 1
            base = given_at[f]
            for at in range(clusters.at[m], clusters.at[m + 1]):
                tables[at] += theta[base]
                base = next_base(m, clusters, n_dims, stride, digit, base)


@bare
def agree_in_bucket(first: int, last: int, clusters: JoinClusters, scratch: SeparatorScratch) -> None:
    ptr, var = clusters.ptr, clusters.var
    n_scope = 0
    for d in range(ptr[first], ptr[first + 1]):
        everywhere = True
        for m in range(first + 1, last):
            at = ptr[m]
            while at < ptr[m + 1] and var[at] < var[d]:
                at += 1
            everywhere = everywhere and at < ptr[m + 1] and var[at] == var[d]
        if everywhere:
            scratch.scope[n_scope] = var[d]
            n_scope += 1
    for r in range(last - first):
        scratch.sides[r] = first + r
    agree(last - first, 1.0 / (last - first), n_scope, clusters, scratch)


@bare
def agree_with_parent(m: int, parent: int, share: float, clusters: JoinClusters, scratch: SeparatorScratch) -> int:
    """Make a cluster and the one above agree; the lower one keeps a share. Returns the table entries that took."""
    scratch.sides[0], scratch.sides[1] = m, parent
    n_scope = clusters.ptr[m + 1] - clusters.ptr[m] - 1
    for d in range(n_scope):
        scratch.scope[d] = clusters.var[clusters.ptr[m] + d]
    agree(2, share, n_scope, clusters, scratch)
    return int(2 * (clusters.at[m + 1] - clusters.at[m] + clusters.at[parent + 1] - clusters.at[parent]))


@compiled
def sweep_clusters(
    t: int, to_leaves: bool, budget: int, clusters: JoinClusters, scratch: SeparatorScratch
) -> tuple[int, bool, bool]:
    """Sweep over the buckets to the roots and back, until some `budget` of table entries is spent or the sweep ends.

    On the way to the roots every cluster hands its max-marginals to the cluster above; on the way back it shares with
    each cluster below. The mini-buckets of a bucket agree on what they have in common, both times. The sum of the
    tables' maxima does not rise. Starts at bucket `t` of either way; returns where to continue, and whether the sweep
    has ended.
    """
    n = len(clusters.bucket_ptr) - 1
    while budget > 0:
        first, last = clusters.bucket_ptr[t], clusters.bucket_ptr[t + 1]
        if last - first > 1:
            agree_in_bucket(first, last, clusters, scratch)
        for m in range(first, last):
            budget -= 2 * (clusters.at[m + 1] - clusters.at[m]) + 100
            if to_leaves:
                for c_at in range(clusters.child_ptr[m], clusters.child_ptr[m + 1]):
                    budget -= agree_with_parent(clusters.child[c_at], m, 0.5, clusters, scratch)
            elif clusters.parent[m] >= 0:
                budget -= agree_with_parent(m, clusters.parent[m], 0.0, clusters, scratch)
        t += -1 if to_leaves else 1
        if t == n:
            t, to_leaves = n - 1, True
        elif t < 0:
            return 0, False, True
    return t, to_leaves, False
