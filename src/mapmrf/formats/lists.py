"""Tables given as a default and a list of tuples, each of which is a state per variable and a number.

Large tables with few tuples are not written out: each becomes a `regular` constraint on its variables, whose automaton
follows the tuples and ends with their values. A labelling has the value that the table would give it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.constraints.kinds.regular import kept_in_rows
from mapmrf.constraints.statements import Constraint
from mapmrf.errors import FormatError
from mapmrf.formats.files import NumberFile, charge, first_not_whole
from mapmrf.formats.tables import COPIES, Factors, build, last_fastest, table_offsets, table_sizes
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

LARGE = 1 << 16  # number of entries from which a table may be replaced by a list of tuples
MOVE_BYTES = 96.0  # bytes for each state that may follow a part of a tuple, including temporary copies
LISTS = "its lists of tuples"


def keeps_list(size: Floats, count: Ints, shape: Ints, shape_ptr: Ints) -> Bools:
    """Which tables of so many entries stay lists of so many tuples: large ones for which that needs far less memory."""
    # The diagonal of a Potts factor of two variables is never short enough: methods exploit the structure of its table.
    states = np.diff(np.append(0.0, np.cumsum(shape.astype(np.float64)))[shape_ptr])
    return np.asarray((size > LARGE) & (MOVE_BYTES / 8.0 * count * states < size))


def stays_list(size: float, count: int, shape: Sequence[int]) -> bool:
    return bool(
        keeps_list(np.array([size]), np.array([count]), np.array(shape, dtype=np.int64), offsets([len(shape)]))[0]
    )


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lists:
    """Positions of the tuples of every table among the numbers of a file."""

    # Table t is `default[t]` except for the `count[t]` tuples from position `start[t]` on; the cardinalities of its
    # variables are ``shape[shape_ptr[t]:shape_ptr[t + 1]]``.

    default: Floats
    start: Ints
    count: Ints
    shape: Ints
    shape_ptr: Ints


def read_lists(file: NumberFile, lists: Lists) -> tuple[Ints, Floats, dict[int, Ints]]:
    """Offsets and entries of the tables, last variable fastest, and the tuples of those that stay lists."""
    # The entries of a table that stays a list are its default and the values of its tuples. In all others, the last of
    # repeated tuples is used.
    size = table_sizes(lists.shape, lists.shape_ptr)
    arity = np.diff(lists.shape_ptr)
    stays = keeps_list(size, lists.count, lists.shape, lists.shape_ptr)
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
            bad = first_not_whole(rows[:, j], 0, np.repeat(states - 1, count))
            if bad is not None:
                most = np.repeat(states - 1, count)[bad]
                file.fail(int(places[bad, j]), f"tuple of factor {owner[bad]}", f"a state from 0 to {most}")
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


def tables_of_keys(
    table_ptr: Ints, stays: Bools, default: Floats, entries: tuple[Ints, Floats, Ints], shape: Ints, shape_ptr: Ints
) -> tuple[Floats, dict[int, Ints]]:
    """Tables that are a default but for `count` keys with values each, and the tuples of those that stay lists."""
    # In a key, the first variable counts least; in the tables, the last one does.
    keys, values, count = entries
    theta_t = np.repeat(default, np.diff(table_ptr))
    within = 1 + ranges(np.zeros(len(count), dtype=np.int64), count)
    place = np.where(np.repeat(stays, count), within, keys)
    theta_t[np.repeat(table_ptr[:-1], count) + place] = values
    lists, turned, first = dict[int, Ints](), shape.copy(), offsets(count)
    for t in np.flatnonzero(stays).tolist():
        mine, rest = slice(int(shape_ptr[t]), int(shape_ptr[t + 1])), keys[first[t] : first[t + 1]]
        lists[t] = np.empty((len(rest), mine.stop - mine.start), dtype=np.int64)
        for j, states in enumerate(shape[mine].tolist()):
            rest, lists[t][:, j] = np.divmod(rest, states)
        turned[mine] = 1  # no axes to be reversed
        turned[mine.start] = count[t] + 1
    return last_fastest(theta_t, table_ptr, turned, shape_ptr), lists


# -- constraints ------------------------------------------------------------------------------------------------------


def build_with_lists(path: Path, card: Ints, factors: Factors, names: Names | None) -> FactorGraph:
    is_list = np.zeros(len(factors.table_ptr) - 1, dtype=bool)
    is_list[list(factors.lists)] = True
    kept, constant, need = list[Constraint](), 0.0, 0.0
    for a in np.flatnonzero(is_list[factors.table_of]).tolist():
        t, scope = int(factors.table_of[a]), factors.scope_of(a)
        if len(np.unique(scope)) < len(scope):
            twice = np.flatnonzero(np.bincount(scope) > 1)[0]
            raise FormatError(f"{path}: factor {a}: variable {twice} occurs twice in its scope")
        entries = factors.theta_t[factors.table_ptr[t] : factors.table_ptr[t + 1]]
        if factors.weight is not None:
            entries = factors.weight[a] * entries
        if (entries == entries[0]).all():
            constant += float(entries[0])
            continue
        moves = float(card[scope].sum()) * len(factors.lists[t])
        need += MOVE_BYTES * moves
        charge(path, need, LISTS, f"factor {a} needs {moves:.4g} moves")
        kept.append(_constraint(scope.tolist(), card, factors.lists[t], entries))
    tables = _without(factors, is_list).extended([()], [np.array([constant])])
    return build(path, card, tables, names).with_constraints(kept)


def _constraint(scope: list[int], card: Ints, tuples: Ints, entries: Floats) -> Constraint:
    """A default, and tuples with their values: what it keeps is the node in the tree of the tuples, or -1 beside it."""
    at, children = np.zeros(len(tuples), dtype=np.int64), list[Ints]()
    for column, r in zip(tuples.T, card[scope].tolist(), strict=True):
        found, at = np.unique(at * r + column, return_inverse=True)
        children.append(found)
    values = np.full(len(children[-1]) + 1, entries[0])
    values[at] = entries[1:]  # of repeated tuples the last

    def follow(place: int, rows: Floats) -> tuple[Floats, float]:
        r, known = int(card[scope[place]]), children[place]
        wanted = rows.astype(np.int64) * r + np.arange(r)
        child = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return np.where(known[child] == wanted, child, -1.0)[:, :, None], 0.0

    return kept_in_rows("tuples", scope, card, [0.0], follow, lambda rows: -values[rows[:, 0].astype(np.int64)])


def _without(factors: Factors, is_list: Bools) -> Factors:
    stay = np.flatnonzero(~is_list[factors.table_of])
    arity, sizes = np.diff(factors.scope_ptr), np.diff(factors.table_ptr)
    tables = np.flatnonzero(~is_list)
    return Factors(
        offsets(arity[stay]),
        factors.scope[ranges(factors.scope_ptr[stay], arity[stay])],
        (np.cumsum(~is_list) - 1)[factors.table_of[stay]],
        offsets(sizes[tables]),
        blocks(factors.theta_t, factors.table_ptr[tables], sizes[tables]),
        None if factors.weight is None else factors.weight[stay],
    )


# -- writing ----------------------------------------------------------------------------------------------------------


def listed(numbers: Floats, table_ptr: Ints) -> tuple[Floats, Ints, Ints]:
    """The default of every table, and the positions that differ from it with their offsets per table."""
    default = most_common(numbers, table_ptr)
    differs = numbers != np.repeat(default, np.diff(table_ptr))
    count = np.add.reduceat(differs, table_ptr[:-1]) if len(default) else np.zeros(0, dtype=np.int64)
    return default, np.flatnonzero(differs), np.append(0, np.cumsum(count))


def tuple_text(inside: Ints, shape: tuple[int, ...], numbers: Floats, number: str) -> str:
    """Lines ``x_1 ... x_k number`` for some positions in a table of a shape."""
    if math.prod(shape) <= 1 << 14:  # the texts of all states are kept for the next table of this shape
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


def most_common(theta: Floats, table_ptr: Ints) -> Floats:
    """The most frequent entry of every (non-empty) table; the smallest in case of ties."""
    n = len(table_ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(table_ptr))
    value = theta[np.lexsort((theta, owner))]
    begins = np.flatnonzero(np.append(True, (value[1:] != value[:-1]) | (owner[1:] != owner[:-1]))[: len(value)])
    length = np.diff(np.append(begins, len(value)))
    best = np.lexsort((-length, owner[begins]))
    _, first = np.unique(owner[begins][best], return_index=True)
    return value[begins[best[first]]]
