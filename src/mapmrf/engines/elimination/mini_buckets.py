"""Mini-bucket elimination with moment matching: messages that bound every subproblem of a bucket tree from above."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets
from mapmrf.engines.elimination.elimination import BucketTree, Functions, row_major
from mapmrf.engines.elimination.elimination_kernels import BLOCK
from mapmrf.engines.elimination.mini_bucket_kernels import build, decode, plan, shift_costs
from mapmrf.problem import Problem

MAX_LOG = 60
"""No table has 2^60 entries."""


@dataclass(frozen=True, eq=False)
class Plan:
    """How the buckets are partitioned; see `mapmrf.engines.elimination.mini_bucket_kernels.plan`."""

    fn_ptr: Ints
    fn_var: Ints
    mini_ptr: Ints
    member_ptr: Ints
    member: Ints
    bucket_of: Ints

    @classmethod
    def find(
        cls, tree: BucketTree, given: Functions, max_vars: int, max_log: float, max_entries: float = math.inf
    ) -> Plan | None:
        """Partition all buckets with messages of limited size; None if they have more than `max_entries` together."""
        fits, *arrays = plan(tree.card, given.ptr, given.var, max_vars, max_log, max_entries)
        return cls(*arrays) if fits else None

    @classmethod
    def within(cls, tree: BucketTree, given: Functions, max_entries: float) -> Plan:
        """The partition with the largest tables such that all messages have at most `max_entries` together."""
        low = max(1, int(math.log2(max(2.0, max_entries / max(1, tree.n)))) - 1)
        best = None
        while best is None and low > 0:
            best = cls.find(tree, given, tree.n, low, max_entries)
            low -= best is None
        while best is not None and low < MAX_LOG:
            bigger = cls.find(tree, given, tree.n, low + 1, max_entries)
            if bigger is None:
                break
            best, low = bigger, low + 1
        smallest = best if best is not None else cls.find(tree, given, 0, 0.0)
        assert smallest is not None
        return smallest


class MiniBuckets:
    """The messages of all mini-buckets, computed some of the work at a time.

    Attributes
    ----------
    tree, given, plan
        The buckets, the functions they began with, and the partition.
    fn_ptr, fn_var, fn_stride, fn_at
        Given functions and messages, as in `Functions`; the tables of messages are in `arena`.
    bucket_ptr, bucket
        The functions of every position's bucket.
    """

    def __init__(self, tree: BucketTree, given: Functions, plan: Plan) -> None:
        self.tree, self.given, self.plan = tree, given, plan
        self.fn_ptr, self.fn_var = plan.fn_ptr, plan.fn_var
        n_fn = len(plan.fn_ptr) - 1
        strides, sizes = row_major(tree.card, plan.fn_ptr[given.n :], plan.fn_var)
        self.fn_stride = np.concatenate([given.stride, strides])
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.fn_at = np.concatenate([given.at, starts[:-1]])
        self.arena = np.empty(int(starts[-1]))
        used = np.flatnonzero(plan.bucket_of[:n_fn] >= 0)
        used = used[np.argsort(plan.bucket_of[used], kind="stable")]
        self.bucket = used
        self.bucket_ptr = offsets(np.bincount(plan.bucket_of[used], minlength=tree.n)).astype(np.int64)
        counts = np.diff(plan.mini_ptr)
        largest = np.maximum.reduceat(sizes, plan.mini_ptr[:-1]) if tree.n else np.zeros(0)
        room = (largest * tree.card[::-1] * counts)[counts > 1].max(initial=1)
        self._shift = np.empty(int(room))
        self._inner = np.empty((1 + int(np.diff(plan.member_ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = np.zeros(4, dtype=np.int64)

    @property
    def n_given(self) -> int:
        """Number of given functions; message `m` is the function ``n_given + m``."""
        return self.given.n

    @property
    def n_done(self) -> int:
        """Buckets done."""
        return int(self._cursor[0])

    @property
    def finished(self) -> bool:
        """Whether all messages are there."""
        return self.n_done == self.tree.n

    @property
    def split(self) -> Bools:
        """Whether a position's bucket has several mini-buckets, so that its messages are not exact."""
        return np.asarray(np.diff(self.plan.mini_ptr)[::-1] > 1)

    @property
    def largest_scope(self) -> int:
        """Variables of the largest message: the i-bound in effect."""
        return int(np.diff(self.fn_ptr[self.n_given :]).max(initial=0))

    def advance(self, additions: int, max_done: int) -> None:
        """Do about so many additions of table entries, at least a block, until `max_done` buckets are done."""
        build(
            self._cursor,
            additions,
            min(self.tree.n, max_done),
            self.tree.card,
            self.plan.mini_ptr,
            self.plan.member_ptr,
            self.plan.member,
            self.fn_ptr,
            self.fn_var,
            self.fn_stride,
            self.fn_at,
            self.n_given,
            self.given.theta,
            self.arena,
            self._shift,
            self._inner,
        )

    def bound(self) -> float:
        """Upper bound on the sum of all given functions, once finished."""
        constants = np.flatnonzero(self.plan.bucket_of[self.n_given :] < 0)
        return float(self.arena[self.fn_at[self.n_given + constants]].sum())

    def complete(self, labels: Ints, fixed: Bools) -> None:
        """Set all positions that are not fixed to what looks best, from the roots down."""
        decode(
            0,
            self.tree.n,
            self.tree.card,
            self.bucket_ptr,
            self.bucket,
            self.fn_ptr,
            self.fn_var,
            self.fn_stride,
            self.fn_at,
            self.n_given,
            self.given.theta,
            self.arena,
            fixed,
            labels,
        )


class Shifting:
    """Cost shifting on the factors: reparametrises a problem so that its simple bound falls.

    Attributes
    ----------
    theta_v, theta_f, table_ptr
        The reparametrised potentials: the table of factor `a` is ``theta_f[table_ptr[a]:table_ptr[a + 1]]``.
    labels
        The best state of every variable by its max-marginals in the last pass.
    """

    def __init__(self, problem: Problem, order: Ints) -> None:
        graph = problem.graph
        self.problem = problem
        self.theta_v = graph.theta_v.copy()
        self.theta_f = problem.theta_f.copy()
        self.table_ptr = problem.config_ptr.astype(np.int64)
        owner = problem.edge_factor
        self._factor_of = owner[problem.nbr]
        self._stride_of = problem.edge_stride[problem.nbr]
        self.labels = np.zeros(problem.n_vars, dtype=np.int64)
        self._gathered = np.zeros(int(graph.card.max(initial=1)))
        self._order = order
        self._rank = np.empty(len(order), dtype=np.int64)
        self._rank[order] = np.arange(len(order))

    def sweep(self) -> None:
        """Shift costs along the order and back."""
        for order, rank in ((self._order, self._rank), (self._order[::-1].copy(), -self._rank)):
            shift_costs(
                order,
                rank,
                self.problem.graph.card,
                self.problem.graph.var_ptr,
                self.theta_v,
                self.problem.nbr_ptr,
                self._factor_of,
                self._stride_of,
                self.problem.scope_ptr,
                self.problem.scope,
                self.table_ptr,
                self.theta_f,
                self._gathered,
                self.labels,
            )

    def bound(self) -> float:
        """The sum of the largest entries of all potentials."""
        total = self.problem.graph.constant
        for values, ptr in ((self.theta_v, self.problem.graph.var_ptr), (self.theta_f, self.table_ptr)):
            if len(ptr) > 1:
                total += float(np.maximum.reduceat(values, ptr[:-1]).sum())
        return total
