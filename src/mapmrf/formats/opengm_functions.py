"""The types of functions that OpenGM 2 stores, as tables with the last variable fastest."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import NoReturn

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats.files import charge
from mapmrf.formats.lists import LISTS, keeps_list, stays_list, tables_of_keys
from mapmrf.formats.tables import FEW_ENTRIES, Factors, last_fastest, same_shapes, table_offsets, table_sizes

EXPLICIT = 16000


@dataclass(frozen=True, eq=False)
class Source:
    """The two datasets with all functions of a type; `linear` if potentials are multiples of their values."""

    path: str
    where: str
    indices: Ints
    values: Floats
    count: int
    linear: bool = False

    def fail(self, found: str, expected: str) -> NoReturn:
        raise FormatError(f"{self.path}: dataset '{self.where}': found {found}, expected {expected}")

    def check_values(self, n_values: int) -> None:
        if len(self.values) != n_values:
            self.fail(f"{len(self.values)} values", f"{n_values} for {self.count} functions")


Functions = Factors
"""Functions as factors that have the cardinalities of their variables in place of a scope."""


def walk(numbers: Ints, count: int, before: int) -> Ints:
    """Places of `count` records, and their end; a record is `before` numbers, a length, and that many numbers."""
    # Where the numbers are not enough, there are fewer places.
    data = numbers.data
    places = [0]
    at = 0
    with suppress(IndexError):
        for _ in range(count):
            at += before + 1 + data[at + before]
            places.append(at)
    return np.array(places, dtype=np.int64)


# -- shapes -----------------------------------------------------------------------------------------------------------


def _any_shapes(source: Source) -> tuple[Ints, Ints]:
    """Read shapes that are given as ``d, s_1 ... s_d``."""
    at = walk(source.indices, source.count, 0)
    if len(at) <= source.count or at[-1] != len(source.indices):
        source.fail(f"{len(source.indices)} indices", f"the shapes of {source.count} functions")
    shape = np.delete(source.indices, at[:-1])
    return _checked(source, shape), at - np.arange(len(at))


def _pair_shapes(source: Source) -> tuple[Ints, Ints]:
    """Read shapes that are given as ``s_1, s_2``."""
    if len(source.indices) != 2 * source.count:
        source.fail(f"{len(source.indices)} indices", f"{2 * source.count} for {source.count} functions")
    return _checked(source, source.indices), 2 * np.arange(source.count + 1)


def _checked(source: Source, shape: Ints) -> Ints:
    if len(shape) and shape.min() < 1:
        source.fail("a shape with 0 states", "at least 1")
    return shape


# -- tables -----------------------------------------------------------------------------------------------------------


def _explicit(source: Source) -> Functions:
    """Tables with the first variable fastest."""
    shape, shape_ptr = _any_shapes(source)
    size = table_sizes(shape, shape_ptr)
    if size.sum() != len(source.values):
        source.fail(f"{len(source.values)} values", f"{size.sum():.0f} for {source.count} functions")
    table_ptr = offsets(size.astype(np.int64))
    theta = last_fastest(source.values, table_ptr, shape, shape_ptr)
    return Functions(shape_ptr, shape, np.arange(len(size)), table_ptr, theta)


def _sparse(source: Source) -> Functions:
    """A default, and keys with values; in a key the first variable counts least."""
    data, end = source.indices.tolist(), len(source.indices)
    rows, at = [], 0
    for _ in range(source.count):
        d = data[at] if at < end else end
        k = data[at + d + 1] if at + d + 1 < end else end
        rows.append((at + 1, d, k))
        at += d + 2 + k
        if at > end:
            source.fail(f"{end} indices", f"shapes and keys of {source.count} functions")
    if at != end:
        source.fail(f"{end} indices", f"{at} for {source.count} functions")
    start, order, n_keys = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    source.check_values(int((n_keys + 1).sum()))
    shape, shape_ptr = _checked(source, source.indices[ranges(start, order)]), offsets(order)
    size = table_sizes(shape, shape_ptr)
    stays = keeps_list(size, n_keys, shape, shape_ptr) & (size < 2.0**62)
    table_ptr = table_offsets(Path(source.path), np.where(stays, n_keys + 1.0, size))
    default_at = np.append(0, np.cumsum(n_keys + 1)[:-1])
    keys = source.indices[ranges(start + order + 1, n_keys)]
    if (keys >= np.repeat(size, n_keys)).any():
        source.fail("a key beyond the last entry of its table", "keys inside")
    entries = keys, source.values[ranges(default_at + 1, n_keys)], n_keys
    theta_t, lists = tables_of_keys(table_ptr, stays, source.values[default_at], entries, shape, shape_ptr)
    return Functions(shape_ptr, shape, np.arange(len(size)), table_ptr, theta_t, lists=lists)


Formula = Callable[[Floats, tuple[int, ...], int], Floats]
"""Values of some functions, a row each, and a shape -> their tables, with a first axis for the functions.

The first variable's states are those from a number on, the last argument, so that large tables are filled in parts.
"""
Tuples = Callable[[tuple[int, ...]], int]
"""The shape of functions -> the number of tuples of equal states at which they have their first value, not the last."""
Scale = Callable[[Floats], Floats]
"""Values of some functions, a row each -> what they are multiples of, by which the values are then divided."""


def _by_formula(
    source: Source,
    shapes: tuple[Ints, Ints],
    values: tuple[Ints, Ints],
    formula: Formula,
    scale: Scale | None = None,
    tuples: Tuples | None = None,
) -> Functions:
    """Write out the tables of functions that are given by a few values, all functions of one shape together."""
    # Functions with the same values share a table; if the tables would be large, so do multiples of one function, and
    # those that differ from a constant at few tuples stay lists.
    (shape, shape_ptr), (value_at, n_values) = shapes, values
    n_functions = len(shape_ptr) - 1
    table_of, weight, n_tables = np.zeros(n_functions, dtype=np.int64), np.ones(n_functions), 0
    groups, sizes = list[tuple[tuple[int, ...], Floats, int | None]](), [np.zeros(0)]
    for members, dims in same_shapes(shape, shape_ptr):
        rows, size = (
            source.values[value_at[members][:, None] + np.arange(n_values[members[0]])],
            math.prod(map(float, dims)),
        )
        distinct, of = np.unique(rows, axis=0, return_inverse=True)
        if scale is not None and source.linear and len(distinct) * size > FEW_ENTRIES:
            weight[members] = scale(rows)
            with np.errstate(invalid="ignore"):
                distinct, of = np.unique(rows, axis=0, return_inverse=True)
        table_of[members] = n_tables + of.ravel()
        n_tables += len(distinct)
        count = None if tuples is None or not stays_list(size, tuples(dims), dims) else tuples(dims)
        groups.append((dims, distinct, count))
        sizes.append(np.full(len(distinct), size if count is None else count + 1.0))
    table_ptr = table_offsets(Path(source.path), np.concatenate(sizes))
    theta, lists, first = np.empty(int(table_ptr[-1])), dict[int, Ints](), 0
    for dims, distinct, count in groups:
        last = first + len(distinct)
        tables = theta[table_ptr[first] : table_ptr[last]]
        if count is None:
            _fill(tables.reshape(len(distinct), *dims), distinct, formula)
        else:
            tables.reshape(len(distinct), -1)[:] = distinct[:, :1]
            tables.reshape(len(distinct), -1)[:, 0] = distinct[:, -1]
            charge(source.path, 16.0 * count * len(dims), LISTS, f"a function has {count} tuples")
            equal = np.repeat(np.arange(count), len(dims)).reshape(-1, len(dims))
            lists |= dict.fromkeys(range(first, last), equal)
        first = last
    return Functions(shape_ptr, shape, table_of, table_ptr, theta, weight, lists)


def _fill(tables: Floats, values: Floats, formula: Formula) -> None:
    """Fill tables of one shape, in comparatively small parts."""
    n, dims = len(tables), tables.shape[1:]
    values = values.reshape(*values.shape, *(1 for _ in dims))
    with np.errstate(invalid="ignore"):  # 0 times infinity is reported as what it is, not a number
        if not dims:
            tables[:] = formula(values, dims, 0)
            return
        row, part = math.prod(dims[1:]), 1 << 20
        some, states = max(1, part // (row * dims[0])), max(1, part // row)
        for begin in range(0, n, some):
            for first in range(0, dims[0], states):
                block = tables[begin : begin + some, first : first + states]
                block[:] = formula(values[begin : begin + some], block.shape[1:], first)


def _take_out(column: int) -> Scale:
    """Take one of the values out of functions that are multiples of it."""

    def scale(rows: Floats) -> Floats:
        weight = np.where(np.isfinite(rows[:, column]) & (rows[:, column] != 0), rows[:, column], 1.0)
        rows[:, column] /= weight
        return weight

    return scale


def _take_out_difference(rows: Floats) -> Floats:
    """Take the second of two values out of functions whose first is 0."""
    right = (rows[:, 0] == 0) & np.isfinite(rows[:, 1]) & (rows[:, 1] != 0)
    weight = np.where(right, rows[:, 1], 1.0)
    rows[:, 1] /= weight
    return weight


def _few_values(
    n_values: int, formula: Formula, *, pairs: bool, scale: Scale | None = None, tuples: Tuples | None = None
) -> Callable[[Source], Functions]:
    def reader(source: Source) -> Functions:
        shapes = _pair_shapes(source) if pairs else _any_shapes(source)
        source.check_values(n_values * source.count)
        values = (n_values * np.arange(source.count), np.full(source.count, n_values))
        return _by_formula(source, shapes, values, formula, scale, tuples)

    return reader


def _difference(dims: tuple[int, ...], first: int) -> Floats:
    """How far the states of two variables are from each other, those of the first from a number on."""
    apart: Floats = np.abs(np.arange(first, first + dims[0], dtype=np.float64)[:, None] - np.arange(dims[1]))
    return apart


def _potts(values: Floats, dims: tuple[int, ...], first: int) -> Floats:
    """The first value where the states of all variables are the same, else the second."""
    equal = np.ones(dims, dtype=bool)
    if dims:
        leader = np.arange(first, first + dims[0]).reshape(-1, *(1 for _ in dims[1:]))
        for j in range(1, len(dims)):
            equal &= np.arange(dims[j]).reshape(-1, *(1 for _ in dims[j + 1 :])) == leader
    return np.where(equal, values[:, 0], values[:, 1])


def _potts_g(source: Source) -> Functions:
    """A value for every way in which the variables can be equal to one another."""
    shape, shape_ptr = _any_shapes(source)
    order = np.diff(shape_ptr)
    if order.max(initial=0) > 11:
        source.fail(f"a Potts-G function of {order.max()} variables", "at most 11")
    n_values = np.array([len(_partitions(int(d))) for d in range(order.max(initial=0) + 1)])[order]
    source.check_values(int(n_values.sum()))
    value_at = np.append(0, np.cumsum(n_values)[:-1])
    return _by_formula(source, (shape, shape_ptr), (value_at, n_values), _potts_g_formula)


def _potts_g_formula(values: Floats, dims: tuple[int, ...], first: int) -> Floats:
    states = np.indices(dims)
    states[:1] += first
    rank = np.searchsorted(_partitions(len(dims)), _equalities(states))
    return values.reshape(values.shape[0], -1)[:, rank]


def _equalities(states: Ints) -> Ints:
    """One bit for every pair of variables with equal states, pairs in the order (1, 0), (2, 0), (2, 1), (3, 0), ..."""
    pairs = sorted(combinations(range(len(states)), 2), key=lambda pair: (pair[1], pair[0]))
    code = np.zeros(states.shape[1:], dtype=np.int64)
    for bit, (i, j) in enumerate(pairs):
        code |= (states[i] == states[j]).astype(np.int64) << bit
    return code


@cache
def _partitions(d: int) -> Ints:
    """The codes of all ways in which d variables can be equal, in increasing order."""
    growing: list[tuple[int, ...]] = [()]
    for _ in range(d):
        growing = [(*part, label) for part in growing for label in range(max(part, default=-1) + 2)]
    codes: Ints = np.sort(_equalities(np.array(growing, dtype=np.int64).T))
    return codes


@dataclass(frozen=True)
class FunctionType:
    """How to read functions of a type; the values of some are energies, of others weights and limits."""

    read: Callable[[Source], Functions]
    gives_energies: bool = True


def _scaled(n_values: int, formula: Formula) -> FunctionType:
    """Functions of pairs that are multiples of their last value."""
    return FunctionType(_few_values(n_values, formula, pairs=True, scale=_take_out(n_values - 1)), gives_energies=False)


TYPES: dict[int, FunctionType | str] = {
    **dict.fromkeys((15995, 15996, 15997, 15998, 15999), "a constraint"),
    EXPLICIT: FunctionType(_explicit),
    16001: FunctionType(_sparse),
    16002: _scaled(1, lambda v, dims, k: v[:, 0] * _difference(dims, k)),
    16003: _scaled(2, lambda v, dims, k: v[:, 1] * np.minimum(_difference(dims, k), v[:, 0])),
    16004: _scaled(1, lambda v, dims, k: v[:, 0] * _difference(dims, k) ** 2),
    16005: _scaled(2, lambda v, dims, k: v[:, 1] * np.minimum(_difference(dims, k) ** 2, v[:, 0])),
    16006: FunctionType(_few_values(2, _potts, pairs=True, scale=_take_out_difference)),
    16007: FunctionType(
        _few_values(2, _potts, pairs=False, scale=_take_out_difference, tuples=lambda dims: min(dims, default=0))
    ),
    16008: FunctionType(
        _few_values(1, lambda v, dims, _: np.broadcast_to(v[:, 0], (len(v), *dims)), pairs=False, tuples=lambda dims: 0)
    ),
    16009: "static single site",
    16010: "dynamic single site",
    16011: FunctionType(_potts_g),
    16033: "fields of experts",
    **dict.fromkeys((16165, 16166, 16167), "learnable"),
}
"""Id of a type -> how its functions are read, or what they are if they cannot be converted to tables."""
