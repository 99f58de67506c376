"""Factors as arrays with an axis per variable, from which variables are eliminated one by one, in numpy.

What a variable's factors are combined to is up to the caller: a maximum, with or without the states that attain it, or
a sum. So is how two tables are added: in floating point, rounded up, or in integers of any size.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Ints, offsets, short
from mapmrf.model.graph import FactorGraph

Table = NDArray[Any]
Addition = Callable[[Any, Any], Any]


def scopes_of(graph: FactorGraph) -> Iterator[list[int]]:
    scope, ptr = graph.scope.tolist(), graph.scope_ptr.tolist()
    return (scope[begin:end] for begin, end in pairwise(ptr))


class FactorPool:
    def __init__(self, card: list[int], unary: dict[int, Table], constant: Table, add: Addition = np.add) -> None:
        # card: number of states of every variable; those of one state need no unary table; constant: (1,)
        self.card, self.unary, self.constant, self.add = card, unary, constant, add
        # scopes, tables: the factors by numbers that ascend; scopes ascend, too, and have at least two variables
        self.scopes: dict[int, tuple[int, ...]] = {}
        self.tables: dict[int, Table] = {}
        self.of: list[set[int]] = [set() for _ in card]  # the factors of every variable
        self._next = 0

    @classmethod
    def of_graph(cls, graph: FactorGraph, add: Addition = np.add, times: Addition = np.multiply) -> FactorPool:
        unary = {i: graph.theta_v[begin:end] for i, (begin, end) in enumerate(pairwise(graph.var_ptr.tolist()))}
        pool = cls(graph.card.tolist(), unary, np.array([graph.constant]), add)
        at = graph.table_ptr.tolist()
        for a, (t, scope) in enumerate(zip(graph.table_of.tolist(), scopes_of(graph), strict=True)):
            table = graph.theta_t[at[t] : at[t + 1]]
            pool.put(scope, table if graph.weight is None else times(graph.weight[a], table))
        return pool

    def put(self, scope: list[int], table: Table) -> None:
        """Add a factor, flat or with an axis per variable."""
        card = self.card
        shape = [card[i] for i in scope]
        if 1 in shape:
            scope, shape = [i for i in scope if card[i] > 1], [n for n in shape if n > 1]
        if len(scope) < 2:
            if scope:
                self.unary[scope[0]] = self.add(self.unary[scope[0]], table.reshape(shape))
            else:
                self.constant = self.add(self.constant, table.reshape(1))
            return
        number, self._next = self._next, self._next + 1
        ascending = tuple(sorted(scope))
        table = table.reshape(shape)
        if ascending != tuple(scope):
            table = table.transpose(sorted(range(len(scope)), key=scope.__getitem__))
        self.scopes[number], self.tables[number] = ascending, table
        for i in scope:
            self.of[i].add(number)

    def around(self, i: int) -> list[int]:
        """Return the other variables of a variable's factors."""
        return sorted({j for a in self.of[i] for j in self.scopes[a]} - {i})

    def take(self, i: int, around: list[int]) -> tuple[Table, int]:
        """Remove the factors of a variable; return their sum, over it and those `around` it, and the axis of it."""
        scope = sorted([i, *around])
        axis = scope.index(i)
        shape = [1] * len(scope)
        shape[axis] = self.card[i]
        total = self._plus(self.unary[i].reshape(shape), self.of[i], scope)
        full = tuple([self.card[j] for j in scope])
        return total if total.shape == full else np.broadcast_to(total, full), axis

    def drop(self, a: int) -> tuple[tuple[int, ...], Table]:
        """Remove a factor; return its scope and table."""
        scope = self.scopes.pop(a)
        for j in scope:
            self.of[j].discard(a)
        return scope, self.tables.pop(a)

    def merge(self, scope: list[int], table: Table) -> None:
        """Add a factor of ascending scope, combined with all on some of its variables."""
        if len(scope) > 1:
            inside, scopes = set(scope), self.scopes
            smaller = {a for j in scope for a in self.of[j] if inside.issuperset(scopes[a])}
            table = self._plus(table, smaller, scope)
        self.put(scope, table)

    def _plus(self, total: Table, factors: set[int], scope: list[int]) -> Table:
        card, add = self.card, self.add
        for a in sorted(factors):
            mine, table = self.drop(a)
            if len(mine) < len(scope):
                table = table.reshape([card[j] if j in mine else 1 for j in scope])  # both scopes ascend
            total = add(total, table)
        return total

    def graph(self, kept: Ints) -> FactorGraph:
        """Return the model of some variables, which are all that the factors have."""
        number = {i: k for k, i in enumerate(kept.tolist())}
        scopes = [[number[j] for j in scope] for scope in self.scopes.values()]
        tables = [table.ravel() for table in self.tables.values()]
        none = [np.zeros(0)]
        return FactorGraph(
            card=np.array([self.card[i] for i in kept.tolist()], dtype=np.int64),
            theta_v=np.concatenate([self.unary[i] for i in kept.tolist()] + none),
            scope_ptr=offsets(np.array([len(scope) for scope in scopes], dtype=np.int64)),
            scope=short(np.array([j for scope in scopes for j in scope], dtype=np.int64)),
            table_of=short(np.arange(len(scopes))),
            table_ptr=offsets(np.array([len(table) for table in tables], dtype=np.int64)),
            theta_t=np.concatenate(tables + none),
            constant=float(self.constant.item()),
        )


# -- Orders of elimination --------------------------------------------------------------------------------------------

Neighbours = dict[int, set[int]]


def neighbours_of(graph: FactorGraph, sizes: list[int]) -> Neighbours:
    """Return the variables that share a factor with each, among those of several states: `sizes` are their numbers."""
    beside: Neighbours = {i: set() for i in range(graph.n_vars)}
    for scope in scopes_of(graph):
        free = {i for i in scope if sizes[i] > 1}
        for i in free:
            beside[i] |= free
    for i, others in beside.items():
        others.discard(i)
    return beside


def greedy_order(
    beside: Neighbours, left: Iterable[int], score: Callable[[int, Neighbours], float], far: bool = False
) -> Iterator[tuple[int, set[int], float]]:
    """Yield the variable with the smallest score, its neighbours, which are then joined, and its score.

    Ties go to the first. Eliminating a variable changes the scores of its neighbours and, if `far`, of theirs.
    """
    scores = {i: score(i, beside) for i in left}
    heap = [(value, i) for i, value in scores.items()]
    heapq.heapify(heap)
    while scores:
        value, i = heapq.heappop(heap)
        if scores.get(i) != value:
            continue
        del scores[i]
        ring = beside.pop(i)
        yield i, ring, value
        for j in ring:
            beside[j] |= ring
            beside[j] -= {i, j}
        for j in (ring.union(*(beside[j] for j in ring)) if far else ring) & scores.keys():
            scores[j] = value = score(j, beside)
            heapq.heappush(heap, (value, j))


def by_smallest_table(
    graph: FactorGraph, sizes: list[int], left: Iterable[int]
) -> Iterator[tuple[int, set[int], float]]:
    """Yield the variable with the smallest table, its neighbours and the entries of the table."""

    def entries(i: int, beside: Neighbours) -> int:
        return math.prod([sizes[j] for j in beside[i]], start=sizes[i])

    return greedy_order(neighbours_of(graph, sizes), left, entries)
