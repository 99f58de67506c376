"""Find equal tables, so that a model whose factors repeat a few tables stores each of them once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints

_CHUNK = 1 << 17
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def first_equal(values: Floats, start: Ints, size: Ints) -> Ints:
    """For every block ``values[start[b] : start[b] + size[b]]``, the first block with exactly the same numbers.

    Examples
    --------
    >>> import numpy as np
    >>> first_equal(np.array([1.0, 2.0, 5.0, 1.0, 2.0]), np.array([0, 2, 3]), np.array([2, 1, 2])).tolist()
    [0, 1, 0]
    """
    result = np.arange(len(start), dtype=np.int64)
    order = np.argsort(size, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(size[order])) + 1):
        if len(members) > 1:
            result[members] = members[_first_equal_row(values, start[members], int(size[members[0]]))]
    return result


def _first_equal_row(values: Floats, start: Ints, size: int) -> Ints:
    """`first_equal` for blocks of one size."""
    parts = [_hashes(_rows(values, some, size)) for some in _chunks(start, size)]
    _, first, inverse = np.unique(np.concatenate(parts), return_index=True, return_inverse=True)
    result = first[inverse].astype(np.int64)
    copies = np.flatnonzero(result != np.arange(len(start)))
    # Equal hashes do not prove equality; a block that differs keeps its own table.
    for some in _chunks(copies, size):
        differs = _differ(_rows(values, start[some], size), _rows(values, start[result[some]], size))
        result[some[differs]] = some[differs]
    return result


def _chunks(items: Ints, size: int) -> list[Ints]:
    """Cut a list of blocks so that a chunk of them stays in the cache."""
    step = max(1, _CHUNK // max(1, size))
    return [items[begin : begin + step] for begin in range(0, len(items), step)]


def _rows(values: Floats, start: Ints, size: int) -> NDArray[np.uint64]:
    """The bits of the blocks, one block per row; -0.0 counts as 0.0."""
    rows = values[start[:, None] + np.arange(size)]
    rows += 0.0
    bits: NDArray[np.uint64] = rows.view(np.uint64)
    return bits


def _hashes(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One number per row, the same for the same row."""
    mixed = bits ^ (bits >> np.uint64(32))  # round numbers have their ones at the top, products need them below
    mixed *= _FACTOR
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.cumprod(np.full(bits.shape[1], _FACTOR))
    hashes: NDArray[np.uint64] = mixed.sum(axis=1, dtype=np.uint64)
    return hashes


def _differ(some: NDArray[np.uint64], others: NDArray[np.uint64]) -> Bools:
    different: Bools = (some != others).any(axis=1)
    return different
