"""Summing variables out of a model, exactly: what is left is a model of the others whose MAP is a marginal MAP."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import UnsupportedModel
from mapmrf.graph import FactorGraph

MEMORY = 1024.0
"""Megabytes for the tables, by default."""

Factor = tuple[tuple[int, ...], Floats]
Neighbours = dict[int, set[int]]


class SumOrder(NamedTuple):
    """An order in which variables are summed out, and what that takes.

    Attributes
    ----------
    order
        The variables, the first to be summed out first.
    width
        Induced width: the largest number of other variables in a table.
    bytes
        Memory for the largest table, its exponentials, and the tables that the sums leave.
    """

    order: list[int]
    width: int
    bytes: float


def find_sum_order(graph: FactorGraph, variables: Iterable[int]) -> SumOrder:
    """The better of two greedy orders: smallest table first, and fewest new neighbours first.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> find_sum_order(grid(4, 4), range(8)).width
    4
    """
    left = list(dict.fromkeys(variables))
    card = [float(r) for r in graph.card.tolist()]

    def size(i: int, beside: Neighbours) -> float:
        return sum(math.log2(card[j]) for j in beside[i])

    def fill(i: int, beside: Neighbours) -> float:
        return sum(len(beside[i] - beside[j]) - 1 for j in beside[i]) + 1e-3 * size(i, beside)

    return min((_greedy_order(graph, left, card, score) for score in (size, fill)), key=lambda found: found.bytes)


def _greedy_order(
    graph: FactorGraph, left: list[int], card: list[float], score: Callable[[int, Neighbours], float]
) -> SumOrder:
    beside = _beside(graph)
    scores = {i: score(i, beside) for i in left}
    order, width, largest, kept = [], 0, 0.0, 0.0
    while scores:
        i = min(scores, key=scores.__getitem__)
        del scores[i]
        ring = beside.pop(i)
        for j in ring:
            beside[j] |= ring
            beside[j] -= {i, j}
        touched = ring if score.__name__ == "size" else ring.union(*(beside[j] for j in ring))
        for j in touched & scores.keys():
            scores[j] = score(j, beside)
        message = 2.0 ** min(1000.0, sum(math.log2(card[j]) for j in ring))
        order.append(i)
        width, largest, kept = max(width, len(ring)), max(largest, card[i] * message), kept + message
    return SumOrder(order, width, 8 * (2 * largest + kept))


def _beside(graph: FactorGraph) -> Neighbours:
    """The variables that share a factor with each."""
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
    """Sum the given variables out of the product of all potentials.

    Parameters
    ----------
    graph
        The model.
    variables
        Indices of the variables to sum out.
    max_bytes
        Memory for the tables.

    Returns
    -------
    rest, kept
        The model of the other variables, without names, and their indices in `graph`.

    Raises
    ------
    UnsupportedModel
        If the tables would take more memory.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[0.3, 0.1], [0.2, 0.4]])])
    >>> rest, kept = sum_out(graph, [1])
    >>> kept, np.exp(rest.theta_v).round(6).tolist()
    ([0], [0.4, 0.6])
    """
    plan = find_sum_order(graph, variables)
    if plan.bytes > max_bytes:
        raise UnsupportedModel(
            f"summing out {len(plan.order)} variables has induced width {plan.width} and needs {plan.bytes:.3g} bytes, "
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
    """The factors that are left, and which of them each variable is in."""

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

    def neighbours(self, i: int) -> list[int]:
        """The variables that share a factor with `i`, itself the last."""
        others = {j for a in self.factors_of[i] for j in self.factors[a][0]} - {i}
        return [*sorted(others), i]

    def eliminate(self, i: int) -> None:
        """Multiply the factors of a variable and sum over its states."""
        scope = self.neighbours(i)
        total = np.zeros([self.card[j] for j in scope])
        for a in sorted(self.factors_of[i]):
            total += _spread(*self.factors.pop(a), scope)
            for j in scope:
                self.factors_of[j].discard(a)
        self.gone.add(i)
        self.add(tuple(scope[:-1]), _log_sum(total))


def _spread(scope: tuple[int, ...], table: Floats, onto: list[int]) -> Floats:
    """A table with an axis for each variable of a larger scope, of length 1 where it does not depend on it."""
    order = sorted(range(len(scope)), key=lambda k: onto.index(scope[k]))
    shape = [table.shape[scope.index(j)] if j in scope else 1 for j in onto]
    return table.transpose(order).reshape(shape)


def _log_sum(table: Floats) -> Floats:
    """Log of the sum of exponentials over the last axis; -inf if all are."""
    largest = table.max(axis=-1, keepdims=True)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        found: Floats = np.log(np.exp(table - shift).sum(axis=-1)) + shift[..., 0]
    return found
