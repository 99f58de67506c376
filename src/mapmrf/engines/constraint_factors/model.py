"""The constraints of a graph as counting factors."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, frozen, offsets
from mapmrf.constraints.flat import OUTPUT, PARITY, WITHIN, Constraints, Sum
from mapmrf.model.graph import FactorGraph


class CountingKind(IntEnum):
    ROW = 0  # ``lower <= sum of weights of what is on <= upper``; with a finite penalty there is no lower side
    PARITY = 1  # the number of groups that are on is odd (`lower` 1) or even (`lower` 0)
    FAN = 2  # no group is on unless the last one is
    COST = 3  # no group is on


@dataclass(frozen=True, eq=False)
class CountingModel:
    """The constraints of a graph as factors for ADMM and message passing.

    All labellings have the same value as under the constraints, except for constraints of several sums with a penalty,
    such as ALL_DIFFERENT: there it is an upper bound, since every sum that is violated only costs its share.
    """

    factors: CountingFactors  # the layout used by the kernels
    # var, state: (n_items,): variable and state of every item
    var: Ints
    state: Ints
    constant: float  # unavoidable penalties: -inf if some hard constraint cannot be satisfied

    @classmethod
    def of(cls, graph: FactorGraph, simplexes: Ints) -> CountingModel:
        """Convert the constraints of a graph, with a simplex on some variables; states of value -inf are left out."""
        allowed = _Allowed.of(graph)
        if graph not in _known:  # a method checks feasibility before it builds the layout
            _known[graph] = [] if graph.constraints is None else list(_pieces(graph.constraints, allowed))
        constant = 0.0 - sum(piece.cost for piece in _known[graph])
        pieces = [piece for piece in _known[graph] if piece.n_items]
        for i in simplexes:  # one state of the variable is on
            states = np.flatnonzero(allowed.mask[allowed.at[i] : allowed.at[i + 1]])
            var = np.full(len(states), int(i))
            pieces.append(_Piece(CountingKind.ROW, var, states, np.zeros(len(states)), var, complete=True))
        return cls(_arrays(pieces), _joined(pieces, "var"), _joined(pieces, "state"), constant)

    @property
    def n_factors(self) -> int:
        return len(self.factors.kind)

    @property
    def n_items(self) -> int:
        return len(self.var)

    @property
    def group_var(self) -> Ints:
        return self.var[self.factors.item_ptr[:-1]]


@dataclass(frozen=True)
class _Allowed:
    at: Ints
    mask: Bools
    count: Ints

    @classmethod
    def of(cls, graph: FactorGraph) -> _Allowed:
        mask = graph.theta_v > -np.inf
        count = np.add.reduceat(mask, graph.var_ptr[:-1], dtype=np.int64) if graph.n_vars else np.zeros(0, np.int64)
        return cls(graph.var_ptr, mask, count)


@dataclass(frozen=True, eq=False)
class _Piece:
    """One factor, its items sorted by groups, or just a constant cost."""

    kind: CountingKind
    var: Ints
    state: Ints
    weight: Floats
    group: Ints
    lower: float = -math.inf
    upper: float = math.inf
    penalty: float = math.inf
    cost: float = 0.0
    complete: bool = False

    @property
    def n_items(self) -> int:
        return len(self.var)

    @cached_property
    def starts(self) -> Ints:
        return _starts(self.group)


@dataclass(frozen=True, eq=False)
class _Items:
    """Possible items of a constraint, sorted by variable, and the possible states of the variables."""

    var: Ints
    state: Ints
    weight: Floats
    allowed: _Allowed

    @classmethod
    def of(cls, var: Ints, state: Ints, weight: Floats, allowed: _Allowed) -> _Items:
        keep = np.flatnonzero(allowed.mask[allowed.at[var] + state] & (weight != 0.0))
        keep = keep[np.argsort(var[keep], kind="stable")]
        return cls(var[keep], state[keep], weight[keep], allowed)

    @cached_property
    def starts(self) -> Ints:
        return _starts(self.var)

    @cached_property
    def complete(self) -> Bools:
        """Mask of the groups that have all possible states of their variable."""
        return np.asarray(_sizes(self.starts, len(self.var)) == self.allowed.count[self.var[self.starts]])

    def kept(self, keep: Bools, weight: Floats | None = None) -> _Items:
        return _Items(self.var[keep], self.state[keep], (self.weight if weight is None else weight)[keep], self.allowed)

    def piece(self, kind: CountingKind, lower: float, upper: float, penalty: float) -> _Piece:
        return _Piece(kind, self.var, self.state, self.weight, self.var, lower, upper, penalty)

    def without_constants(self) -> tuple[_Items, float]:
        """Subtract the smallest weight of every complete group; return the items and the sum subtracted."""
        if len(self.var) == 0 or not self.complete.any():
            return self, 0.0
        least = np.where(self.complete, np.minimum.reduceat(self.weight, self.starts), 0.0)
        weight = self.weight - np.repeat(least, _sizes(self.starts, len(self.var)))
        return self.kept(weight != 0.0, weight), float(least.sum())

    def extremes(self) -> tuple[float, float]:
        """Return the minimum and maximum sum of weights, if no group is complete."""
        if len(self.var) == 0:
            return 0.0, 0.0
        low, high = np.minimum.reduceat(self.weight, self.starts), np.maximum.reduceat(self.weight, self.starts)
        return float(np.minimum(low, 0.0).sum()), float(np.maximum(high, 0.0).sum())


_NONE: Ints = np.zeros(0, dtype=np.int64)
_NO_ITEMS = _Piece(CountingKind.ROW, _NONE, _NONE, np.zeros(0), _NONE)


def _starts(keys: Ints) -> Ints:
    new = np.ones(len(keys), dtype=bool)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.flatnonzero(new)


def _sizes(starts: Ints, end: int) -> Ints:
    """Return the lengths of consecutive blocks; np.diff takes several times as long."""
    sizes = np.empty(len(starts), dtype=np.int64)
    np.subtract(starts[1:], starts[:-1], out=sizes[:-1])
    sizes[-1:] = end - starts[-1:]
    return sizes


_known: WeakKeyDictionary[FactorGraph, list[_Piece]] = WeakKeyDictionary()


def _pieces(constraints: Constraints, allowed: _Allowed) -> Iterator[_Piece]:
    for c in np.flatnonzero(constraints.penalty).tolist():
        kind, penalty = constraints.kind_of(c), float(constraints.penalty[c])
        if kind.lacks_states(constraints, c, allowed.at, allowed.mask):
            yield replace(_NO_ITEMS, cost=penalty)
            continue
        parts = [list(_of_sum(each, penalty, allowed)) for each in kind.sums(constraints, c, np.diff(allowed.at))]
        n_open = max(1, sum(map(bool, parts)))  # sums that can be violated share the penalty
        for piece in itertools.chain(*parts):
            yield piece if n_open == 1 else replace(piece, penalty=piece.penalty / n_open, cost=piece.cost / n_open)


def _of_sum(each: Sum, penalty: float, allowed: _Allowed) -> Iterator[_Piece]:
    n = len(each.var) - (each.condition == OUTPUT)
    items = _Items.of(each.var[:n], each.state[:n], each.weight[:n], allowed)
    if each.condition == WITHIN:
        return _linear(items, (each.least, each.most), penalty)
    if each.condition == PARITY:
        return _parity(items, int(each.least), penalty)
    return _or(items, (int(each.var[n]), int(each.state[n])), penalty)


def _linear(items: _Items, limits: tuple[float, float], penalty: float) -> Iterator[_Piece]:
    """Convert a linear constraint: a row, or one row per side if it has a penalty, as no labelling violates both."""
    items, taken = items.without_constants()
    lower, upper = limits[0] - taken, limits[1] - taken
    low, high = items.extremes()
    if low > upper or high < lower or lower > upper:
        yield replace(_NO_ITEMS, cost=penalty)
    elif penalty == math.inf:
        if low < lower or high > upper:
            limits = lower if low < lower else -math.inf, upper if high > upper else math.inf
            yield items.piece(CountingKind.ROW, *limits, penalty)
    else:
        if high > upper:
            yield _priced(items, upper, penalty)
        if low < lower:
            yield _priced(items.kept(np.ones(len(items.var), dtype=bool), -items.weight), -lower, penalty)


def _priced(items: _Items, upper: float, penalty: float) -> _Piece:
    """Create a row with a penalty: groups of unequal weights are split."""
    if items.weight.min() > upper >= 0.0:
        return items.piece(CountingKind.COST, -math.inf, 0.0, penalty)
    row = items.piece(CountingKind.ROW, -math.inf, upper, penalty)
    same = np.maximum.reduceat(row.weight, row.starts) == np.minimum.reduceat(row.weight, row.starts)
    return row if same.all() else replace(row, group=np.arange(row.n_items))


def _parity(items: _Items, parity: int, penalty: float) -> Iterator[_Piece]:
    """Create a parity of groups; groups with an item that is always on only change the required parity."""
    complete = items.complete
    parity = (parity + int(complete.sum())) % 2
    items = items.kept(~np.repeat(complete, _sizes(items.starts, len(items.var))))
    if len(items.var):
        yield items.piece(CountingKind.PARITY, float(parity), math.inf, penalty)
    elif parity:
        yield replace(_NO_ITEMS, cost=penalty)


def _or(inputs: _Items, output: tuple[int, int], penalty: float) -> Iterator[_Piece]:
    """Convert OR: no input without the output, and no output without an input; no labelling violates both."""
    allowed = inputs.allowed
    ones = (np.array([output[0]]), np.array([output[1]]), np.ones(1))
    y = _Items.of(*ones, allowed)
    always_on, always_off = bool(inputs.complete.any()), len(inputs.var) == 0
    if len(y.var) == 0 or always_off:
        yield from _linear(inputs if len(y.var) == 0 else y, (-math.inf, 0.0), penalty)
    elif y.complete[0] or always_on:
        yield from _linear(inputs if y.complete[0] else y, (1.0, math.inf), penalty)
    else:
        var, state = np.append(inputs.var, output[0]), np.append(inputs.state, output[1])
        group = np.append(inputs.var, allowed.count.size)  # a separate group, whatever its variable
        yield _Piece(CountingKind.FAN, var, state, np.ones(len(var)), group, penalty=penalty)
        weight = np.append(np.ones(len(inputs.var)), -1.0)
        yield from _linear(_Items.of(var, state, weight, allowed), (0.0, math.inf), penalty)


def _arrays(pieces: list[_Piece]) -> CountingFactors:
    n_groups = [len(piece.starts) for piece in pieces]
    sizes = [_sizes(piece.starts, piece.n_items) for piece in pieces]
    found = CountingFactors(
        kind=np.array([int(piece.kind) for piece in pieces], dtype=np.int64),
        lower=np.array([piece.lower for piece in pieces], dtype=np.float64),
        upper=np.array([piece.upper for piece in pieces], dtype=np.float64),
        penalty=np.array([piece.penalty for piece in pieces], dtype=np.float64),
        group_ptr=offsets(np.array(n_groups, dtype=np.int64)).astype(np.int64),
        item_ptr=offsets(np.concatenate([_NONE, *sizes])).astype(np.int64),
        complete=np.repeat(np.array([piece.complete for piece in pieces], dtype=bool), n_groups),
        weight=np.concatenate([np.zeros(0), *(piece.weight for piece in pieces)]),
    )
    for array in found:
        frozen(array)
    return found


def _joined(pieces: Iterable[_Piece], name: str) -> Ints:
    arrays = [np.asarray(getattr(piece, name), dtype=np.int64) for piece in pieces]
    return frozen(np.concatenate([_NONE, *arrays]))


class CountingFactors(NamedTuple):
    """Factors over groups of items: an item is a state of a variable, a group has items of one variable."""

    # kind, lower, upper, penalty: (n_factors,): a `CountingKind`, its limits, and the cost of a violation, perhaps inf
    kind: Ints
    lower: Floats
    upper: Floats
    penalty: Floats
    group_ptr: Ints  # (n_factors + 1,): offsets of the factors' groups
    item_ptr: Ints  # (n_groups + 1,): offsets of the groups' items
    complete: Bools  # (n_groups,): whether exactly one item of the group is on; at most one otherwise
    weight: Floats  # (n_items,): weights of the items of rows; in a row with a penalty those of a group are equal
