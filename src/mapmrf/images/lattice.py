"""The pixels of an image or volume as a lattice: which of them are variables, and which are neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import GraphError, OptionError

Offset = tuple[int, ...]
"""Offset from a pixel to its neighbour, (rows, columns) in an image; the first non-zero number is positive."""
Slices = tuple[slice, ...]


def neighbour_offsets(n_dims: int, neighbours: int | None = None) -> tuple[Offset, ...]:
    """List the steps from a pixel to its later neighbours, straight ones first.

    Parameters
    ----------
    n_dims
        Number of axes: 2 for an image, 3 for a volume.
    neighbours
        Neighbours of an inner pixel: 4 or 8 in an image, 6, 18 or 26 in a volume; two for each axis if not given.
        Every pair is listed once.

    Examples
    --------
    >>> neighbour_offsets(2)
    ((0, 1), (1, 0))
    >>> neighbour_offsets(2, 8)
    ((0, 1), (1, 0), (1, -1), (1, 1))
    """
    later = [step for step in itertools.product((-1, 0, 1), repeat=n_dims) if step > (0,) * n_dims]
    later.sort(key=_by_length)
    count = 2 * n_dims if neighbours is None else neighbours
    known = [2 * sum(_length2(step) <= longest for step in later) for longest in range(1, n_dims + 1)]
    if count not in known:
        *some, last = map(str, known)
        expected = f"{', '.join(some)} or {last}" if some else last
        raise OptionError(f"neighbours is {neighbours}, expected {expected} on {n_dims} axes")
    return tuple(later[: count // 2])


def checked_offsets(given: Sequence[Offset], n_dims: int) -> tuple[Offset, ...]:
    """Custom offsets, checked, in the order of `neighbour_offsets`."""
    zero = (0,) * n_dims
    for offset in given:
        legal = isinstance(offset, tuple) and all(isinstance(o, int) for o in offset)
        if not (legal and len(offset) == n_dims and offset > zero):
            hint = "; is channel_axis missing?" if legal and len(offset) == n_dims + 1 else ""
            expected = f"{n_dims} whole numbers, of which the first that is not 0 is positive"
            raise GraphError(f"weight has the offset {offset}, expected {expected}{hint}")
    return tuple(sorted(given, key=_by_length))


def pair_slices(offset: Offset) -> tuple[Slices, Slices]:
    """Where the earlier and the later pixels of all pairs at an offset are, in an array of pixels."""
    first = tuple(slice(max(0, -o), -o if o > 0 else None) for o in offset)
    second = tuple(slice(max(0, o), o if o < 0 else None) for o in offset)
    return first, second


def pairs_at(shape: tuple[int, ...], offset: Offset) -> tuple[int, ...]:
    """Shape of the array of all pairs of pixels at an offset."""
    return tuple(max(0, n - abs(o)) for n, o in zip(shape, offset, strict=True))


def distance(offset: Offset, spacing: Sequence[float]) -> float:
    return math.hypot(*(o * s for o, s in zip(offset, spacing, strict=True)))


def checked_spacing(spacing: ArrayLike | None, n_dims: int) -> tuple[float, ...]:
    """The distance of neighbours along each axis, 1 where none is given."""
    if spacing is None:
        return (1.0,) * n_dims
    array = numbers(spacing, "spacing")
    if array.shape != (n_dims,) or not (np.isfinite(array).all() and (array > 0).all()):
        raise OptionError(f"spacing is {array.tolist()}, expected {n_dims} numbers above 0, one for each axis")
    return tuple(array.tolist())


def checked_mask(mask: ArrayLike | None, shape: tuple[int, ...]) -> Bools | None:
    """Which pixels are variables, None for all."""
    if mask is None:
        return None
    array = bools(mask, "mask", shape)
    if not array.any():
        raise GraphError("mask has no true pixel, expected at least one")
    return array


def bools(values: ArrayLike, what: str, shape: tuple[int, ...]) -> Bools:
    array = np.asarray(values)
    if array.dtype != np.bool_ or array.shape != shape:
        raise GraphError(f"{what} is {array.dtype} of shape {array.shape}, expected bool of shape {shape}")
    return array


def check_weight(weight: float) -> None:
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")


def check_truncation(truncation: float | None) -> None:
    if truncation is not None and not truncation >= 0:
        raise OptionError(f"truncation is {truncation}, expected a number of at least 0")


def check_sigma(sigma: float | None) -> None:
    if sigma is not None and not 0 < sigma < math.inf:
        raise OptionError(f"sigma is {sigma}, expected a finite number above 0")


def numbers(values: ArrayLike, what: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what} is not an array of numbers ({error})") from None


@dataclass(frozen=True, eq=False)
class Lattice:
    """Pixels, of which those in a mask are variables, numbered row by row."""

    shape: tuple[int, ...]
    mask: Bools | None = None

    @cached_property
    def n_pixels(self) -> int:
        return math.prod(self.shape) if self.mask is None else int(np.count_nonzero(self.mask))

    def inside(self, offset: Offset) -> Bools | None:
        """Which pairs at an offset have both pixels in the mask, in the shape of `pairs_at`; None if all do."""
        if self.mask is None:
            return None
        first, second = pair_slices(offset)
        return self.mask[first] & self.mask[second]

    def n_pairs(self, offset: Offset) -> int:
        inside = self.inside(offset)
        return math.prod(pairs_at(self.shape, offset)) if inside is None else int(np.count_nonzero(inside))

    def scope(self, offsets: Sequence[Offset]) -> Ints:
        """Variables of all pairs, two for each; offset by offset, and the pairs of each row by row."""
        counts = [self.n_pairs(offset) for offset in offsets]
        number = self._numbers()
        scope = np.empty(2 * sum(counts), dtype=number.dtype)
        for offset, pairs in zip(offsets, np.split(scope, 2 * np.cumsum(counts)[:-1]) if counts else [], strict=True):
            inside = self.inside(offset)
            shape = pairs_at(self.shape, offset) if inside is None else (len(pairs) // 2,)
            for k, place in enumerate(pair_slices(offset)):
                pairs.reshape(*shape, 2)[..., k] = number[place] if inside is None else number[place][inside]
        return scope

    def _numbers(self) -> Ints:
        dtype: type[np.integer[Any]] = np.int32 if math.prod(self.shape) < 2**31 else np.int64
        if self.mask is None:
            return np.arange(math.prod(self.shape), dtype=dtype).reshape(self.shape)
        number: Ints = np.cumsum(self.mask, dtype=dtype).reshape(self.shape)
        number -= 1
        return number


def _by_length(offset: Offset) -> tuple[int, Offset]:
    return _length2(offset), offset


def _length2(offset: Offset) -> int:
    return sum(o * o for o in offset)
