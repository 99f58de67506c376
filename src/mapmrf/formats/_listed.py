"""Factors with one value except for a few tuples, kept as constraints on their variables instead of tables.

A tuple that is worse than the default becomes a constraint that not all variables have their states of the tuple, with
the difference as its penalty; one that is better, a constraint that all have them. If the default is forbidden, the
tuples are the paths of a tree that reads one variable after another, and every node of it becomes a clause: a path to
the node continues to one of its children. A labelling has the value that a table would give it, up to round-off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.errors import FormatError
from mapmrf.formats._tables import Factors, build
from mapmrf.formats.budget import charge
from mapmrf.graph import FactorGraph, Names
from mapmrf.graph_builders import blocks

LARGE = 1 << 16
"""Number of entries from which a table may be replaced by a list of tuples."""
INDICATOR_BYTES = 48.0
"""Bytes per indicator of a constraint, including temporary copies."""
LISTS = "its lists of tuples"
MOST_TUPLES = 10_000
"""Maximum number of tuples of a constraint that is written as a list."""


def keeps_list(size: Floats, count: Ints, shape: tuple[Ints, Ints]) -> Bools:
    """Which tables stay lists, by their sizes and numbers of tuples: large ones for which that needs less memory.

    Parameters
    ----------
    size, count
        Entries and tuples of every table.
    shape
        Number of variables of every table, and the largest number of states of one of them.

    Examples
    --------
    >>> import numpy as np
    >>> two = np.array([2, 2])
    >>> keeps_list(np.array([2.0**10, 2.0**28]), np.array([3, 3]), (np.array([10, 28]), two)).tolist()
    [False, True]
    """
    arity, widest = shape
    entries = INDICATOR_BYTES / 8.0 * count * arity.astype(np.float64) * (arity + widest)
    return np.asarray((size > LARGE) & (entries < size))


def shape_bounds(shape: Ints, shape_ptr: Ints) -> tuple[Ints, Ints]:
    """Number of variables of every table, and the largest number of states of one of them.

    Examples
    --------
    >>> import numpy as np
    >>> [part.tolist() for part in shape_bounds(np.array([2, 3, 4]), np.array([0, 2, 2, 3]))]
    [[2, 0, 1], [3, 1, 4]]
    """
    arity = np.diff(shape_ptr)
    widest: Ints = np.ones(len(arity), dtype=np.int64)
    if len(shape):
        widest[arity > 0] = np.maximum.reduceat(shape, shape_ptr[:-1][arity > 0])
    return arity, widest


def states_at(index: Ints, shape: Ints) -> Ints:
    """The tuples (n_tuples, arity) at some positions of a table whose first variable runs fastest.

    Examples
    --------
    >>> import numpy as np
    >>> states_at(np.array([0, 4]), np.array([3, 2])).tolist()
    [[0, 0], [1, 1]]
    """
    tuples = np.empty((len(index), len(shape)), dtype=np.int64)
    for j, states in enumerate(shape.tolist()):
        index, tuples[:, j] = np.divmod(index, states)
    return tuples


def stays_list(size: float, count: int, shape: Sequence[int]) -> bool:
    """Return whether a single table stays a list.

    Examples
    --------
    >>> stays_list(2.0**28, 3, [2] * 28)
    True
    """
    shapes = np.array([len(shape)]), np.array([max(shape, default=1)])
    return bool(keeps_list(np.array([size]), np.array([count]), shapes)[0])


def build_listed(
    path: Path, card: Ints, factors: Factors, lists: Mapping[int, Ints], names: Names | None = None
) -> FactorGraph:
    """Build a graph from factors, some of whose tables are lists.

    Parameters
    ----------
    path
        The file, for errors.
    card
        Cardinalities.
    factors
        All factors. The entries of a table that is a list are its default and the values of its tuples.
    lists
        The tuples (n_tuples, arity) of these tables; the last of repeated ones is used.
    names
        Names of variables and states.
    """
    if not lists:
        return build(path, card, factors, names)
    is_list = np.zeros(len(factors.table_ptr) - 1, dtype=bool)
    is_list[list(lists)] = True
    kept = _Kept(path, card)
    for a in np.flatnonzero(is_list[factors.table_of]).tolist():
        t = int(factors.table_of[a])
        entries = factors.theta_t[factors.table_ptr[t] : factors.table_ptr[t + 1]]
        if factors.weight is not None:
            entries = factors.weight[a] * entries
        kept.add(a, factors.scope[factors.scope_ptr[a] : factors.scope_ptr[a + 1]], lists[t], entries)
    graph = build(path, card, _with_unary(_without(factors, is_list), kept), names)
    return replace(graph, constraints=Constraints.join(kept.parts))


def _without(factors: Factors, is_list: Bools) -> Factors:
    """The factors whose tables are not lists."""
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


def _with_unary(factors: Factors, kept: _Kept) -> Factors:
    """The factors, followed by a constant and unary factors."""
    scopes, tables = [(), *((i,) for i, _ in kept.unary)], [np.array([kept.constant]), *(t for _, t in kept.unary)]
    arity = np.array([len(scope) for scope in scopes])
    n = len(factors.table_ptr) - 1
    return Factors(
        offsets(np.concatenate([np.diff(factors.scope_ptr), arity])),
        np.concatenate([factors.scope, np.array([i for scope in scopes for i in scope], dtype=np.int64)]),
        np.concatenate([factors.table_of, n + np.arange(len(tables))]),
        offsets(np.concatenate([np.diff(factors.table_ptr), [len(table) for table in tables]])),
        np.concatenate([factors.theta_t, *tables]),
        None if factors.weight is None else np.concatenate([factors.weight, np.ones(len(tables))]),
    )


@dataclass(eq=False)
class _Kept:
    """Lists of tuples converted to unary potentials by variable, a constant, and constraints."""

    path: Path
    card: Ints
    unary: list[tuple[int, Floats]] = field(default_factory=list)
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
        """Values of tuples relative to a base."""
        with np.errstate(over="ignore"):
            gain = theta - base
        if np.any(np.isinf(gain) & np.isfinite(theta)):
            raise FormatError(f"{self.path}: factor {a}: its numbers differ by more than a float can hold")
        return gain

    def charge(self, a: int, n_indicators: float) -> None:
        """Charge for indicators before they are added."""
        self.n_indicators += int(min(n_indicators, 2.0**60))
        charge(self.path, INDICATOR_BYTES * self.n_indicators, LISTS, f"factor {a} needs {n_indicators:.4g} indicators")

    def add_differences(self, a: int, scope: Ints, tuples: Ints, gain: Floats) -> None:
        """Add tuples whose values differ from the default."""
        tuples, gain = tuples[gain != 0], gain[gain != 0]
        n, k = tuples.shape
        if n == 0:
            return
        self.charge(a, n * k)
        self.constant += float(gain[gain > 0].sum())
        self.parts.append(
            _sums(
                np.full(n, k),
                (np.tile(scope, n), tuples.ravel()),
                np.where(gain > 0, float(k), -np.inf),
                np.where(gain > 0, np.inf, k - 1.0),
                np.abs(gain),
            )
        )

    def add_tree(self, a: int, scope: Ints, tuples: Ints) -> None:
        """Forbid all but some tuples: a clause for every node of the tree in which they are the paths."""
        kinds = np.array([len(np.unique(column)) for column in tuples.T])
        for place in np.flatnonzero(kinds == 1).tolist():
            allowed = np.full(int(self.card[scope[place]]), -np.inf)
            allowed[tuples[0, place]] = 0.0
            self.unary.append((int(scope[place]), allowed))
        order = np.argsort(kinds, kind="stable")
        order = order[kinds[order] > 1]
        levels = list(_levels(tuples[:, order]))
        widths = self.card[scope[order]]
        self.charge(a, sum(len(nodes) * (d + float(widths[d])) for d, (nodes, _) in enumerate(levels)))
        for d, (nodes, of) in enumerate(levels):
            self.add_level(scope[order[: d + 1]], tuples[:, order[: d + 1]], nodes, of)

    def add_level(self, scope: Ints, rows: Ints, nodes: Ints, of: Ints) -> None:
        """Add the clauses of the nodes at one level of the tree: none of the states that do not follow."""
        d = len(scope) - 1
        follows = np.zeros((len(nodes), int(self.card[scope[d]])), dtype=bool)
        follows[of, rows[:, d]] = True
        at, state = np.nonzero(~follows)
        count = np.bincount(at, minlength=len(nodes))
        if d == 0:
            self.unary.append((int(scope[0]), np.where(follows[0], 0.0, -np.inf)))
            return
        some = np.flatnonzero(count)
        sizes = d + count[some]
        first = offsets(sizes)[:-1]
        var, states = np.empty(int(sizes.sum()), dtype=np.int64), np.empty(int(sizes.sum()), dtype=np.int64)
        before = first[:, None] + np.arange(d)
        var[before], states[before] = scope[:d], rows[nodes[some], :d]
        after = ranges(first + d, count[some])
        var[after], states[after] = scope[d], state
        none, hard = np.full(len(some), -np.inf), np.full(len(some), np.inf)
        if len(some):
            self.parts.append(_sums(sizes, (var, states), none, np.full(len(some), float(d)), hard))


def _levels(rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """For each column, a row for every distinct prefix before it, and the prefix of every row; rows are sorted."""
    of = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        yield np.unique(of, return_index=True)[1], of
        of = np.unique(of * (int(column.max()) + 1) + column, return_inverse=True)[1]


def _sums(sizes: Ints, indicators: tuple[Ints, Ints], lower: Floats, upper: Floats, penalty: Floats) -> Constraints:
    """Constraints that count their indicators, each of which has the weight 1."""
    n = len(sizes)
    kind = np.full(n, int(ConstraintKind.LINEAR))
    weight = np.ones(len(indicators[0]))
    return Constraints(kind, offsets(sizes), *indicators, weight, lower, upper, penalty, ("tuple",) * n)


# -- writing ----------------------------------------------------------------------------------------------------------


class WrittenList(NamedTuple):
    """A factor to be written: its variables, its default, and tuples that all have one other log potential."""

    scope: tuple[int, ...]
    default: float
    tuples: list[tuple[int, ...]]
    theta: float


def written_list(constraints: Constraints, c: int) -> WrittenList | None:
    """A constraint as a factor with few tuples, or None if it cannot be written so.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [])
    >>> graph = graph.with_constraints([constraints.at_most_one([0, 1], penalty=3.0)])
    >>> written_list(graph.constraints, 0)
    WrittenList(scope=(0, 1), default=0.0, tuples=[(1, 1)], theta=-3.0)
    """
    mine = constraints.span(c)
    if constraints.kind[c] != ConstraintKind.LINEAR or np.any(constraints.weight[mine] != 1.0):
        return None
    states: dict[int, list[int]] = {}
    for i, k in zip(constraints.var[mine].tolist(), constraints.state[mine].tolist(), strict=True):
        states.setdefault(i, []).append(k)
    if math.prod(map(float, map(len, states.values()))) > MOST_TUPLES:
        return None
    n, least, most = len(states), float(constraints.least[c]), float(constraints.most[c])
    penalty = 0.0 - float(constraints.penalty[c])
    tuples = list(itertools.product(*states.values()))
    if least <= 0 and most == n - 1:
        return WrittenList(tuple(states), 0.0, tuples, penalty)
    if least == n and most >= n:
        return WrittenList(tuple(states), penalty, tuples, 0.0)
    return None
