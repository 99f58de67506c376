"""Find tables that are multiples of each other: a contrast-sensitive image then has one table, and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.formats.sharing import first_equal

LEAST_FACTORS = 64
"""Number of factors below which a model is left as it is."""
LEAST_USERS = 8
"""Minimum average number of factors per table for weights to be worth their memory."""
_SAMPLE = 256
_CHUNK = 1 << 17


class Multiples(NamedTuple):
    """Tables as multiples of fewer: table `t` is ``weight[t]`` times table ``table_of[t]`` of those that remain."""

    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats


def find_multiples(theta_t: Floats, table_ptr: Ints, users: Ints, n_factors: int) -> Multiples | None:
    """Write tables as positive multiples of fewer ones; every product equals the original entry bit for bit.

    Parameters
    ----------
    theta_t, table_ptr
        The tables, all of them distinct.
    users : (n_tables,)
        Factors on two or more variables that use each table; a table without any is unchanged.
    n_factors
        Number of all factors: each of them would get a weight.

    Returns
    -------
    Multiples or None
        None unless that saves memory and leaves tables with eight users on average.

    Examples
    --------
    >>> import numpy as np
    >>> tables = np.outer(1 + np.arange(100), [0.0, -0.3, -0.3, 0.0])
    >>> found = find_multiples(tables.ravel(), np.arange(0, 404, 4), np.ones(100, dtype=int), 100)
    >>> found.theta_t.tolist(), found.weight[:3].round(6).tolist()
    ([0.0, -1.0, -1.0, 0.0], [0.3, 0.6, 0.9])
    """
    sizes = np.diff(table_ptr)
    total = int(users.sum())
    if total < LEAST_FACTORS or int(sizes[users > 0].sum()) <= n_factors:
        return None
    units, weight = theta_t, np.ones(len(sizes))
    for size in np.unique(sizes[users > 0]).tolist():
        members = np.flatnonzero((sizes == size) & (users > 0))
        split = _promising(theta_t, table_ptr[members], size)
        if split is not None:
            units = theta_t.copy() if units is theta_t else units
            _write_units(units, table_ptr, members, weight, split)
    if units is theta_t:
        return None
    used, table_of = np.unique(first_equal(units, table_ptr[:-1], sizes), return_inverse=True)
    saved = len(theta_t) - int(sizes[used].sum())
    if saved <= n_factors or total < LEAST_USERS * np.count_nonzero(np.bincount(table_of, users)):
        return None
    return Multiples(table_of, offsets(sizes[used]), units[ranges(table_ptr[used], sizes[used])], weight)


Split = Callable[[Floats], tuple[Floats, Floats, Bools]]
"""Splits tables, a row each, into units and weights, and tells where the products equal the tables."""


def _promising(theta_t: Floats, start: Ints, size: int) -> Split | None:
    """A way to split tables of one size that reduces the number in a sample, if there is one."""
    if len(start) < LEAST_USERS:
        return None
    most = max(LEAST_USERS, min(_SAMPLE, _CHUNK // size))
    some = start[:: max(1, len(start) // most)]
    rows = theta_t[some[:, None].astype(np.int64) + np.arange(size)]
    for split in (_by_smallest, _by_largest):
        units, _, exact = split(rows)
        if 2 * np.count_nonzero(exact) < len(rows):
            continue
        kept = np.where(exact[:, None], units, rows).ravel()
        distinct = first_equal(kept, np.arange(0, len(kept), size), np.full(len(rows), size))
        if 2 * len(np.unique(distinct)) < len(rows):
            return split
    return None


def _write_units(units: Floats, table_ptr: Ints, members: Ints, weight: Floats, split: Split) -> None:
    """Replace tables of one size by their units where the products are exact, and write the weights."""
    size = int(table_ptr[members[0] + 1] - table_ptr[members[0]])
    step = max(1, _CHUNK // size)
    for begin in range(0, len(members), step):
        some = members[begin : begin + step]
        places = table_ptr[some][:, None].astype(np.int64) + np.arange(size)
        found, scale, exact = split(units[places])
        units[places[exact]] = found[exact]
        weight[some[exact]] = scale[exact]


def _by_smallest(rows: Floats) -> tuple[Floats, Floats, Bools]:
    """Split into units of the smallest entry, as for linear and quadratic functions; 43 bits of each are kept."""
    finite = np.isfinite(rows) & (rows != 0)
    scale = np.where(finite, np.abs(rows), np.inf).min(axis=1)
    scale[scale == np.inf] = 1.0
    with np.errstate(over="ignore"):
        bits = (rows / scale[:, None]).view(np.uint64)
    units = ((bits + np.uint64(1 << 8)) & ~np.uint64((1 << 9) - 1)).view(np.float64)
    return _checked(rows, units, scale)


def _by_largest(rows: Floats) -> tuple[Floats, Floats, Bools]:
    """Split into units of the largest entry, to 12 decimal places."""
    scale = np.where(np.isfinite(rows), np.abs(rows), 0.0).max(axis=1)
    scale[scale == 0.0] = 1.0
    return _checked(rows, np.round(rows / scale[:, None], 12), scale)


def _checked(rows: Floats, units: Floats, scale: Floats) -> tuple[Floats, Floats, Bools]:
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (scale[:, None] * units == rows).all(axis=1)
    return units + 0.0, scale, exact
