"""Cost shifting on the join graph of a mini-bucket plan: tighter functions to begin larger mini-buckets with."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import offsets
from mapmrf.engines.elimination.elimination import BucketTree, Functions, row_major
from mapmrf.engines.elimination.join_graph_kernels import WIDTH, fill_clusters, sweep_clusters
from mapmrf.engines.elimination.mini_buckets import Plan


class JoinGraph:
    """The mini-buckets of a plan as clusters with tables of their own, whose sum is that of the given functions."""

    def __init__(self, tree: BucketTree, given: Functions, plan: Plan) -> None:
        n_clusters = len(plan.member_ptr) - 1
        bucket = tree.n - 1 - np.repeat(np.arange(tree.n), np.diff(plan.mini_ptr))
        ends = plan.fn_ptr[given.n + 1 :] - plan.fn_ptr[given.n]
        var = np.insert(plan.fn_var[plan.fn_ptr[given.n] :], ends, bucket)
        ptr = np.concatenate([[0], ends + np.arange(1, n_clusters + 1)]).astype(np.int64)
        self.tree, self.plan = tree, plan
        self._ptr, self._var = ptr, var
        self._stride, sizes = row_major(tree.card, ptr, var)
        self._at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._tables = np.empty(int(self._at[-1]))
        self._lay_out(given, sizes)
        fill_clusters(
            ptr, var, self._at, tree.card, plan.member_ptr, plan.member, given.n, plan.fn_ptr, plan.fn_var,
            given.stride, given.at, given.theta, self._tables, self._scratch[0], self._scratch[1],
        )  # fmt: skip

    def _lay_out(self, given: Functions, sizes: np.ndarray) -> None:
        """Which cluster takes whose message; scratch."""
        plan, n_clusters = self.plan, len(sizes)
        owner = np.repeat(np.arange(n_clusters), np.diff(plan.member_ptr))
        messages = plan.member >= given.n
        self._parent = np.full(n_clusters, -1, dtype=np.int64)
        self._parent[plan.member[messages] - given.n] = owner[messages]
        self._child = plan.member[messages] - given.n
        self._child_ptr = offsets(np.bincount(owner[messages], minlength=n_clusters)).astype(np.int64)
        counts = np.diff(plan.mini_ptr)
        longest = int(np.diff(self._ptr).max(initial=1))
        largest = np.maximum.reduceat(sizes, plan.mini_ptr[:-1]) if self.tree.n else np.ones(1, dtype=np.int64)
        self._buffer = np.empty(int(max((largest * counts).max(initial=1), 2 * sizes.max(initial=1))))
        self._scratch = np.zeros((4, max(longest, int(counts.max(initial=1)), 2) + 1), dtype=np.int64)
        self._inner = np.zeros(max(WIDTH, int(self.tree.card.max(initial=1))), dtype=np.int64)
        self._cursor = np.zeros(3, dtype=np.int64)

    @property
    def sweeps(self) -> int:
        """Sweeps done."""
        return int(self._cursor[2])

    def advance(self, entries: int) -> None:
        """Go on with the sweep under way, for about so many table entries, to its end at most."""
        sweep_clusters(
            self._cursor, entries, self.plan.mini_ptr, self._parent, self._child_ptr, self._child, self._ptr, self._var,
            self._at, self.tree.card, self._tables, self._buffer, self._scratch, self._inner,
        )  # fmt: skip

    def bound(self) -> float:
        """Upper bound on the sum of the given functions: the sum of the tables' maxima."""
        return float(np.maximum.reduceat(self._tables, self._at[:-1]).sum()) if self.tree.n else 0.0

    def functions(self) -> Functions:
        """The clusters' tables as functions of the bucket tree."""
        return Functions(self._ptr, self._var, self._stride, self._at[:-1], self._tables)
