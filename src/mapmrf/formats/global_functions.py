"""Global cost functions of toulbar2 as constraints.

A function that counts its violations, such as ``salldiff var 3``, is a ladder of constraints: one for each violation.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints import Constraint, ConstraintKind, Constraints, all_different, linear
from mapmrf.constraints.as_tables import rewrite
from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names

_log = logging.getLogger("mapmrf")

KEYWORDS = ("salldiff", "sgcc", "samong", "knapsack", "knapsackp", "clique")  # the supported functions

Limits = Sequence[tuple[tuple[int, ...], int, int]]
"""For sets of states, the smallest and largest number of variables that may have one of them."""
Weights = Sequence[Sequence[tuple[int, float]]]  # for every variable of a scope, weights of its states


def counting(
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


def of_ones(scope: list[int], weights: Sequence[float], card: Ints) -> Weights:
    """The weights of a ``knapsack``, whose variables have the states 0 and 1."""
    return [[(1, weight)] if card[i] > 1 else [] for i, weight in zip(scope, weights, strict=True)]


def at_least(scope: list[int], capacity: float, weights: Weights) -> Constraint:
    """``knapsackp``: the weights of the states must add up to at least the capacity."""
    pairs = [(i, k) for i, mine in zip(scope, weights, strict=True) for k, _ in mine]
    values = [weight for mine in weights for _, weight in mine]
    return linear(pairs, values, lower=capacity) if pairs else linear([(scope[0], 0)], [0.0], lower=capacity)


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
    raise FormatError(f"{path}: constraint {c} ({constraints.names[c]}): the weights have more than 9 decimals")


def _row(terms: list[tuple[int, int, int]], capacity: int) -> WrittenFunction:
    by_variable: dict[int, dict[int, int]] = {}
    for i, k, weight in terms:
        mine = by_variable.setdefault(i, {})
        mine[k] = mine.get(k, 0) + weight
    weights = tuple(tuple(mine.items()) for mine in by_variable.values())
    return WrittenFunction("knapsackp", list(by_variable), capacity, weights)
