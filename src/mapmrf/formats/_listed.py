"""Factors with one value except for a few tuples, kept as constraints on their variables instead of tables.

A tuple that is worse than the default becomes a constraint that not all variables have their states of the tuple, with
the difference as its penalty; one that is better, a constraint that all have them. A better tuple of two variables
becomes a constraint that both or neither have their states of it, with half the difference as its penalty and as a
unary potential of either state: this is as tight as a table, and the halves of a whole diagonal are a constant. If the
default is forbidden, the tuples are the paths of a tree that reads one variable after another, and every node of it
becomes a clause: a path to the node continues to one of its children. A labelling has the value that a table would give
it, up to round-off.
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
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

LARGE = 1 << 16
"""Number of entries from which a table may be replaced by a list of tuples."""
HUGE = 1 << 22
"""Number of entries from which the list may be long: such a table is slow to fill and too large to exploit."""
INDICATOR_BYTES = 48.0
"""Bytes per indicator of a constraint, including temporary copies."""
LISTS = "its lists of tuples"
MOST_TUPLES = 10_000
"""Maximum number of tuples of a constraint that is written as a list."""


def keeps_list(size: Floats, count: Ints, shape: tuple[Ints, Ints], users: Ints | int = 1) -> Bools:
    """Which tables stay lists, by their sizes and numbers of tuples: large ones for which that needs less memory.

    A table is stored once for all factors that use it, a list for each of them. A list that is long, such as the
    diagonal of a Potts factor, must need far less, since some methods exploit the structure of such tables.

    Parameters
    ----------
    size, count
        Entries and tuples of every table.
    shape
        Number of variables of every table, and the largest number of states of one of them.
    users
        Number of factors with each table.

    Examples
    --------
    >>> import numpy as np
    >>> two = np.array([2, 2])
    >>> keeps_list(np.array([2.0**10, 2.0**28]), np.array([3, 3]), (np.array([10, 28]), two)).tolist()
    [False, True]
    >>> shape = np.array([2, 2]), np.array([1000, 16384])
    >>> keeps_list(np.array([1e6, 2.0**28]), np.array([1000, 16384]), shape).tolist()
    [False, True]
    """
    arity, widest = shape
    places = INDICATOR_BYTES / 8.0 * count * arity.astype(np.float64)
    short = (size > LARGE) & (places * (arity + widest) < size)
    long = (size > HUGE) & (8.0 * users * places * (arity + 1.0) < size)
    return np.asarray(short | long)


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


def diagonal(count: int, arity: int = 2) -> Ints:
    """The first tuples of equal states, (count, arity).

    Examples
    --------
    >>> diagonal(2).tolist()
    [[0, 0], [1, 1]]
    """
    return np.repeat(np.arange(count), arity).reshape(-1, arity)


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


def stays_list(size: float, count: int, shape: Sequence[int], users: int = 1) -> bool:
    """Return whether a single table, used by so many factors, stays a list.

    Examples
    --------
    >>> stays_list(2.0**28, 3, [2] * 28)
    True
    """
    shapes = np.array([len(shape)]), np.array([max(shape, default=1)])
    return bool(keeps_list(np.array([size]), np.array([count]), shapes, users)[0])


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
    kept.settle_worth()
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
    """Lists of tuples converted to unary potentials by variable, a constant, and constraints.

    `worth` sums what better pairs add to the states of a variable; `unary` forbids states.
    """

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

    def settle_worth(self) -> None:
        """Add what states are worth to the unary potentials, or to the constant if all states are worth the same."""
        for i, worth in self.worth.items():
            if np.all(worth == worth[0]):
                self.constant += float(worth[0])
            else:
                self.unary.append((i, worth))

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
        n_nodes = [len(nodes) for nodes, _ in levels] + [len(tuples)]
        self.charge(a, sum(d * float(n_nodes[d]) + n_nodes[d + 1] for d in range(len(levels))))
        for d, (nodes, of) in enumerate(levels):
            self.add_level(scope[order[: d + 1]], tuples[:, order[: d + 1]], nodes, of)

    def add_level(self, scope: Ints, rows: Ints, nodes: Ints, of: Ints) -> None:
        """Add the clauses of the nodes at one level of the tree.

        The sum of a clause has the states on the path to the node, plus the states that do not follow or minus those
        that do, whichever are fewer.
        """
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


def _levels(rows: Ints) -> Iterator[tuple[Ints, Ints]]:
    """For each column, a row for every distinct prefix before it, and the prefix of every row; rows are sorted."""
    of = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        yield np.unique(of, return_index=True)[1], of
        of = np.unique(of * (int(column.max()) + 1) + column, return_inverse=True)[1]


def _sums(
    sizes: Ints,
    indicators: tuple[Ints, Ints],
    limits: tuple[Floats, Floats],
    penalty: Floats,
    weight: Floats | None = None,
) -> Constraints:
    """Constraints on sums of their indicators, each of which has the weight 1 unless others are given."""
    n = len(sizes)
    kind = np.full(n, int(ConstraintKind.LINEAR))
    weight = np.ones(len(indicators[0])) if weight is None else weight
    return Constraints(kind, offsets(sizes), *indicators, weight, *limits, penalty, ("tuple",) * n)


# -- writing ----------------------------------------------------------------------------------------------------------


class WrittenList(NamedTuple):
    """A factor to be written: its variables, its default, and tuples that all have one other log potential."""

    scope: tuple[int, ...]
    default: float
    tuples: list[tuple[int, ...]]
    theta: float


def written_lists(constraints: Constraints, c: int, card: Ints) -> list[WrittenList] | None:
    """A constraint as factors with few tuples, or None if it cannot be written so.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [])
    >>> graph = graph.with_constraints([constraints.at_most_one([0, 1], penalty=3.0)])
    >>> written_lists(graph.constraints, 0, graph.card)
    [WrittenList(scope=(0, 1), default=0.0, tuples=[(1, 1)], theta=-3.0)]
    """
    if constraints.kind[c] != ConstraintKind.LINEAR:
        return None
    mine = constraints.span(c)
    plus, minus = dict[int, list[int]](), dict[int, list[int]]()
    terms = (constraints.var[mine].tolist(), constraints.state[mine].tolist(), constraints.weight[mine].tolist())
    for i, k, weight in zip(*terms, strict=True):
        if abs(weight) != 1.0:
            return None
        (plus if weight > 0 else minus).setdefault(i, []).append(k)
    limits, penalty = (float(constraints.least[c]), float(constraints.most[c])), float(constraints.penalty[c])
    if not minus:
        return _written_sum(plus, limits, penalty)
    if limits == (0.0, 0.0) and penalty < math.inf:
        return _written_pair(plus, minus, penalty)
    return _written_clause(plus, minus, limits, (card, penalty))


def merged_lists(lists: Sequence[WrittenList]) -> list[WrittenList]:
    """The same factors in fewer lists: on the same variables, tuples of one potential beside a default of 0 add up.

    Examples
    --------
    >>> pairs = [WrittenList((0, 1), 0.0, [(k, k)], 2.0) for k in range(3)]
    >>> merged_lists(pairs)
    [WrittenList(scope=(0, 1), default=0.0, tuples=[(0, 0), (1, 1), (2, 2)], theta=2.0)]
    """
    found: list[dict[tuple[int, ...], None]] = []
    heads: list[WrittenList] = []
    place: dict[tuple[object, ...], int] = {}
    for each in lists:
        key = (each.scope, each.theta)
        at = place.get(key)
        if each.default == 0.0 and at is not None and found[at].keys().isdisjoint(each.tuples):
            found[at].update(dict.fromkeys(each.tuples))
            continue
        if each.default == 0.0:
            place[key] = len(heads)
        heads.append(each)
        found.append(dict.fromkeys(each.tuples))
    return [head._replace(tuples=list(tuples)) for head, tuples in zip(heads, found, strict=True)]


def _written_sum(states: dict[int, list[int]], limits: tuple[float, float], penalty: float) -> list[WrittenList] | None:
    """A constraint that all variables have one of their states, or that not all have."""
    if math.prod(map(float, map(len, states.values()))) > MOST_TUPLES:
        return None
    n, (least, most) = len(states), limits
    tuples = list(itertools.product(*states.values()))
    if least <= 0 and most == n - 1:
        return [WrittenList(tuple(states), 0.0, tuples, 0.0 - penalty)]
    if least == n and most >= n:
        return [WrittenList(tuple(states), 0.0 - penalty, tuples, 0.0)]
    return None


def _written_pair(plus: dict[int, list[int]], minus: dict[int, list[int]], penalty: float) -> list[WrittenList] | None:
    """A constraint that both or neither of two variables have a state: each costs, and both give that back."""
    pairs = [*plus.items(), *minus.items()]
    if len(plus) != 1 or len(minus) != 1 or plus.keys() == minus.keys() or any(len(each) != 1 for _, each in pairs):
        return None
    (i, (k,)), (j, (m,)) = pairs
    both = WrittenList((i, j), 0.0, [(k, m)], 2.0 * penalty)
    return [WrittenList((i,), 0.0, [(k,)], 0.0 - penalty), WrittenList((j,), 0.0, [(m,)], 0.0 - penalty), both]


def _written_clause(
    plus: dict[int, list[int]], minus: dict[int, list[int]], limits: tuple[float, float], rest: tuple[Ints, float]
) -> list[WrittenList] | None:
    """A constraint that a variable has one of some states if all others have theirs."""
    card, penalty = rest
    if len(minus) != 1 or plus.keys() & minus.keys() or limits[0] > -1.0 or limits[1] != len(plus) - 1:
        return None
    (last, follow) = next(iter(minus.items()))
    states = {**plus, last: sorted(set(range(int(card[last]))) - set(follow))}
    return _written_sum(states, (-math.inf, len(plus)), penalty)
