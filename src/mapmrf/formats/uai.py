"""The UAI format, MARKOV and BAYES: ``.uai`` with potentials, ``.LG`` (``.uai.LG``) with their natural logs.

The file is a list of tokens, line breaks are ignored: the word, the number of variables and their cardinalities,
the number of factors, then all scopes (arity, variables), then all tables (size, entries), last variable fastest.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.errors import FormatError, GraphError
from mapmrf.formats import scales
from mapmrf.formats._listed import build_listed, diagonal, keeps_list
from mapmrf.formats._tables import COPIES, MOST_COUNT, MOST_STATES, Factors, assemble, charge_tables, check_states
from mapmrf.formats.files import plain_name, replacing
from mapmrf.formats.sharing import first_equal
from mapmrf.formats.tokens import NumberFile, read_numbers, whole_range
from mapmrf.formats.uai_text import model_text
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".uai", ".LG", ".uai.LG")

_WORDS = ("MARKOV", "BAYES")
_POTTS = -1
FEW_ENTRIES = 1 << 16
"""Entries up to which Potts factors get a table for every value: shared tables are found later."""
_log = logging.getLogger("mapmrf")


def sniff(data: bytes) -> bool:
    """Return whether a file of unknown name starts like a UAI model."""
    return data[:64].lstrip().upper().startswith(tuple(word.encode() for word in _WORDS))


def read(path: Path, *, values: str | None = None) -> FactorGraph:
    """Read a UAI model; equal tables are stored once, and many multiples of one table as that table and weights.

    Besides the standard, this accepts comments (``c ...`` lines, ``# ...``), arity 0, and in files of logs or costs
    the table size -1 of MPLP: a Potts factor, 0 where its two variables agree and the one number given elsewhere.
    The largest of these become constraints, without a table. A CPT of a BAYES file is kept as it is; rows that do not
    sum to 1 are logged.
    """
    try:
        layout, tables = _read_tables(path, values or _usual_values(path))
        factors = Factors(
            layout.scope_ptr, layout.scope, tables.table_of, tables.table_ptr, tables.theta_t, tables.weight
        )
        if tables.lists:
            return build_listed(path, layout.card, factors, tables.lists)
        return assemble(layout.card, factors)
    except GraphError as error:
        raise FormatError(f"{path}: {error}") from None
    except MemoryError:
        raise FormatError(f"{path}: the model does not fit into memory") from None


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write a UAI model (MARKOV) with 17 digits; potentials out of range are scaled into `constant`."""
    values = values or _usual_values(path)
    try:
        numbers = scales.from_log(path, graph, values)
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    neutral = 1.0 if values == "potential" else 0.0
    with replacing(path) as file:
        for text in model_text(graph, *numbers, neutral):
            file.write(text.encode("ascii"))


def _usual_values(path: Path) -> str:
    return "log" if plain_name(path).endswith(".lg") else "potential"


@dataclass(frozen=True, eq=False)
class UaiLayout:
    """Layout of a file; positions count its numbers.

    `start` is the position of a factor's first entry and `size` the number of entries that its table has in memory;
    the file has as many, except for Potts factors, which have one.
    """

    card: Ints
    scope_ptr: Ints
    scope: Ints
    first_size: int
    start: Ints
    size: Ints
    potts: Bools

    def name(self, a: int) -> str:
        """Description of a factor's table for messages."""
        return _factor_name(a, self.scope[self.scope_ptr[a] : self.scope_ptr[a + 1]])


@dataclass(frozen=True, eq=False)
class UaiTables:
    """The tables of a file: the table of each factor, offsets, entries, and weights of the factors if any.

    The entries of a table in `lists` are its default and the values of its tuples, which `lists` holds.
    """

    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats | None = None
    lists: dict[int, Ints] = field(default_factory=dict)


def _read_tables(path: Path, values: str) -> tuple[UaiLayout, UaiTables]:
    """Read the file and return its distinct tables, as logs; everything else is dropped."""
    word, file = read_numbers(path, _WORDS)
    layout = _layout(file)
    if layout.potts.any() and values == "potential":
        a = int(np.flatnonzero(layout.potts)[0])
        file.fail(int(layout.start[a]) - 1, layout.name(a), f"{layout.size[a]} (-1, a Potts factor, needs logs)")
    entries = file.numbers[layout.first_size :]
    bad = scales.first_bad(entries, values)
    if bad is not None:
        _fail_value(file, layout, bad, values)
    scales.to_log(entries, values)
    tables = _distinct_tables(path, file.numbers, layout)
    if word == "BAYES" and not tables.lists:
        warn_about_rows(path, layout, tables)
    return layout, tables


def _layout(file: NumberFile) -> UaiLayout:
    """Go through the file from the cardinalities to the last table, checking all counts."""
    card, n_factors = read_card(file)
    at = 2 + len(card)
    arity_at = arity_places(file, at, n_factors, len(card))
    scope_ptr, scope, at = read_scopes(file, arity_at, at, len(card))
    size = _table_sizes(card[scope], scope_ptr)
    potts = np.zeros(n_factors, dtype=bool)
    if at < len(file.numbers) and (file.numbers[at:] == _POTTS).any():
        potts = _potts_factors(file, at, size, scope_ptr, card[scope])
    start = _table_places(file, at, size, potts, (scope_ptr, scope, card))
    return UaiLayout(card, scope_ptr, scope, at, start, size.astype(np.int64), potts)


def read_card(file: NumberFile) -> tuple[Ints, int]:
    """Cardinalities and number of factors."""
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


def arity_places(file: NumberFile, at: int, n_factors: int, n_vars: int) -> Ints:
    """Positions of the factors' arities, and the end of the scopes."""
    numbers = file.numbers.data
    places = []
    # The only loop over factors in Python: it does as little as possible and leaves the checks for later.
    with suppress(IndexError, ValueError, OverflowError):
        for _ in range(n_factors):
            arity = numbers[at]
            places.append(at)
            at += int(arity) + 1
    found = file.numbers[places]
    bad = np.flatnonzero(~((found >= 0) & (found <= n_vars) & (found == np.floor(found))))
    if len(bad):
        file.fail(places[bad[0]], f"arity of factor {bad[0]}", whole_range(0, n_vars))
    if len(places) < n_factors:
        file.fail(len(numbers), f"arity of factor {len(places)}", "a scope for every factor")
    return np.array([*places, at], dtype=np.int64)


def read_scopes(file: NumberFile, arity_at: Ints, at: int, n_vars: int) -> tuple[Ints, Ints, int]:
    """Offsets and variables of the scopes, and where they end."""
    end = int(arity_at[-1])
    scope_ptr = offsets(np.diff(arity_at) - 1)
    if end > len(file.numbers):
        file.fail(end, f"scope of factor {len(arity_at) - 2}", f"{scope_ptr[-1] - scope_ptr[-2]} variables")
    is_variable = np.ones(end - at, dtype=bool)
    is_variable[arity_at[:-1] - at] = False
    scope = file.numbers[at:end][is_variable]
    bad: Ints = np.flatnonzero(~((scope >= 0) & (scope < n_vars) & (scope == np.floor(scope))))
    what = f"a variable from 0 to {n_vars - 1}"
    if len(bad) == 0:
        bad = _repeats(scope, scope_ptr)
        what = "a variable that is not in this scope already"
    if len(bad):
        a = int(np.searchsorted(scope_ptr, bad[0], side="right")) - 1
        file.fail(at + a + 1 + int(bad[0]), f"scope of factor {a}", what)
    return scope_ptr, scope.astype(np.int64), end


def _repeats(scope: Floats, scope_ptr: Ints) -> Ints:
    """Positions in `scope` that repeat an earlier variable of the same factor, in order."""
    arity = np.diff(scope_ptr)
    found = [np.zeros(0, dtype=np.int64)]
    for k in np.unique(arity[arity > 1]).tolist():
        places = scope_ptr[:-1][arity == k, None] + np.arange(k)
        order = np.argsort(scope[places], axis=1, kind="stable")
        places = np.take_along_axis(places, order, axis=1)
        found.append(places[:, 1:][np.diff(scope[places], axis=1) == 0])
    return np.sort(np.concatenate(found))


def _table_sizes(states: Ints, scope_ptr: Ints) -> Floats:
    """Product of the cardinalities of every scope; as floats, since they may be far too large to exist."""
    size = np.ones(len(scope_ptr) - 1)
    filled = np.diff(scope_ptr) > 0
    if filled.any():
        with np.errstate(over="ignore"):
            size[filled] = np.multiply.reduceat(states.astype(np.float64), scope_ptr[:-1][filled])
    return size


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


def _table_places(file: NumberFile, at: int, size: Floats, potts: Bools, scopes: tuple[Ints, Ints, Ints]) -> Ints:
    """Positions of the first entries of the factors, after checking that all sizes fit and nothing follows."""
    end = len(file.numbers)
    count = np.where(potts, 1, np.minimum(size, end)).astype(np.int64)
    size_at = at + offsets(count + 1)
    inside = size_at[:-1] < end
    stated = file.numbers[size_at[:-1][inside]]
    wrong = np.flatnonzero(stated != np.where(potts, _POTTS, size)[inside])
    if len(wrong):
        _fail_size(file, int(size_at[wrong[0]]), int(wrong[0]), scopes)
    if size_at[-1] > end:
        a = int(np.flatnonzero(size_at[1:] > end)[0])
        what = f"{size[a]:.0f} entries, of which {max(0, end - size_at[a] - 1)} are present"
        file.fail(end, f"table of factor {a}", what)
    if size_at[-1] < end:
        file.fail(int(size_at[-1]), "after the last table", "the end of the file")
    return size_at[:-1] + 1


def _fail_size(file: NumberFile, at: int, a: int, scopes: tuple[Ints, Ints, Ints]) -> NoReturn:
    scope_ptr, scope, card = scopes
    variables = scope[scope_ptr[a] : scope_ptr[a + 1]]
    shape = [int(c) for c in card[variables]]
    size = math.prod(shape)
    product = f" = {' x '.join(map(str, shape))}" if 1 < len(shape) <= 8 else ""
    expected = f"{size}{product}" if size < MOST_COUNT else "a table that could be stored"
    file.fail(at, f"table size of {_factor_name(a, variables)}", expected)


def _fail_value(file: NumberFile, layout: UaiLayout, bad: int, values: str) -> NoReturn:
    at = layout.first_size + bad
    a = int(np.searchsorted(layout.start, at, side="right")) - 1
    file.fail(at, f"{layout.name(a)}, entry {at - layout.start[a]}", scales.expected(values))


def _factor_name(a: int, variables: Ints) -> str:
    names = [str(i) for i in variables[:6].tolist()] + ["..."] * (len(variables) > 6)
    return f"factor {a} (variables {', '.join(names)})" if names else f"factor {a} (no variables)"


def _distinct_tables(path: Path, theta: Floats, layout: UaiLayout) -> UaiTables:
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
    found = UaiTables(table_of, offsets(size[used]), kept)
    return (
        found if len(plain) == len(table_of) else _with_potts(path, found, layout.potts, _potts_tables(theta, layout))
    )


def _with_potts(path: Path, tables: UaiTables, is_potts: Bools, potts: PottsTables) -> UaiTables:
    """Put the tables of Potts factors behind the others; of the largest the default and the diagonal."""
    n, listed = len(tables.table_ptr) - 1, potts.listed
    tables.table_of[is_potts] = n + potts.table_of
    # They are filled in place; only the others are copied.
    copies = 1.5 if len(tables.theta_t) == 0 else COPIES
    entries = np.where(listed, potts.card + 1.0, potts.card.astype(np.float64) ** 2)
    charge_tables(path, entries, copies)
    table_ptr = offsets(np.concatenate([np.diff(tables.table_ptr), entries.astype(np.int64)]))
    theta_t = np.empty(int(table_ptr[-1]))
    theta_t[: len(tables.theta_t)] = tables.theta_t
    for t, value in enumerate(potts.value.tolist()):
        table = theta_t[table_ptr[n + t] : table_ptr[n + t + 1]]
        table[:] = value
        equal = slice(1, None) if listed[t] else slice(None, None, int(potts.card[t]) + 1)
        table[equal] = 0.0
    lists = {n + t: diagonal(int(potts.card[t])) for t in np.flatnonzero(listed).tolist()}
    weight = None
    if potts.weight is not None:
        weight = np.ones(len(tables.table_of))
        weight[is_potts] = potts.weight
    return UaiTables(tables.table_of, table_ptr, theta_t, weight, lists)


class PottsTables(NamedTuple):
    """Potts factors: the table and the weight of each, and the cardinality and the value of the tables."""

    table_of: Ints
    weight: Floats | None
    card: Ints
    value: Floats

    @property
    def listed(self) -> Bools:
        """Which tables are so large that their diagonals take their place."""
        users = np.bincount(self.table_of, minlength=len(self.card))
        return keeps_list(self.card.astype(np.float64) ** 2, self.card, (np.full_like(self.card, 2), self.card), users)


def _potts_tables(theta: Floats, layout: UaiLayout) -> PottsTables:
    """Give Potts factors of one cardinality and value a table; if these are large, of one cardinality, and weights."""
    factors = np.flatnonzero(layout.potts)
    card = layout.card[layout.scope[layout.scope_ptr[factors]]]
    value = theta[layout.start[factors]]
    found = _numbered_potts(card, value)
    if float((found.card.astype(np.float64) ** 2).sum()) <= max(FEW_ENTRIES, len(layout.size)):
        return found
    hard = np.isinf(value)
    units = _numbered_potts(card, np.where(hard, value, 1.0))
    return units._replace(weight=np.where(hard, 1.0, value)) if len(units.card) < len(found.card) else found


def _numbered_potts(card: Ints, value: Floats) -> PottsTables:
    _, first, of = np.unique(np.stack([card, value]), axis=1, return_index=True, return_inverse=True)
    return PottsTables(of.ravel().astype(np.int64), None, card[first], value[first])


def warn_about_rows(path: Path, layout: UaiLayout, tables: UaiTables) -> None:
    """Log which rows of conditional probability tables (child last) do not sum to 1."""
    filled = np.flatnonzero(np.diff(layout.scope_ptr) > 0)
    child_card = layout.card[layout.scope[layout.scope_ptr[1:][filled] - 1]]
    n_bad, first = 0, len(layout.size)
    for c in np.unique(child_card).tolist():
        factors = filled[child_card == c]
        t, one_user = np.unique(tables.table_of[factors], return_index=True)
        rows = layout.size[factors[one_user]] // c
        with np.errstate(over="ignore"):
            sums = np.exp(tables.theta_t[ranges(tables.table_ptr[t], rows * c)]).reshape(-1, c).sum(axis=1)
        bad = np.repeat(factors[one_user], rows)[np.abs(sums - 1.0) > 1e-6]
        n_bad, first = n_bad + len(bad), min([first, *bad[:1].tolist()])
    if n_bad:
        _log.warning(
            "%s: rows of conditional probability tables do not sum to 1: %d, the first in factor %d", path, n_bad, first
        )
