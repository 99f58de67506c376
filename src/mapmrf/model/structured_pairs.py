"""Pairs whose tables have a form that allows messages in linear time: Potts, linear, quadratic.

Tables are examined once, when a problem is compiled. With row and column parts subtracted,
``T[k, l] = row[k] + column[l] - g(|k - l|)``, the rest may be

- Potts: ``g(d) = slope`` for ``d > 0``;
- linear: ``g(d) = min(slope * d, limit)``;
- quadratic: ``g(d) = min(slope * d**2, limit)``,

with ``g(0) = 0``. They are used in `mapmrf.kernels.pair_transforms`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, short

NO_FORM, POTTS, LINEAR, QUADRATIC = -1, 0, 1, 2  # forms of a table
LEAST_STATES = 4  # number of states from which a form is faster than the table

ROUND_OFF = 16 * sys.float_info.epsilon
"""Allowed deviation of a table from its form, relative to its largest entry: round-off in the user's own sums."""


class PairForms(NamedTuple):
    """The forms of a problem's pairs."""

    of: Ints  # (n_factors,) the form of every factor, NO_FORM for none; empty if no factor has one
    # kind, slope, limit: (n_forms,): POTTS, LINEAR or QUADRATIC, with the parameters of ``g``; the limit is inf if
    # there is none
    kind: Ints
    slope: Floats
    limit: Floats
    base: Floats  # (n_forms,) a constant that is part of the table
    part_at: Ints  # (n_forms,) where the row part, and after it the column part, start in `parts`; -1 if both are 0
    parts: Floats  # row and column parts


class TableForms(NamedTuple):
    """The forms of some tables; arrays as in `PairForms`."""

    places: Ints  # (n_forms,) which tables have a form
    kind: Ints
    slope: Floats
    limit: Floats
    # row, column: (n_forms, K): row and column parts
    row: Floats
    column: Floats


def find_forms(n_tables: int, blocks: Iterable[tuple[Ints, Floats]], table_of: Ints, weight: Floats) -> PairForms:
    """The forms of all factors, from blocks of square tables (n, K, K) and their numbers (n,)."""
    # `weight` is empty if all weights are 1.
    form_of_table, n_forms = np.full(n_tables, NO_FORM, dtype=np.int32), 0
    found: list[TableForms] = []
    for numbers, tables in blocks:
        some = forms_of_tables(tables)
        form_of_table[numbers[some.places]] = n_forms + np.arange(len(some.places))
        n_forms += len(some.places)
        found.append(some)
    if n_forms == 0:
        none, floats = np.zeros(0, dtype=np.int32), np.zeros(0)
        return PairForms(none, none, floats, floats, floats, none, floats)
    kind, slope, limit = (
        np.concatenate([getattr(some, name) for some in found]) for name in ("kind", "slope", "limit")
    )
    of = form_of_table[table_of] if n_tables > 1 else np.zeros(len(table_of), dtype=np.int32)  # zeros need no memory
    if np.any(kind != POTTS):  # a reward for differing is not concave
        rewards = slope[of] < 0 if len(weight) == 0 else slope[of] * weight < 0
        of[(of >= 0) & (kind[of] != POTTS) & rewards] = NO_FORM
    # The terms added to a form: a constant, or row and column parts and their offsets.
    base, part_at, parts, n = [], [], [np.zeros(0)], 0
    for some in found:
        both = np.concatenate([some.row, some.column], axis=1)
        tol = ROUND_OFF * np.maximum(np.abs(both).max(axis=1), np.abs(some.slope))
        plain = (np.ptp(some.row, axis=1) <= tol) & (np.ptp(some.column, axis=1) <= tol)
        base.append(np.where(plain, some.row[:, 0] + some.column[:, 0], 0.0))
        part_at.append(np.where(plain, -1, n + both.shape[1] * (np.cumsum(~plain) - 1)))
        parts.append(both[~plain].ravel())
        n += len(parts[-1])
    return PairForms(
        of, kind, slope, limit, np.concatenate(base), short(np.concatenate(part_at)), np.concatenate(parts)
    )


def worthwhile(forms: PairForms, card_f: Ints, least: tuple[int, ...] = (8, 8, 64)) -> PairForms:
    """Drop the forms for which the table is faster: those with fewer than `least` states, by kind."""
    if len(forms.of) == 0:
        return forms
    slow = (forms.of >= 0) & (card_f < np.array(least)[forms.kind[forms.of]])
    if not slow.any():
        return forms
    of = np.where(slow, np.int32(NO_FORM), forms.of)
    return forms._replace(of=of if (of >= 0).any() else of[:0])


def forms_of_tables(tables: Floats) -> TableForms:
    """Find the forms of those tables (n, K, K) that have one."""
    places = np.flatnonzero(_may_have_form(tables))
    tables, d = tables[places], np.arange(tables.shape[1])
    tol = ROUND_OFF * np.abs(tables).max(axis=(1, 2), initial=0.0)
    g = (tables[:, :1, 0] + tables[:, d, d] - tables[:, 0] - tables[:, :, 0]) / 2.0
    rest = tables + g[:, np.abs(d[:, None] - d)]
    row, column = rest[:, :, 0], rest[:, 0] - rest[:, 0, :1]
    apart = np.abs(rest - (row[:, :, None] + column[:, None])).max(axis=(1, 2), initial=0.0)
    kind, limit = _named(g, tol)
    kind[apart > tol] = NO_FORM
    have = kind != NO_FORM
    return TableForms(places[have], kind[have], g[have, 1], limit[have], row[have], column[have])


def _may_have_form(tables: Floats) -> Bools:
    """A quick look at many tables (n, K, K): finite, and the same difference between neighbours at both ends."""
    with np.errstate(invalid="ignore"):
        corner = tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]
        other = tables[:, -2, -2] + tables[:, -1, -1] - tables[:, -2, -1] - tables[:, -1, -2]
        size = np.abs(tables).max(axis=(1, 2), initial=0.0)
        found: Bools = np.isfinite(size) & (np.abs(corner - other) <= ROUND_OFF * size) & (corner != 0.0)
        return found


def _named(g: Floats, tol: Floats) -> tuple[Ints, Floats]:
    """Kinds (NO_FORM for none) and limits, from losses by distance, (n, K)."""
    d = np.arange(g.shape[1])
    kind, limit = np.full(len(g), NO_FORM, dtype=np.int32), np.full(len(g), np.inf)
    for name, apart in ((QUADRATIC, d**2), (LINEAR, d)):  # of two that fit, the simpler wins: it comes last
        plain, last = g[:, 1:2] * apart, g[:, -1:]
        within = np.abs(g - np.minimum(plain, last)).max(axis=1, initial=0.0) <= tol * len(d)
        exact = np.abs(g - plain).max(axis=1, initial=0.0) <= tol * len(d)
        fits = exact | (within & (g[:, 1] > 0.0))
        kind[fits], limit[fits] = name, np.where(exact, np.inf, last[:, 0])[fits]
    potts = np.abs(g[:, 1:] - g[:, 1:2]).max(axis=1, initial=0.0) <= tol
    kind[potts], limit[potts] = POTTS, g[potts, 1]
    return kind, limit
