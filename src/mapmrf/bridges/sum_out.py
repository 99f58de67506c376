"""Summing variables out of a model, exactly: what is left is a model of the others whose MAP is a marginal MAP."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import UnsupportedModel
from mapmrf.graph import FactorGraph

MAX_ENTRIES = 2**25
"""Entries of the largest table on the way: 256 MB, and as much again for its sum."""

Factor = tuple[tuple[int, ...], Floats]


def sum_out(graph: FactorGraph, variables: Iterable[int]) -> tuple[FactorGraph, list[int]]:
    """Sum the given variables out of the product of all potentials.

    The variable whose table is smallest goes first, so that the tables stay small where the model allows it.

    Parameters
    ----------
    graph
        The model.
    variables
        Indices of the variables to sum out.

    Returns
    -------
    rest, kept
        The model of the other variables, without names, and their indices in `graph`.

    Raises
    ------
    UnsupportedModel
        If a table on the way would have more than `MAX_ENTRIES` entries.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[0.3, 0.1], [0.2, 0.4]])])
    >>> rest, kept = sum_out(graph, [1])
    >>> kept, np.exp(rest.theta_v).round(6).tolist()
    ([0], [0.4, 0.6])
    """
    pool = _Pool(graph)
    left = dict.fromkeys(variables)
    while left:
        i = min(left, key=pool.cost)
        if pool.cost(i) > MAX_ENTRIES:
            raise UnsupportedModel(
                f"summing out {len(left)} more variables needs a table of {pool.cost(i):.3g} entries, "
                f"expected at most {MAX_ENTRIES}: ask for more variables, or give more evidence"
            )
        pool.eliminate(i)
        del left[i]
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
        self._costs: dict[int, float] = {}
        self._next = 0
        for i in range(graph.n_vars):
            self.add((i,), graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
        for a in range(graph.n_factors):
            self.add(tuple(graph.scope_of(a).tolist()), graph.table(a))

    def add(self, scope: tuple[int, ...], table: Floats) -> None:
        self.factors[self._next] = (scope, table)
        for i in scope:
            self.factors_of[i].add(self._next)
            self._costs.pop(i, None)
        self._next += 1

    def neighbours(self, i: int) -> list[int]:
        """The variables that share a factor with `i`, itself the last."""
        others = {j for a in self.factors_of[i] for j in self.factors[a][0]} - {i}
        return [*sorted(others), i]

    def cost(self, i: int) -> float:
        """Entries of the table over a variable and its neighbours."""
        if i not in self._costs:
            self._costs[i] = math.prod(float(self.card[j]) for j in self.neighbours(i))
        return self._costs[i]

    def eliminate(self, i: int) -> None:
        """Multiply the factors of a variable and sum over its states."""
        scope = self.neighbours(i)
        total = np.zeros([self.card[j] for j in scope])
        for a in sorted(self.factors_of[i]):
            total += _spread(*self.factors.pop(a), scope)
            for j in scope:
                self.factors_of[j].discard(a)
                self._costs.pop(j, None)
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
