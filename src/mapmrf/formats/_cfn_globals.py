"""Global cost functions of a CFN: a type, and parameters by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mapmrf.arrays import Ints
from mapmrf.constraints import Constraint
from mapmrf.formats._globals import KEYWORDS, Constrained, WrittenFunction, at_least, different
from mapmrf.formats._relaxed_json import OPEN, Scanner

CFN_TYPES = (*KEYWORDS, "knapsackv")

Nested = list[Any]
"""Words, and lists of the same."""

Lookup = Sequence[dict[bytes, int]]
"""States of the variables of a scope by name."""


class ScopeNames(NamedTuple):
    """The names in a function: numbers of states, states by name, and positions in the scope by variable."""

    card: Ints
    lookup: Lookup
    place: dict[bytes, int]


DEPTH = 8
"""Maximum depth of nested brackets."""


def read_nested(scanner: Scanner, what: str, depth: int = DEPTH) -> Nested:
    """Read the words and lists up to the closing bracket."""
    found: Nested = []
    while not scanner.closes(what):
        if scanner.peek() == OPEN:
            scanner.open(what)
            if depth == 0:
                scanner.fail(what, f"at most {DEPTH} nested brackets")
            found.append(read_nested(scanner, what, depth - 1))
        else:
            found.append(scanner.word(what))
    return found


class Params:
    """Parameters by name."""

    def __init__(self, words: Nested) -> None:
        self._found = dict(zip([bytes(word) for word in words[::2]], words[1::2], strict=True))

    def word(self, name: str) -> str:
        """A word."""
        return bytes(self._found[name.encode()]).decode("utf-8", "replace")

    def number(self, name: str) -> float:
        """A number."""
        return float(self.word(name))

    def listed(self, name: str) -> Nested:
        """A list."""
        found = self._found[name.encode()]
        if not isinstance(found, list):
            raise TypeError(name)
        return found


def constraints_of(
    kind: str, scope: list[int], params: Params, bound: tuple[float, float], names: ScopeNames
) -> Iterator[Constraint]:
    """The constraints of a function; costs that reach the bound forbid. Invalid input raises ValueError or the like."""
    card, lookup, _ = names
    if kind in ("salldiff", "sgcc", "samong"):
        sign, limit = bound
        cost = sign * params.number("cost")
        cost = math.inf if math.isinf(cost) or cost >= limit else cost
        measure = params.word("metric")
        if measure not in ("var", "dec") or not cost >= 0:
            raise ValueError(measure)
        if kind == "salldiff":
            yield from different(scope, measure, cost, card)
            return
        if measure == "dec" or (kind == "sgcc" and math.isfinite(cost)):
            raise ValueError(measure)
        yield from Constrained(scope, measure, cost, _limits(kind, params, lookup)).constraints(card)
    elif kind == "clique":
        weights = [[(_state(lookup[at], k), -1.0) for k in mine] for at, mine in enumerate(params.listed("values"))]
        yield at_least(scope, -params.number("rhs"), weights)
    else:
        yield at_least(scope, params.number("capacity"), _weights(kind, scope, params, names))


def _weights(kind: str, scope: list[int], params: Params, names: ScopeNames) -> list[list[tuple[int, float]]]:
    card, lookup, place = names
    if kind == "knapsack":
        given = [float(weight) for weight in params.listed("weights")]
        return [[(1, w)] if card[i] > 1 else [] for i, w in zip(scope, given, strict=True)]
    listed = params.listed("weightedvalues")
    if kind == "knapsackp":
        return [[(_state(lookup[at], k), float(w)) for k, w in mine] for at, mine in enumerate(listed)]
    weights: list[list[tuple[int, float]]] = [[] for _ in scope]
    for variable, k, weight in listed:  # knapsackv
        at = place[variable]
        weights[at].append((_state(lookup[at], k), float(weight)))
    return weights


def _limits(kind: str, params: Params, lookup: Lookup) -> list[tuple[tuple[int, ...], int, int]]:
    if kind == "samong":
        states = tuple(_state(lookup[0], k) for k in params.listed("values"))
        return [(states, int(params.number("min")), int(params.number("max")))]
    return [((_state(lookup[0], k),), int(low), int(high)) for k, low, high in params.listed("bounds")]


def _state(known: dict[bytes, int], word: bytes) -> int:
    """A state by name or number."""
    return known[word] if word in known else int(word)


def text_of(function: WrittenFunction, names: Sequence[str], bound: str) -> str:
    """A function as the text of its entry."""
    scope = " ".join(names[i] for i in function.scope)
    if function.keyword == "salldiff":
        return f"{{scope: [{scope}], type: salldiff, params: {{metric: var, cost: {bound}}}}}"
    triples = (
        f"[{names[i]} {k} {w}]" for i, mine in zip(function.scope, function.weights, strict=True) for k, w in mine
    )
    params = f"capacity: {function.capacity}, weightedvalues: [{' '.join(triples)}]"
    return f"{{scope: [{scope}], type: knapsackv, params: {{{params}}}}}"
