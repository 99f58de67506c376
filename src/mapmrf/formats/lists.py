"""Tables given as a default and a list of tuples, each of which is a state per variable and a number.

Large tables with few tuples are not written out: they become constraints on their variables. A tuple that is worse than
the default becomes a constraint that not all variables have their states of the tuple, with the difference as its
penalty; one that is better, a constraint that all have them. If the default is forbidden, the tuples are the paths of a
tree that reads one variable after another, and every node of it becomes a clause: a path to the node continues to one
of its children. A labelling has the value that a table would give it, up to round-off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.constraints.flat import LINEAR, Constraints
from mapmrf.errors import FormatError
from mapmrf.formats.files import NumberFile, charge, first_not_whole
from mapmrf.formats.tables import COPIES, Factors, build, last_fastest, table_offsets, table_sizes
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

LARGE = 1 << 16  # number of entries from which a table may be replaced by a list of tuples
INDICATOR_BYTES = 48.0  # bytes per indicator of a constraint, including temporary copies
LISTS = "its lists of tuples"


def keeps_list(size: Floats, count: Ints, shape: Ints, shape_ptr: Ints) -> Bools:
    """Which tables of so many entries stay lists of so many tuples: large ones for which that needs far less memory."""
    # The diagonal of a Potts factor of two variables is never short enough: methods exploit the structure of its table.
    arity = np.diff(shape_ptr)
    widest = np.ones(len(arity), dtype=np.int64)
    if len(shape):
        widest[arity > 0] = np.maximum.reduceat(shape, shape_ptr[:-1][arity > 0])
    return np.asarray(
        (size > LARGE) & (INDICATOR_BYTES / 8.0 * count * arity.astype(np.float64) * (arity + widest) < size)
    )


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
    kept = _Kept(path, card)
    for a in np.flatnonzero(is_list[factors.table_of]).tolist():
        t = int(factors.table_of[a])
        entries = factors.theta_t[factors.table_ptr[t] : factors.table_ptr[t + 1]]
        if factors.weight is not None:
            entries = factors.weight[a] * entries
        kept.add(a, factors.scope_of(a), factors.lists[t], entries)
    scopes, tables = [(), *((i,) for i in kept.unary)], [np.array([kept.constant]), *kept.unary.values()]
    graph = build(path, card, _without(factors, is_list).extended(scopes, tables), names)
    return replace(graph, constraints=Constraints.join(kept.parts))


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


@dataclass(eq=False)
class _Kept:
    """Lists of tuples converted to constraints, a constant, and unary potentials that forbid states."""

    path: Path
    card: Ints
    unary: dict[int, Floats] = field(default_factory=dict)
    constant: float = 0.0
    parts: list[Constraints] = field(default_factory=list)
    n_indicators: int = 0

    def add(self, a: int, scope: Ints, tuples: Ints, entries: Floats) -> None:
        """Add a factor: its default, and tuples with their values."""
        if len(np.unique(scope)) < len(scope):
            twice = np.flatnonzero(np.bincount(scope) > 1)[0]
            raise FormatError(f"{self.path}: factor {a}: variable {twice} occurs twice in its scope")
        base, theta = float(entries[0]), entries[1:]
        tuples, last = np.unique(tuples[::-1], axis=0, return_index=True)
        theta = theta[::-1][last]
        if base == -math.inf:
            tuples, theta = tuples[theta > -np.inf], theta[theta > -np.inf]
            if len(tuples) == 0:
                self.constant = -math.inf
                return
            self.add_tree(a, scope, tuples)
            base = float(theta.max())
        self.constant += base
        with np.errstate(over="ignore"):
            gain = theta - base
        if np.any(np.isinf(gain) & np.isfinite(theta)):
            raise FormatError(f"{self.path}: factor {a}: its numbers differ by more than a float can hold")
        tuples, gain = tuples[gain != 0], gain[gain != 0]
        self.constant += float(gain[gain > 0].sum())
        n, k = tuples.shape
        self.charge(a, n * k)
        limits = np.where(gain > 0, float(k), -np.inf), np.where(gain > 0, np.inf, k - 1.0)
        self.add_sums(np.full(n, k), (np.tile(scope, n), tuples.ravel(), np.ones(n * k)), limits, np.abs(gain))

    def add_tree(self, a: int, scope: Ints, tuples: Ints) -> None:
        """Forbid all but some tuples: a clause for every node of the tree in which they are the paths."""
        kinds = np.array([len(np.unique(column)) for column in tuples.T])
        for i, column in zip(scope.tolist(), tuples.T, strict=True):
            forbidden = np.full(int(self.card[i]), -np.inf)
            forbidden[column] = 0.0
            self.unary[i] = self.unary.get(i, 0.0) + forbidden
        order = np.argsort(kinds, kind="stable")[np.count_nonzero(kinds == 1) :]
        nodes, of = np.zeros(1, dtype=np.int64), np.zeros(len(tuples), dtype=np.int64)  # the node of every tuple
        for d, place in enumerate(order.tolist()):
            column = tuples[:, place]
            _, children, next_of = np.unique(
                of * (int(column.max()) + 1) + column, return_index=True, return_inverse=True
            )
            n_children = np.bincount(of[children])
            # All states on the path to a node, and none of those that follow: where all follow, that is impossible.
            open_nodes = np.flatnonzero(n_children < kinds[place])
            if d > 0 and len(open_nodes):
                follow = children[np.isin(of[children], open_nodes)]
                sizes = d + n_children[open_nodes]
                self.charge(a, int(sizes.sum()))
                owner = np.concatenate([np.repeat(open_nodes, d), of[follow]])
                by_node = np.argsort(owner, kind="stable")
                path = tuples[nodes[open_nodes]][:, order[:d]]
                var = np.concatenate([np.tile(scope[order[:d]], len(path)), np.full(len(follow), scope[place])])
                state = np.concatenate([path.ravel(), column[follow]])
                weight = np.where(np.arange(len(owner)) < path.size, 1.0, -1.0)
                limits = np.full(len(sizes), -np.inf), np.full(len(sizes), d - 1.0)
                terms = var[by_node], state[by_node], weight[by_node]
                self.add_sums(sizes, terms, limits, np.full(len(sizes), np.inf))
            nodes, of = children, next_of.ravel()

    def add_sums(
        self, sizes: Ints, terms: tuple[Ints, Ints, Floats], limits: tuple[Floats, Floats], penalty: Floats
    ) -> None:
        n = len(sizes)
        self.parts.append(Constraints(np.full(n, LINEAR), offsets(sizes), *terms, *limits, penalty, ("tuple",) * n))

    def charge(self, a: int, n_indicators: int) -> None:
        self.n_indicators += n_indicators
        charge(self.path, INDICATOR_BYTES * self.n_indicators, LISTS, f"factor {a} needs {n_indicators:.4g} indicators")


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
