"""Factors as flat arrays, half way between a file and a `FactorGraph`: what all formats build their models from.

Equal tables are stored once, and if many tables are multiples of one, such as the pairs of a contrast-sensitive image,
only that one is stored, with a weight for every factor.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, distinct, offsets, ranges
from mapmrf.errors import FormatError, GraphError, UnsupportedModel
from mapmrf.formats.files import charge
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

MOST_STATES = 2**30
"""Maximum total number of states; more would be 8 GB of unary potentials: more likely a broken file than a model."""
COPIES = 3.0  # bytes needed to read each byte of a table: the table itself and up to two temporary copies
TABLES = "its tables"
MOST_COUNT = 2**53
FEW_ENTRIES = 1 << 16  # entries up to which similar factors get a table each: shared tables are found later
LEAST_USERS = 8  # minimum average number of factors per table for weights to be worth their memory
_CHUNK = 1 << 20
_CACHED = 1 << 17


@dataclass(frozen=True, eq=False)
class Factors:
    """Scopes and tables in the layout of `FactorGraph`, factors of any arity."""

    # A table in `lists` is a default and the values of some tuples, (n_tuples, arity), which `lists` has; of repeated
    # tuples the last counts.

    scope_ptr: Ints
    scope: Ints
    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats | None = None
    lists: Mapping[int, Ints] = field(default_factory=dict)

    @staticmethod
    def joined(scopes: Sequence[Sequence[int]], sizes: Sequence[int], theta_t: Floats) -> Factors:
        """Factors with a table each, of these sizes."""
        scope = np.array([i for scope in scopes for i in scope], dtype=np.int64)
        return Factors(offsets([len(scope) for scope in scopes]), scope, np.arange(len(sizes)), offsets(sizes), theta_t)

    def scope_of(self, a: int) -> Ints:
        return self.scope[self.scope_ptr[a] : self.scope_ptr[a + 1]]

    @staticmethod
    def join(parts: Sequence[Factors]) -> Factors:
        """All factors of several lists, with the tables of one after those of another."""
        none, before = (
            np.zeros(0, dtype=np.int64),
            np.cumsum([0, *(len(part.table_ptr) - 1 for part in parts)]).tolist(),
        )
        placed = list(zip(before, parts, strict=False))
        weights = [np.ones(len(part.table_of)) if part.weight is None else part.weight for part in parts]
        return Factors(
            offsets(np.concatenate([none, *(np.diff(part.scope_ptr) for part in parts)])),
            np.concatenate([none, *(part.scope for part in parts)]),
            np.concatenate([none, *(first + part.table_of for first, part in placed)]),
            offsets(np.concatenate([none, *(np.diff(part.table_ptr) for part in parts)])),
            np.concatenate([np.zeros(0), *(part.theta_t for part in parts)]),
            None if all(part.weight is None for part in parts) else np.concatenate(weights),
            {first + t: tuples for first, part in placed for t, tuples in part.lists.items()},
        )

    def extended(self, scopes: Sequence[Sequence[int]], tables: Sequence[Floats]) -> Factors:
        return Factors.join([self, Factors.joined(scopes, [len(table) for table in tables], np.concatenate(tables))])


def build(path: Path, card: Ints, factors: Factors, names: Names | None = None, distinct: bool = False) -> FactorGraph:
    """Build a graph in which equal tables are stored once, unless they are known to be distinct; errors name the file.

    Tables that are lists become constraints.
    """
    with naming(path):
        if factors.lists:
            from mapmrf.formats.lists import build_with_lists

            return build_with_lists(path, card, factors, names)
        found = with_weights(factors if distinct else _distinct(factors))
        return FactorGraph.from_arrays(
            card,
            found.scope_ptr,
            found.scope,
            found.table_of,
            found.table_ptr,
            found.theta_t,
            weight=found.weight,
            names=names,
            copy=False,
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Convert errors of models and MemoryError to a FormatError that names the file."""
    try:
        yield
    except (GraphError, UnsupportedModel) as error:
        raise FormatError(f"{path}: {error}") from None
    except MemoryError:
        raise FormatError(f"{path}: the model does not fit into memory") from None


def _distinct(factors: Factors) -> Factors:
    """Keep the first of equal tables."""
    sizes = np.diff(factors.table_ptr)
    used, place = np.unique(first_equal(factors.theta_t, factors.table_ptr[:-1], sizes), return_inverse=True)
    if len(used) == len(sizes):
        return factors
    theta_t = blocks(factors.theta_t, factors.table_ptr[used], sizes[used])
    return replace(factors, table_of=place[factors.table_of], table_ptr=offsets(sizes[used]), theta_t=theta_t)


# -- sizes ------------------------------------------------------------------------------------------------------------


def table_sizes(shape: Ints, shape_ptr: Ints) -> Floats:
    """Product of every block of cardinalities; as floats, since they may be far too large to exist."""
    size = np.ones(len(shape_ptr) - 1)
    filled = np.diff(shape_ptr) > 0
    if filled.any():
        with np.errstate(over="ignore"):
            size[filled] = np.multiply.reduceat(shape.astype(np.float64), shape_ptr[:-1][filled])
    return size


def table_offsets(path: Path, size: Floats, copies: float = COPIES) -> Ints:
    """Offsets of tables of these sizes, once they fit into the budget together."""
    charge_tables(path, size, copies)
    return offsets(size.astype(np.int64))


def charge_tables(path: Path, size: Floats, copies: float = COPIES) -> None:
    if len(size):
        a = int(size.argmax())
        charge(path, 8.0 * copies * float(size.sum()), TABLES, f"factor {a} has {size[a]:.4g} entries")


def check_states(path: Path, card: Ints) -> None:
    total = float(card.sum(dtype=np.float64))
    if total > MOST_STATES:
        raise FormatError(f"{path}: the variables have {total:.10g} states, expected at most {MOST_STATES} in all")
    if len(card):
        i = int(card.argmax())
        charge(path, 16.0 * total, "its unary potentials", f"variable {i} has {card[i]} states")


def variables_with(graph: FactorGraph, states: Bools) -> Ints:
    """The variables with one of some states, given like `theta_v`."""
    return np.flatnonzero(np.logical_or.reduceat(states, graph.var_ptr[:-1])) if graph.n_vars else np.arange(0)


def factors_to_write(graph: FactorGraph, numbers: tuple[float, Floats, Floats], neutral: float, alone: bool) -> Factors:
    """A model as factors: its constant, its unary potentials where they are not neutral, then its own factors."""
    # The numbers of the file are laid out like `constant`, `theta_v` and `theta_t`. If `alone`, the unary potentials of
    # variables without factors are written in any case.
    constant, unary, tables = numbers
    loud = variables_with(graph, unary != neutral)
    if alone:
        loud = np.union1d(loud, np.setdiff1d(np.arange(graph.n_vars), graph.scope))
    n_constants, card = int(constant != neutral), graph.card[loud]
    before = n_constants + len(loud)
    return Factors(
        offsets(np.concatenate([np.repeat([0, 1], [n_constants, len(loud)]), graph.arity])),
        np.concatenate([loud, graph.scope]),
        np.concatenate([np.arange(before), before + graph.table_of]),
        offsets(np.concatenate([np.ones(n_constants, dtype=np.int64), card, np.diff(graph.table_ptr)])),
        np.concatenate([[constant] * n_constants, unary[ranges(graph.var_ptr[loud], card)], tables]),
    )


# -- groups of factors ------------------------------------------------------------------------------------------------


def numbered(columns: list[Ints]) -> Ints:
    """Number the distinct rows of some columns from 0; rows are equal if and only if their numbers are."""
    number = np.unique(columns[0], return_inverse=True)[1]
    for column in columns[1:]:
        if len(column) and (column == column[0]).all():
            continue
        inside = np.unique(column, return_inverse=True)[1]
        number = np.unique(number * (inside.max(initial=0) + 1) + inside, return_inverse=True)[1]
    return number.astype(np.int64)


def same_shapes(shape: Ints, shape_ptr: Ints) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """Yield the blocks of every distinct shape, with the shape."""
    arity = np.diff(shape_ptr)
    for k in np.unique(arity).tolist():
        members = np.flatnonzero(arity == k)
        columns = [shape[shape_ptr[members] + j] for j in range(k)]
        number = numbered(columns or [np.zeros_like(members)])
        order = np.argsort(number, kind="stable")
        for group in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
            yield members[group], tuple(int(column[group[0]]) for column in columns)


def last_fastest(theta: Floats, table_ptr: Ints, shape: Ints, shape_ptr: Ints) -> Floats:
    """Reorder tables whose first variable runs fastest, so that the last one does."""
    result = theta.copy()
    for members, dims in same_shapes(shape, shape_ptr):
        if len(dims) < 2:
            continue
        size = math.prod(dims)
        step = _CHUNK // size
        if step == 0:  # one by one: indices of all entries would need more memory than the tables
            for at in table_ptr[members].tolist():
                result[at : at + size].reshape(dims)[...] = theta[at : at + size].reshape(dims[::-1]).T
            continue
        for begin in range(0, len(members), step):
            places = table_ptr[members[begin : begin + step]][:, None].astype(np.int64) + np.arange(size)
            block = theta[places].reshape(-1, *dims[::-1])
            result[places] = block.transpose(0, *range(len(dims), 0, -1)).reshape(-1, size)
    return result


# -- equal tables --------------------------------------------------------------------------------------------------


def first_equal(values: Floats, start: Ints, size: Ints) -> Ints:
    """For every block ``values[start[b] : start[b] + size[b]]``, the first block with exactly the same numbers."""
    result = np.arange(len(start), dtype=np.int64)
    order = np.argsort(size, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(size[order])) + 1):
        if len(members) > 1:
            result[members] = members[_first_equal_row(values, start[members], int(size[members[0]]))]
    return result


def _first_equal_row(values: Floats, start: Ints, size: int) -> Ints:
    """`first_equal` for blocks of one size; a chunk of them stays in the cache."""
    step = max(1, _CACHED // max(1, size))
    parts = [_hashes(_rows(values, start[at : at + step], size)) for at in range(0, len(start), step)]
    _, first, inverse = np.unique(np.concatenate(parts), return_index=True, return_inverse=True)
    result = first[inverse].astype(np.int64)
    copies = np.flatnonzero(result != np.arange(len(start)))
    # Equal hashes do not prove equality; a block that differs keeps its own table.
    for at in range(0, len(copies), step):
        some = copies[at : at + step]
        differs = (_rows(values, start[some], size) != _rows(values, start[result[some]], size)).any(axis=1)
        result[some[differs]] = some[differs]
    return result


def _rows(values: Floats, start: Ints, size: int) -> NDArray[np.uint64]:
    """The bits of the blocks, one block per row; -0.0 counts as 0.0."""
    rows = values[start[:, None] + np.arange(size)]
    rows += 0.0
    bits: NDArray[np.uint64] = rows.view(np.uint64)
    return bits


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    factor = np.uint64(0x9E3779B97F4A7C15)
    mixed = bits ^ (bits >> np.uint64(32))  # round numbers have their ones at the top, products need them below
    mixed *= factor
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.cumprod(np.full(bits.shape[1], factor))
    hashes: NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
    return hashes


# -- multiples of tables -----------------------------------------------------------------------------------------------


def with_weights(factors: Factors) -> Factors:
    """Write distinct tables as positive multiples of fewer ones, if that saves memory."""
    # Every product equals the original entry bit for bit, and tables have eight users on average. Tables of single
    # variables are unchanged.
    if factors.weight is not None:
        return factors
    theta_t, table_ptr, sizes = factors.theta_t, factors.table_ptr, np.diff(factors.table_ptr)
    users = np.bincount(factors.table_of[np.diff(factors.scope_ptr) > 1], minlength=len(sizes))
    n_factors, total = len(factors.table_of), int(users.sum())
    if total < 64 or int(sizes[users > 0].sum()) <= n_factors:
        return factors
    units, weight = theta_t, np.ones(len(sizes))
    for size in distinct(sizes[users > 0]).tolist():
        members = np.flatnonzero((sizes == size) & (users > 0))
        split = _promising(theta_t, table_ptr[members], size)
        if split is not None:
            units = theta_t.copy() if units is theta_t else units
            _write_units(units, table_ptr, members, weight, split)
    if units is theta_t:
        return factors
    used, table_of = np.unique(first_equal(units, table_ptr[:-1], sizes), return_inverse=True)
    saved = len(theta_t) - int(sizes[used].sum())
    if saved <= n_factors or total < LEAST_USERS * np.count_nonzero(np.bincount(table_of, users)):
        return factors
    return replace(
        factors,
        table_of=table_of[factors.table_of],
        table_ptr=offsets(sizes[used]),
        theta_t=units[ranges(table_ptr[used], sizes[used])],
        weight=weight[factors.table_of],
    )


Split = Callable[[Floats], tuple[Floats, Floats, Bools]]
"""Splits tables, a row each, into units and weights, and tells where the products equal the tables."""


def _promising(theta_t: Floats, start: Ints, size: int) -> Split | None:
    """A way to split tables of one size that reduces the number in a sample, if there is one."""
    if len(start) < LEAST_USERS:
        return None
    most = max(LEAST_USERS, min(256, _CACHED // size))
    some = start[:: max(1, len(start) // most)]
    rows = theta_t[some[:, None].astype(np.int64) + np.arange(size)]
    for split in (_by_smallest, _by_largest):
        units, _, exact = split(rows)
        if 2 * np.count_nonzero(exact) < len(rows):
            continue
        kept = np.where(exact[:, None], units, rows).ravel()
        distinct = first_equal(kept, np.arange(0, len(kept), size), np.full(len(rows), size))
        if 2 * len(np.unique(distinct)) < len(rows):
            return split
    return None


def _write_units(units: Floats, table_ptr: Ints, members: Ints, weight: Floats, split: Split) -> None:
    """Replace tables of one size by their units where the products are exact, and write the weights."""
    size = int(table_ptr[members[0] + 1] - table_ptr[members[0]])
    step = max(1, _CACHED // size)
    for begin in range(0, len(members), step):
        some = members[begin : begin + step]
        places = table_ptr[some][:, None].astype(np.int64) + np.arange(size)
        found, scale, exact = split(units[places])
        units[places[exact]] = found[exact]
        weight[some[exact]] = scale[exact]


def _by_smallest(rows: Floats) -> tuple[Floats, Floats, Bools]:
    """Split into units of the smallest entry, as for linear and quadratic functions; 43 bits of each are kept."""
    finite = np.isfinite(rows) & (rows != 0)
    scale = np.where(finite, np.abs(rows), np.inf).min(axis=1)
    scale[scale == np.inf] = 1.0
    with np.errstate(over="ignore"):
        bits = (rows / scale[:, None]).view(np.uint64)
    units = ((bits + np.uint64(1 << 8)) & ~np.uint64((1 << 9) - 1)).view(np.float64)
    return _checked(rows, units, scale)


def _by_largest(rows: Floats) -> tuple[Floats, Floats, Bools]:
    """Split into units of the largest entry, to 12 decimal places."""
    scale = np.where(np.isfinite(rows), np.abs(rows), 0.0).max(axis=1)
    scale[scale == 0.0] = 1.0
    return _checked(rows, np.round(rows / scale[:, None], 12), scale)


def _checked(rows: Floats, units: Floats, scale: Floats) -> tuple[Floats, Floats, Bools]:
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (scale[:, None] * units == rows).all(axis=1)
    return units + 0.0, scale, exact


# -- The meaning of the numbers of a file: potentials, natural logs or costs, to and from log potentials --------------


#: Many programs cannot read the word ``-inf``: logs up to -FORBIDDEN (costs from FORBIDDEN) mean a forbidden entry.
FORBIDDEN = 1e30
WRITTEN_FORBIDDEN = 1e39  # written for a forbidden entry: toulbar2 needs logs below -1e38
# Beyond these logs a potential overflows, or is denormal and loses digits.
_LOWEST, _HIGHEST = np.log(np.finfo(np.float64).tiny), np.log(np.finfo(np.float64).max)
DIGITS = 15  # digits of the sum of all costs: sums stay exact in 53 bits, and far from the limits of 64
MOST_DECIMALS = 300  # powers of ten that a float can hold, with room for digits
_log = logging.getLogger("mapmrf")

_EXPECTED = {
    "potential": "a finite potential of at least 0 (logs and costs need values='log' or values='cost')",
    "log": "a finite log potential or -inf",
    "cost": "a finite cost or inf",
}


def check_values(path: Path, values: str | None, allowed: tuple[str, ...], what: str) -> None:
    if values is not None and values not in allowed:
        raise FormatError(f"{path}: values={values!r}, but the numbers of this format are {what}")


def expected(values: str) -> str:
    return _EXPECTED[values]


def first_bad(numbers: Floats, values: str) -> int | None:
    """Position of the first invalid number: NaN, a negative potential, an infinite reward."""
    low, high = numbers.min(initial=0.0), numbers.max(initial=0.0)  # NaN if any is
    if _fine(low, values) and _fine(high, values):
        return None
    return int(np.flatnonzero(~_fine(numbers, values))[0])


def _fine(numbers: Floats, values: str) -> Bools:
    if values == "potential":
        fine = (numbers >= 0) & (numbers < np.inf)
    elif values == "log":
        fine = numbers < np.inf
    else:
        fine = numbers > -np.inf
    return np.asarray(fine)


def to_log(numbers: Floats, values: str) -> None:
    """Turn the numbers of a file into log potentials, in place."""
    if values == "potential":
        with np.errstate(divide="ignore"):
            np.log(numbers, out=numbers)
        return
    if values == "cost":
        np.negative(numbers, out=numbers)
    if numbers.min(initial=0.0) <= -FORBIDDEN:
        numbers[numbers <= -FORBIDDEN] = -np.inf


def from_log(path: Path, graph: FactorGraph, values: str, *, alone: bool = False) -> Factors:
    """A graph as the factors and numbers to write, see `factors_to_write`; log if they lose digits."""
    # Raises FormatError if a number would be read back as something else.
    if values == "potential":
        _warn_about_digits(path, graph)
        return factors_to_write(graph, _potentials(path, graph), 1.0, alone)
    sign = 1.0 if values == "log" else -1.0
    parts = (np.array([graph.constant]), graph.theta_v, graph.theta_t)
    constant, unary, tables = (_writable(path, part, sign) for part in parts)
    return factors_to_write(graph, (float(constant[0]), unary, tables), 0.0, alone)


def one_from_log(path: Path, theta: float, values: str) -> float:
    """A log potential as the number to write; raises FormatError if it would be read back as something else."""
    if values != "potential":
        return float(_writable(path, np.array([theta]), 1.0 if values == "log" else -1.0)[0])
    if theta > -np.inf and not _LOWEST <= theta <= _HIGHEST:
        raise FormatError(
            f"{path}: a log potential of {theta:g} does not fit as a potential, write values='log' instead"
        )
    return float(np.exp(theta))


def _writable(path: Path, theta: Floats, sign: float) -> Floats:
    """Logs (sign 1) or costs (sign -1), without the word inf, which C++ readers cannot parse."""
    check_allowed(path, theta)
    numbers: Floats = np.where(theta == -np.inf, -WRITTEN_FORBIDDEN, theta) * sign
    return numbers + 0.0  # no "-0"


def check_allowed(path: Path, theta: Floats) -> None:
    """Raise FormatError for a finite log potential that would be read back as forbidden."""
    allowed = theta[theta > -np.inf]
    if allowed.min(initial=0.0) <= -FORBIDDEN:
        raise FormatError(f"{path}: a finite log potential of {allowed.min():g} would be read back as forbidden")


def _warn_about_digits(path: Path, graph: FactorGraph) -> None:
    """Log if potentials are so close to each other that their logs, which solvers add up, lose digits."""
    # A number near 1 has 16 digits, so its log is known to 1e-16, and a log of 1e-9 has 7 digits.
    if graph.unit < 1e-4:  # fewer than 12 digits survive
        digits = max(0, round(math.log10(graph.unit / np.finfo(np.float64).epsneg)))
        _log.warning(
            "%s: log potentials that differ by at most %.1g keep %d digits as potentials: write .LG (logs) to keep all",
            path, graph.unit, digits,
        )  # fmt: skip


def _potentials(path: Path, graph: FactorGraph) -> tuple[float, Floats, Floats]:
    """Exponentials; blocks out of range are shifted, and the shifts added to the constant."""

    def factor_of(t: int) -> str:
        return f"factor {np.flatnonzero(graph.table_of == t)[0]}"

    shift_v = _shifts(path, graph.theta_v, graph.var_ptr, lambda i: f"variable {i}")
    shift_t = _shifts(path, graph.theta_t, graph.table_ptr, factor_of)
    constant = graph.constant + float(shift_v.sum() + shift_t[graph.table_of].sum())
    if constant != -np.inf and not _LOWEST <= constant <= _HIGHEST:
        found = f"the constant factor exp({constant:g}) is out of range of a number"
        raise FormatError(f"{path}: {found}, write .LG (logs) instead")
    return (
        float(np.exp(constant)),
        np.exp(graph.theta_v - np.repeat(shift_v, graph.card)),
        np.exp(graph.theta_t - np.repeat(shift_t, np.diff(graph.table_ptr))),
    )


def _shifts(path: Path, theta: Floats, ptr: Ints, name: Callable[[int], str]) -> Floats:
    """Shift to subtract from every block so that its exponentials are in range; almost always 0."""
    shifts = np.zeros(len(ptr) - 1)
    outside = (theta > _HIGHEST) | ((theta < _LOWEST) & (theta > -np.inf))
    if not outside.any():
        return shifts
    blocks = np.unique(np.searchsorted(ptr, np.flatnonzero(outside), side="right") - 1)
    for b in blocks.tolist():
        block = theta[ptr[b] : ptr[b + 1]]
        low, high = block[block > -np.inf].min(), block.max()
        if high - low > _HIGHEST - _LOWEST - 1.0:
            found = f"log potentials from {low:g} to {high:g} do not fit as potentials"
            raise FormatError(f"{path}: {name(b)}: {found}, write .LG (logs) instead")
        if high - low > _HIGHEST:
            shifts[b] = (high + low) / 2 - (_HIGHEST + _LOWEST) / 2
        else:
            # Half of the range is enough, so that the shifts add up to as little as possible.
            moderate = _HIGHEST / 2
            shifts[b] = high - moderate if high > moderate else low + moderate
    return shifts


# -- decimals ---------------------------------------------------------------------------------------------------------


def choose_decimals(parts: list[Floats], total: float) -> tuple[int, bool]:
    """Decimals to write where costs are decimal numbers in 64 bits, negative for tens, and whether they are exact."""
    # `total` is the largest possible sum of the numbers in `parts`, of which infinite ones are ignored.
    most = DIGITS - math.ceil(math.log10(total)) if total > 0 else 0
    most = min(most, MOST_DECIMALS)
    finite = [part[np.isfinite(part)] for part in parts]
    # 10^22 is the last power that a float holds exactly.
    for decimals in range(min(most, 0), min(most, 22) + 1):
        if all(np.array_equal(np.round(part, decimals), part) for part in finite):
            return decimals, True
    return most, False


def scaled(numbers: Floats, decimals: int) -> Floats:
    """Whole units of ``10 ** -decimals``; infinite numbers are unchanged."""
    units = numbers * 10.0**decimals if decimals >= 0 else numbers / 10.0**-decimals
    return np.rint(units)


def unscaled(units: Floats, decimals: int) -> None:
    """Turn units of ``10 ** -decimals`` into numbers, in place."""
    if decimals >= 0:
        units /= 10.0**decimals
    else:
        units *= 10.0**-decimals


def rounding(decimals: int, exact: bool) -> list[str]:
    return [] if exact else [f"every number is rounded, by at most {0.5 * 10.0**-decimals:.0e}"]
