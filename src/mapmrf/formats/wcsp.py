"""The WCSP format of toulbar2, ``.wcsp``: non-negative integer costs, given as a default and a list of tuples.

A file written by this module states in its problem name how costs were computed from log potentials,
``mapmrf:decimals=D:offset=C``: the log potential of a labelling is (C - cost) / 10^D. Other programs ignore the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, ranges
from mapmrf.errors import FormatError, GraphError
from mapmrf.formats import tokens
from mapmrf.formats._decimals import MOST_DECIMALS, choose_decimals, rounding, scaled, unscaled
from mapmrf.formats._globals import WrittenFunction, writable, written
from mapmrf.formats._listed import build_listed
from mapmrf.formats._tables import MOST_COUNT, Factors, check_states
from mapmrf.formats._tuples import Lists, listed, read_lists, shape_of, tuple_text, value_places
from mapmrf.formats._wcsp_globals import WordFunction, constraints_of, split, text_of
from mapmrf.formats.files import read_bytes, replacing
from mapmrf.formats.names import names_lost
from mapmrf.formats.tokens import NumberFile, parse_numbers
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".wcsp",)
CONSTRAINTS = True

_OUR_NAME = re.compile(r"mapmrf:decimals=(-?\d{1,3}):offset=(\d{1,19})")
_FIRST_WORD = re.compile(rb"\S+")


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a WCSP; a cost c is the log potential -c, costs that reach the upper bound are forbidden.

    Tables that the file shares are shared. The global functions ``salldiff``, ``sgcc``, ``samong``, ``knapsack``,
    ``knapsackp`` and ``clique`` become constraints, and so do large functions with few tuples. Other global functions,
    arithmetic functions and interval variables are not supported.
    """
    if values not in (None, "cost"):
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are costs")
    name, file, functions = _numbers(path)
    card, n_functions, upper = _header(file)
    walk = _walk(file, 4 + len(card), n_functions)
    scope_ptr, scope = _scopes(file, walk, len(card))
    table_of, lists = _lists(file, walk, card[scope], scope_ptr)
    _check_costs(file, lists)
    table_ptr, costs, kept = read_lists(file, lists, np.bincount(table_of, minlength=len(lists.count)))
    forbidden = costs >= upper
    np.negative(costs, out=costs)
    costs += 0.0  # no "-0"
    factors = _undo_scale(path, Factors(scope_ptr, scope, table_of, table_ptr, costs), forbidden, name)
    graph = build_listed(path, card, factors, kept)
    return _constrained(path, graph, functions, upper)


def _constrained(path: Path, graph: FactorGraph, functions: list[WordFunction], upper: float) -> FactorGraph:
    """The model with the constraints of its global functions."""
    if not functions:
        return graph
    try:
        return graph.with_constraints([c for some in functions for c in constraints_of(path, some, upper, graph.card)])
    except GraphError as error:
        raise FormatError(f"{path}: {error}") from None


def _undo_scale(path: Path, factors: Factors, forbidden: Bools, name: str) -> Factors:
    """Undo the scaling of a file written by this module."""
    ours = _OUR_NAME.fullmatch(name)
    theta_t = factors.theta_t
    if ours is not None and abs(int(ours[1])) > MOST_DECIMALS:
        raise FormatError(f"{path}: the name says {ours[1]} decimals, expected at most {MOST_DECIMALS}")
    if ours is not None:
        unscaled(theta_t, int(ours[1]))
    theta_t[forbidden] = -np.inf
    if ours is None or ours[2] == "0":
        return factors
    offset = np.array([float(ours[2])])
    unscaled(offset, int(ours[1]))
    return Factors(
        np.append(factors.scope_ptr, factors.scope_ptr[-1]),
        factors.scope,
        np.append(factors.table_of, len(factors.table_ptr) - 1),
        np.append(factors.table_ptr, len(theta_t) + 1),
        np.append(theta_t, offset),
    )


class _WcspFile(NumberFile):
    """The numbers after the name of the problem; the format has no comments."""

    def fail(self, at: int, what: str, expected: str) -> NoReturn:
        """Raise the error for a number that is not what was expected at its place."""
        if at < len(self.numbers):
            tokens.fail_at(self.path, read_bytes(self.path), self.skipped + at, what, expected)
        super().fail(at, what, expected)


def _numbers(path: Path) -> tuple[str, NumberFile, list[WordFunction]]:
    """Split the file into the name of the problem, the numbers after it, and the functions with keywords."""
    text = read_bytes(path)
    first = _FIRST_WORD.search(text)
    if first is None:
        raise FormatError(f"{path}: the file is empty, expected the name of a problem")
    tokens.charge_numbers(path, text)
    numbers, functions = parse_numbers(text[first.end() :]), []
    if numbers is None:
        parts = split(path, text)
        if parts is not None:
            numbers, functions = parse_numbers(b" ".join(parts.words[1:])), parts.functions
    if numbers is None:
        _fail_not_a_number(path, text)
    return first[0].decode("utf-8", "replace"), _WcspFile(path, numbers, skipped=1), functions


def _fail_not_a_number(path: Path, text: bytes) -> NoReturn:
    """Raise the error for the first word among the numbers: after the default -1, it is a function without a table."""
    before = b""
    for place, match in enumerate(_FIRST_WORD.finditer(text)):
        if place and tokens.NUMBER.fullmatch(match[0]) is None:
            if before == b"-1":
                tokens.fail_at(path, text, place, "cost function without a table", "tuples with their costs")
            tokens.fail_at(path, text, place, "among the numbers", "a number")
        before = match[0]
    raise FormatError(f"{path}: cannot read the numbers of this file")


def _header(file: NumberFile) -> tuple[Ints, int, float]:
    """Cardinalities, number of functions and upper bound."""
    n_vars = int(file.integers(0, 1, 0, MOST_COUNT, "number of variables")[0])
    file.integers(1, 1, 0, MOST_COUNT, "largest domain")
    n_functions = int(file.integers(2, 1, 0, MOST_COUNT, "number of functions")[0])
    most = len(file.numbers)
    upper = float(file.numbers[3]) if most > 3 else -1.0
    if not (0 <= upper < np.inf and upper == np.floor(upper)):  # it may be the largest 64-bit number
        file.fail(3, "upper bound", "a whole number of at least 0")
    if n_vars > most - 4:
        file.fail(most, "domains", f"{n_vars} of them")
    negative = np.flatnonzero(file.numbers[4 : 4 + n_vars] < 0)
    if len(negative):
        file.fail(4 + int(negative[0]), f"domain of variable {negative[0]}", "a number of states (no interval)")
    card = file.integers(4, n_vars, 1, MOST_COUNT, "domain of variable {}")
    check_states(Path(file.path), card)
    # A function has at least three numbers; a wrong count must not allocate memory.
    if 3 * n_functions > most - 4 - n_vars:
        file.fail(most, f"number of functions is {n_functions}", f"at least {3 * n_functions + n_vars + 5}")
    return card, n_functions, upper


@dataclass(frozen=True, eq=False)
class _Walk:
    """Positions and first numbers of the functions: a negative arity defines a table for later use."""

    start: Ints
    arity: Ints
    named: Bools
    count: Ints


def _walk(file: NumberFile, at: int, n_functions: int) -> _Walk:
    """Walk from function to function up to the end of the file; the only loop over functions."""
    numbers, end = file.numbers.data, len(file.numbers)
    rows = []
    for a in range(n_functions):
        arity = numbers[at] if at < end else 0.0
        if at >= end or not (-end < arity < end and arity == arity // 1):
            file.fail(at, f"arity of function {a}", "a whole number")
        k = int(abs(arity))
        if at + k + 2 >= end:
            file.fail(end, f"function {a}", f"{k} variables, a default and a number of tuples")
        count = numbers[at + k + 2]
        if not (-end < count < MOST_COUNT and count == count // 1):
            file.fail(at + k + 2, f"number of tuples of function {a}", "a whole number")
        rows.append((at, k, arity < 0, int(count)))
        at += k + 3 + int(max(count, 0)) * (k + 1)
        if at > end:
            there = (end - rows[-1][0] - k - 3) // (k + 1)
            file.fail(end, f"function {a}", f"{count:.0f} tuples, of which {there} are present")
    if at < end:
        file.fail(at, "after the last function", "the end of the file")
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return _Walk(columns[0], columns[1], columns[2].astype(bool), columns[3])


def _scopes(file: NumberFile, walk: _Walk, n_vars: int) -> tuple[Ints, Ints]:
    """Offsets and variables of all scopes; repeated variables are found when the graph is built."""
    scope_ptr = np.append(0, np.cumsum(walk.arity))
    owner = np.repeat(np.arange(len(walk.arity)), walk.arity)
    places = ranges(walk.start + 1, walk.arity)
    scope = file.numbers[places]
    bad = np.flatnonzero(~((scope >= 0) & (scope < n_vars) & (scope == np.floor(scope))))
    if len(bad):
        what = f"a variable from 0 to {n_vars - 1}" if n_vars else "no variables"
        file.fail(int(places[bad[0]]), f"scope of function {owner[bad[0]]}", what)
    return scope_ptr, scope.astype(np.int64)


def _lists(file: NumberFile, walk: _Walk, shape: Ints, scope_ptr: Ints) -> tuple[Ints, Lists]:
    """The table of every function, and the tables; a constant may be given as the default or as its only tuple."""
    table_of, own = _shared(file, walk)
    _check_shared(file, walk, (table_of, own), shape, scope_ptr)
    arity = walk.arity[own]
    lists = Lists(
        file.numbers[walk.start[own] + arity + 1],
        walk.start[own] + arity + 3,
        walk.count[own],
        shape[ranges(scope_ptr[own], arity)],
        np.append(0, np.cumsum(arity)),
    )
    too_many = np.flatnonzero((arity == 0) & (lists.count > 1))
    if len(too_many):
        a = int(own[too_many[0]])
        file.fail(int(walk.start[a]) + 2, f"number of tuples of function {a}", "0 or 1, since it has no variables")
    return table_of, lists


def _shared(file: NumberFile, walk: _Walk) -> tuple[Ints, Ints]:
    """Table of every function, and the function that defines each table."""
    own, users = np.flatnonzero(walk.count >= 0), np.flatnonzero(walk.count < 0)
    named = np.flatnonzero(walk.named & (walk.count >= 0))
    number = -walk.count[users]
    known = np.searchsorted(named, users)
    bad = np.flatnonzero(number > known)
    if len(bad):
        at = walk.start[users[bad[0]]] + walk.arity[users[bad[0]]] + 2
        what = f"one of the {known[bad[0]]} shared tables before it, or a number from 0 on"
        file.fail(int(at), f"number of tuples of function {users[bad[0]]}", what)
    table_of = np.zeros(len(walk.count), dtype=np.int64)
    table_of[own] = np.arange(len(own))
    table_of[users] = table_of[named[number - 1]]
    return table_of, own


def _check_shared(file: NumberFile, walk: _Walk, tables: tuple[Ints, Ints], shape: Ints, scope_ptr: Ints) -> None:
    """Raise FormatError unless functions that share a table have variables of the same cardinalities."""
    table_of, own = tables
    users = np.flatnonzero(walk.count < 0)
    makers = own[table_of[users]]
    differ = walk.arity[users] != walk.arity[makers]
    same = np.flatnonzero(~differ)
    arity = walk.arity[users[same]]
    mine, others = (shape[ranges(scope_ptr[some[same]], arity)] for some in (users, makers))
    differ[np.repeat(same, arity)[mine != others]] = True
    for k in np.flatnonzero(differ)[:1].tolist():
        a, b = int(users[k]), int(makers[k])
        found, expected = (shape[scope_ptr[f] : scope_ptr[f + 1]].tolist() for f in (a, b))
        at = int(walk.start[a] + walk.arity[a]) + 2
        file.fail(at, f"function {a} with {found} states", f"the table of a function like it, not {expected} states")


def _check_costs(file: NumberFile, lists: Lists) -> None:
    for places, what in ((lists.start - 2, "default cost"), (value_places(lists)[0], "cost of a tuple")):
        found = file.numbers[places]
        bad = np.flatnonzero(~((found >= 0) & (found == np.floor(found)) & (found < np.inf)))
        if len(bad):
            file.fail(int(places[bad[0]]), what, "a whole cost of at least 0")


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _WcspCosts:
    """A model with integer costs, laid out like the graph; forbidden entries are infinite."""

    decimals: int
    offset: float
    constant: float
    unary: Floats
    tables: Floats


def _decimals(graph: FactorGraph) -> tuple[int, bool]:
    """Decimals to keep, such that the sum of all costs stays within 1e15, and whether they are exact."""
    parts = [(graph.theta_v, graph.var_ptr, np.ones(graph.n_vars)), (graph.theta_t, graph.table_ptr, _uses(graph))]
    graph.check_sums()
    total = abs(graph.constant) if np.isfinite(graph.constant) else 0.0
    for theta, ptr, uses in parts:
        high, low = _extremes(theta, ptr)
        total += float((uses * (2 * np.maximum(high, 0.0) - np.minimum(low, 0.0))).sum())
    return choose_decimals([np.array([graph.constant]), graph.theta_v, graph.theta_t], total)


def _uses(graph: FactorGraph) -> Ints:
    return np.bincount(graph.table_of, minlength=graph.n_tables)


def _extremes(theta: Floats, ptr: Ints) -> tuple[Floats, Floats]:
    """Largest and smallest finite entry of every block; 0 where there is none."""
    if len(ptr) < 2:
        return np.zeros(0), np.zeros(0)
    hard = theta == -np.inf
    high = np.maximum.reduceat(theta, ptr[:-1])
    low = np.minimum.reduceat(np.where(hard, np.inf, theta), ptr[:-1])
    none = high == -np.inf
    return np.where(none, 0.0, high), np.where(none, 0.0, low)


def _costs(graph: FactorGraph) -> _WcspCosts:
    """Round to integers; tables with negative costs are shifted by their best entry."""
    decimals, _ = _decimals(graph)
    constant = float(scaled(np.array([graph.constant]), decimals)[0])
    offset = max(constant, 0.0)
    costs = []
    for theta, ptr, uses in (
        (graph.theta_v, graph.var_ptr, np.ones(graph.n_vars)),
        (graph.theta_t, graph.table_ptr, _uses(graph)),
    ):
        units = scaled(theta, decimals)
        shift = np.maximum(_extremes(units, ptr)[0], 0.0)
        offset += float((shift * uses).sum())
        costs.append(np.repeat(shift, np.diff(ptr)) - units)
    return _WcspCosts(decimals, offset, max(-constant, 0.0), *costs)


def losses(graph: FactorGraph) -> list[str]:
    """Describe what a file of this format cannot represent."""
    decimals, exact = _decimals(graph)
    return [*names_lost(graph), *rounding(decimals, exact)]


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a WCSP with costs in units of 10^-decimals: as many decimals as necessary, up to 15 digits in all."""
    if values not in (None, "cost"):
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are costs")
    graph = writable(path, graph)
    functions = written(path, graph.constraints)
    costs = _costs(graph)
    with replacing(path) as file:
        for text in _text(graph, costs, functions):
            file.write(text.encode("ascii"))


def _text(graph: FactorGraph, costs: _WcspCosts, functions: list[WrittenFunction]) -> Iterator[str]:
    """Yield the file from the header to the last function."""
    upper = 1.0 + (costs.constant if np.isfinite(costs.constant) else 0.0)
    upper -= float(_extremes(-costs.unary, graph.var_ptr)[1].sum())
    upper -= float(_extremes(-costs.tables, graph.table_ptr)[1][graph.table_of].sum())
    name = f"mapmrf:decimals={costs.decimals}:offset={costs.offset:.0f}" if costs.decimals or costs.offset else "mapmrf"
    loud = np.unique(np.repeat(np.arange(graph.n_vars), graph.card)[costs.unary != 0])
    n_functions = int(costs.constant != 0) + len(loud) + graph.n_factors + len(functions)
    yield f"{name} {graph.n_vars} {graph.card.max(initial=0)} {n_functions} {upper:.0f}\n"
    yield " ".join(map(str, graph.card.tolist())) + "\n"
    if costs.constant:
        yield f"0 {min(costs.constant, upper):.0f} 0\n"
    unary = np.where(np.isinf(costs.unary), upper, costs.unary)
    default, places, ptr = listed(unary, graph.var_ptr)
    for i in loud.tolist():
        some = places[ptr[i] : ptr[i + 1]]
        tuples = tuple_text(some - graph.var_ptr[i], (int(graph.card[i]),), unary[some], "%.0f")
        yield f"1 {i} {default[i]:.0f} {len(some)}\n{tuples}"
    yield from _factor_text(graph, np.where(np.isinf(costs.tables), upper, costs.tables))
    yield from (text_of(function, upper) for function in functions)


def _factor_text(graph: FactorGraph, tables: Floats) -> Iterator[str]:
    """Yield the factors; a shared table is listed with the first factor that uses it, to which the others refer."""
    uses = np.bincount(graph.table_of, minlength=graph.n_tables).tolist()
    default, places, ptr = listed(tables, graph.table_ptr)
    default_text = [f"{cost:.0f}" for cost in default.tolist()]
    number: dict[int, int] = {}
    for a, t in enumerate(graph.table_of.tolist()):
        scope = graph.scope_of(a).tolist()
        start = f"{' '.join(map(str, scope))} {default_text[t]}"
        if t in number:
            yield f"{len(scope)} {start} -{number[t]}\n"
            continue
        some = places[ptr[t] : ptr[t + 1]]
        tuples = tuple_text(some - graph.table_ptr[t], shape_of(graph, a), tables[some], "%.0f")
        sign = ""
        if uses[t] > 1:
            number[t] = len(number) + 1
            sign = "-"
        yield f"{sign}{len(scope)} {start} {len(some)}\n{tuples}"
