"""The order in which sequential passes visit the variables, and the weights of beliefs shared among factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, short
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.mplp import variable_depths
from mapmrf.engines.messages.neighbours import Neighbours
from mapmrf.engines.messages.srmp_kernels import BETWEEN, FIRST, LAST
from mapmrf.model.problem import Problem

VariableOrder = Literal["given", "trees_last", "breadth_first"]


@dataclass(frozen=True)
class VisitOrder:
    """The order in which variables are visited, and the weights of their beliefs."""

    # seq, rank: (n_vars,): the variables in order, and the position of each variable in it
    seq: Ints
    rank: Ints
    # n_shares, n_back: (n_vars,): number of shares of a variable's belief, and of those given away in a backward pass;
    # in visiting order
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


# -- Orders of the variables of a factor graph: trees peeled off, and breadth first -----------------------------------


class EndCounts(NamedTuple):
    """In how many factors a variable is the first, the last, and the first of one that hangs on it."""

    first: Ints
    last: Ints
    loose: Ints


@compiled
def count_factors(scope: Ints, degree: Ints) -> None:
    """Count the factors of every variable, on top of what is there."""
    for e in range(len(scope)):
        degree[scope[e]] += 1


@compiled
def count_ends(scope_ptr: Ints, scope: Ints, rank: Ints, hanging: Bools, counts: EndCounts) -> None:
    """Count the factors at whose ends variables are, in the order of their ranks."""
    for a in range(len(scope_ptr) - 1):
        first = last = scope[scope_ptr[a]]
        for k in range(scope_ptr[a] + 1, scope_ptr[a + 1]):
            first = scope[k] if rank[scope[k]] < rank[first] else first
            last = scope[k] if rank[scope[k]] > rank[last] else last
        counts.first[first] += 1
        counts.last[last] += 1
        counts.loose[first] += hanging[a]


@compiled
def peel_variables(
    scope_ptr: Ints, scope: Ints, neighbours: Neighbours, removed: Ints, peeled: Bools, hanging: Bools
) -> int:
    """Repeatedly remove variables with one remaining factor; return how many.

    `removed` receives them in order of removal, `peeled` marks them, and `hanging` marks the factors all of whose
    variables but one were removed. A tree is reduced to a single variable.
    """
    n_vars = len(neighbours.ptr) - 1
    left, queue = np.empty(n_vars, dtype=np.int64), np.empty(n_vars, dtype=np.int64)
    width = np.empty(len(scope_ptr) - 1, dtype=np.int64)
    n_queued = 0
    for a in range(len(width)):
        width[a] = scope_ptr[a + 1] - scope_ptr[a]
    for i in range(n_vars):
        left[i] = neighbours.ptr[i + 1] - neighbours.ptr[i]
        if left[i] == 1:
            queue[n_queued] = i
            n_queued += 1
    n_removed = 0
    at = 0
    while at < n_queued:
        i = queue[at]
        at += 1
        if left[i] != 1:
            continue  # its last factor is pendant: the root of a tree
        peeled[i] = True
        removed[n_removed] = i
        n_removed += 1
        a = last_factor(i, neighbours, hanging)
        width[a] -= 1
        if width[a] > 1:
            continue
        hanging[a] = True
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            root = scope[k]
            if not peeled[root]:
                left[root] -= 1
                if left[root] == 1:
                    queue[n_queued] = root
                    n_queued += 1
    return n_removed


@inlined
def last_factor(i: int, neighbours: Neighbours, hanging: Bools) -> int:
    """The one factor of a variable that does not hang."""
    for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
        a = neighbours.factor_of[neighbours.edge[at]]
        if not hanging[a]:
            return int(a)
    return -1


@compiled
def breadth_first(scope_ptr: Ints, scope: Ints, neighbours: Neighbours, seq: Ints) -> None:
    """Fill `seq` with all variables, each component breadth first from a peripheral variable."""
    n_vars = len(neighbours.ptr) - 1
    seen = np.zeros(n_vars, dtype=np.int64)
    n = 0
    for i in range(n_vars):
        if seen[i] > 0:
            continue
        begin = n
        root = i
        for turn in range(1, 4):  # twice to find a peripheral variable, once for the order
            seq[begin] = root
            seen[root] = turn
            n = visit_part(begin, turn, scope_ptr, scope, neighbours, seen, seq)
            root = seq[n - 1]


@inlined
def visit_part(
    begin: int, turn: int, scope_ptr: Ints, scope: Ints, neighbours: Neighbours, seen: Ints, seq: Ints
) -> int:
    """Append all variables connected to the one at position `begin`, breadth first; return the end."""
    n, at = begin + 1, begin
    while at < n:
        j = seq[at]
        at += 1
        for e in range(neighbours.ptr[j], neighbours.ptr[j + 1]):
            a = neighbours.factor_of[neighbours.edge[e]]
            for k in range(scope_ptr[a], scope_ptr[a + 1]):
                if seen[scope[k]] != turn:
                    seen[scope[k]] = turn
                    seq[n] = scope[k]
                    n += 1
    return n
