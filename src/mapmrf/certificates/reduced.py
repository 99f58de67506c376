"""The model with some variables maximised out one by one, with all sums rounded up.

A value of the smaller model is at least the largest value of the whole model with the same labels, and exceeds it only
by round-off: a bound on the one is a bound on the other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.certificates.invalid import InvalidCertificate
from mapmrf.model.graph import FactorGraph

MOST_TABLE = 1 << 20
"""Maximum number of entries of the table of a variable that is maximised out."""


class ReducedModel(NamedTuple):
    """A model without some variables: the graph, and the indices of its variables in the whole model."""

    graph: FactorGraph
    kept: Ints


def without(graph: FactorGraph, first: Ints) -> ReducedModel:
    """The model without some variables, maximised out in this order.

    Its factors are the remaining ones, in their order, and then the maxima, each combined with the factors on a subset
    of its variables.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> unlike = [[0.0, 1.0], [1.0, 0.0]]
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (2, 0)], [unlike] * 3)
    >>> small = without(graph, np.array([1]))
    >>> small.kept.tolist(), small.graph.scope.tolist(), small.graph.theta_t.tolist()
    ([0, 2], [0, 1], [2.0, 2.0, 2.0, 2.0])
    """
    tables = _RoundedTables(graph)
    for i in first.tolist():
        tables.maximise_out(i)
    kept = np.setdiff1d(np.arange(graph.n_vars), first)
    return ReducedModel(tables.graph(kept), kept)


def add_up(one: Floats, other: Floats) -> Floats:
    """The sum, rounded up where it is not exact.

    Examples
    --------
    >>> add_up(np.array([1.0, 1.0]), np.array([2.0, 1e-30])).tolist()
    [3.0, 1.0000000000000002]
    """
    total = one + other
    with np.errstate(invalid="ignore"):
        part = total - one
        error = (one - (total - part)) + (other - part)
    return np.where(np.isfinite(total) & (error > 0), np.nextafter(total, np.inf), total)


class _RoundedTables:
    """The factors as arrays with an axis per variable, by numbers; and those of every variable."""

    def __init__(self, graph: FactorGraph) -> None:
        self.card, self.constant = graph.card.tolist(), np.array(graph.constant)
        self.unary = np.split(graph.theta_v.copy(), graph.var_ptr[1:-1].astype(np.int64))
        self.scopes: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, Floats] = {}
        self.of: list[set[int]] = [set() for _ in self.card]
        self.next = graph.n_factors
        ptr, scope = graph.scope_ptr.tolist(), graph.scope.tolist()
        at = graph.table_ptr.tolist()
        for a, t in enumerate(graph.table_of.tolist()):
            table = graph.theta_t[at[t] : at[t + 1]]
            if graph.weight is not None:
                table = _times_up(float(graph.weight[a]), table)
            self.put(a, tuple(scope[ptr[a] : ptr[a + 1]]), table)

    def put(self, a: int, scope: tuple[int, ...], table: Floats) -> None:
        """Add a factor, with its variables in ascending order and without those of one state."""
        table = table.reshape([self.card[i] for i in scope if self.card[i] > 1])
        scope = tuple(i for i in scope if self.card[i] > 1)
        if not scope:
            self.constant = add_up(self.constant, table)
        elif len(scope) == 1:
            self.unary[scope[0]] = add_up(self.unary[scope[0]], table)
        else:
            axes = sorted(range(len(scope)), key=scope.__getitem__)
            self.scopes[a], self.tables[a] = tuple(scope[k] for k in axes), table.transpose(axes)
            for i in scope:
                self.of[i].add(a)

    def take(self, a: int) -> tuple[tuple[int, ...], Floats]:
        """Remove a factor."""
        scope = self.scopes.pop(a)
        for i in scope:
            self.of[i].discard(a)
        return scope, self.tables.pop(a)

    def maximise_out(self, i: int) -> None:
        """Replace the factors of a variable by their maximum over its states."""
        some = sorted(self.of[i])
        around = sorted({j for a in some for j in self.scopes[a]} - {i})
        size = math.prod(self.card[j] for j in around) * self.card[i]
        if size > MOST_TABLE:
            raise InvalidCertificate(f"the table of variable {i} has {size} entries, expected at most {MOST_TABLE}")
        variables = [i, *around]
        joint = np.broadcast_to(self.aligned((i,), self.unary[i], variables), [self.card[j] for j in variables])
        for a in some:
            joint = add_up(joint, self.aligned(*self.take(a), variables))
        self.enter(self.next, around, joint.max(axis=0))
        self.next += 1

    def enter(self, a: int, scope: list[int], table: Floats) -> None:
        """Add a maximum as a factor, combined with the factors on a subset of its variables."""
        inside = sorted({b for j in scope for b in self.of[j] if set(self.scopes[b]) <= set(scope)})
        for b in inside:
            table = add_up(table, self.aligned(*self.take(b), scope))
        self.put(a, tuple(scope), table)

    def aligned(self, scope: tuple[int, ...], table: Floats, variables: list[int]) -> Floats:
        """A table with an axis for each of some variables, of length 1 where it does not depend on it."""
        axes = sorted(range(len(scope)), key=lambda k: variables.index(scope[k]))
        return table.transpose(axes).reshape([self.card[j] if j in scope else 1 for j in variables])

    def graph(self, kept: Ints) -> FactorGraph:
        """The model of the remaining variables."""
        number = {i: k for k, i in enumerate(kept.tolist())}
        scopes: list[tuple[int, ...]] = [(), *((k,) for k in range(len(kept)))]
        tables = [self.constant, *(self.unary[i] for i in kept.tolist())]
        for a in sorted(self.scopes):
            scopes.append(tuple(number[i] for i in self.scopes[a]))
            tables.append(self.tables[a])
        if any(np.any(np.isposinf(table)) for table in tables):
            raise InvalidCertificate("a sum of potentials overflows")
        return FactorGraph.from_tables([self.card[i] for i in kept.tolist()], scopes, tables)


def _times_up(weight: float, table: Floats) -> Floats:
    """A table times a weight, rounded up; a weight of 0 keeps forbidden entries."""
    if weight == 1.0:
        return table
    product = weight * np.where(np.isfinite(table), table, 0.0)
    above = np.where((product == 0) & ((weight == 0) | (table == 0)), 0.0, np.nextafter(product, np.inf))
    return np.where(np.isfinite(table), above, -np.inf)
