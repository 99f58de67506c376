"""The array vocabulary: the few dtypes in use, and operations on ragged (offset) layouts."""

import sys
from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]

CHUNK = 1 << 13  # blocks of a ragged layout that are processed together


def same_content(one: Any, other: Any) -> bool:
    """Whether two arrays, dataclasses or tuples of such are equal, whatever the types of their numbers."""
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and np.array_equal(one, other)
    if is_dataclass(one):
        some = [item.name for item in fields(one)]
        return type(one) is type(other) and all(same_content(getattr(one, k), getattr(other, k)) for k in some)
    if isinstance(one, tuple | list):
        return type(one) is type(other) and len(one) == len(other) and all(map(same_content, one, other))
    return bool(one == other)


def offsets(counts: ArrayLike) -> Ints:
    """Start of every block, and the end of the last: ``[0, c_0, c_0 + c_1, ...]``, in 32 bits where they fit."""
    counts = np.asarray(counts)
    total = int(counts.sum(dtype=np.int64))
    result: Ints = np.zeros(len(counts) + 1, dtype=np.int32 if total < 2**31 else np.int64)
    np.cumsum(counts, out=result[1:])
    return result


def ranges(starts: ArrayLike, counts: ArrayLike) -> Ints:
    """All places of the blocks ``starts[b] : starts[b] + counts[b]``, one block after another."""
    starts = np.asarray(starts, dtype=np.int64)
    counts = np.asarray(counts, dtype=np.int64)
    ptr = offsets(counts)
    shift = np.repeat(starts - ptr[:-1], counts)
    return np.arange(ptr[-1], dtype=np.int64) + shift


def short(values: Ints) -> Ints:
    """Return integers in 32 bits where they fit, for half the memory. For indices that are not computed with."""
    if values.dtype == np.int32:
        return values
    fits = len(values) == 0 or (values.min() >= -(2**31) and values.max() < 2**31)
    return values.astype(np.int32 if fits else np.int64, copy=False)


def distinct(values: Ints) -> Ints:
    """The different values, ascending. `np.unique` without indices imports numpy.ma, a part of a first answer."""
    ordered = np.sort(values)
    first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    return np.asarray(ordered[first])


def compact(labels: Ints) -> Ints:
    """Return labels in the smallest integer type that holds them: for storage, not for arithmetic."""
    return labels.astype(np.min_scalar_type(int(labels.max(initial=0))), copy=False)


def row_sums(values: Floats) -> Floats:
    """Sums over the last axis, bit for bit those of numpy, which is ten times slower for short rows."""
    n = values.shape[-1]
    if not 1 < n < 8:  # numpy adds up longer rows in several parts
        return np.asarray(values.sum(axis=-1))
    total = values[..., 0] + values[..., 1]
    for t in range(2, n):
        total += values[..., t]
    return np.asarray(total)


def segment_argmax(values: Floats, ptr: Ints) -> Ints:
    """Position of the first largest entry in every non-empty block of `values`."""
    counts = np.diff(ptr)
    if len(counts) == 0:
        return np.zeros(0, dtype=np.int64)
    if counts[0] > 0 and np.all(counts == counts[0]):
        table = values.reshape(len(counts), counts[0])
        return np.asarray(table.argmax(axis=1), dtype=np.int64)
    best = segment_max(values, ptr)
    places = np.flatnonzero(values == np.repeat(best, counts))
    owner = np.repeat(np.arange(len(counts)), counts)[places]
    _, first = np.unique(owner, return_index=True)
    return places[first] - ptr[:-1]


def segment_max(values: NDArray[Any], ptr: Ints) -> NDArray[Any]:
    """Largest entry of every block of `values`; no block may be empty."""
    return np.maximum.reduceat(values, ptr[:-1]) if len(ptr) > 1 else values[:0]


def segment_ends(values: Floats, ptr: Ints) -> tuple[Floats, Floats]:
    """Smallest and largest finite entry of every block, both 0 where it has none."""
    finite = np.isfinite(values)
    low = -segment_max(np.where(finite, -values, -np.inf), ptr)
    high = segment_max(np.where(finite, values, -np.inf), ptr)
    return np.where(low <= high, low, 0.0), np.where(low <= high, high, 0.0)


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array


def strides(edge_card: Ints, scope_ptr: Ints) -> Ints:
    """Stride of every edge's variable in its factor's table, (n_edges,): the step from one state to the next."""
    arity = np.diff(scope_ptr)
    stride = np.ones(len(edge_card), dtype=np.int64)
    if len(arity) and np.all(arity == arity[0]):
        columns, sizes = stride.reshape(len(arity), -1).T, edge_card.reshape(len(arity), -1).T
        for k in range(arity[0] - 2, -1, -1):
            np.multiply(columns[k + 1], sizes[k + 1], out=columns[k])
        return stride
    for back in range(2, int(arity.max(initial=0)) + 1):
        edge = scope_ptr[1:][arity >= back] - back
        stride[edge] = stride[edge + 1] * edge_card[edge + 1]
    return stride


def finite_range(theta: Floats) -> float:
    """Largest minus smallest finite entry, 0 if there is none."""
    low, high = _lowest(theta, np.inf), theta.max(initial=-np.inf)
    return float(min(high - low, sys.float_info.max)) if high >= low else 0.0


def largest_size(theta: Floats) -> float:
    """Largest magnitude of a finite entry."""
    return float(max(theta.max(initial=0.0), -_lowest(theta, 0.0)))


def _lowest(theta: Floats, initial: float) -> Any:
    """The smallest of the finite entries and `initial`; a mask would be ten times slower than the minimum of all."""
    low = theta.min(initial=initial)
    return low if low > -np.inf else np.min(theta, where=theta > -np.inf, initial=initial)


def block_sizes(theta: Floats, ptr: Ints) -> Floats:
    """Largest magnitude of a finite entry in every block."""
    return np.concatenate([np.zeros(0), *size_chunks(theta, ptr)])


def size_chunks(theta: Floats, ptr: Ints) -> Iterator[Floats]:
    """The same for some blocks at a time, since the copies need memory."""
    for begin in range(0, len(ptr) - 1, CHUNK):
        part = ptr[begin : begin + CHUNK + 1]
        some = theta[part[0] : part[-1]]
        yield segment_max(np.where(some > -np.inf, np.abs(some), 0.0), part - part[0])


# -- Records: a few named numbers that kernels change in place --------------------------------------------------------


Fields = TypeVar("Fields")

KINDS = {int: np.int64, float: np.float64}


def blank(fields: type[Fields]) -> Fields:
    """Return a record of zeros with the annotated fields of a class, of type int or float.

    Kernels read and write its fields as Python does: it is a numpy record that looks like an instance of the class. A
    field must not have the name of an attribute of numpy scalars, such as `size`.
    """
    return cast(Fields, np.zeros(1, _dtype_of(cast(Hashable, fields)))[0])


Records = NDArray[np.record]  # an array of records


def blanks(fields: type, n: int) -> Any:
    """Return `n` records of zeros with the annotated fields of a class."""
    return np.zeros(n, _dtype_of(cast(Hashable, fields))).view(np.recarray)


@cache
def _dtype_of(fields: Hashable) -> np.dtype[np.void]:
    """Return the numpy type of a record: one object for all records, since numba is slow to recognise a new one."""
    plain = np.dtype([(name, KINDS[kind]) for name, kind in get_type_hints(fields).items()], align=True)
    return np.dtype((np.record, plain))
