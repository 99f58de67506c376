"""The factor graphs of libDAI, ``.fg``: potentials, of which only those above 0 are listed, first variable fastest.

A file is the number of factors and, for each of them: the number of its variables, their labels, their cardinalities,
the number of entries, and the entries as pairs of index and value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.formats.files import NumberFile, first_not_whole, numbers_of, read_text, whole_range, write_text
from mapmrf.formats.lists import keeps_list, tables_of_keys
from mapmrf.formats.tables import (
    MOST_COUNT,
    Factors,
    build,
    check_states,
    expected,
    first_bad,
    from_log,
    table_offsets,
    table_sizes,
    to_log,
)
from mapmrf.model.graph import FactorGraph, Names

SUFFIXES = (".fg",)


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a factor graph of libDAI; the numbers are potentials unless `values` says otherwise."""
    # Entries that are not listed are forbidden. Variables are numbered in the order of their labels; if these are not
    # 0, 1, 2, ..., they become names. The format of AD3, which has the same suffix, is not supported.
    values = values or "potential"
    hint = " (files of AD3 have the same suffix and are not supported)"
    file = numbers_of(path, read_text(path), "among the numbers", hint=hint)
    layout = _layout(file)
    card, scope, names = _variables(file, layout)
    places = ranges(layout.entry_at, 2 * layout.count).reshape(-1, 2)
    numbers = file.numbers[places[:, 1]]
    bad = first_bad(numbers, values)
    if bad is not None:
        file.fail(int(places[bad, 1]), f"value in factor {_owner(layout, bad)}", expected(values))
    to_log(numbers, values)
    return build(path, card, _factors(file, layout, scope, (places[:, 0], numbers)), names)


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
    bad = first_not_whole(found, low, MOST_COUNT - 1)
    if bad is not None:
        file.fail(int(places[bad]), what, whole_range(low, MOST_COUNT))
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


def _factors(file: NumberFile, layout: _LibdaiLayout, scope: Ints, entries: tuple[Ints, Floats]) -> Factors:
    """The factors; `entries` are the positions of the indices in the file, and log potentials."""
    index_at, theta = entries
    size = table_sizes(layout.shape, layout.scope_ptr)
    stays = keeps_list(size, layout.count, layout.shape, layout.scope_ptr) & (size <= MOST_COUNT)
    table_ptr = table_offsets(Path(file.path), np.where(stays, layout.count + 1.0, size))
    index, most = file.numbers[index_at], np.repeat(size, layout.count) - 1
    bad = first_not_whole(index, 0, most)
    if bad is not None:
        what = f"a whole number from 0 to {most[bad]:.0f}"
        file.fail(int(index_at[bad]), f"index in factor {_owner(layout, bad)}", what)
    keys = index.astype(np.int64), theta, layout.count
    default = np.full(len(size), -np.inf)
    theta_t, lists = tables_of_keys(table_ptr, stays, default, keys, layout.shape, layout.scope_ptr)
    return Factors(layout.scope_ptr, scope, np.arange(len(size)), table_ptr, theta_t, lists=lists)


def _owner(layout: _LibdaiLayout, entry: int) -> int:
    return int(np.searchsorted(np.cumsum(layout.count), entry, side="right"))


# -- writing ----------------------------------------------------------------------------------------------------------


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a factor graph of libDAI with 17 digits; an isolated variable gets a neutral factor."""
    values = values or "potential"
    absent = 0.0 if values == "potential" else np.inf
    write_text(path, _text(graph, from_log(path, graph, values, alone=True), absent))


def _text(graph: FactorGraph, factors: Factors, absent: float) -> Iterator[str]:
    """Yield the file; `absent` is the number that need not be listed."""
    yield f"{len(factors.table_of)}\n"
    for a, t in enumerate(factors.table_of.tolist()):
        scope = factors.scope_of(a)
        shape = graph.card[scope]
        table = factors.theta_t[factors.table_ptr[t] : factors.table_ptr[t + 1]].reshape(shape).ravel(order="F")
        index = np.flatnonzero(table != absent)
        rows = zip(index.tolist(), table[index].tolist(), strict=True)
        head = f"\n{len(scope)}\n{' '.join(map(str, scope))}\n{' '.join(map(str, shape))}\n{len(index)}\n"
        yield head + ("%d %.17g\n" * len(index)) % tuple(x for row in rows for x in row)
