"""Global cost functions of toulbar2 as constraints.

A function that counts its violations, such as ``salldiff var 3``, is a ladder of constraints: one for each violation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints import Constraint, ConstraintKind, Constraints, all_different, linear
from mapmrf.constraints.as_tables import rewrite
from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names

_log = logging.getLogger("mapmrf")

_PARAMETERS: dict[str, tuple[tuple[str, str], ...]] = {
    "salldiff": (("metric", "word"), ("cost", "word")),
    "sgcc": (("metric", "word"), ("cost", "word"), ("bounds", "list of 3")),
    "samong": (("metric", "word"), ("cost", "word"), ("min", "word"), ("max", "word"), ("values", "list of 1")),
    "knapsack": (("capacity", "word"), ("weights", "word each")),
    "knapsackp": (("capacity", "word"), ("weightedvalues", "list of 2 each")),
    "knapsackv": (("capacity", "word"), ("weightedvalues", "list of 3")),
    "clique": (("rhs", "word"), ("values", "list of 1 each")),
}
"""The supported functions and their parameters in the order of a ``.wcsp`` file.

A list begins with its length, and its elements have so many words; ``each`` means one for every variable of the scope.
"""
KEYWORDS = tuple(_PARAMETERS)

Limits = Sequence[tuple[tuple[int, ...], int, int]]
"""For sets of states, the smallest and largest number of variables that may have one of them."""


@dataclass(frozen=True)
class GlobalFunction:
    """A function by its keyword: its scope, and its parameters by name, each of which is a word or a nested list."""

    keyword: str
    scope: list[int]
    given: dict[str, Any]

    def constraints(
        self, card: Ints, variables: Sequence[str], state: Callable[[int, bytes], int], price: Callable[[float], float]
    ) -> Iterator[Constraint]:
        """The constraints; `state` finds that of a variable, `price` turns a cost into a penalty, inf if it forbids."""
        # Raises ValueError, KeyError, IndexError, TypeError or OverflowError for parameters that are not as expected.
        scope, keyword = self.scope, self.keyword
        if keyword in ("salldiff", "sgcc", "samong"):
            violations = self.word("metric"), price(self.number("cost"))
            limits: Limits = []
            if keyword == "samong":
                states = tuple(state(scope[0], k) for k in self.several("values"))
                limits = [(states, int(self.number("min")), int(self.number("max")))]
            elif keyword == "sgcc":
                limits = [((state(scope[0], k),), int(low), int(high)) for k, low, high in self.several("bounds")]
            yield from _counting(keyword, scope, violations, limits, card)
            return
        capacity, weights = self.number("rhs" if keyword == "clique" else "capacity"), list[tuple[int, int, float]]()
        if keyword == "clique":  # at most so many variables in one of their states
            capacity = -capacity
            values = zip(scope, self.several("values"), strict=True)
            weights = [(i, state(i, k), -1.0) for i, mine in values for k in mine]
        elif keyword == "knapsack":
            pairs = zip(scope, self.several("weights"), strict=True)
            weights = [(i, 1, float(weight)) for i, weight in pairs if card[i] > 1]
        elif keyword == "knapsackp":
            triples = zip(scope, self.several("weightedvalues"), strict=True)
            weights = [(i, state(i, k), float(weight)) for i, mine in triples for k, weight in mine]
        else:  # triples of a variable, by index or name, a state and a weight
            place = {str(i).encode(): at for at, i in enumerate(scope)}
            place |= {variables[i].encode(): at for at, i in enumerate(scope) if variables}
            listed = sorted(
                ((place[i], k, weight) for i, k, weight in self.several("weightedvalues")), key=itemgetter(0)
            )
            weights = [(scope[at], state(scope[at], k), float(weight)) for at, k, weight in listed]
        weights = weights or [(scope[0], 0, 0.0)]
        yield linear([(i, k) for i, k, _ in weights], [weight for _, _, weight in weights], lower=capacity)

    def word(self, name: str) -> str:
        return bytes(self.given[name]).decode("utf-8", "replace")

    def number(self, name: str) -> float:
        return float(self.word(name))

    def several(self, name: str) -> list[Any]:
        if not isinstance(self.given[name], list):
            raise TypeError(name)
        return list(self.given[name])


def function_of_words(keyword: str, scope: list[int], words: Sequence[bytes], at: int) -> tuple[GlobalFunction, int]:
    """A function from its parameters in the order of a ``.wcsp`` file, from a word on, and where they end."""

    def some(count: int) -> list[Any]:
        nonlocal at
        at += count
        if count < 0:
            raise ValueError(count)
        if at > len(words):
            raise IndexError(at)
        return list(words[at - count : at])

    def listed(size: int) -> list[Any]:
        flat = some(size * int(some(1)[0]))
        return flat if size == 1 else [flat[k : k + size] for k in range(0, len(flat), size)]

    given: dict[str, Any] = {}
    for name, kind in _PARAMETERS[keyword]:
        if kind == "word":
            (given[name],) = some(1)
        elif kind == "word each":
            given[name] = some(len(scope))
        elif kind.endswith("each"):
            given[name] = [listed(int(kind.split()[2])) for _ in scope]
        else:
            given[name] = listed(int(kind.split()[2]))
    return GlobalFunction(keyword, scope, given), at


def _counting(
    keyword: str, scope: list[int], violations: tuple[str, float], limits: Limits, card: Ints
) -> Iterator[Constraint]:
    """``salldiff``, ``sgcc`` and ``samong``: how violations are measured, ``var`` or ``dec``, and the cost of each."""
    # A cost of inf allows none. Raises ValueError for parameters that the function cannot have.
    measure, cost = violations
    if measure not in ("var", "dec") or not cost >= 0:
        raise ValueError(measure)
    if keyword != "salldiff":
        if measure == "dec" or (keyword == "sgcc" and math.isfinite(cost)):
            raise ValueError(measure)
        yield from _counted(scope, violations, limits, card)
    elif math.isinf(cost):
        yield all_different(scope)
    else:  # every variable above one, or pair, in a state is a violation
        states = range(int(card[scope].max(initial=0)))
        if len(states) * len(scope) > 1_000_000:  # constraints for one function
            raise FormatError(f"found {len(states)} states of {len(scope)} variables, expected at most 1000000 pairs")
        yield from _counted(scope, violations, [((k,), 0, 1) for k in states], card)


def _counted(scope: list[int], violations: tuple[str, float], limits: Limits, card: Ints) -> Iterator[Constraint]:
    """The constraints, or a ladder of them if violations have a cost."""
    measure, cost = violations
    for states, least, most in limits:
        pairs = [(i, k) for i in scope for k in states if k < card[i]]
        n = len({i for i, _ in pairs})
        if not pairs:
            if least > 0 and math.isinf(cost):
                yield linear([(scope[0], 0)], [0.0], lower=1.0)  # no variable can have such a state
            continue
        ones = [1.0] * len(pairs)
        if math.isinf(cost):
            if least > 0 or most < n:
                yield linear(pairs, ones, lower=least, upper=most)
            continue
        # A shortfall that no labelling can avoid costs the same in all of them: a constraint for each variable.
        if least > n + 1000 or most < -1000:
            raise FormatError(f"found a number from {least} to {most} of {n} variables, expected one from 0 to {n}")
        for t in range(1, least + 1):
            yield linear(pairs, ones, lower=t, penalty=cost)
        for t in range(most, n):
            yield linear(pairs, ones, upper=t, penalty=cost * (t if measure == "dec" else 1))


# -- writing ----------------------------------------------------------------------------------------------------------


class WrittenFunction(NamedTuple):
    """A global function to be written: ``salldiff``, or ``knapsackp`` with its capacity and weights by variable."""

    keyword: str
    scope: list[int]
    capacity: int = 0
    weights: tuple[tuple[tuple[int, int], ...], ...] = ()


def written(path: object, graph: FactorGraph) -> tuple[FactorGraph, list[WrittenFunction]]:
    """The model without constraints that toulbar2 does not have, and the others as its functions."""
    graph = _with_tables(path, graph)
    found = graph.constraints
    return graph, [] if found is None else [one for c in range(len(found)) for one in _functions(path, found, c)]


def _with_tables(path: object, graph: FactorGraph) -> FactorGraph:
    """The model with tables in place of soft constraints, parities and automata."""
    # The tables need auxiliary variables, which come after those of the model and are functions of them.
    constraints = graph.constraints
    if constraints is None:
        return graph
    parity = constraints.kind == ConstraintKind.XOR
    automaton = constraints.by_automaton
    soft, free = ~constraints.hard, (constraints.penalty == 0) & ~automaton
    lost = (parity | soft | automaton) & ~free
    kept = constraints.take(np.flatnonzero(~lost & ~free))
    if not lost.any():
        return replace(graph, constraints=kept if len(kept) else None)
    try:
        tables = rewrite(graph, some=lost).graph
    except UnsupportedModel as error:
        what = "constraints with a penalty, parities and automata"
        raise FormatError(f"{path}: {what} are written as tables: {error}") from None
    _log.info(
        "%s: %d constraints with a penalty, parities or automata are written as tables with %d auxiliary variables",
        path, lost.sum(), tables.n_vars - graph.n_vars,
    )  # fmt: skip
    return replace(tables, names=_longer_names(graph.names, tables), constraints=kept if len(kept) else None)


def _longer_names(names: Names | None, graph: FactorGraph) -> Names | None:
    if names is None:
        return None
    n, taken, new = len(names.variables), set(names.variables), list[str]()
    for i in range(n, graph.n_vars):
        name = f"count{i - n}"
        while name in taken:
            name = f"_{name}"
        new.append(name)
    states = None
    if names.states is not None:
        states = (*names.states, *(tuple(f"c{k}" for k in range(card)) for card in graph.card[n:].tolist()))
    return Names((*names.variables, *new), states)


def _functions(path: object, constraints: Constraints, c: int) -> Iterator[WrittenFunction]:
    mine = constraints.span(c)
    var, state = constraints.var[mine].tolist(), constraints.state[mine].tolist()
    kind = constraints.kind[c]
    if kind == ConstraintKind.ALL_DIFFERENT:
        yield WrittenFunction("salldiff", var)
    elif kind == ConstraintKind.OR:
        for i, k in zip(var[:-1], state[:-1], strict=True):
            yield _row([(i, k, -1), (var[-1], state[-1], 1)], 0)
        inputs = [(i, k, 1) for i, k in zip(var[:-1], state[:-1], strict=True)]
        yield _row([*inputs, (var[-1], state[-1], -1)], 0)
    else:
        scale = _whole_scale(path, constraints, c)
        weights = [round(scale * weight) for weight in constraints.weight[mine].tolist()]
        terms = list(zip(var, state, weights, strict=True))
        if constraints.lower[c] > -math.inf:
            yield _row(terms, math.ceil(scale * float(constraints.lower[c]) - 1e-6))
        if constraints.upper[c] < math.inf:
            minus = [(i, k, -weight) for i, k, weight in terms]
            yield _row(minus, -math.floor(scale * float(constraints.upper[c]) + 1e-6))


def _whole_scale(path: object, constraints: Constraints, c: int) -> int:
    """The power of ten, at most the ninth, that makes the weights whole numbers, as toulbar2's are."""
    weights = constraints.weight[constraints.span(c)]
    for digits in range(10):
        scaled = weights * 10**digits
        if np.all(np.abs(scaled - np.round(scaled)) <= 1e-9 * np.maximum(1.0, np.abs(scaled))):
            return int(10**digits)
    raise FormatError(f"{path}: constraint {constraints.called(c)}: the weights have more than 9 decimals")


def _row(terms: list[tuple[int, int, int]], capacity: int) -> WrittenFunction:
    by_variable: dict[int, dict[int, int]] = {}
    for i, k, weight in terms:
        mine = by_variable.setdefault(i, {})
        mine[k] = mine.get(k, 0) + weight
    weights = tuple(tuple(mine.items()) for mine in by_variable.values())
    return WrittenFunction("knapsackp", list(by_variable), capacity, weights)
