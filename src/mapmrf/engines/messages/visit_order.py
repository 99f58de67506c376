"""The order in which sequential passes visit the variables, and the weights of beliefs shared among factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, short
from mapmrf.compilation.jit import compiled
from mapmrf.model.problem import Problem

VariableOrder = Literal["given", "trees_last", "breadth_first"]
# Roles: the variable is the first of the factor to be visited in a forward pass, the last, or in between.
FIRST, LAST, BETWEEN = range(3)


@dataclass(frozen=True)
class VisitOrder:
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
        # A belief is shared by n_between + max(n_first, n_last) factors: Kolmogorov's weights. Variables of pendant
        # trees, which come last, give everything towards the core; factors pendant on a variable do not count.
        degree = np.zeros(problem.n_vars, dtype=np.int32)
        count_factors(problem.scope, degree)
        seq, peeled, hanging = _order(problem, order, degree)
        moved = order == "breadth_first" or bool(peeled.any())
        rank = seq
        if moved:
            rank = np.empty_like(seq)
            rank[seq] = np.arange(problem.n_vars, dtype=seq.dtype)
        first, last, loose = (np.zeros(problem.n_vars, dtype=np.int32) for _ in range(3))
        count_ends(problem.scope_ptr, problem.scope, rank, hanging, first, last, loose)
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

    def sorted_by(self, place: Ints) -> VisitOrder:
        """Return the order in which the visits at these places come one after another."""
        seq, rank = self.seq[place], np.empty_like(self.seq)
        rank[seq] = np.arange(len(seq), dtype=seq.dtype)
        return VisitOrder(seq, rank, self.n_shares[place], self.n_back[place])


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


@compiled
def count_factors(scope: Ints, degree: Ints) -> None:
    """Count the factors of every variable, on top of what is there."""
    for e in range(len(scope)):
        degree[scope[e]] += 1


@compiled
def count_ends(
    scope_ptr: Ints, scope: Ints, rank: Ints, hanging: Bools, n_first: Ints, n_last: Ints, n_loose: Ints
) -> None:
    """Count the factors in which each variable is the first by rank, the last, and the first of one that hangs."""
    for a in range(len(scope_ptr) - 1):
        first = last = scope[scope_ptr[a]]
        for k in range(scope_ptr[a] + 1, scope_ptr[a + 1]):
            first = scope[k] if rank[scope[k]] < rank[first] else first
            last = scope[k] if rank[scope[k]] > rank[last] else last
        n_first[first] += 1
        n_last[last] += 1
        n_loose[first] += hanging[a]


@compiled
def peel_variables(
    scope_ptr: Ints, scope: Ints, neighbours: Neighbours, removed: Ints, peeled: Bools, hanging: Bools
) -> int:
    """Repeatedly remove variables with one remaining factor; return how many."""
    # `removed` receives them in order of removal, `peeled` marks them, and `hanging` marks the factors all of whose
    # variables but one were removed. A tree is reduced to a single variable.
    ptr, edge, factor_of = neighbours
    n_vars = len(ptr) - 1
    left, queue = np.empty(n_vars, dtype=np.int64), np.empty(n_vars, dtype=np.int64)
    width = np.empty(len(scope_ptr) - 1, dtype=np.int64)
    n_queued = 0
    for a in range(len(width)):
        width[a] = scope_ptr[a + 1] - scope_ptr[a]
    for i in range(n_vars):
        left[i] = ptr[i + 1] - ptr[i]
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
        a = -1  # the one factor of the variable that does not hang
        for k in range(ptr[i], ptr[i + 1]):
            if not hanging[factor_of[edge[k]]]:
                a = factor_of[edge[k]]
                break
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


@compiled
def breadth_first(scope_ptr: Ints, scope: Ints, neighbours: Neighbours, seq: Ints) -> None:
    """Fill `seq` with all variables, each component breadth first from a peripheral variable."""
    ptr, edge, factor_of = neighbours
    seen = np.zeros(len(ptr) - 1, dtype=np.int64)
    n = 0
    for i in range(len(seen)):
        if seen[i] > 0:
            continue
        begin = n
        root = i
        for turn in range(1, 4):  # twice to find a peripheral variable, once for the order
            seq[begin] = root
            seen[root] = turn
            n, at = begin + 1, begin
            while at < n:
                j = seq[at]
                at += 1
                for e in range(ptr[j], ptr[j + 1]):
                    a = factor_of[edge[e]]
                    for k in range(scope_ptr[a], scope_ptr[a + 1]):
                        if seen[scope[k]] != turn:
                            seen[scope[k]] = turn
                            seq[n] = scope[k]
                            n += 1
            root = seq[n - 1]


class Neighbours(NamedTuple):
    """The edges of every variable, ``edge[ptr[i]:ptr[i + 1]]``, and the factor of every edge."""

    ptr: Ints
    edge: Ints
    factor_of: Ints

    @classmethod
    def of(cls, problem: Problem) -> Neighbours:
        return cls(problem.nbr_ptr, problem.nbr, problem.edge_factor)


# -- The pairs of a model sorted along the visits, in both directions -------------------------------------------------


class PairLinks(NamedTuple):
    """Pairs as edges between visits: variables are numbered in the order in which they are visited."""

    # ptr, up, factor: where the edges of each earlier end start, the later end of every edge, and twice its factor,
    # plus 1 if the first variable of the factor is the later end
    ptr: Ints
    up: Ints
    factor: Ints
    # back_ptr, down, id: the same edges by their later end: where those of each later end start, the earlier end, and
    # the edge's number
    back_ptr: Ints
    down: Ints
    id: Ints

    @classmethod
    def allocate(cls, n_vars: int, n_edges: int, largest: int) -> PairLinks:
        """`largest` is what an entry must be able to hold."""
        dtype: type[np.integer[Any]] = np.uint32 if largest < 2**32 else np.uint64
        ptr, back_ptr = np.zeros((2, n_vars + 1), dtype=dtype)
        up, factor, down, id = (np.empty(n_edges, dtype=dtype) for _ in range(4))
        return cls(ptr, up, factor, back_ptr, down, id)


@compiled
def sort_links(scope: Ints, rank: Ints, place: Ints, at: Ints, links: PairLinks) -> None:
    """Fill in the links of the factors whose variables are given in `scope`, two by two."""
    # The lists of an end are in the order of the factors or of the visits, wherever variables stand: sums over them do
    # not depend on that. `place` is where a variable stands in the arrays: its rank, unless threads have their own
    # parts of the arrays. `at` are the places in the order of the visits; empty if they are 0, 1, 2, ...
    ptr, up, factor, back_ptr, down, id = links
    n_vars, n_edges = len(ptr) - 1, len(up)
    for a in range(n_edges):
        i, j = scope[2 * a], scope[2 * a + 1]
        ptr[place[i if rank[i] < rank[j] else j] + 1] += 1
        back_ptr[place[j if rank[i] < rank[j] else i] + 1] += 1
    for s in range(n_vars):
        ptr[s + 1] += ptr[s]
        back_ptr[s + 1] += back_ptr[s]
    for a in range(n_edges):
        i, j = scope[2 * a], scope[2 * a + 1]
        s = place[i if rank[i] < rank[j] else j]
        e = ptr[s]
        ptr[s] += 1  # for now where the next edge goes
        up[e] = place[j if rank[i] < rank[j] else i]
        factor[e] = 2 * a if rank[i] < rank[j] else 2 * a + 1
    for s in range(n_vars - 1, -1, -1):
        ptr[s + 1] = ptr[s]
    ptr[0] = 0
    for turn in range(n_vars):
        s = at[turn] if len(at) > 0 else turn
        for e in range(ptr[s], ptr[s + 1]):
            k = back_ptr[up[e]]
            back_ptr[up[e]] += 1
            down[k] = s
            id[k] = e
    for s in range(n_vars - 1, -1, -1):
        back_ptr[s + 1] = back_ptr[s]
    back_ptr[0] = 0
