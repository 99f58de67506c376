"""Exact summation of variables: the MAP of the remaining model is a marginal MAP."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph

MEMORY = 1024.0  # default memory for the tables, in megabytes

MOST_TO_FILL = 1000
"""Maximum number of variables, and width of the first order, for which a min-fill order is tried: it takes longer."""

HOPELESS = 1e15  # entries of a table at which ordering stops, as no memory would suffice

Factor = tuple[tuple[int, ...], Floats]
Neighbours = dict[int, set[int]]


class SumOrder(NamedTuple):
    """An order in which variables are summed out, and its cost."""

    order: list[int]  # the variables in the order of summation; incomplete if their tables are hopelessly large
    width: int  # induced width: the largest number of other variables in a table
    bytes: float  # memory for the largest table, its exponentials, and the tables that remain


def find_sum_order(graph: FactorGraph, variables: Iterable[int]) -> SumOrder:
    """Return the better of two greedy orders: smallest table first, and fewest new neighbours first."""
    left = list(dict.fromkeys(variables))
    log_card: list[float] = np.log2(graph.card.astype(np.float64)).tolist()

    def size(i: int, beside: Neighbours) -> float:
        return sum(log_card[j] for j in beside[i])

    def fill(i: int, beside: Neighbours) -> float:
        return sum(len(beside[i] - beside[j]) - 1 for j in beside[i]) + 1e-3 * size(i, beside)

    found = _greedy_order(graph, left, size, far=False)
    if 1 < found.width < MOST_TO_FILL and len(left) <= MOST_TO_FILL:
        found = min(found, _greedy_order(graph, left, fill, far=True), key=lambda order: order.bytes)
    return found


def _greedy_order(
    graph: FactorGraph, left: list[int], score: Callable[[int, Neighbours], float], far: bool
) -> SumOrder:
    """Greedily take the variable with the smallest score, until the tables are hopelessly large.

    Eliminating a variable changes the scores of its neighbours and, if `far`, of their neighbours.
    """
    beside, card = _beside(graph), [float(r) for r in graph.card.tolist()]
    scores = {i: score(i, beside) for i in left}
    heap = [(value, i) for i, value in scores.items()]
    heapq.heapify(heap)
    order, width, largest, kept = [], 0, 0.0, 0.0
    while scores and largest < HOPELESS:
        value, i = heapq.heappop(heap)
        if scores.get(i) != value:
            continue
        del scores[i]
        ring = beside.pop(i)
        for j in ring:
            beside[j] |= ring
            beside[j] -= {i, j}
        for j in sorted((ring.union(*(beside[j] for j in ring)) if far else ring) & scores.keys()):
            scores[j] = score(j, beside)
            heapq.heappush(heap, (scores[j], j))
        message = math.prod([card[j] for j in ring])
        order.append(i)
        width, largest, kept = max(width, len(ring)), max(largest, card[i] * message), kept + message
    return SumOrder(order, width, 8 * (2 * largest + kept))


def _beside(graph: FactorGraph) -> Neighbours:
    beside: Neighbours = {i: set() for i in range(graph.n_vars)}
    for a in range(graph.n_factors):
        scope = set(graph.scope_of(a).tolist())
        for i in scope:
            beside[i] |= scope
    for i, others in beside.items():
        others.discard(i)
    return beside


def sum_out(
    graph: FactorGraph, variables: Iterable[int], max_bytes: float = MEMORY * 2**20
) -> tuple[FactorGraph, list[int]]:
    """Sum variables out; return the model of the others, without names, and their indices in `graph`."""
    variables = list(dict.fromkeys(variables))
    plan = find_sum_order(graph, variables)
    if plan.bytes > max_bytes:
        least = "at least " if len(plan.order) < len(variables) else ""
        raise UnsupportedModel(
            f"summing out {len(variables)} variables has induced width {least}{plan.width} and needs {least}"
            f"{plan.bytes:.3g} bytes, "
            f"expected at most {max_bytes:.3g}: ask for more variables, give more evidence, or allow more memory"
        )
    pool = _Pool(graph)
    for i in plan.order:
        pool.eliminate(i)
    kept = [i for i in range(graph.n_vars) if i not in pool.gone]
    place = {i: at for at, i in enumerate(kept)}
    scopes = [tuple(place[i] for i in scope) for scope, _ in pool.factors.values()]
    tables = [table for _, table in pool.factors.values()]
    rest = FactorGraph.from_tables(graph.card[kept], [(), *scopes], [[graph.constant], *tables])
    return rest, kept


class _Pool:
    """The remaining factors, and the factors of each variable."""

    def __init__(self, graph: FactorGraph) -> None:
        self.card = graph.card.tolist()
        self.gone: set[int] = set()
        self.factors: dict[int, Factor] = {}
        self.factors_of: list[set[int]] = [set() for _ in self.card]
        self._next = 0
        for i in range(graph.n_vars):
            self.add((i,), graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
        for a in range(graph.n_factors):
            self.add(tuple(graph.scope_of(a).tolist()), graph.table(a))

    def add(self, scope: tuple[int, ...], table: Floats) -> None:
        self.factors[self._next] = (scope, table)
        for i in scope:
            self.factors_of[i].add(self._next)
        self._next += 1

    def eliminate(self, i: int) -> None:
        scope = [*sorted({j for a in self.factors_of[i] for j in self.factors[a][0]} - {i}), i]
        total = np.zeros([self.card[j] for j in scope])
        for a in sorted(self.factors_of[i]):
            total += aligned(*self.factors.pop(a), scope)
            for j in scope:
                self.factors_of[j].discard(a)
        self.gone.add(i)
        largest = total.max(axis=-1)
        shift = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            self.add(tuple(scope[:-1]), np.log(np.exp(total - shift[..., None]).sum(axis=-1)) + shift)


def aligned(scope: Sequence[int], table: Floats, onto: list[int]) -> Floats:
    """Return a table with an axis for each variable of a larger scope, of length 1 where it does not depend on it."""
    order = sorted(range(len(scope)), key=lambda k: onto.index(scope[k]))
    shape = [table.shape[scope.index(j)] if j in scope else 1 for j in onto]
    return table.transpose(order).reshape(shape)
