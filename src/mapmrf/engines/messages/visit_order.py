"""The order in which sequential passes visit the variables, and the weights of beliefs shared among factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, short
from mapmrf.engines.messages.neighbours import Neighbours
from mapmrf.engines.messages.srmp_kernels import BETWEEN, FIRST, LAST
from mapmrf.engines.messages.tiles_kernels import variable_depths
from mapmrf.engines.messages.visit_order_kernels import (
    EndCounts,
    breadth_first,
    count_ends,
    count_factors,
    peel_variables,
)
from mapmrf.model.problem import Problem

VariableOrder = Literal["given", "trees_last", "breadth_first"]


@dataclass(frozen=True)
class VisitOrder:
    """The order in which variables are visited, and the weights of their beliefs.

    Attributes
    ----------
    seq, rank : (n_vars,)
        The variables in order, and the position of each variable in it.
    n_shares, n_back : (n_vars,)
        Number of shares of a variable's belief, and of those given away in a backward pass; in visiting order.
    """

    seq: Ints
    rank: Ints
    n_shares: Ints
    n_back: Ints

    @property
    def omega(self) -> Floats:
        """Share of its belief that a variable gives to each factor that comes next, (n_vars,)."""
        return np.asarray(1.0 / self.n_shares)

    @property
    def keep(self) -> Floats:
        """Share that it keeps in a backward pass, (n_vars,)."""
        return np.asarray((self.n_shares - self.n_back) / self.n_shares)

    @classmethod
    def build(cls, problem: Problem, order: VariableOrder) -> VisitOrder:
        """Order the variables of a problem and compute the weights.

        A belief is shared by n_between + max(n_first, n_last) factors: Kolmogorov's weights. Variables of pendant
        trees, which come last, give everything towards the core; factors pendant on a variable do not count.
        """
        degree = np.zeros(problem.n_vars, dtype=np.int32)
        count_factors(problem.scope, degree)
        seq, peeled, hanging = _order(problem, order, degree)
        moved = order == "breadth_first" or bool(peeled.any())
        rank = seq
        if moved:
            rank = np.empty_like(seq)
            rank[seq] = np.arange(problem.n_vars, dtype=seq.dtype)
        first, last, loose = (np.zeros(problem.n_vars, dtype=np.int32) for _ in range(3))
        count_ends(problem.scope_ptr, problem.scope, rank, hanging, EndCounts(first, last, loose))
        n_back = degree
        n_back -= first
        first -= loose
        n_shares = np.maximum(first, last, out=first)
        n_shares += n_back
        n_shares -= last
        np.maximum(1, n_shares, out=n_shares)
        if moved:
            n_shares[peeled] = 1
        return cls(seq, rank, n_shares[seq], n_back[seq]) if moved else cls(seq, rank, n_shares, n_back)

    def by_depth(self, problem: Problem) -> tuple[VisitOrder, Ints]:
        """Return the same visits, sorted by the longest chain of ordered neighbours that leads to them.

        Neighbours keep their order, so that all messages are unchanged; visits of equal depth are not neighbours. Also
        returns the number of visits of every depth.
        """
        depth, last = np.zeros(problem.n_vars, dtype=np.int32), np.zeros(problem.n_vars, dtype=np.int32)
        variable_depths(self.seq, Neighbours.of(problem), problem.scope_ptr, problem.scope, last, depth)
        place = np.argsort(depth, kind="stable")
        seq, rank = self.seq[place], np.empty_like(self.seq)
        rank[seq] = np.arange(problem.n_vars, dtype=seq.dtype)
        return VisitOrder(seq, rank, self.n_shares[place], self.n_back[place]), np.bincount(depth)


def _order(problem: Problem, order: VariableOrder, degree: Ints) -> tuple[Ints, Bools, Bools]:
    """Return the variables in order, which of them are in pendant trees, and which factors are pendant."""
    peeled = np.zeros(problem.n_vars, dtype=bool)
    hanging = np.zeros(problem.n_factors, dtype=bool)
    if order == "given" or (order == "trees_last" and not np.any(degree == 1)):
        return np.arange(problem.n_vars, dtype=np.int32 if problem.n_vars < 2**31 else np.int64), peeled, hanging
    seq = np.arange(problem.n_vars)
    scope_ptr, scope, neighbours = problem.scope_ptr, problem.scope, Neighbours.of(problem)
    removed = np.empty(problem.n_vars, dtype=np.int64)
    n_removed = peel_variables(scope_ptr, scope, neighbours, removed, peeled, hanging)
    if order == "breadth_first":
        breadth_first(scope_ptr, scope, neighbours, seq)
    core = seq[~peeled[seq]]
    return short(np.concatenate([core, removed[:n_removed][::-1]])), peeled, hanging


def edge_roles(problem: Problem, rank: Ints) -> Ints:
    """Return the role of every edge's variable in its factor, (n_edges,): first, last or in between."""
    role = np.full(problem.n_edges, BETWEEN, dtype=np.int8)
    for batch in problem.batches:
        places = rank[batch.scope]
        mine = role[batch.edges].reshape(batch.n, batch.arity)
        if batch.arity == 2:
            mine[:, 0] = np.where(places[:, 0] < places[:, 1], FIRST, LAST)
            mine[:, 1] = FIRST + LAST - mine[:, 0]
            continue
        rows = np.arange(batch.n)
        mine[rows, places.argmin(axis=1)] = FIRST
        mine[rows, places.argmax(axis=1)] = LAST
    return role
