"""Constraints after some variables are observed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.constraints.attaching import extreme_sums
from mapmrf.constraints.flat import ConstraintKind, Constraints, one_constraint


class Conditioned(NamedTuple):
    """The remaining constraints, and the value of those that are decided."""

    constraints: Constraints | None
    constant: float


def condition(constraints: Constraints, observed: Ints, card: Ints) -> Conditioned:
    """Constraints on the variables that are not observed; ``observed[i]`` is a state, or -1.

    ALL_DIFFERENT keeps its observed variables as long as there is an unobserved one.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.constraints import at_most_one
    >>> from mapmrf.constraints.attaching import attach
    >>> card = np.array([2, 2, 2])
    >>> found = condition(attach([at_most_one([0, 1, 2])], None, card), np.array([1, -1, -1]), card)
    >>> found.constraints.var.tolist(), found.constraints.upper.tolist()
    ([1, 2], [0.0])
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
