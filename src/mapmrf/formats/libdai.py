"""The factor graphs of libDAI, ``.fg``: potentials, of which only those above 0 are listed, first variable fastest.

A file is the number of factors and, for each of them: the number of its variables, their labels, their cardinalities,
the number of entries, and the entries as pairs of index and value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats import scales, tokens
from mapmrf.formats._listed import build_listed, keeps_list, shape_bounds, states_at
from mapmrf.formats._tables import MOST_COUNT, Factors, check_states, last_fastest, table_offsets, table_sizes
from mapmrf.formats.files import replacing
from mapmrf.formats.tokens import NumberFile, parse_numbers, read_text
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".fg",)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a factor graph of libDAI; the numbers are potentials unless `values` says otherwise.

    Entries that are not listed are forbidden. Variables are numbered in the order of their labels; if these are not
    0, 1, 2, ..., they become names. The format of AD3, which has the same suffix, is not supported.
    """
    values = values or "potential"
    file = _numbers(path)
    layout = _layout(file)
    card, scope, names = _variables(file, layout)
    places = ranges(layout.entry_at, 2 * layout.count).reshape(-1, 2)
    numbers = file.numbers[places[:, 1]]
    bad = scales.first_bad(numbers, values)
    if bad is not None:
        file.fail(int(places[bad, 1]), f"value in factor {_owner(layout, bad)}", scales.expected(values))
    scales.to_log(numbers, values)
    factors, lists = _tables(file, layout, places[:, 0], numbers)
    return build_listed(path, card, replace(factors, scope=scope), lists, names)


def _numbers(path: Path) -> NumberFile:
    text = read_text(path)
    tokens.charge_numbers(path, text)
    numbers = parse_numbers(text)
    if numbers is not None:
        return NumberFile(path, numbers)
    for place, match in enumerate(tokens.TOKEN.finditer(text)):
        if tokens.NUMBER.fullmatch(match[0]) is None:
            hint = " (files of AD3 have the same suffix and are not supported)" if match[0].isupper() else ""
            tokens.fail_at(path, text, place, "among the numbers", f"a number{hint}")
    raise FormatError(f"{path}: cannot read the numbers of this file")


@dataclass(frozen=True, eq=False)
class _LibdaiLayout:
    """Positions of the factors among the numbers; `shape` are the cardinalities given with them."""

    label_at: Ints
    scope_ptr: Ints
    labels: Ints
    shape: Ints
    entry_at: Ints
    count: Ints


def _layout(file: NumberFile) -> _LibdaiLayout:
    """Walk from factor to factor up to the end of the file."""
    n_factors = int(file.integers(0, 1, 0, MOST_COUNT, "number of factors")[0])
    numbers, end = file.numbers.data, len(file.numbers)
    if 2 * n_factors > end - 1:
        file.fail(end, f"number of factors is {n_factors}", f"at least {2 * n_factors + 1}")
    rows = []
    at = 1
    for a in range(n_factors):
        arity = numbers[at] if at < end else -1.0
        if not (0 <= arity < end and arity == arity // 1):
            file.fail(at, f"number of variables of factor {a}", "a whole number of at least 0")
        k = int(arity)
        count_at = at + 1 + 2 * k
        count = numbers[count_at] if count_at < end else -1.0
        if not (0 <= count < MOST_COUNT and count == count // 1):
            file.fail(count_at, f"number of entries of factor {a}", "a whole number of at least 0")
        rows.append((at + 1, k, int(count)))
        at = count_at + 1 + 2 * int(count)
        if at > end:
            there = (end - count_at - 1) // 2
            file.fail(end, f"entries of factor {a}", f"{count:.0f} of them, of which {there} are present")
    if at < end:
        file.fail(at, "after the last factor", "the end of the file")
    label_at, arity_of, counts = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return _LibdaiLayout(
        label_at,
        np.append(0, np.cumsum(arity_of)),
        _integers(file, ranges(label_at, arity_of), 0, "label of a variable"),
        _integers(file, ranges(label_at + arity_of, arity_of), 1, "cardinality"),
        label_at + 2 * arity_of + 1,
        counts,
    )


def _integers(file: NumberFile, places: Ints, low: int, what: str) -> Ints:
    found = file.numbers[places]
    bad = np.flatnonzero(~((found >= low) & (found < MOST_COUNT) & (found == np.floor(found))))
    if len(bad):
        file.fail(int(places[bad[0]]), what, f"a whole number of at least {low}")
    return found.astype(np.int64)


def _variables(file: NumberFile, layout: _LibdaiLayout) -> tuple[Ints, Ints, Names | None]:
    """Cardinalities, scopes and, if the labels are not the indices, names; all factors must agree on cardinalities."""
    labels, first, scope = np.unique(layout.labels, return_index=True, return_inverse=True)
    card = layout.shape[first]
    wrong = np.flatnonzero(card[scope] != layout.shape)
    if len(wrong):
        e = int(wrong[0])
        a = int(np.searchsorted(layout.scope_ptr, e, side="right")) - 1
        at = layout.label_at[a] + layout.scope_ptr[a + 1] - 2 * layout.scope_ptr[a] + e
        file.fail(int(at), f"cardinality of variable {layout.labels[e]} in factor {a}", f"{card[scope[e]]} as before")
    check_states(Path(file.path), card)
    plain = np.array_equal(labels, np.arange(len(labels)))
    return card, scope, None if plain else Names(tuple(map(str, labels.tolist())))


def _tables(file: NumberFile, layout: _LibdaiLayout, index_at: Ints, theta: Floats) -> tuple[Factors, dict[int, Ints]]:
    """Scopes and tables with the last variable fastest, and the tuples of the tables that stay lists."""
    size = table_sizes(layout.shape, layout.scope_ptr)
    stays = keeps_list(size, layout.count, shape_bounds(layout.shape, layout.scope_ptr)) & (size <= MOST_COUNT)
    table_ptr = table_offsets(Path(file.path), np.where(stays, layout.count + 1.0, size))
    most = np.repeat(size, layout.count)
    index = file.numbers[index_at]
    bad = np.flatnonzero(~((index >= 0) & (index < most) & (index == np.floor(index))))
    if len(bad):
        j = int(bad[0])
        file.fail(
            int(index_at[j]), f"index in factor {_owner(layout, j)}", f"a whole number from 0 to {most[j] - 1:.0f}"
        )
    table = np.full(int(table_ptr[-1]), -np.inf)
    within = 1 + ranges(np.zeros(len(layout.count), dtype=np.int64), layout.count)
    place = np.where(np.repeat(stays, layout.count), within, index.astype(np.int64))
    table[np.repeat(table_ptr[:-1], layout.count) + place] = theta
    shape, lists = layout.shape.copy(), dict[int, Ints]()
    begin = offsets(layout.count)
    for t in np.flatnonzero(stays).tolist():
        mine = slice(int(layout.scope_ptr[t]), int(layout.scope_ptr[t + 1]))
        lists[t] = states_at(index[begin[t] : begin[t + 1]].astype(np.int64), layout.shape[mine])
        shape[mine] = 1  # no axes to be reversed
        shape[mine.start] = layout.count[t] + 1
    theta_t = last_fastest(table, table_ptr, shape, layout.scope_ptr)
    return Factors(layout.scope_ptr, np.zeros(0, dtype=np.int64), np.arange(len(size)), table_ptr, theta_t), lists


def _owner(layout: _LibdaiLayout, entry: int) -> int:
    return int(np.searchsorted(np.cumsum(layout.count), entry, side="right"))


# -- writing ----------------------------------------------------------------------------------------------------------


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a factor graph of libDAI with 17 digits; an isolated variable gets a neutral factor."""
    values = values or "potential"
    try:
        constant, unary, tables = scales.from_log(path, graph, values)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    neutral, absent = (1.0, 0.0) if values == "potential" else (0.0, np.inf)
    in_factor = np.zeros(graph.n_vars, dtype=bool)
    in_factor[graph.scope] = True
    with_unary = np.unique(np.repeat(np.arange(graph.n_vars), graph.card)[unary != neutral])
    written = np.union1d(with_unary, np.flatnonzero(~in_factor)).tolist()
    n_constants = int(constant != neutral)
    with replacing(path) as file:
        file.write(f"{n_constants + len(written) + graph.n_factors}\n".encode())
        if n_constants:
            file.write(_block([], [], np.array([constant]), absent).encode())
        for i in written:
            part = unary[graph.var_ptr[i] : graph.var_ptr[i + 1]]
            file.write(_block([i], [int(graph.card[i])], part, absent).encode())
        for text in _factor_text(graph, tables, absent):
            file.write(text.encode())


def _factor_text(graph: FactorGraph, tables: Floats, absent: float) -> Iterator[str]:
    """Yield the factors, every table with the first variable fastest."""
    for a in range(graph.n_factors):
        t = graph.table_of[a]
        scope = graph.scope_of(a)
        shape = graph.card[scope]
        table = tables[graph.table_ptr[t] : graph.table_ptr[t + 1]].reshape(shape)
        yield _block(scope.tolist(), shape.tolist(), table.ravel(order="F"), absent)


def _block(scope: list[int], shape: list[int], numbers: Floats, absent: float) -> str:
    """The text of one factor; `absent` is the number that need not be listed."""
    index = np.flatnonzero(numbers != absent)
    rows = zip(index.tolist(), numbers[index].tolist(), strict=True)
    head = f"\n{len(scope)}\n{' '.join(map(str, scope))}\n{' '.join(map(str, shape))}\n{len(index)}\n"
    return head + ("%d %.17g\n" * len(index)) % tuple(x for row in rows for x in row)
