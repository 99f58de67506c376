"""Pairs whose tables have a form that a message passes through in linear time: Potts, linear, quadratic.

A table is looked at once, when a problem is compiled. After its row and column parts are taken off,
``T[k, l] = row[k] + column[l] - g(|k - l|)``, what is left may be

- Potts: ``g(d) = slope`` for ``d > 0``;
- linear: ``g(d) = min(slope * d, limit)``;
- quadratic: ``g(d) = min(slope * d**2, limit)``,

with ``g(0) = 0``. What that is good for is in `mapmrf.kernels.pair_transforms`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, short

NO_FORM, POTTS, LINEAR, QUADRATIC = -1, 0, 1, 2
"""Forms of a table."""

LEAST_STATES = 4
"""States from which a form is quicker than the table."""

WORTHWHILE = (8, 8, 64)
"""States from which Potts, linear and quadratic forms are quicker than their tables."""

ROUND_OFF = 16 * sys.float_info.epsilon
"""How far a table may be from its form, relative to its largest entry: the round-off of the user's own sums."""


class PairForms(NamedTuple):
    """The forms of a problem's pairs.

    Attributes
    ----------
    of : (n_factors,)
        The form of every factor, NO_FORM for none; empty if no factor has one.
    kind, slope, limit : (n_forms,)
        Potts, linear or quadratic, with the parameters of ``g``; the limit is inf if there is none.
    base : (n_forms,)
        A constant that is part of the table.
    part_at : (n_forms,)
        Where the row part, and after it the column part, start in `parts`; -1 if both are 0.
    parts
        Row and column parts.
    """

    of: Ints
    kind: Ints
    slope: Floats
    limit: Floats
    base: Floats
    part_at: Ints
    parts: Floats


class TableBlock(NamedTuple):
    """Some tables (n, K, K), and their numbers."""

    numbers: Ints
    tables: Floats


class TableForm(NamedTuple):
    """The form of one table."""

    kind: int
    slope: float
    limit: float
    row: Floats
    column: Floats


def find_forms(n_tables: int, blocks: Iterable[TableBlock], table_of: Ints, weight: Floats) -> PairForms:
    """The forms of all factors.

    Parameters
    ----------
    n_tables
        Number of tables.
    blocks
        Tables of pairs of variables with equally many states.
    table_of, weight : (n_factors,)
        The table of every factor, and what it is multiplied by; `weight` is empty if all weights are 1.
    """
    form_of_table = np.full(n_tables, NO_FORM, dtype=np.int32)
    found: list[TableForm] = []
    for block in blocks:
        for b in np.flatnonzero(_may_have_form(block.tables)).tolist():
            form = table_form(block.tables[b])
            if form is not None:
                form_of_table[block.numbers[b]] = len(found)
                found.append(form)
    if not found:
        none, floats = np.zeros(0, dtype=np.int32), np.zeros(0)
        return PairForms(none, none, floats, floats, floats, none, floats)
    kind = np.array([form.kind for form in found], dtype=np.int32)
    slope = np.array([form.slope for form in found])
    of = form_of_table[table_of]
    if np.any(kind != POTTS):  # a reward for differing is no concave function
        rewards = slope[of] < 0 if len(weight) == 0 else slope[of] * weight < 0
        of[(of >= 0) & (kind[of] != POTTS) & rewards] = NO_FORM
    return PairForms(of, kind, slope, np.array([form.limit for form in found]), *_laid_out(found))


def worthwhile(forms: PairForms, card_f: Ints, least: tuple[int, ...] = WORTHWHILE) -> PairForms:
    """The forms without those for which the table is quicker.

    Parameters
    ----------
    forms
        The forms of a model's pairs.
    card_f : (n_factors,)
        Number of states of the first variable of every factor.
    least
        The least number of states for each of Potts, linear and quadratic.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf import FactorGraph
    >>> from mapmrf.pair_forms import worthwhile
    >>> from mapmrf.problem import Problem
    >>> graph = FactorGraph.from_pairwise(np.zeros((2, 6)), [[0, 1]], np.eye(6))
    >>> forms = Problem.compile(graph).forms
    >>> forms.of.tolist(), worthwhile(forms, np.array([6])).of.tolist()
    ([0], [])
    """
    if len(forms.of) == 0:
        return forms
    slow = (forms.of >= 0) & (card_f < np.array(least)[forms.kind[forms.of]])
    if not slow.any():
        return forms
    of = np.where(slow, np.int32(NO_FORM), forms.of)
    return forms._replace(of=of if (of >= 0).any() else of[:0])


def _laid_out(found: list[TableForm]) -> tuple[Floats, Ints, Floats]:
    """Constants, and parts with where they start."""
    base, part_at, parts, n = np.zeros(len(found)), np.full(len(found), -1), [np.zeros(0)], 0
    for f, form in enumerate(found):
        size = ROUND_OFF * max(np.abs(form.row).max(), np.abs(form.column).max(), abs(form.slope))
        if np.ptp(form.row) <= size and np.ptp(form.column) <= size:
            base[f] = form.row[0] + form.column[0]
        else:
            part_at[f] = n
            parts += [form.row, form.column]
            n += len(form.row) + len(form.column)
    return base, short(part_at), np.concatenate(parts)


def _may_have_form(tables: Floats) -> Bools:
    """A quick look at many tables (n, K, K): finite, and the same difference between neighbours at both ends."""
    with np.errstate(invalid="ignore"):
        corner = tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]
        other = tables[:, -2, -2] + tables[:, -1, -1] - tables[:, -2, -1] - tables[:, -1, -2]
        size = np.abs(tables).max(axis=(1, 2))
        found: Bools = np.isfinite(size) & (np.abs(corner - other) <= ROUND_OFF * size) & (corner != 0.0)
        return found


def table_form(table: Floats) -> TableForm | None:
    """The form of a finite square table, None if it has none.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.pair_forms import LINEAR, table_form
    >>> k = np.arange(5.0)
    >>> form = table_form(3.0 * k[:, None] - 2.0 * np.minimum(np.abs(k[:, None] - k), 3.0))
    >>> form.kind == LINEAR, form.slope, form.limit, form.row.tolist()
    (True, 2.0, 6.0, [0.0, 3.0, 6.0, 9.0, 12.0])
    >>> table_form(np.random.default_rng(0).normal(size=(5, 5))) is None
    True
    """
    n = len(table)
    tol = ROUND_OFF * float(np.abs(table).max(initial=0.0))
    d = np.arange(n)
    g = (table[0, 0] + table[d, d] - table[0, d] - table[d, 0]) / 2.0
    rest = table + g[np.abs(d[:, None] - d)]
    row, column = rest[:, 0], rest[0] - rest[0, 0]
    if np.abs(rest - (row[:, None] + column)).max(initial=0.0) > tol:
        return None
    found = _named(g, tol)
    return None if found is None else TableForm(*found, row, column)


def _named(g: Floats, tol: float) -> tuple[int, float, float] | None:
    """Kind, slope and limit of a loss by distance."""
    d = np.arange(len(g))
    if np.abs(g[1:] - g[1]).max() <= tol:
        return POTTS, float(g[1]), float(g[1])
    for kind, apart in ((LINEAR, d), (QUADRATIC, d**2)):
        plain = g[1] * apart
        if np.abs(g - plain).max() <= tol * len(g):
            return kind, float(g[1]), float(np.inf)
        limit = g[-1]
        if g[1] > 0.0 and np.abs(g - np.minimum(plain, limit)).max() <= tol * len(g):
            return kind, float(g[1]), float(limit)
    return None
