"""The array vocabulary: the few dtypes in use, and operations on ragged (offset) layouts."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.integer[Any]]
Bools = NDArray[np.bool_]


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
    """Whole numbers in half the memory: 32 bits, where they fit. For indices, with which nothing is computed."""
    fits = len(values) == 0 or (values.min() >= -(2**31) and values.max() < 2**31)
    return values.astype(np.int32 if fits else np.int64, copy=False)


def segment_argmax(values: Floats, ptr: Ints) -> Ints:
    """Place of the first largest entry inside every non-empty block of `values`."""
    counts = np.diff(ptr)
    if len(counts) == 0:
        return np.zeros(0, dtype=np.int64)
    if counts[0] > 0 and np.all(counts == counts[0]):
        table = values.reshape(len(counts), counts[0])
        return np.asarray(table.argmax(axis=1), dtype=np.int64)
    best = np.maximum.reduceat(values, ptr[:-1])
    places = np.flatnonzero(values == np.repeat(best, counts))
    owner = np.repeat(np.arange(len(counts)), counts)[places]
    _, first = np.unique(owner, return_index=True)
    return places[first] - ptr[:-1]


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and return it."""
    array.flags.writeable = False
    return array
