"""Cost functions without tables: where toulbar2's files have their parameters, and constraints written as functions."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints import ConstraintKind, Constraints
from mapmrf.constraints.as_tables import rewrite
from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names

_log = logging.getLogger("mapmrf")


@dataclass(frozen=True)
class Dialect:
    """What the words of a file mean: states of its variables, variables by name, and costs, inf where they forbid."""

    card: Ints
    state: Callable[[int, bytes], int]
    variable: Callable[[bytes], int]
    number: Callable[[bytes], float]  # a cost to be minimised
    limit: float  # the cost from which on everything is forbidden

    def cost(self, word: bytes) -> float:
        found = self.number(word)
        if math.isnan(found):
            raise ValueError(word)
        return math.inf if found >= self.limit else found

    def forbid(self, costs: Floats) -> Floats:
        return np.where(costs >= self.limit, np.inf, costs)


@dataclass(frozen=True)
class GlobalFunction:
    """A function by its keyword: its scope, and its parameters by name, each of which is a word or a nested list."""

    keyword: str
    scope: list[int]
    given: dict[str, Any] = field(default_factory=dict)

    def word(self, name: str) -> str:
        return bytes(self.given[name]).decode("utf-8", "replace")

    def whole(self, name: str) -> int:
        return int(self.word(name))

    def several(self, name: str) -> list[Any]:
        if not isinstance(self.given[name], list):
            raise TypeError(name)
        return list(self.given[name])

    def is_a(self, *families: str) -> bool:
        """Return whether it is one of some functions; ``dp`` and ``kp`` at the end are ways to propagate it."""
        plain = self.keyword[:-2] if self.keyword[-2:] in ("dp", "kp") else ""
        return self.keyword in families or plain in families


_LAYOUTS = {
    "clique": "rhs values:1each",
    "knapsack": "capacity weights:each",
    "knapsackp": "capacity weightedvalues:2each",
    "knapsackv": "capacity weightedvalues:3",
    "knapsackc": "capacity weightedvalues:2each amo:groups",
    "wcsp": "lb ub flag flag network:network",
    "cfnconstraint": "lb ub flag flag network:network",
    "alldiff": "exceptedvalues:1 deltacosts:2",
    "gcc": "bounds:3 deltacosts:2",
    **dict.fromkeys(("salldiff", "salldiffdp", "salldiffkp", "walldiff"), "metric cost"),
    **dict.fromkeys(("sgcc", "sgccdp", "sgcckp", "wgcc", "wsamegcc"), "metric cost bounds:3"),
    **dict.fromkeys(("samong", "samongdp"), "metric cost min max values:1"),
    "wamong": "metric cost values:1 min max",
    "wvaramong": "metric cost values:1",
    **dict.fromkeys(("wsum", "woverlap"), "metric cost comparator to"),
    "wvarsum": "metric cost comparator",
    **dict.fromkeys(("wdiverse", "whdiverse", "wtdiverse"), "distance values:each"),
    "wsame": "metric cost",
    **dict.fromkeys(("ssame", "ssamedp"), "cost vars:halves"),
    "wregular": "nb_states starts:2 ends:2 transitions:4",
    **dict.fromkeys(("sregular", "sregulardp"), "metric cost nb_states starts:1 ends:1 transitions:3"),
    **dict.fromkeys(("sgrammar", "sgrammardp"), "metric cost nb_symbols nb_values start rules:rules"),
    **dict.fromkeys(("max", "smaxdp"), "defaultcost tuples:3"),
    **dict.fromkeys(("MST", "smstdp"), ""),
    **dict.fromkeys((">=", ">", "<=", "<", "="), "params:plain2"),
    "disj": "params:plain3",
    "sdisj": "params:plain6",
}
"""The functions, and their parameters in the order of a ``.wcsp`` file.

A list begins with its length, and its elements have so many words; ``each`` means one for every variable of the scope.
"""
KEYWORDS = tuple(_LAYOUTS)
MOST_NESTED = 8  # networks, or lists of parameters, inside each other


def like(keyword: str) -> str:
    """What was probably meant by a keyword that is none."""
    found = difflib.get_close_matches(keyword, KEYWORDS, 3) or ["salldiff", "wsum", "knapsackp"]
    return f"a known function such as {', '.join(found)}"


def function_of_words(
    keyword: str, scope: list[int], words: Sequence[bytes], at: int, network: Callable[[int], tuple[FactorGraph, int]]
) -> tuple[GlobalFunction, int]:
    """A function from its parameters, from a word on, and where they end; `network` reads one from a word on."""

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

    def rule() -> list[Any]:
        kind = some(1)[0]
        return [kind, *some({b"0": 2, b"1": 3, b"2": 3, b"3": 4}.get(kind, -1))]

    given: dict[str, Any] = {}
    for each in _LAYOUTS[keyword].split():
        name, _, kind = each.partition(":")
        if kind == "each":
            given[name] = some(len(scope))
        elif kind == "rules":
            given[name] = [rule() for _ in range(int(some(1)[0]))]
        elif kind == "network":
            given[name], at = network(at)
        elif kind == "groups":
            given[name] = [listed(2) for _ in range(int(some(1)[0]))]
        elif kind.endswith("each"):
            given[name] = [listed(int(kind[0])) for _ in scope]
        elif kind.startswith("plain"):
            given[name] = some(int(kind[-1]))
        elif kind == "halves":
            sizes = [int(size) for size in some(2)]
            given["vars1"], given["vars2"] = (some(size) for size in sizes)
        elif kind:
            given[name] = listed(5 if kind == "3" and given.get("metric") == b"wdec" else int(kind))
        else:
            (given[name],) = some(1)
    return GlobalFunction(keyword, scope, given), at


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
