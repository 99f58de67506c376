"""Tables given as a default and a list of tuples, each of which is a state per variable and a number.

The largest of them have no table: they become constraints on their variables. A tuple that is worse than the default
becomes a constraint that not all variables have their states of the tuple, with the difference as its penalty; one that
is better, a constraint that all have them. A better tuple of two variables becomes a constraint that both or neither
have their states of it, with half the difference as its penalty and as a unary potential of either state: this is as
tight as a table, and the halves of a whole diagonal are a constant. If the default is forbidden, the tuples are the
paths of a tree that reads one variable after another, and every node of it becomes a clause: a path to the node
continues to one of its children. A labelling has the value that a table would give it, up to round-off.
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
from mapmrf.formats.files import charge
from mapmrf.formats.tables import COPIES, Factors, build, last_fastest, table_offsets, table_sizes
from mapmrf.formats.tokens import NumberFile, first_not_whole
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

LARGE = 1 << 16  # number of entries from which a table may be replaced by a list of tuples
HUGE = 1 << 22
"""Number of entries from which the list may be long: such a table is slow to fill and too large to exploit."""
INDICATOR_BYTES = 48.0  # bytes per indicator of a constraint, including temporary copies
LISTS = "its lists of tuples"


def keeps_list(size: Floats, count: Ints, shape: Ints, shape_ptr: Ints, users: Ints | int = 1) -> Bools:
    """Which tables of so many entries stay lists of so many tuples: large ones for which that needs less memory."""
    # A table is stored once for all factors that use it, a list for each of its `users`. A list that is long, such as
    # the diagonal of a Potts factor, must need far less, since some methods exploit the structure of such tables.
    arity = np.diff(shape_ptr)
    widest = np.ones(len(arity), dtype=np.int64)
    if len(shape):
        widest[arity > 0] = np.maximum.reduceat(shape, shape_ptr[:-1][arity > 0])
    places = INDICATOR_BYTES / 8.0 * count * arity.astype(np.float64)
    short = (size > LARGE) & (places * (arity + widest) < size)
    long = (size > HUGE) & (8.0 * users * places * (arity + 1.0) < size)
    return np.asarray(short | long)


def stays_list(size: float, count: int, shape: Sequence[int], users: int = 1) -> bool:
    one = np.array([size]), np.array([count]), np.array(shape, dtype=np.int64), np.array([0, len(shape)])
    return bool(keeps_list(*one, users)[0])


def diagonal(count: int, arity: int = 2) -> Ints:
    """The first tuples of equal states, (count, arity)."""
    return np.repeat(np.arange(count), arity).reshape(-1, arity)


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


def read_lists(file: NumberFile, lists: Lists, users: Ints | int = 1) -> tuple[Ints, Floats, dict[int, Ints]]:
    """Offsets and entries of the tables, last variable fastest, and the tuples of those that stay lists."""
    # The entries of a table that stays a list are its default and the values of its tuples. In all others, the last of
    # repeated tuples is used. `users` is the number of factors with each table.
    size = table_sizes(lists.shape, lists.shape_ptr)
    arity = np.diff(lists.shape_ptr)
    stays = keeps_list(size, lists.count, lists.shape, lists.shape_ptr, users)
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
        kept.add(a, factors.scope[factors.scope_ptr[a] : factors.scope_ptr[a + 1]], factors.lists[t], entries)
    for i, worth in kept.worth.items():
        if np.all(worth == worth[0]):
            kept.constant += float(worth[0])
        else:
            kept.unary.append((i, worth))
    scopes, tables = [(), *((i,) for i, _ in kept.unary)], [np.array([kept.constant]), *(t for _, t in kept.unary)]
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
    """Lists of tuples converted to unary potentials by variable, a constant, and constraints."""

    # `worth` sums what better pairs add to the states of a variable; `unary` forbids states.

    path: Path
    card: Ints
    unary: list[tuple[int, Floats]] = field(default_factory=list)
    worth: dict[int, Floats] = field(default_factory=dict)
    constant: float = 0.0
    parts: list[Constraints] = field(default_factory=list)
    n_indicators: int = 0

    def add(self, a: int, scope: Ints, tuples: Ints, entries: Floats) -> None:
        """Add a factor: its default, and tuples with their values."""
        if len(np.unique(scope)) < len(scope):
            twice = np.flatnonzero(np.bincount(scope) > 1)[0]
            raise FormatError(f"{self.path}: factor {a}: variable {twice} occurs twice in its scope")
        default, theta = float(entries[0]), entries[1:]
        tuples, last = np.unique(tuples[::-1], axis=0, return_index=True)
        theta = theta[::-1][last]
        if default > -math.inf:
            self.constant += default
            self.add_differences(a, scope, tuples, self.gains(a, theta, default))
            return
        tuples, theta = tuples[theta > -np.inf], theta[theta > -np.inf]
        if len(tuples) == 0:
            self.constant = -math.inf
            return
        self.add_tree(a, scope, tuples)
        best = float(theta.max())
        self.constant += best
        self.add_differences(a, scope, tuples, self.gains(a, theta, best))

    def gains(self, a: int, theta: Floats, base: float) -> Floats:
        with np.errstate(over="ignore"):
            gain = theta - base
        if np.any(np.isinf(gain) & np.isfinite(theta)):
            raise FormatError(f"{self.path}: factor {a}: its numbers differ by more than a float can hold")
        return gain

    def charge(self, a: int, n_indicators: float) -> None:
        self.n_indicators += int(min(n_indicators, 2.0**60))
        charge(self.path, INDICATOR_BYTES * self.n_indicators, LISTS, f"factor {a} needs {n_indicators:.4g} indicators")

    def add_differences(self, a: int, scope: Ints, tuples: Ints, gain: Floats) -> None:
        tuples, gain = tuples[gain != 0], gain[gain != 0]
        n, k = tuples.shape
        if n == 0:
            return
        self.charge(a, n * k)
        if k == 2:
            self.add_better_pairs(scope, tuples[gain > 0], gain[gain > 0])
            tuples, gain = tuples[gain < 0], gain[gain < 0]
            n = len(gain)
        self.constant += float(gain[gain > 0].sum())
        self.parts.append(
            _sums(
                np.full(n, k),
                (np.tile(scope, n), tuples.ravel()),
                (np.where(gain > 0, float(k), -np.inf), np.where(gain > 0, np.inf, k - 1.0)),
                np.abs(gain),
            )
        )

    def add_better_pairs(self, scope: Ints, tuples: Ints, gain: Floats) -> None:
        """Tuples of two variables that are worth more than the rest: both or neither of their states."""
        n, half = len(tuples), 0.5 * gain
        for i, states in zip(scope.tolist(), tuples.T, strict=True):
            np.add.at(self.worth.setdefault(i, np.zeros(int(self.card[i]))), states, half)
        indicators = np.tile(scope, n), tuples.ravel()
        self.parts.append(_sums(np.full(n, 2), indicators, (np.zeros(n), np.zeros(n)), half, np.tile([1.0, -1.0], n)))

    def add_tree(self, a: int, scope: Ints, tuples: Ints) -> None:
        """Forbid all but some tuples: a clause for every node of the tree in which they are the paths."""
        kinds = np.array([len(np.unique(column)) for column in tuples.T])
        for place in np.flatnonzero(kinds == 1).tolist():
            allowed = np.full(int(self.card[scope[place]]), -np.inf)
            allowed[tuples[0, place]] = 0.0
            self.unary.append((int(scope[place]), allowed))
        order = np.argsort(kinds, kind="stable")
        order = order[kinds[order] > 1]
        levels = list[tuple[Ints, Ints]]()
        of: Ints = np.zeros(len(tuples), dtype=np.int64)
        for column in tuples[:, order].T:  # a row for every distinct prefix before it, and the prefix of every row
            levels.append((np.unique(of, return_index=True)[1], of))
            of = np.unique(of * (int(column.max()) + 1) + column, return_inverse=True)[1]
        n_nodes = [len(nodes) for nodes, _ in levels] + [len(tuples)]
        self.charge(a, sum(d * float(n_nodes[d]) + n_nodes[d + 1] for d in range(len(levels))))
        for d, (nodes, of) in enumerate(levels):
            self.add_level(scope[order[: d + 1]], tuples[:, order[: d + 1]], nodes, of)

    def add_level(self, scope: Ints, rows: Ints, nodes: Ints, of: Ints) -> None:
        """Add the clauses of the nodes at one level of the tree."""
        # The sum of a clause has the states on the path to the node, plus the states that do not follow or minus those
        # that do, whichever are fewer.
        d = len(scope) - 1
        width = int(self.card[scope[d]])
        at, state = np.divmod(np.unique(of * width + rows[:, d]), width)
        if d == 0:
            allowed = np.full(width, -np.inf)
            allowed[state] = 0.0
            self.unary.append((int(scope[0]), allowed))
            return
        count = np.bincount(at, minlength=len(nodes))
        few = 2 * count < width
        here = few[at]
        before = rows[nodes, :d]
        self.add_clauses(scope, before[few], np.bincount(at[here], minlength=len(nodes))[few], state[here], -1.0)
        follows = np.zeros((len(nodes) - int(few.sum()), width), dtype=bool)
        follows[(np.cumsum(~few) - 1)[at[~here]], state[~here]] = True
        others = np.nonzero(~follows)[1]
        some = count[~few] < width
        self.add_clauses(scope, before[~few][some], (width - count)[~few][some], others, 1.0)

    def add_clauses(self, scope: Ints, before: Ints, count: Ints, states: Ints, weight: float) -> None:
        """Add clauses of nodes: the states on their paths, and `count` states each of the last variable."""
        n, d = before.shape
        if n == 0:
            return
        sizes = d + count
        first = offsets(sizes)[:-1]
        var, state = np.empty(int(sizes.sum()), dtype=np.int64), np.empty(int(sizes.sum()), dtype=np.int64)
        weights = np.ones(len(var))
        places, after = first[:, None] + np.arange(d), ranges(first + d, count)
        var[places], state[places] = scope[:d], before
        var[after], state[after], weights[after] = scope[d], states, weight
        most = np.full(n, d - (weight < 0.0), dtype=np.float64)
        self.parts.append(_sums(sizes, (var, state), (np.full(n, -np.inf), most), np.full(n, np.inf), weights))


def _sums(
    sizes: Ints,
    indicators: tuple[Ints, Ints],
    limits: tuple[Floats, Floats],
    penalty: Floats,
    weight: Floats | None = None,
) -> Constraints:
    """Constraints on sums of their indicators, each of which has the weight 1 unless others are given."""
    n = len(sizes)
    kind = np.full(n, LINEAR)
    weight = np.ones(len(indicators[0])) if weight is None else weight
    return Constraints(kind, offsets(sizes), *indicators, weight, *limits, penalty, ("tuple",) * n)


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
