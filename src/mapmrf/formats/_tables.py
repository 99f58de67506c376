"""Factors as flat arrays, half way between a file and a `FactorGraph`, as used by several formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.errors import FormatError, GraphError
from mapmrf.formats.budget import charge
from mapmrf.formats.multiples import find_multiples
from mapmrf.formats.sharing import first_equal
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph, Names

MOST_STATES = 2**30
"""Maximum total number of states; more would be 8 GB of unary potentials: more likely a broken file than a model."""
COPIES = 3.0
"""Bytes needed to read each byte of a table: the table itself and up to two temporary copies."""
TABLES = "its tables"
MOST_COUNT = 2**53
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class Factors:
    """Scopes and tables in the layout of `FactorGraph`, factors of any arity."""

    scope_ptr: Ints
    scope: Ints
    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats | None = None


def build(path: Path, card: Ints, factors: Factors, names: Names | None = None) -> FactorGraph:
    """Build a graph in which equal tables are stored once; errors name the file.

    If many tables are multiples of one, only that one is stored, with a weight for every factor.
    """
    with naming(path):
        return assemble(card, _distinct(factors), names)


def assemble(card: Ints, factors: Factors, names: Names | None = None) -> FactorGraph:
    """Build a graph from factors with distinct tables, using weights where those save memory."""
    found = _with_weights(factors)
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
    """Convert GraphError and MemoryError to a FormatError that names the file."""
    try:
        yield
    except GraphError as error:
        raise FormatError(f"{path}: {error}") from None
    except MemoryError:
        raise FormatError(f"{path}: the model does not fit into memory") from None


def _with_weights(factors: Factors) -> Factors:
    """The factors with weights and fewer tables where that saves memory."""
    if factors.weight is not None:
        return factors
    pairs = factors.table_of[np.diff(factors.scope_ptr) > 1]
    users = np.bincount(pairs, minlength=len(factors.table_ptr) - 1)
    found = find_multiples(factors.theta_t, factors.table_ptr, users, len(factors.table_of))
    if found is None:
        return factors
    return replace(
        factors,
        table_of=found.table_of[factors.table_of],
        table_ptr=found.table_ptr,
        theta_t=found.theta_t,
        weight=found.weight[factors.table_of],
    )


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
    """Offsets of tables of these sizes, once they fit into the budget together.

    Raises
    ------
    FormatError
        If they do not; the message names the largest.
    """
    charge_tables(path, size, copies)
    return offsets(size.astype(np.int64))


def charge_tables(path: Path, size: Floats, copies: float = COPIES) -> None:
    """Charge for tables of these sizes."""
    if len(size):
        a = int(size.argmax())
        charge(path, 8.0 * copies * float(size.sum()), TABLES, f"factor {a} has {size[a]:.4g} entries")


def check_states(path: Path, card: Ints) -> None:
    """Charge for the unary potentials, and reject an implausible number of states."""
    total = float(card.sum(dtype=np.float64))
    if total > MOST_STATES:
        raise FormatError(f"{path}: the variables have {total:.10g} states, expected at most {MOST_STATES} in all")
    if len(card):
        i = int(card.argmax())
        charge(path, 16.0 * total, "its unary potentials", f"variable {i} has {card[i]} states")


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


def same_rows(columns: list[Ints]) -> Iterator[Ints]:
    """Yield the places of every distinct row of some columns."""
    if len(columns[0]) == 0:
        return
    number = numbered(columns)
    order = np.argsort(number, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(number[order])) + 1)


def same_shapes(shape: Ints, shape_ptr: Ints) -> Iterator[tuple[Ints, tuple[int, ...]]]:
    """Yield the blocks of every distinct shape, with the shape."""
    arity = np.diff(shape_ptr)
    for k in np.unique(arity).tolist():
        members = np.flatnonzero(arity == k)
        columns = [shape[shape_ptr[members] + j] for j in range(k)] or [np.zeros(len(members), dtype=np.int64)]
        for group in same_rows(columns):
            yield members[group], tuple(int(column[group[0]]) for column in columns)[:k]


# -- orders of entries ------------------------------------------------------------------------------------------------


def transposed(theta: Floats, start: Ints, shape: tuple[int, ...], axes: tuple[int, ...]) -> Floats:
    """Tables of one shape at some offsets, with permuted axes: a row each."""
    size = int(np.prod(shape, dtype=np.int64))
    result = np.empty((len(start), size))
    step = max(1, _CHUNK // size)
    for begin in range(0, len(start), step):
        some = start[begin : begin + step]
        block = theta[some[:, None].astype(np.int64) + np.arange(size)].reshape(-1, *shape)
        result[begin : begin + step] = block.transpose(0, *(1 + axis for axis in axes)).reshape(-1, size)
    return result


def last_fastest(theta: Floats, table_ptr: Ints, shape: Ints, shape_ptr: Ints) -> Floats:
    """Reorder tables whose first variable runs fastest, so that the last one does."""
    result = theta.copy()
    for members, dims in same_shapes(shape, shape_ptr):
        size = int(np.prod(dims, dtype=np.int64))
        if len(dims) > 1 and size > _CHUNK:  # one by one: indices of all entries would need more memory than the tables
            for at in table_ptr[members].tolist():
                result[at : at + size].reshape(dims)[...] = theta[at : at + size].reshape(dims[::-1]).T
        elif len(dims) > 1:
            backwards = tuple(range(len(dims)))[::-1]
            block = transposed(theta, table_ptr[members], dims[::-1], backwards)
            result[table_ptr[members][:, None].astype(np.int64) + np.arange(block.shape[1])] = block
    return result


def most_common(theta: Floats, table_ptr: Ints) -> Floats:
    """The most frequent entry of every (non-empty) table; the smallest in case of ties."""
    n = len(table_ptr) - 1
    owner = np.repeat(np.arange(n), np.diff(table_ptr))
    value = theta[np.lexsort((theta, owner))]
    begins = np.flatnonzero(np.append(True, (value[1:] != value[:-1]) | (owner[1:] != owner[:-1]))[: len(value)])
    length = np.diff(np.append(begins, len(value)))
    best = np.lexsort((-length, owner[begins]))
    _, first = np.unique(owner[begins][best], return_index=True)
    return value[begins[best[first]]]
