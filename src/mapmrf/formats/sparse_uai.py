"""The sparse UAI format, ``.suai``: SPARSEMARKOV and SPARSEBAYES.

Like UAI up to the scopes. Then, for every factor: a default, the number of tuples, and the tuples, each of which is a
state per variable of the scope and the value there, instead of the default.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.flat import LINEAR, Constraints
from mapmrf.errors import FormatError
from mapmrf.formats import uai
from mapmrf.formats.bayes import warn_about_rows
from mapmrf.formats.files import NumberFile, read_numbers, whole_range, write_text
from mapmrf.formats.lists import Lists, listed, read_lists, tuple_text, value_places
from mapmrf.formats.tables import MOST_COUNT, Factors, build, expected, first_bad, from_log, one_from_log, to_log
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".suai",)
CONSTRAINTS = True

_WORDS = ("SPARSEMARKOV", "SPARSEBAYES")


sniff = partial(uai.sniff, words=_WORDS)


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a sparse UAI model; the numbers are potentials unless `values` says otherwise."""
    # States count from 0, and the last of repeated tuples is used. Large tables with few tuples become constraints.
    word, file = read_numbers(path, _WORDS)
    values = values or "potential"
    card, n_factors = uai.read_card(file)
    _, scope_ptr, scope, at = uai.read_scopes(file, 2 + len(card), n_factors, len(card))
    lists = _lists(file, at, scope_ptr, card[scope])
    bad = first_bad(lists.default, values)
    if bad is not None:
        file.fail(int(lists.start[bad]) - 2, f"default of factor {bad}", expected(values))
    places, owner = value_places(lists)
    bad = first_bad(file.numbers[places], values)
    if bad is not None:
        file.fail(int(places[bad]), f"tuple of factor {owner[bad]}", expected(values))
    table_ptr, theta_t, kept = read_lists(file, lists)
    to_log(theta_t, values)
    factors = Factors(scope_ptr, scope, np.arange(len(lists.count)), table_ptr, theta_t, lists=kept)
    if word == "SPARSEBAYES" and not kept:
        warn_about_rows(path, card, factors)
    return build(path, card, factors)


def _lists(file: NumberFile, at: int, scope_ptr: Ints, shape: Ints) -> Lists:
    numbers, end = file.numbers.data, len(file.numbers)
    starts = []
    for a, arity in enumerate(np.diff(scope_ptr).tolist()):
        if at + 1 >= end:
            file.fail(end, f"table of factor {a}", "a default and a number of tuples")
        count = numbers[at + 1]
        if not (count >= 0 and count == count // 1 and count < MOST_COUNT):
            file.fail(at + 1, f"number of tuples of factor {a}", whole_range(0, MOST_COUNT))
        starts.append(at + 2)
        at += 2 + int(count) * (arity + 1)
        if at > end:
            there = (end - starts[-1]) // (arity + 1)
            file.fail(end, f"table of factor {a}", f"{count:.0f} tuples, of which {there} are present")
    if at < end:
        file.fail(at, "after the last table", "the end of the file")
    start = np.array(starts, dtype=np.int64)
    return Lists(file.numbers[start - 2], start, file.numbers[start - 1].astype(np.int64), shape, scope_ptr)


# -- writing ----------------------------------------------------------------------------------------------------------


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a sparse UAI model with 17 digits; the most frequent number of a table is its default."""
    # Constraints that are factors with few tuples, as `read` makes them, are written as such; others raise FormatError.
    values = values or "potential"
    graph, lists = _written_lists(path, graph)
    factors = from_log(path, graph, values)
    texts = [_list_text(path, each, values) for each in lists]
    write_text(path, itertools.chain(_text(graph, factors, lists), texts))


def _written_lists(path: Path, graph: FactorGraph) -> tuple[FactorGraph, list[WrittenList]]:
    """The constraints as factors with few tuples, and the model with the unary potentials among these."""
    if graph.constraints is None:
        return graph, []
    found, theta_v = [], graph.theta_v.copy()
    for c in range(graph.n_constraints):
        some = _lists_of(graph.constraints, c, graph.card)
        if some is None:
            raise FormatError(
                f"{path}: constraint {graph.constraints.called(c)} is not a list of tuples; "
                "mapmrf.constraints.as_tables.without_constraints(graph) has tables in its place"
            )
        for each in some:
            if len(each.scope) == 1 and each.default == 0.0:
                theta_v[graph.var_ptr[each.scope[0]] + np.array(each.tuples)[:, 0]] += each.theta
            else:
                found.append(each)
    return replace(graph, theta_v=theta_v), _merged(found)


def _list_text(path: Path, each: WrittenList, values: str) -> str:
    default, number = (f"{one_from_log(path, theta, values):.17g}" for theta in (each.default, each.theta))
    tuples = "".join(f" {' '.join(map(str, states))} {number}\n" for states in each.tuples)
    return f"\n{default} {len(each.tuples)}\n{tuples}"


def _text(graph: FactorGraph, factors: Factors, lists: list[WrittenList]) -> Iterator[str]:
    """Yield the file from the header to the last table; that of the lists follows."""
    yield from uai.head_text("SPARSEMARKOV", graph, factors, len(lists))
    yield "".join([f"{len(each.scope)} {' '.join(map(str, each.scope))}\n" for each in lists])
    default, places, ptr = listed(factors.theta_t, factors.table_ptr)
    texts: dict[int, str] = {}
    for a, t in enumerate(factors.table_of.tolist()):
        if t not in texts:
            some = places[ptr[t] : ptr[t + 1]]
            shape = tuple(graph.card[factors.scope_of(a)].tolist())
            tuples = tuple_text(some - factors.table_ptr[t], shape, factors.theta_t[some], "%.17g")
            texts[t] = f"\n{default[t]:.17g} {len(some)}\n{tuples}"
        yield texts[t]


# -- constraints as lists ---------------------------------------------------------------------------------------------


class WrittenList(NamedTuple):
    """A factor to be written: its variables, its default, and tuples that all have one other log potential."""

    scope: tuple[int, ...]
    default: float
    tuples: list[tuple[int, ...]]
    theta: float


def _lists_of(constraints: Constraints, c: int, card: Ints) -> list[WrittenList] | None:
    """A constraint as factors with few tuples, as `read` turns them into constraints; None if that is impossible."""
    if constraints.kind[c] != LINEAR:
        return None
    mine = constraints.span(c)
    plus, minus = dict[int, list[int]](), dict[int, list[int]]()
    terms = (constraints.var[mine].tolist(), constraints.state[mine].tolist(), constraints.weight[mine].tolist())
    for i, k, weight in zip(*terms, strict=True):
        if abs(weight) != 1.0:
            return None
        (plus if weight > 0 else minus).setdefault(i, []).append(k)
    least, most, penalty = (float(x[c]) for x in (constraints.least, constraints.most, constraints.penalty))
    if minus:  # a variable has one of some states if all others have theirs
        if len(minus) != 1 or plus.keys() & minus.keys() or least > -1.0 or most != len(plus) - 1:
            return None
        ((last, follow),) = minus.items()
        least, most = -math.inf, len(plus)
        plus[last] = sorted(set(range(int(card[last]))) - set(follow))
    n = len(plus)
    if math.prod(map(float, map(len, plus.values()))) > 10_000:
        return None
    tuples = list(itertools.product(*plus.values()))
    if least <= 0 and most == n - 1:  # not all variables have one of their states
        return [WrittenList(tuple(plus), 0.0, tuples, 0.0 - penalty)]
    if least == n and most >= n:  # all have
        return [WrittenList(tuple(plus), 0.0 - penalty, tuples, 0.0)]
    return None


def _merged(lists: Sequence[WrittenList]) -> list[WrittenList]:
    """The same factors in fewer lists: on the same variables, tuples of one potential beside a default of 0 add up."""
    found: list[tuple[WrittenList, dict[tuple[int, ...], None]]] = []
    place: dict[tuple[object, ...], dict[tuple[int, ...], None]] = {}
    for each in lists:
        key = (each.scope, each.theta)
        if each.default == 0.0 and key in place and place[key].keys().isdisjoint(each.tuples):
            place[key].update(dict.fromkeys(each.tuples))
            continue
        found.append((each, dict.fromkeys(each.tuples)))
        if each.default == 0.0:
            place[key] = found[-1][1]
    return [head._replace(tuples=list(tuples)) for head, tuples in found]
