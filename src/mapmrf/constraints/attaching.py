"""From statements to arrays: names are looked up, and everything is checked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.constraints.flat import EVERY_STATE, ConstraintKind, Constraints, one_constraint
from mapmrf.constraints.statements import Constraint, Indicator
from mapmrf.errors import GraphError, MapMRFError
from mapmrf.model.names import Names, find_state, index_of, locate_state, locate_variable


def attach(stated: Iterable[Constraint], names: Names | None, card: Ints) -> Constraints | None:
    """Convert constraints to arrays; raise GraphError naming the first invalid one."""
    if not isinstance(stated, Iterable):
        raise GraphError(f"the constraints are {stated!r}, expected a list of them")
    parts = []
    for c, constraint in enumerate(stated):
        if not isinstance(constraint, Constraint):
            raise GraphError(f"constraint {c} is {constraint!r}, expected one made by a function of mapmrf.constraints")
        try:
            parts.append(_located(constraint, names, card))
        except MapMRFError as error:
            raise type(error)(f"constraint {c} ({constraint.name}): {error}") from None
    return Constraints.join(parts)


def _located(constraint: Constraint, names: Names | None, card: Ints) -> Constraints:
    different = constraint.kind == ConstraintKind.ALL_DIFFERENT
    if constraint.indicators is None:
        pairs = _every(constraint.label, names, card)
    elif different:
        pairs = [(locate_variable(names, card, each), EVERY_STATE) for each in constraint.indicators]
    else:
        pairs = [_pair(each, names, card) for each in constraint.indicators]
    seen: set[tuple[int, int]] = set()
    for i, k in pairs:
        if (i, k) in seen:
            raise GraphError(f"variable {i} occurs twice" + ("" if different else f" with state {k}"))
        seen.add((i, k))
    weights = constraint.weights or (1.0,) * len(pairs)
    limits = (constraint.lower, constraint.upper)
    return one_constraint(constraint.kind, pairs, weights, limits, constraint.penalty, constraint.name)


def _every(label: int | str | None, names: Names | None, card: Ints) -> list[tuple[int, int]]:
    """All variables with a state."""
    if isinstance(label, str | bool | np.bool_):
        states = () if names is None or names.states is None else names.states
        found = [(i, k) for i, mine in enumerate(states) if (k := find_state(mine, label)) is not None]
    elif (index := index_of(label)) is None:
        raise GraphError(f"the label is {label!r}, expected an index or a name")
    else:
        found = [(i, index) for i in np.flatnonzero((card > index) & (index >= 0)).tolist()]
    if not found:
        raise GraphError(f"no variable has a state {label!r}")
    return found


def _pair(indicator: Indicator, names: Names | None, card: Ints) -> tuple[int, int]:
    if not isinstance(indicator, tuple):
        i = locate_variable(names, card, indicator)
        if card[i] != 2:
            raise GraphError(f"variable {indicator!r} has {card[i]} states: specify one as ({indicator!r}, state)")
        return i, 1
    if len(indicator) != 2:
        raise GraphError(f"{indicator!r} is not an indicator, expected a pair (variable, state)")
    i = locate_variable(names, card, indicator[0])
    return i, locate_state(names, card, i, indicator[1])


def extreme_sums(constraints: Constraints, c: int, card: Ints) -> tuple[float, float]:
    """The smallest and the largest sum that labellings can give a LINEAR constraint."""
    mine = constraints.span(c)
    low = high = 0.0
    of_variable: dict[int, list[float]] = {}
    for i, weight in zip(constraints.var[mine].tolist(), constraints.weight[mine].tolist(), strict=True):
        of_variable.setdefault(i, []).append(weight)
    for i, weights in of_variable.items():
        rest = [] if len(weights) == card[i] else [0.0]
        low += min(weights + rest)
        high += max(weights + rest)
    return low, high


# -- Constraints after some variables are observed --------------------------------------------------------------------


class Conditioned(NamedTuple):
    """The remaining constraints, and the value of those that are decided."""

    constraints: Constraints | None
    constant: float


def condition(constraints: Constraints, observed: Ints, card: Ints) -> Conditioned:
    """Constraints on the variables that are not observed; ``observed[i]`` is a state, or -1.

    ALL_DIFFERENT keeps its observed variables as long as there is an unobserved one.
    """
    seen = np.bincount(constraints.owner, observed[constraints.var] >= 0, len(constraints)) > 0
    parts, constant = [], 0.0
    begin = 0
    for c in [*np.flatnonzero(seen).tolist(), len(constraints)]:
        parts.append(constraints.take(np.arange(begin, c)))
        begin = c + 1
        if c < len(constraints):
            left = _one(constraints.take([c]), observed, card)
            if left.constraints is not None:
                parts.append(left.constraints)
            constant += left.constant
    return Conditioned(Constraints.join(parts), constant)


def _one(constraint: Constraints, observed: Ints, card: Ints) -> Conditioned:
    """A single constraint, some of whose variables are observed."""
    seen = observed[constraint.var] >= 0
    if seen.all():
        return Conditioned(None, constraint.value(observed))
    kind = ConstraintKind(int(constraint.kind[0]))
    if kind == ConstraintKind.ALL_DIFFERENT:
        return Conditioned(constraint, 0.0)
    true = seen & (observed[constraint.var] == constraint.state)
    if kind == ConstraintKind.XOR:
        parity = (constraint.lower[0] + np.count_nonzero(true)) % 2
        return Conditioned(_rest(constraint, ~seen, kind, (float(parity), math.inf)), 0.0)
    if kind == ConstraintKind.OR:
        return _decided(_condition_or(constraint, seen, true), card)
    fixed = float(constraint.weight[true].sum())
    limits = (float(constraint.lower[0]) - fixed, float(constraint.upper[0]) - fixed)
    return _decided(_rest(constraint, ~seen, kind, limits), card)


def _condition_or(constraint: Constraints, seen: Bools, true: Bools) -> Constraints:
    """The rest of an OR: itself, or a count of its inputs or its output."""
    linear = ConstraintKind.LINEAR
    if seen[-1]:
        limits = (-math.inf, 0.0)
        if true[-1]:
            limits = (-math.inf, math.inf) if true[:-1].any() else (1.0, math.inf)
        elif true[:-1].any():
            limits = (1.0, 0.0)  # an input is 1 and the output is not
        return _rest(constraint, ~seen, linear, limits)
    last = np.arange(len(seen)) == len(seen) - 1
    if true[:-1].any():
        return _rest(constraint, last, linear, (1.0, math.inf))
    if seen[:-1].all():
        return _rest(constraint, last, linear, (-math.inf, 0.0))
    return _rest(constraint, ~seen, ConstraintKind.OR, (-math.inf, math.inf))


def _rest(constraint: Constraints, keep: Bools, kind: ConstraintKind, limits: tuple[float, float]) -> Constraints:
    pairs = np.stack([constraint.var[keep], constraint.state[keep]], axis=1)
    weights = constraint.weight[keep].tolist()
    return one_constraint(kind, pairs.tolist(), weights, limits, float(constraint.penalty[0]), constraint.names[0])


def _decided(constraint: Constraints, card: Ints) -> Conditioned:
    """The constraint, unless all labellings satisfy it or none does."""
    if constraint.kind[0] != ConstraintKind.LINEAR:
        return Conditioned(constraint, 0.0)
    low, high = extreme_sums(constraint, 0, card)
    least, most = float(constraint.least[0]), float(constraint.most[0])
    if low >= least and high <= most:
        return Conditioned(None, 0.0)
    if high < least or low > most or least > most:
        return Conditioned(None, -float(constraint.penalty[0]))
    return Conditioned(constraint, 0.0)
