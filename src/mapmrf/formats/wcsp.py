"""The WCSP format of toulbar2, ``.wcsp``: non-negative integer costs, given as a default and a list of tuples.

A file written by this module states in its problem name how costs were computed from log potentials,
``mapmrf:decimals=D:offset=C``: the log potential of a labelling is (C - cost) / 10^D. Other programs ignore the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats.cost_functions import build_with_functions
from mapmrf.formats.files import (
    NUMBER,
    TOKEN,
    NumberFile,
    charge_numbers,
    fail_at,
    first_not_whole,
    names_lost,
    parse_numbers,
    read_bytes,
    write_text,
)
from mapmrf.formats.global_functions import (
    KEYWORDS,
    MOST_NESTED,
    Dialect,
    GlobalFunction,
    WrittenFunction,
    function_of_words,
    like,
    written,
)
from mapmrf.formats.lists import Lists, listed, read_lists, tuple_text, value_places
from mapmrf.formats.tables import (
    MOST_COUNT,
    MOST_DECIMALS,
    Factors,
    check_states,
    check_values,
    choose_decimals,
    factors_to_write,
    rounding,
    scaled,
    unscaled,
)
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".wcsp",)
CONSTRAINTS = True

_OUR_NAME = re.compile(r"mapmrf:decimals=(-?\d{1,3}):offset=(\d{1,19})")


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a WCSP; a cost c is the log potential -c, costs that reach the upper bound are forbidden."""
    # Tables that the file shares are shared. Functions without tables become constraints, and so do large functions
    # with few tuples; an interval is a domain from 0 on.
    check_values(path, values, ("cost",), "costs")
    text = read_bytes(path)
    first = TOKEN.search(text)
    if first is None:
        raise FormatError(f"{path}: the file is empty, expected the name of a problem")
    charge_numbers(path, text)
    name, numbers = first[0].decode("utf-8", "replace"), parse_numbers(text[first.end() :])
    if numbers is not None:  # the format has no comments, so that the text is the file
        return _graph(path, name, NumberFile(path, numbers, 1, read_bytes), [])
    words = text.split()
    graph, end = _network(path, text, words, 0)
    if end < len(words):
        fail_at(path, text, end, "after the last function", "the end of the file")
    return graph


def _network(path: Path, text: bytes, words: list[bytes], at: int, depth: int = 0) -> tuple[FactorGraph, int]:
    """A network with functions without tables, from a word on, and where it ends."""
    functions, here, number = list[tuple[str, GlobalFunction]](), at + 1, 0
    if depth > MOST_NESTED:
        fail_at(path, text, at, "a network", f"at most {MOST_NESTED} inside each other")
    try:
        here, n_functions = at + 5 + max(0, int(words[at + 1])), int(words[at + 3])
        if here > len(words):
            raise IndexError(here)
        places = list(range(at + 1, here))
        for number in range(n_functions):
            arity = abs(int(words[here]))
            default = here + 1 + arity
            if words[default] == b"-1" and NUMBER.fullmatch(words[default + 1]) is None:
                keyword = words[default + 1].decode("utf-8", "replace")
                if keyword not in KEYWORDS:
                    expected = f"tuples with their costs, or {like(keyword)}"
                    fail_at(path, text, default + 1, "cost function without a table", expected)
                scope = [int(word) for word in words[here + 1 : default]]
                what = f"function {number} ({keyword})"
                function, here = function_of_words(
                    keyword, scope, words, default + 2, lambda at: _network(path, text, words, at, depth + 1)
                )
                functions.append((what, function))
            else:
                end = default + 2 + max(int(words[default + 1]), 0) * (arity + 1)
                if end > len(words):
                    raise IndexError(end)
                places.extend(range(here, end))
                here = end
        numbers = parse_numbers(b" ".join([words[place] for place in places]))
    except IndexError:
        raise FormatError(f"{path}: function {number}: found the end of the file inside it") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        numbers, places = None, list(range(here, len(words)))
    if numbers is None:
        wrong = next((place for place in places if NUMBER.fullmatch(words[place]) is None), here)
        fail_at(path, text, wrong, "among the numbers", "a number")
    numbers[2] -= len(functions)
    name = words[at].decode("utf-8", "replace")
    return _graph(path, name, NumberFile(path, numbers, 1, read_bytes, places), functions), here


def _graph(path: Path, name: str, file: NumberFile, functions: list[tuple[str, GlobalFunction]]) -> FactorGraph:
    """A network from its numbers and its functions without tables."""
    card, n_functions, upper = _header(file)
    walk = _walk(file, 4 + len(card), n_functions)
    scope_ptr, scope = _scopes(file, walk, len(card))
    table_of, lists = _lists(file, walk, card[scope], scope_ptr)
    for places, what in ((lists.start - 2, "default cost"), (value_places(lists)[0], "cost of a tuple")):
        bad = first_not_whole(file.numbers[places], 0, np.finfo(np.float64).max)
        if bad is not None:
            file.fail(int(places[bad]), what, "a whole cost of at least 0")
    table_ptr, costs, kept = read_lists(file, lists)
    forbidden = costs >= upper
    np.negative(costs, out=costs)
    costs += 0.0  # no "-0"
    factors = _undo_scale(path, Factors(scope_ptr, scope, table_of, table_ptr, costs, lists=kept), forbidden, name)
    dialect = Dialect(card, lambda i, k: int(k), int, float, upper)
    return build_with_functions(path, factors, None, functions, dialect)


def _undo_scale(path: Path, factors: Factors, forbidden: Bools, name: str) -> Factors:
    ours = _OUR_NAME.fullmatch(name)
    if ours is None:
        factors.theta_t[forbidden] = -np.inf
        return factors
    decimals, offset = int(ours[1]), np.array([float(ours[2])])
    if abs(decimals) > MOST_DECIMALS:
        raise FormatError(f"{path}: the name says {ours[1]} decimals, expected at most {MOST_DECIMALS}")
    unscaled(factors.theta_t, decimals)
    factors.theta_t[forbidden] = -np.inf
    unscaled(offset, decimals)
    return factors if ours[2] == "0" else factors.extended([()], [offset])


def _header(file: NumberFile) -> tuple[Ints, int, float]:
    n_vars = int(file.integers(0, 1, 0, MOST_COUNT, "number of variables")[0])
    file.integers(1, 1, 0, MOST_COUNT, "largest domain")
    n_functions = int(file.integers(2, 1, 0, MOST_COUNT, "number of functions")[0])
    most = len(file.numbers)
    upper = float(file.numbers[3]) if most > 3 else -1.0
    if not (0 <= upper < np.inf and upper == np.floor(upper)):  # it may be the largest 64-bit number
        file.fail(3, "upper bound", "a whole number of at least 0")
    if n_vars > most - 4:
        file.fail(most, "domains", f"{n_vars} of them")
    np.abs(file.numbers[4 : 4 + n_vars], out=file.numbers[4 : 4 + n_vars])  # negative ones are intervals
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
    scope_ptr = offsets(walk.arity)
    owner = np.repeat(np.arange(len(walk.arity)), walk.arity)
    places = ranges(walk.start + 1, walk.arity)
    scope = file.numbers[places]
    bad = first_not_whole(scope, 0, n_vars - 1)
    if bad is not None:
        what = f"a variable from 0 to {n_vars - 1}" if n_vars else "no variables"
        file.fail(int(places[bad]), f"scope of function {owner[bad]}", what)
    return scope_ptr, scope.astype(np.int64)


def _lists(file: NumberFile, walk: _Walk, shape: Ints, scope_ptr: Ints) -> tuple[Ints, Lists]:
    """The table of every function, and the tables; a constant may be given as the default or as its only tuple."""
    table_of, own = _shared(file, walk)
    _check_shared(file, walk, own[table_of], shape, scope_ptr)
    arity = walk.arity[own]
    lists = Lists(
        file.numbers[walk.start[own] + arity + 1],
        walk.start[own] + arity + 3,
        walk.count[own],
        shape[ranges(scope_ptr[own], arity)],
        offsets(arity),
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


def _check_shared(file: NumberFile, walk: _Walk, maker_of: Ints, shape: Ints, scope_ptr: Ints) -> None:
    """Raise FormatError unless functions that share a table have variables of the same cardinalities."""
    users = np.flatnonzero(walk.count < 0)
    makers = maker_of[users]
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


# -- writing ----------------------------------------------------------------------------------------------------------


def _decimals(graph: FactorGraph) -> tuple[int, bool]:
    """Decimals to keep, such that the sum of all costs stays within 1e15, and whether they are exact."""
    graph.check_sums()
    total = abs(graph.constant) if np.isfinite(graph.constant) else 0.0
    for theta, ptr, uses in _parts(graph):
        high, low = _extremes(theta, ptr)
        total += float((uses * (2 * np.maximum(high, 0.0) - np.minimum(low, 0.0))).sum())
    return choose_decimals([np.array([graph.constant]), graph.theta_v, graph.theta_t], total)


def _parts(graph: FactorGraph) -> list[tuple[Floats, Ints, Ints]]:
    """Unary potentials and tables, their offsets, and how often each of them counts."""
    uses = np.bincount(graph.table_of, minlength=graph.n_tables)
    return [(graph.theta_v, graph.var_ptr, np.ones_like(graph.card)), (graph.theta_t, graph.table_ptr, uses)]


def _extremes(theta: Floats, ptr: Ints) -> tuple[Floats, Floats]:
    """Largest and smallest finite entry of every block; 0 where there is none."""
    if len(ptr) < 2:
        return np.zeros(0), np.zeros(0)
    high = np.maximum.reduceat(theta, ptr[:-1])
    low = np.minimum.reduceat(np.where(theta == -np.inf, np.inf, theta), ptr[:-1])
    none = high == -np.inf
    return np.where(none, 0.0, high), np.where(none, 0.0, low)


def losses(graph: FactorGraph) -> list[str]:
    decimals, exact = _decimals(graph)
    return [*names_lost(graph), *rounding(decimals, exact)]


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a WCSP with costs in units of 10^-decimals: as many decimals as necessary, up to 15 digits in all."""
    check_values(path, values, ("cost",), "costs")
    graph, functions = written(path, graph)
    # Round to integers; tables with negative costs are shifted by their best entry.
    decimals, _ = _decimals(graph)
    constant = float(scaled(np.array([graph.constant]), decimals)[0])
    offset, costs = max(constant, 0.0), []
    for theta, ptr, uses in _parts(graph):
        units = scaled(theta, decimals)
        shift = np.maximum(_extremes(units, ptr)[0], 0.0)
        offset += float((shift * uses).sum())
        costs.append(np.repeat(shift, np.diff(ptr)) - units)
    factors = factors_to_write(graph, (max(-constant, 0.0), costs[0], costs[1]), 0.0, alone=False)
    name = f"mapmrf:decimals={decimals}:offset={offset:.0f}" if decimals or offset else "mapmrf"
    write_text(path, _text(name, graph.card, factors, functions))


def _text(name: str, card: Ints, factors: Factors, functions: list[WrittenFunction]) -> Iterator[str]:
    """Yield the file; a shared table is listed with the first factor that uses it, to which the others refer."""
    upper = 1.0 - float(_extremes(-factors.theta_t, factors.table_ptr)[1][factors.table_of].sum())
    n_functions = len(factors.table_of) + len(functions)
    yield f"{name} {len(card)} {card.max(initial=0)} {n_functions} {upper:.0f}\n{' '.join(map(str, card.tolist()))}\n"
    costs = np.where(np.isinf(factors.theta_t), upper, factors.theta_t)
    default, places, ptr = listed(costs, factors.table_ptr)
    uses, number = np.bincount(factors.table_of, minlength=len(default)).tolist(), dict[int, int]()
    for a, t in enumerate(factors.table_of.tolist()):
        scope = factors.scope_of(a).tolist()
        start = " ".join(map(str, [len(scope), *scope, f"{default[t]:.0f}"]))
        if t in number:
            yield f"{start} -{number[t]}\n"
            continue
        some = places[ptr[t] : ptr[t + 1]]
        tuples = tuple_text(some - factors.table_ptr[t], tuple(card[scope].tolist()), costs[some], "%.0f")
        if uses[t] > 1:
            number[t] = len(number) + 1
            start = f"-{start}"
        yield f"{start} {len(some)}\n{tuples}"
    for function in functions:
        start = f"{len(function.scope)} {' '.join(map(str, function.scope))} -1 {function.keyword}"
        by_variable = (f"{len(mine)} {' '.join(f'{k} {w}' for k, w in mine)}" for mine in function.weights)
        rest = f"var {upper:.0f}" if function.keyword == "salldiff" else f"{function.capacity} {' '.join(by_variable)}"
        yield f"{start} {rest}\n"
