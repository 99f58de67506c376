"""The UAI format, MARKOV and BAYES: ``.uai`` with potentials, ``.LG`` (``.uai.LG``) with their natural logs.

The file is a list of tokens, line breaks are ignored: the word, the number of variables and their cardinalities,
the number of factors, then all scopes (arity, variables), then all tables (size, entries), last variable fastest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.formats.files import NumberFile, first_not_whole, plain_name, read_numbers, whole_range, write_text
from mapmrf.formats.tables import (
    COPIES,
    FEW_ENTRIES,
    MOST_COUNT,
    MOST_STATES,
    WRITTEN_FORBIDDEN,
    Factors,
    build,
    charge_tables,
    check_states,
    expected,
    first_bad,
    first_equal,
    from_log,
    naming,
    table_sizes,
    to_log,
)
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".uai", ".LG", ".uai.LG")

_WORDS = ("MARKOV", "BAYES")
_POTTS = -1
_CHUNK = 1 << 16
# 17 digits would spoil the round number for a forbidden configuration.
_LONG, _SHORT = f"{WRITTEN_FORBIDDEN:.17g}", f"{WRITTEN_FORBIDDEN:g}"


def sniff(data: bytes, words: tuple[str, ...] = _WORDS) -> bool:
    return data[:64].lstrip().upper().startswith(tuple(word.encode() for word in words))


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a UAI model; equal tables are stored once, and many multiples of one table as that table and weights."""
    # Besides the standard, this accepts comments (``c ...`` lines, ``# ...``), arity 0, and in files of logs or costs
    # the table size -1 of MPLP: a Potts factor, 0 where its two variables agree and the one number given elsewhere. A
    # CPT of a BAYES file is kept as it is; rows that do not sum to 1 are logged.
    values = values or _usual_values(path)
    with naming(path):
        word, file = read_numbers(path, _WORDS)
        layout = _layout(file)
        if layout.potts.any() and values == "potential":
            a = int(np.flatnonzero(layout.potts)[0])
            file.fail(int(layout.start[a]) - 1, layout.name(a), f"{layout.size[a]} (-1, a Potts factor, needs logs)")
        entries = file.numbers[layout.first_size :]
        bad = first_bad(entries, values)
        if bad is not None:
            at = layout.first_size + bad
            a = int(np.searchsorted(layout.start, at, side="right")) - 1
            file.fail(at, f"{layout.name(a)}, entry {at - layout.start[a]}", expected(values))
        to_log(entries, values)
        factors = _distinct_tables(path, file.numbers, layout)
        del file, entries  # the numbers of the file are not needed any more
        if word == "BAYES":
            from mapmrf.formats.bayes import warn_about_rows

            warn_about_rows(path, layout.card, factors)
        return build(path, layout.card, factors, distinct=True)


def _usual_values(path: Path) -> str:
    return "log" if plain_name(path).endswith(".lg") else "potential"


@dataclass(frozen=True, eq=False)
class _Layout:
    """Layout of a file; positions count its numbers."""

    # `start` is the position of a factor's first entry and `size` the number of entries that its table has in memory;
    # the file has as many, except for Potts factors, which have one.

    card: Ints
    scope_ptr: Ints
    scope: Ints
    first_size: int
    start: Ints
    size: Ints
    potts: Bools

    def name(self, a: int) -> str:
        return _name(a, self.scope[self.scope_ptr[a] : self.scope_ptr[a + 1]])


def _layout(file: NumberFile) -> _Layout:
    """Go through the file from the cardinalities to the last table, checking all counts."""
    card, n_factors = read_card(file)
    _, scope_ptr, scope, at = read_scopes(file, 2 + len(card), n_factors, len(card))
    size = table_sizes(card[scope], scope_ptr)
    potts = np.zeros(n_factors, dtype=bool)
    if at < len(file.numbers) and (file.numbers[at:] == _POTTS).any():
        potts = _potts_factors(file, at, size, scope_ptr, card[scope])

    def wrong_size(a: int) -> tuple[str, str]:
        variables = scope[scope_ptr[a] : scope_ptr[a + 1]]
        shape = [int(c) for c in card[variables]]
        product = f" = {' x '.join(map(str, shape))}" if 1 < len(shape) <= 8 else ""
        entries = math.prod(shape)
        expected = f"{entries}{product}" if entries < MOST_COUNT else "a table that could be stored"
        return f"table size of {_name(a, variables)}", expected

    start = table_places(file, at, size, potts, "factor", wrong_size)
    return _Layout(card, scope_ptr, scope, at, start, size.astype(np.int64), potts)


def read_card(file: NumberFile) -> tuple[Ints, int]:
    most = len(file.numbers)
    n_vars = int(file.integers(0, 1, 0, MOST_COUNT, "number of variables")[0])
    if n_vars >= most:
        file.fail(most, "cardinalities", f"{n_vars} of them and the number of factors")
    card = file.integers(1, n_vars, 1, MOST_STATES, "cardinality of variable {}")
    check_states(Path(file.path), card)
    n_factors = int(file.integers(1 + n_vars, 1, 0, MOST_COUNT, "number of factors")[0])
    # A factor has at least three tokens; a wrong count must not allocate memory.
    if 3 * n_factors > most - n_vars - 2:
        file.fail(most, f"number of factors is {n_factors}", f"at least {3 * n_factors + n_vars + 3}")
    return card, n_factors


def read_scopes(
    file: NumberFile,
    at: int,
    n_factors: int,
    n_vars: int,
    names: tuple[str, str] = ("arity of factor", "scope of factor"),
) -> tuple[Ints, Ints, Ints, int]:
    """Positions of the factors' arities, offsets and variables of the scopes, and where they end."""
    numbers, begin, places = file.numbers.data, at, list[int]()
    # The only loop over factors in Python: it does as little as possible and leaves the checks for later.
    with suppress(IndexError, ValueError, OverflowError):
        for _ in range(n_factors):
            arity = numbers[at]
            places.append(at)
            at += int(arity) + 1
    wrong = first_not_whole(file.numbers[places], 0, n_vars)
    if wrong is not None:
        file.fail(places[wrong], f"{names[0]} {wrong}", whole_range(0, n_vars))
    if len(places) < n_factors:
        file.fail(len(numbers), f"{names[0]} {len(places)}", "a scope for every factor")
    arity_at = np.array([*places, at], dtype=np.int64)
    scope_ptr = offsets(np.diff(arity_at) - 1)
    if at > len(numbers):
        file.fail(at, f"{names[1]} {n_factors - 1}", f"{scope_ptr[-1] - scope_ptr[-2]} variables")
    is_variable = np.ones(at - begin, dtype=bool)
    is_variable[arity_at[:-1] - begin] = False
    scope = file.numbers[begin:at][is_variable]
    bad, what = first_not_whole(scope, 0, n_vars - 1), f"a variable from 0 to {n_vars - 1}"
    if bad is None:
        bad, what = _first_repeat(scope, scope_ptr), "a variable that is not in this scope already"
    if bad is not None:
        a = int(np.searchsorted(scope_ptr, bad, side="right")) - 1
        file.fail(begin + a + 1 + bad, f"{names[1]} {a}", what)
    return arity_at, scope_ptr, scope.astype(np.int64), at


def _first_repeat(scope: Floats, scope_ptr: Ints) -> int | None:
    """Position in `scope` of the first variable that repeats an earlier one of the same factor."""
    arity = np.diff(scope_ptr)
    found = list[int]()
    for k in np.flatnonzero(np.bincount(arity[arity > 1])).tolist():
        places = scope_ptr[:-1][arity == k, None] + np.arange(k)
        order = np.argsort(scope[places], axis=1, kind="stable")
        places = np.take_along_axis(places, order, axis=1)
        again = places[:, 1:][np.diff(scope[places], axis=1) == 0]
        found.extend([int(again.min())] if len(again) else [])
    return min(found, default=None)


def _potts_factors(file: NumberFile, at: int, size: Floats, scope_ptr: Ints, states: Ints) -> Bools:
    """Which factors have the table size -1; since these are shorter, the file must be walked."""
    numbers = file.numbers.data
    potts = np.zeros(len(size), dtype=bool)
    for a, entries in enumerate(size.tolist()):
        if at >= len(numbers):
            break
        if numbers[at] == _POTTS:
            shape = states[scope_ptr[a] : scope_ptr[a + 1]].tolist()
            if len(shape) != 2 or shape[0] != shape[1]:
                file.fail(at, f"table size of factor {a}", "-1 only for two variables with the same number of states")
            potts[a] = True
            entries = 1.0
        elif numbers[at] != entries:
            break  # a wrong size, reported later; everything after it is misplaced
        at += int(min(entries, len(numbers))) + 1
    return potts


def table_places(
    file: NumberFile, at: int, size: Floats, potts: Bools, owner: str, wrong_size: Callable[[int], tuple[str, str]]
) -> Ints:
    """Positions of the first entries of the tables, after checking that all sizes fit and nothing follows."""
    end = len(file.numbers)
    count = np.where(potts, 1, np.minimum(size, end)).astype(np.int64)
    size_at = at + offsets(count + 1)
    inside = size_at[:-1] < end
    wrong = np.flatnonzero(file.numbers[size_at[:-1][inside]] != np.where(potts, _POTTS, size)[inside])
    if len(wrong):
        file.fail(int(size_at[wrong[0]]), *wrong_size(int(wrong[0])))
    if size_at[-1] > end:
        a = int(np.flatnonzero(size_at[1:] > end)[0])
        what = f"{size[a]:.0f} entries, of which {max(0, end - size_at[a] - 1)} are present"
        file.fail(end, f"table of {owner} {a}", what)
    if size_at[-1] < end:
        file.fail(int(size_at[-1]), "after the last table", "the end of the file")
    return size_at[:-1] + 1


def _name(a: int, variables: Ints) -> str:
    names = [str(i) for i in variables[:6].tolist()] + ["..."] * (len(variables) > 6)
    return f"factor {a} (variables {', '.join(names)})" if names else f"factor {a} (no variables)"


def _distinct_tables(path: Path, theta: Floats, layout: _Layout) -> Factors:
    """Gather every distinct table once, in the order of the file; those of Potts factors come last."""
    plain = np.flatnonzero(~layout.potts)
    start, size = layout.start[plain], layout.size[plain]
    used, plain_table_of = np.unique(first_equal(theta, start, size), return_inverse=True)
    # A mask of the entries to keep needs an eighth of the memory of their indices.
    change = np.zeros(len(theta) + 1, dtype=np.int8)
    change[start[used]] = 1
    change[start[used] + size[used]] -= 1
    kept = theta[np.cumsum(change[:-1], dtype=np.int8).view(bool)]
    table_of = np.zeros(len(layout.size), dtype=np.int64)
    table_of[plain] = plain_table_of
    found = Factors(layout.scope_ptr, layout.scope, table_of, offsets(size[used]), kept)
    return found if len(plain) == len(table_of) else _with_potts(path, found, theta, layout)


def _with_potts(path: Path, factors: Factors, theta: Floats, layout: _Layout) -> Factors:
    """Add the tables of Potts factors: one for each cardinality and value; if these are large, units and weights."""
    potts = np.flatnonzero(layout.potts)
    card, value = layout.card[layout.scope[layout.scope_ptr[potts]]], theta[layout.start[potts]]
    kinds, of = np.unique(np.stack([card, value]), axis=1, return_inverse=True)
    weight = None
    if (kinds[0] ** 2).sum() > max(FEW_ENTRIES, len(layout.size)):
        hard = np.isinf(value)
        units, unit_of = np.unique(np.stack([card, np.where(hard, value, 1.0)]), axis=1, return_inverse=True)
        if units.shape[1] < kinds.shape[1]:
            kinds, of, weight = units, unit_of, np.ones(len(layout.size))
            weight[potts] = np.where(hard, 1.0, value)
    # They are filled in place; only the others are copied.
    charge_tables(path, kinds[0] ** 2, 1.5 if len(factors.theta_t) == 0 else COPIES)
    n, table_of = len(factors.table_ptr) - 1, factors.table_of.copy()
    table_of[potts] = n + of.ravel()
    table_ptr = offsets(np.concatenate([np.diff(factors.table_ptr), (kinds[0] ** 2).astype(np.int64)]))
    theta_t = np.empty(int(table_ptr[-1]))
    theta_t[: len(factors.theta_t)] = factors.theta_t
    for t, (states, other) in enumerate(kinds.T.tolist()):
        table = theta_t[table_ptr[n + t] : table_ptr[n + t + 1]]
        table[:] = other
        table[:: int(states) + 1] = 0.0
    return replace(factors, table_of=table_of, table_ptr=table_ptr, theta_t=theta_t, weight=weight)


# -- writing ----------------------------------------------------------------------------------------------------------


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a UAI model (MARKOV) with 17 digits; potentials out of range are scaled into `constant`."""
    write_text(path, model_text(graph, from_log(path, graph, values or _usual_values(path))))


def model_text(graph: FactorGraph, factors: Factors) -> Iterator[str]:
    """Yield the file from the header to the last table."""
    yield from head_text("MARKOV", graph, factors)
    yield "\n"
    ptr = factors.table_ptr
    for some in _chunks(factors.table_of, int(np.diff(ptr).max(initial=1))):
        # Tables shared within a chunk are formatted once.
        used, place = np.unique(some, return_inverse=True)
        begin, sizes = ptr[used], ptr[used + 1] - ptr[used]
        formats = {size: f"{size}\n" + " %.17g" * size + "\n" for size in np.unique(sizes).tolist()}
        flat = factors.theta_t[ranges(begin, sizes)].tolist()
        texts, at = [], 0
        for size in sizes.tolist():
            texts.append(formats[size] % tuple(flat[at : at + size]))
            at += size
        yield "".join([texts[t] for t in place.tolist()]).replace(_LONG, _SHORT)


def head_text(word: str, graph: FactorGraph, factors: Factors, n_more: int = 0) -> Iterator[str]:
    """Yield the file up to the scopes of the factors, after which `n_more` follow."""
    yield f"{word}\n{graph.n_vars}\n{' '.join(map(str, graph.card.tolist()))}\n{len(factors.table_of) + n_more}\n"
    arities = np.diff(factors.scope_ptr)
    line = {k: f"{k}" + " %d" * k + "\n" for k in np.unique(arities).tolist()}
    for some in _chunks(np.arange(len(arities))):
        variables = factors.scope[factors.scope_ptr[some[0]] : factors.scope_ptr[some[-1] + 1]]
        yield "".join([line[k] for k in arities[some].tolist()]) % tuple(variables.tolist())


def _chunks(items: Ints, size: int = 1) -> Iterator[Ints]:
    step = max(1, _CHUNK // size)
    for begin in range(0, len(items), step):
        yield items[begin : begin + step]
