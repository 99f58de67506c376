"""From statements to arrays: names are looked up, and everything is checked."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.flat import EVERY_STATE, ConstraintKind, Constraints, one_constraint
from mapmrf.constraints.statements import Constraint, Indicator
from mapmrf.errors import GraphError, MapMRFError
from mapmrf.model.names import Names, find_state, index_of, locate_state, locate_variable


def attach(stated: Iterable[Constraint], names: Names | None, card: Ints) -> Constraints | None:
    """Convert constraints to arrays; raise GraphError naming the first invalid one.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.constraints import at_most_one
    >>> attach([at_most_one([0, 5])], None, np.array([2, 2]))
    Traceback (most recent call last):
        ...
    mapmrf.errors.GraphError: constraint 0 (at_most_one): variable 5 does not exist, expected 0 to 1
    """
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
    """Variable and state by index."""
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
    """The smallest and the largest sum that labellings can give a LINEAR constraint.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.constraints import linear
    >>> stated = attach([linear([(0, 0), (0, 1), (1, 1)], [2, 3, -1], upper=9)], None, np.array([2, 2]))
    >>> extreme_sums(stated, 0, np.array([2, 2]))
    (1.0, 3.0)
    """
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
