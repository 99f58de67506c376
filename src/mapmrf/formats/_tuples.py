"""Tables given as a default and a list of tuples, each of which is a state per variable and a number."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.formats._listed import keeps_list, shape_bounds
from mapmrf.formats._tables import COPIES, most_common, table_offsets, table_sizes
from mapmrf.formats.tokens import NumberFile
from mapmrf.model.graph import FactorGraph

_MOST_CACHED = 1 << 14


@dataclass(frozen=True, eq=False)
class Lists:
    """Positions of the tuples of every table among the numbers of a file.

    Table t is `default[t]` except for the `count[t]` tuples from position `start[t]` on; the cardinalities of its
    variables are ``shape[shape_ptr[t]:shape_ptr[t + 1]]``.
    """

    default: Floats
    start: Ints
    count: Ints
    shape: Ints
    shape_ptr: Ints


def read_lists(file: NumberFile, lists: Lists, users: Ints | int = 1) -> tuple[Ints, Floats, dict[int, Ints]]:
    """Offsets and entries of the tables, last variable fastest, and the tuples of those that stay lists.

    The entries of a table that stays a list are its default and the values of its tuples. In all others, the last of
    repeated tuples is used. `users` is the number of factors with each table.
    """
    size = table_sizes(lists.shape, lists.shape_ptr)
    arity = np.diff(lists.shape_ptr)
    stays = keeps_list(size, lists.count, shape_bounds(lists.shape, lists.shape_ptr), users)
    copies = COPIES + 2.0 * bool(stays.any())  # what beside lists are tables is copied twice more
    table_ptr = table_offsets(Path(file.path), np.where(stays, lists.count + 1.0, size), copies)
    theta_t = np.repeat(lists.default, np.diff(table_ptr))
    kept: dict[int, Ints] = {t: np.zeros((0, int(arity[t])), dtype=np.int64) for t in np.flatnonzero(stays).tolist()}
    for k in np.unique(arity[lists.count > 0]).tolist():
        members = np.flatnonzero((arity == k) & (lists.count > 0))
        count = lists.count[members]
        places = ranges(lists.start[members], count * (k + 1)).reshape(-1, k + 1)
        rows = file.numbers[places]
        owner = np.repeat(members, count)
        at = table_ptr[owner].astype(np.int64)
        stride = np.ones(len(members), dtype=np.int64)
        for j in reversed(range(k)):
            states = lists.shape[lists.shape_ptr[members] + j]
            _check_states(file, places[:, j], rows[:, j], np.repeat(states, count), owner)
            at += rows[:, j].astype(np.int64) * np.repeat(stride, count)
            stride *= np.where(stays[members], 0, states)
        begin = offsets(count)
        for m in np.flatnonzero(stays[members]).tolist():
            mine = slice(int(begin[m]), int(begin[m + 1]))
            kept[int(members[m])] = rows[mine, :k].astype(np.int64)
            at[mine] = table_ptr[members[m]] + 1 + np.arange(int(count[m]))
        theta_t[at] = rows[:, k]
    return table_ptr, theta_t, kept


def value_places(lists: Lists) -> tuple[Ints, Ints]:
    """Positions of the numbers after the tuples, and the tables that they belong to."""
    step = np.repeat(np.diff(lists.shape_ptr).astype(np.int64) + 1, lists.count)
    within = ranges(np.zeros(len(lists.count), dtype=np.int64), lists.count)
    places: Ints = np.repeat(lists.start, lists.count) + (within + 1) * step - 1
    return places, np.repeat(np.arange(len(lists.count)), lists.count)


def _check_states(file: NumberFile, places: Ints, found: Floats, states: Ints, owner: Ints) -> None:
    bad = np.flatnonzero(~((found >= 0) & (found < states) & (found == np.floor(found))))
    if len(bad):
        first = bad[0]
        file.fail(int(places[first]), f"tuple of factor {owner[first]}", f"a state from 0 to {states[first] - 1}")


def listed(numbers: Floats, table_ptr: Ints) -> tuple[Floats, Ints, Ints]:
    """The default of every table, and the positions that differ from it with their offsets per table."""
    default = most_common(numbers, table_ptr)
    differs = numbers != np.repeat(default, np.diff(table_ptr))
    count = np.add.reduceat(differs, table_ptr[:-1]) if len(default) else np.zeros(0, dtype=np.int64)
    return default, np.flatnonzero(differs), np.append(0, np.cumsum(count))


def tuple_text(inside: Ints, shape: tuple[int, ...], numbers: Floats, number: str) -> str:
    """Lines ``x_1 ... x_k number`` for some positions in a table of a shape."""
    if math.prod(shape) <= _MOST_CACHED:
        states = _states(shape)
        rows = zip(inside.tolist(), numbers.tolist(), strict=True)
        return "".join([f"{states[at]} {number % x}\n" for at, x in rows])
    columns = np.unravel_index(inside, shape)
    line = " %d" * len(shape) + f" {number}\n"
    lines = zip(*(column.tolist() for column in columns), numbers.tolist(), strict=True)
    return (line * len(inside)) % tuple(x for row in lines for x in row)


@lru_cache(maxsize=64)
def _states(shape: tuple[int, ...]) -> list[str]:
    """The states at every position in a table."""
    return ["".join([f" {k}" for k in states]) for states in itertools.product(*map(range, shape))]


def shape_of(graph: FactorGraph, a: int) -> tuple[int, ...]:
    """Cardinalities of the variables of a factor."""
    return tuple(graph.card[graph.scope_of(a)].tolist())
