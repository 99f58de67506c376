"""The sparse UAI format, ``.suai``: SPARSEMARKOV and SPARSEBAYES.

Like UAI up to the scopes. Then, for every factor: a default, the number of tuples, and the tuples, each of which is a
state per variable of the scope and the value there, instead of the default.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.errors import FormatError
from mapmrf.formats import scales, uai
from mapmrf.formats._listed import WrittenList, build_listed, merged_lists, written_lists
from mapmrf.formats._tables import Factors
from mapmrf.formats._tuples import Lists, listed, read_lists, shape_of, tuple_text, value_places
from mapmrf.formats.files import replacing
from mapmrf.formats.tokens import NumberFile, read_numbers, whole_range
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".suai",)
CONSTRAINTS = True

_WORDS = ("SPARSEMARKOV", "SPARSEBAYES")


def sniff(data: bytes) -> bool:
    """Return whether a file of unknown name starts like a sparse UAI model."""
    return data[:64].lstrip().upper().startswith(tuple(word.encode() for word in _WORDS))


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a sparse UAI model; the numbers are potentials unless `values` says otherwise.

    States count from 0, and the last of repeated tuples is used. Large tables with few tuples become constraints.
    """
    word, file = read_numbers(path, _WORDS)
    card, scope_ptr, scope, at = read_scopes(file)
    lists = _lists(file, at, scope_ptr, card[scope])
    values = values or "potential"
    _check_numbers(file, lists, values)
    table_ptr, theta_t, kept = read_lists(file, lists)
    scales.to_log(theta_t, values)
    factors = Factors(scope_ptr, scope, np.arange(len(lists.count)), table_ptr, theta_t)
    if word == "SPARSEBAYES" and not kept:
        warn_about_rows(path, card, factors)
    return build_listed(path, card, factors, kept)


def read_scopes(file: NumberFile) -> tuple[Ints, Ints, Ints, int]:
    """Read the part that the format shares with UAI: cardinalities and scopes."""
    card, n_factors = uai.read_card(file)
    at = 2 + len(card)
    arity_at = uai.arity_places(file, at, n_factors, len(card))
    return card, *uai.read_scopes(file, arity_at, at, len(card))


def _lists(file: NumberFile, at: int, scope_ptr: Ints, shape: Ints) -> Lists:
    """Walk from table to table up to the end of the file."""
    numbers, end = file.numbers.data, len(file.numbers)
    starts = []
    for a, arity in enumerate(np.diff(scope_ptr).tolist()):
        if at + 1 >= end:
            file.fail(end, f"table of factor {a}", "a default and a number of tuples")
        count = numbers[at + 1]
        if not (count >= 0 and count == count // 1 and count < 2**53):
            file.fail(at + 1, f"number of tuples of factor {a}", whole_range(0, 2**53))
        starts.append(at + 2)
        at += 2 + int(count) * (arity + 1)
        if at > end:
            there = (end - starts[-1]) // (arity + 1)
            file.fail(end, f"table of factor {a}", f"{count:.0f} tuples, of which {there} are present")
    if at < end:
        file.fail(at, "after the last table", "the end of the file")
    start = np.array(starts, dtype=np.int64)
    return Lists(file.numbers[start - 2], start, file.numbers[start - 1].astype(np.int64), shape, scope_ptr)


def _check_numbers(file: NumberFile, lists: Lists, values: str) -> None:
    bad = scales.first_bad(lists.default, values)
    if bad is not None:
        file.fail(int(lists.start[bad]) - 2, f"default of factor {bad}", scales.expected(values))
    places, owner = value_places(lists)
    bad = scales.first_bad(file.numbers[places], values)
    if bad is not None:
        file.fail(int(places[bad]), f"tuple of factor {owner[bad]}", scales.expected(values))


def warn_about_rows(path: Path, card: Ints, factors: Factors) -> None:
    """Log how many conditional tables do not sum to 1."""
    size = np.diff(factors.table_ptr)
    start, potts = factors.table_ptr[:-1], np.zeros(len(size), dtype=bool)
    layout = uai.UaiLayout(card, factors.scope_ptr, factors.scope, 0, start, size, potts)
    uai.warn_about_rows(path, layout, uai.UaiTables(factors.table_of, factors.table_ptr, factors.theta_t))


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a sparse UAI model with 17 digits; the most frequent number of a table is its default.

    Constraints that are factors with few tuples, as `read` makes them, are written as such; others raise FormatError.
    """
    values = values or "potential"
    graph, lists = _written_lists(path, graph)
    try:
        numbers = scales.from_log(path, graph, values)
        texts = [_list_text(each, values) for each in lists]
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    neutral = 1.0 if values == "potential" else 0.0
    with replacing(path) as file:
        for text in _text(graph, numbers, neutral, [each.scope for each in lists]):
            file.write(text.encode("ascii"))
        for text in texts:
            file.write(text.encode("ascii"))


def _written_lists(path: Path, graph: FactorGraph) -> tuple[FactorGraph, list[WrittenList]]:
    """The constraints as factors with few tuples, and the model with the unary potentials among these."""
    if graph.constraints is None:
        return graph, []
    found, theta_v = [], graph.theta_v.copy()
    for c in range(graph.n_constraints):
        some = written_lists(graph.constraints, c, graph.card)
        if some is None:
            raise FormatError(
                f"{path}: constraint {c} ({graph.constraints.names[c]}) is not a list of tuples; "
                "mapmrf.constraints.as_tables.without_constraints(graph) has tables in its place"
            )
        for each in some:
            if len(each.scope) == 1 and each.default == 0.0:
                theta_v[graph.var_ptr[each.scope[0]] + np.array(each.tuples)[:, 0]] += each.theta
            else:
                found.append(each)
    return replace(graph, theta_v=theta_v), merged_lists(found)


def _list_text(each: WrittenList, values: str) -> str:
    """Default, number of tuples and tuples."""
    default, number = (f"{scales.one_from_log(theta, values):.17g}" for theta in (each.default, each.theta))
    tuples = "".join(f" {' '.join(map(str, states))} {number}\n" for states in each.tuples)
    return f"\n{default} {len(each.tuples)}\n{tuples}"


def _text(
    graph: FactorGraph, numbers: tuple[float, Floats, Floats], neutral: float, scopes: list[tuple[int, ...]]
) -> Iterator[str]:
    """Yield the file from the header to the last table; lists on `scopes` follow."""
    constant, unary, tables = numbers
    loud = np.unique(np.repeat(np.arange(graph.n_vars), graph.card)[unary != neutral])
    n_constants = int(constant != neutral)
    yield f"SPARSEMARKOV\n{graph.n_vars}\n{' '.join(map(str, graph.card.tolist()))}\n"
    yield f"{n_constants + len(loud) + graph.n_factors + len(scopes)}\n" + "0\n" * n_constants
    yield "".join([f"1 {i}\n" for i in loud.tolist()])
    yield from _scope_lines(graph)
    yield "".join([f"{len(scope)} {' '.join(map(str, scope))}\n" for scope in scopes])
    yield f"\n{constant:.17g} 0\n" * n_constants
    unary_ptr = np.append(0, np.cumsum(graph.card[loud]))
    parts = unary[ranges(graph.var_ptr[loud], graph.card[loud])]
    yield from _lists_text(parts, unary_ptr, [(int(r),) for r in graph.card[loud]])
    used, first, table_of = np.unique(graph.table_of, return_index=True, return_inverse=True)
    sizes = np.diff(graph.table_ptr)[used]
    parts = tables[ranges(graph.table_ptr[used], sizes)]
    texts = list(_lists_text(parts, np.append(0, np.cumsum(sizes)), [shape_of(graph, a) for a in first.tolist()]))
    for t in table_of.tolist():
        yield texts[t]


def _scope_lines(graph: FactorGraph) -> Iterator[str]:
    scope, ptr = graph.scope.tolist(), graph.scope_ptr.tolist()
    for begin, end in pairwise(ptr):
        yield f"{end - begin} {' '.join(map(str, scope[begin:end]))}\n"


def _lists_text(numbers: Floats, table_ptr: Ints, shapes: list[tuple[int, ...]]) -> Iterator[str]:
    """Yield default, number of tuples and tuples of every table."""
    default, places, ptr = listed(numbers, table_ptr)
    for t, shape in enumerate(shapes):
        some = places[ptr[t] : ptr[t + 1]]
        tuples = tuple_text(some - table_ptr[t], shape, numbers[some], "%.17g")
        yield f"\n{default[t]:.17g} {len(some)}\n{tuples}"
