"""The sparse UAI format, ``.suai``: SPARSEMARKOV and SPARSEBAYES.

Like UAI up to the scopes. Then, for every factor: a default, the number of tuples, and the tuples, each of which is a
state per variable of the scope and the value there, instead of the default.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.as_tables import Words
from mapmrf.errors import FormatError, UnsupportedModel
from mapmrf.formats import uai
from mapmrf.formats.bayes import warn_about_rows
from mapmrf.formats.files import NumberFile, read_numbers, whole_range, write_text
from mapmrf.formats.lists import Lists, listed, read_lists, tuple_text, value_places
from mapmrf.formats.tables import MOST_COUNT, Factors, build, expected, first_bad, from_log, one_from_log, to_log
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".suai",)
CONSTRAINTS = True
MOST_TUPLES = 10_000  # of a constraint

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
    lists = list(_written_lists(path, graph))
    factors = from_log(path, graph, values)
    texts = [_list_text(path, each, values) for _, each in lists]
    write_text(path, itertools.chain(_text(graph, factors, lists), texts))


def _written_lists(path: Path, graph: FactorGraph) -> Iterator[tuple[list[int], Words]]:
    """The variables of every constraint, and its tuples."""
    found = graph.constraints
    for c in range(graph.n_constraints):
        assert found is not None
        try:
            counter = found.kind_of(c).automaton(found, c, graph.card)
            words = counter.words(MOST_TUPLES)
        except UnsupportedModel:
            words = None
        if words is None:
            raise FormatError(
                f"{path}: constraint {found.called(c)} is not a list of at most {MOST_TUPLES} tuples; "
                "mapmrf.constraints.as_tables.without_constraints(graph) has tables in its place"
            )
        yield counter.variables, words


def _list_text(path: Path, each: Words, values: str) -> str:
    numbers = {theta: f"{one_from_log(path, theta, values):.17g}" for theta in {each.default, *each.theta.tolist()}}
    rows = zip(each.words.tolist(), each.theta.tolist(), strict=True)
    tuples = "".join(f" {' '.join(map(str, states))} {numbers[theta]}\n" for states, theta in rows)
    return f"\n{numbers[each.default]} {len(each.theta)}\n{tuples}"


def _text(graph: FactorGraph, factors: Factors, lists: list[tuple[list[int], Words]]) -> Iterator[str]:
    """Yield the file from the header to the last table; that of the lists follows."""
    yield from uai.head_text("SPARSEMARKOV", graph, factors, len(lists))
    yield "".join([f"{len(scope)} {' '.join(map(str, scope))}\n" for scope, _ in lists])
    default, places, ptr = listed(factors.theta_t, factors.table_ptr)
    texts: dict[int, str] = {}
    for a, t in enumerate(factors.table_of.tolist()):
        if t not in texts:
            some = places[ptr[t] : ptr[t + 1]]
            shape = tuple(graph.card[factors.scope_of(a)].tolist())
            tuples = tuple_text(some - factors.table_ptr[t], shape, factors.theta_t[some], "%.17g")
            texts[t] = f"\n{default[t]:.17g} {len(some)}\n{tuples}"
        yield texts[t]
