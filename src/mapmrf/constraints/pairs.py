"""Many LINEAR constraints on the same two variables, as one table on these."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints.flat import ConstraintKind, Constraints

FEW_ON_A_PAIR = 2
"""Constraints on the same two variables that are always counted one by one."""


def crowded_pairs(constraints: Constraints, card: Ints) -> dict[tuple[int, int], list[int]]:
    """Pairs of variables with so many LINEAR constraints that one table takes less than counting each of them.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([9, 9, 2], [], [])
    >>> different = [constraints.at_most_one([(0, k), (1, k)], penalty=1.0) for k in range(9)]
    >>> graph = graph.with_constraints([*different, constraints.at_most_one([(0, 1), (2, 1)])])
    >>> crowded_pairs(graph.constraints, graph.card)
    {(0, 1): [0, 1, 2, 3, 4, 5, 6, 7, 8]}
    """
    var, owner = constraints.var, constraints.owner
    low = np.minimum.reduceat(var, constraints.ptr[:-1])
    high = np.maximum.reduceat(var, constraints.ptr[:-1])
    others = np.bincount(owner, (var != low[owner]) & (var != high[owner]), len(constraints))
    linear = (constraints.kind == ConstraintKind.LINEAR) & (constraints.penalty > 0)
    two = np.flatnonzero(linear & (others == 0) & (low < high))
    found: dict[tuple[int, int], list[int]] = {}
    for c, i, j in zip(two.tolist(), low[two].tolist(), high[two].tolist(), strict=True):
        found.setdefault((i, j), []).append(c)
    return {
        (i, j): members
        for (i, j), members in found.items()
        if len(members) > max(FEW_ON_A_PAIR, int(card[i] * card[j]) // (2 * int(card[i] + card[j])))
    }


def pair_table(constraints: Constraints, members: list[int], pair: tuple[int, int], shape: tuple[int, int]) -> Floats:
    """What some LINEAR constraints on two variables are worth, as a table.

    Each is worth the same at all states of which it does not speak, so that it changes a few rows and columns only.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [])
    >>> graph = graph.with_constraints([constraints.at_most_one([0, 1], penalty=3.0), constraints.exactly_one([0, 1])])
    >>> pair_table(graph.constraints, [0, 1], (0, 1), (2, 2)).tolist()
    [[-inf, 0.0], [0.0, -inf]]
    """
    soft = [c for c in members if not constraints.hard[c]]
    hard = [c for c in members if constraints.hard[c]]
    table = _summed(constraints, soft, pair, shape, -constraints.penalty)
    if hard:
        n_broken = _summed(constraints, hard, pair, shape, np.ones(len(constraints)))
        table[n_broken > 0.5] = -np.inf
    return table


def _summed(
    constraints: Constraints, members: list[int], pair: tuple[int, int], shape: tuple[int, int], worth: Floats
) -> Floats:
    """The sum of what violations of some constraints are worth."""
    from mapmrf.run.calls import check_awaited

    table, base = np.zeros(shape), 0.0
    for c in members:
        check_awaited()
        found = _violations(constraints, c, pair)
        found.add(table, float(worth[c]))
        base += float(worth[c]) * found.base
    table += base
    return table


class _Violations(NamedTuple):
    """Where a constraint on two variables is violated (1) or not (0).

    At states that it does not name, at named ones of the first and of the second variable alone, and at named ones of
    both.
    """

    rows: Ints
    columns: Ints
    base: float
    by_row: Floats
    by_column: Floats
    both: Floats

    def add(self, table: Floats, worth: float) -> None:
        """Add what violations are worth to a table, less what one is worth at states that are not named."""
        table[self.rows] += worth * (self.by_row - self.base)[:, None]
        table[:, self.columns] += worth * (self.by_column - self.base)
        crossing = self.both - self.by_row[:, None] - self.by_column + self.base
        table[np.ix_(self.rows, self.columns)] += worth * crossing


def _violations(constraints: Constraints, c: int, pair: tuple[int, int]) -> _Violations:
    mine = constraints.span(c)
    var, state, weight = constraints.var[mine], constraints.state[mine], constraints.weight[mine]
    rows, columns = var == pair[0], var == pair[1]
    least, most = float(constraints.least[c]), float(constraints.most[c])

    def violated(sums: Floats) -> Floats:
        return ((sums < least) | (sums > most)).astype(np.float64)

    a, b = weight[rows], weight[columns]
    base = float(violated(np.zeros(1))[0])
    return _Violations(state[rows], state[columns], base, violated(a), violated(b), violated(a[:, None] + b))
