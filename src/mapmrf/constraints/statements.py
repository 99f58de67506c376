"""The user's interface: one function for every kind of constraint."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.flat import EVERY_STATE, ConstraintKind, Constraints, one_constraint
from mapmrf.errors import GraphError, MapMRFError
from mapmrf.model.names import Names, find_state, index_of, locate_state, locate_variable

Indicator = int | str | tuple[int | str, int | str]
"""A variable and its state, by index or by name; a variable alone means state 1 of a variable with two states."""


@dataclass(frozen=True)
class Constraint:
    """A constraint, not yet attached to a graph: see `FactorGraph.with_constraints`.

    Examples
    --------
    >>> from mapmrf import constraints
    >>> each = constraints.at_most_k([0, 1, 2], 2, penalty=1.5)
    >>> each.made_by, each.upper, each.penalty
    ('at_most_k', 2.0, 1.5)
    """

    made_by: str  # the function that made it
    kind: int  # a `ConstraintKind`, or the number of another kind
    # pairs (variable, state), or variables; None for the state `label` of all variables that have it
    indicators: tuple[Indicator, ...] | None
    weights: tuple[float, ...] | None = None  # a coefficient for every indicator, or None: all 1
    # lower, upper: limits of the sum; `lower` is the parity of an xor
    lower: float = -math.inf
    upper: float = math.inf
    penalty: float = math.inf  # penalty of a violation; inf if it is not allowed
    label: int | str | None = None  # the label of a label cost on all variables
    data: object = None  # what else the kind needs
    name: str = ""  # what violations and errors call it

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise GraphError(f"{self.made_by}: the name is {self.name!r}, expected text")
        if not self.penalty >= 0:
            raise GraphError(f"{self.made_by}: the penalty is {self.penalty}, expected a number of at least 0")
        if self.indicators is not None and not self.indicators:
            raise GraphError(f"{self.made_by}: no indicators, expected at least one")
        if math.isnan(self.lower) or math.isnan(self.upper) or self.lower == math.inf or self.upper == -math.inf:
            raise GraphError(f"{self.made_by}: the limits are {self.lower} and {self.upper}, expected numbers")
        if self.kind == ConstraintKind.LINEAR and self.lower > self.upper:
            raise GraphError(f"{self.made_by}: the lower limit, {self.lower:g}, is above the upper one, {self.upper:g}")


def _listed(name: str, indicators: Iterable[Indicator]) -> tuple[Indicator, ...]:
    """The indicators as a tuple; a single one is a mistake."""
    if isinstance(indicators, str) or not isinstance(indicators, Iterable):
        raise GraphError(f"{name}: the indicators are {indicators!r}, expected a list of (variable, state) pairs")
    return tuple(tuple(each) if isinstance(each, list | np.ndarray) else each for each in indicators)


def variables_of(name: str, variables: Iterable[int | str]) -> tuple[int | str, ...]:
    """The variables as a tuple; pairs are a mistake."""
    listed = _listed(name, variables)
    found = tuple(each for each in listed if not isinstance(each, tuple))
    if len(found) < len(listed):
        raise GraphError(f"{name}: found a pair, expected variables without states")
    return found


def real_number(name: str, what: str, value: object) -> float:
    """A number as float; anything else is an error that names it."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | np.number):
        raise GraphError(f"{name}: {what} is {value!r}, expected a number")
    try:
        return float(value)
    except OverflowError:
        raise GraphError(f"{name}: {what} is too large, expected a number that a float can hold") from None


def price_of(name: str, penalty: float | None) -> float:
    """What a violation costs: without a penalty it is not allowed."""
    return math.inf if penalty is None else real_number(name, "the penalty", penalty)


def _number(name: str, k: float) -> float:
    if isinstance(k, bool) or not isinstance(k, numbers.Real | np.number) or not (k >= 0 and k % 1 == 0):
        raise GraphError(f"{name}: k is {k!r}, expected a whole number of at least 0")
    return real_number(name, "k", k)


def _counting(
    made_by: str, indicators: Iterable[Indicator], lower: float, upper: float, penalty: float | None, name: str
) -> Constraint:
    listed, price = _listed(made_by, indicators), price_of(made_by, penalty)
    return Constraint(made_by, ConstraintKind.LINEAR, listed, None, float(lower), float(upper), price, name=name)


def exactly_one(indicators: Iterable[Indicator], penalty: float | None = None, *, name: str = "") -> Constraint:
    """Exactly one of the indicators is 1.

    Parameters
    ----------
    indicators
        Pairs (variable, state), by index or name. A variable alone means state 1 of a variable with two states.
    penalty
        Penalty of a violation; by default it is not allowed.
    name
        What violations and errors call the constraint. All functions of this module have it.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 3], [(0,), (1,)], [[0, 1], [0, 1, 2]])
    >>> graph.with_constraints([constraints.exactly_one([(0, 1), (1, 2)])]).value([1, 2])
    -inf
    """
    return _counting("exactly_one", indicators, 1, 1, penalty, name)


def at_most_one(indicators: Iterable[Indicator], penalty: float | None = None, *, name: str = "") -> Constraint:
    """At most one of the indicators is 1.

    Examples
    --------
    >>> from mapmrf import constraints
    >>> constraints.at_most_one([0, 1], penalty=2.0).penalty
    2.0
    """
    return _counting("at_most_one", indicators, -math.inf, 1, penalty, name)


def at_least_one(indicators: Iterable[Indicator], penalty: float | None = None, *, name: str = "") -> Constraint:
    """At least one of the indicators is 1.

    Examples
    --------
    >>> from mapmrf import constraints
    >>> constraints.at_least_one([("Rain", "yes"), ("Sprinkler", "on")]).lower
    1.0
    """
    return _counting("at_least_one", indicators, 1, math.inf, penalty, name)


def at_most_k(indicators: Iterable[Indicator], k: int, penalty: float | None = None, *, name: str = "") -> Constraint:
    """At most `k` of the indicators are 1.

    Examples
    --------
    >>> from mapmrf import constraints
    >>> constraints.at_most_k(range(300), 12).upper
    12.0
    """
    return _counting("at_most_k", indicators, -math.inf, _number("at_most_k", k), penalty, name)


def exactly_k(indicators: Iterable[Indicator], k: int, penalty: float | None = None, *, name: str = "") -> Constraint:
    """Exactly `k` of the indicators are 1.

    Examples
    --------
    >>> from mapmrf import constraints
    >>> constraints.exactly_k([0, 1, 2], 2).lower
    2.0
    """
    wanted = _number("exactly_k", k)
    return _counting("exactly_k", indicators, wanted, wanted, penalty, name)


def linear(
    indicators: Iterable[Indicator],
    weights: Iterable[float],
    *,
    upper: float = math.inf,
    lower: float = -math.inf,
    penalty: float | None = None,
    name: str = "",
) -> Constraint:
    """The sum of the weights of the indicators that are 1 lies between `lower` and `upper`.

    Parameters
    ----------
    indicators
        Pairs (variable, state), by index or name.
    weights
        A finite number for every indicator; they may be negative.
    upper, lower
        Limits of the sum, at least one of them.
    penalty
        Penalty of a violation; by default it is not allowed.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0,), (1,), (2,)], [[0, 5], [0, 4], [0, 3]])
    >>> budget = constraints.linear([0, 1, 2], [4, 3, 2], upper=5)
    >>> mapmrf.solve(graph.with_constraints([budget])).labels.tolist()
    [0, 1, 1]
    """
    listed = _listed("linear", indicators)
    n = len(listed)
    if isinstance(weights, str) or not isinstance(weights, Iterable):
        raise GraphError(f"linear: the weights are {weights!r}, expected a list with one for each of {n} indicators")
    coefficients = tuple(real_number("linear", f"weight {at}", weight) for at, weight in enumerate(weights))
    if len(coefficients) != n:
        raise GraphError(f"linear: {len(coefficients)} weights for {n} indicators")
    for at, weight in enumerate(coefficients):
        if not math.isfinite(weight):
            raise GraphError(f"linear: weight {at} is {weight}, expected a finite number")
    low, high = real_number("linear", "the lower limit", lower), real_number("linear", "the upper limit", upper)
    if low == -math.inf and high == math.inf:
        raise GraphError("linear: found neither a lower nor an upper limit, expected one of them")
    price = price_of("linear", penalty)
    return Constraint("linear", ConstraintKind.LINEAR, listed, coefficients, low, high, price, name=name)


def or_with_output(
    inputs: Iterable[Indicator], output: Indicator, penalty: float | None = None, *, name: str = ""
) -> Constraint:
    """The output is 1 if and only if one of the inputs is.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [], [])
    >>> stated = graph.with_constraints([constraints.or_with_output([0, 1], 2)])
    >>> stated.value([0, 1, 1]), stated.value([0, 1, 0])
    (0.0, -inf)
    """
    price = price_of("or_with_output", penalty)
    listed = (*_listed("or_with_output", inputs), *_listed("or_with_output", [output]))
    if len(listed) < 2:
        raise GraphError("or_with_output: no inputs, expected at least one")
    return Constraint("or_with_output", ConstraintKind.OR, listed, None, penalty=price, name=name)


def xor(
    indicators: Iterable[Indicator], parity: int = 1, penalty: float | None = None, *, name: str = ""
) -> Constraint:
    """The number of indicators that are 1 is odd (`parity` 1) or even (0).

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [], [])
    >>> graph.with_constraints([constraints.xor([0, 1, 2], 0)]).value([1, 1, 0])
    0.0
    """
    if not isinstance(parity, numbers.Integral) or parity not in (0, 1):
        raise GraphError(f"xor: the parity is {parity!r}, expected 0 or 1")
    listed, price = _listed("xor", indicators), price_of("xor", penalty)
    return Constraint("xor", ConstraintKind.XOR, listed, None, float(parity), penalty=price, name=name)


def all_different(variables: Iterable[int | str], penalty: float | None = None, *, name: str = "") -> Constraint:
    """No two of the variables have the same state, by index.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,), (1,)], [[0, 2], [0, 1]])
    >>> mapmrf.solve(graph.with_constraints([constraints.all_different([0, 1])])).labels.tolist()
    [1, 0]
    """
    price = price_of("all_different", penalty)
    listed = variables_of("all_different", variables)
    return Constraint("all_different", ConstraintKind.ALL_DIFFERENT, listed, None, penalty=price, name=name)


def label_cost(
    label: int | str, price: float, variables: Iterable[int | str] | None = None, *, name: str = ""
) -> Constraint:
    """A cost for a label (a state) that is paid once if any variable has it.

    Parameters
    ----------
    label
        The state, by index or name.
    price
        Cost of using the label, however often: a finite number of at least 0.
    variables
        The variables; all that have such a state if not given.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,), (1,)], [[0, 2], [0, 2]])
    >>> graph.with_constraints([constraints.label_cost(1, 3.0)]).value([1, 1])
    1.0
    """
    paid = real_number("label_cost", "the price", price)
    if not (math.isfinite(paid) and paid >= 0):
        raise GraphError(f"label_cost: the price is {price}, expected a finite number of at least 0")
    listed = None if variables is None else tuple((each, label) for each in variables_of("label_cost", variables))
    return Constraint(
        "label_cost", ConstraintKind.LINEAR, listed, None, upper=0.0, penalty=paid, label=label, name=name
    )


# -- From statements to arrays: names are looked up, and everything is checked ----------------------------------------


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
            called = repr(constraint.name) if constraint.name else f"{c} ({constraint.made_by})"
            raise type(error)(f"constraint {called}: {error}") from None
    return Constraints.join(parts)


def _located(constraint: Constraint, names: Names | None, card: Ints) -> Constraints:
    from mapmrf.constraints.kinds import kinds  # models without constraints skip the import

    kind = kinds()[constraint.kind]
    if constraint.indicators is None:
        label = constraint.label
        if isinstance(label, str | bool | np.bool_):
            states = () if names is None or names.states is None else names.states
            pairs = [(i, k) for i, mine in enumerate(states) if (k := find_state(mine, label)) is not None]
        elif (index := index_of(label)) is None:
            raise GraphError(f"the label is {label!r}, expected an index or a name")
        else:
            pairs = [(i, index) for i in np.flatnonzero((card > index) & (index >= 0)).tolist()]
        if not pairs:
            raise GraphError(f"no variable has a state {label!r}")
    elif kind.whole_variables:
        pairs = [(locate_variable(names, card, each), EVERY_STATE) for each in constraint.indicators]
    else:
        pairs = [_pair(each, names, card) for each in constraint.indicators]
    seen: set[tuple[int, int]] = set()
    for i, k in pairs:
        if (i, k) in seen and not kind.repeats:
            raise GraphError(f"variable {i} occurs twice" + ("" if kind.whole_variables else f" with state {k}"))
        seen.add((i, k))
    weights = constraint.weights or (1.0,) * len(pairs)
    limits = (constraint.lower, constraint.upper)
    data, called = kind.locate(constraint.data, [i for i, _ in pairs], names, card), constraint.name
    return one_constraint(
        constraint.kind, pairs, weights, limits, constraint.penalty, constraint.made_by, data, name=called
    )


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


# -- Constraints after some variables are observed --------------------------------------------------------------------


def condition(constraints: Constraints, observed: Ints, card: Ints) -> tuple[Constraints | None, float]:
    """Constraints on variables that are not observed, and the value of the others; `observed` has a state, or -1."""
    seen = np.bincount(constraints.owner, observed[constraints.var] >= 0, len(constraints)) > 0
    parts, constant = [], 0.0
    begin = 0
    for c in [*np.flatnonzero(seen).tolist(), len(constraints)]:
        parts.append(constraints.take(np.arange(begin, c)))
        begin = c + 1
        if c < len(constraints):
            rest, decided = _one(constraints.take([c]), observed, card)
            if rest is not None:
                parts.append(rest)
            constant += decided
    return Constraints.join(parts), constant


def _one(constraint: Constraints, observed: Ints, card: Ints) -> tuple[Constraints | None, float]:
    """A single constraint, some of whose variables are observed, unless all labellings satisfy it or none does."""
    seen = observed[constraint.var] >= 0
    if seen.all():
        return None, constraint.value(observed)
    rest = constraint.kind_of(0).condition(constraint, seen, seen & (observed[constraint.var] == constraint.state))
    low, high = rest.kind_of(0).interval(rest, 0, card)
    return (None, low) if low == high else (replace(rest, names=constraint.names), 0.0)
