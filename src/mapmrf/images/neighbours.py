"""The pixels of an image or volume: which of them are variables and neighbours, and what different labels cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import GraphError, OptionError

Offset = tuple[int, ...]
"""Offset from a pixel to its neighbour, (rows, columns) in an image; the first non-zero number is positive."""
Slices = tuple[slice, ...]
ChannelAxis = int | str | None
"""The axis of the channels, None if there is none, or ``"guess"``."""


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


# -- Cost of different labels for two neighbours of weight 1 ----------------------------------------------------------


KINDS = ("potts", "linear", "quadratic")


def smoothness_table(
    smoothness: str, n_labels: int, *, truncation: float | None = None, values: ArrayLike | None = None
) -> Floats:
    """Log potentials (L, L) of a pair of weight 1: 0 for equal labels, below 0 for labels that differ.

    With `v` the values of the labels, the entry for labels `k` and `l` is -1 unless ``k == l`` (``potts``),
    ``-min(|v_k - v_l|, truncation)`` (``linear``) or ``-min(|v_k - v_l|^2, truncation)`` (``quadratic``).

    Parameters
    ----------
    truncation
        Maximum cost of a pair of weight 1, for ``linear`` and ``quadratic``; no limit if not given. For
        ``quadratic`` it is the limit of the squared distance.
    values : (L,) or (L, C)
        Grey level, disparity or colour of a label, for ``linear`` and ``quadratic``; 0, 1, 2, ... if not
        given.

    Examples
    --------
    >>> smoothness_table("quadratic", 3, truncation=2).tolist()
    [[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]
    """
    if smoothness not in KINDS:
        raise OptionError(f"smoothness is {smoothness!r}, expected one of {', '.join(KINDS)} or an (L, L) table")
    if smoothness == "potts":
        if truncation is not None or values is not None:
            what = "truncation" if truncation is not None else "values"
            raise OptionError(f"{what} has no meaning for potts, where all labels are equally far apart")
        return np.eye(n_labels) - 1.0
    check_truncation(truncation)
    place = _label_values(values, n_labels)
    apart = ((place[:, None] - place) ** 2).sum(axis=-1)
    if smoothness == "linear":
        apart = np.sqrt(apart)
    apart = np.minimum(apart, math.inf if truncation is None else truncation)
    return np.asarray(0.0 - apart)


def base_table(
    smoothness: str | ArrayLike, n_labels: int, truncation: float | None, values: ArrayLike | None, costs: bool
) -> Floats:
    """The table of weight 1 from a name or from the table itself, as log potentials."""
    if isinstance(smoothness, str):
        return smoothness_table(smoothness, n_labels, truncation=truncation, values=values)
    if truncation is not None or values is not None:
        raise OptionError("truncation and values apply to linear and quadratic, not to a custom table")
    table = numbers(smoothness, "smoothness")
    if table.shape != (n_labels, n_labels):
        raise GraphError(f"smoothness has shape {table.shape}, expected {(n_labels, n_labels)} = (L, L)")
    check_entries(table, costs, "smoothness", "labels")
    return np.asarray(0.0 - table if costs else table.copy())  # no -0.0


def check_entries(array: NDArray[Any], costs: bool, what: str, place: str, mask: Bools | None = None) -> None:
    """Raise GraphError naming the first invalid entry, if there is one."""
    wrong = np.isnan(array) | (array == (-np.inf if costs else np.inf))
    if mask is not None:
        wrong &= mask[..., None]
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        meant = "inf (costs, of which inf forbids)"
        if not costs:
            meant = "-inf (log potentials, of which -inf forbids; for costs costs=True)"
        raise GraphError(f"{what} at {place} {at} is {array[at]}, expected a finite number or {meant}")


def _label_values(values: ArrayLike | None, n_labels: int) -> Floats:
    if values is None:
        return np.arange(float(n_labels))[:, None]
    array = numbers(values, "values")
    if array.ndim not in (1, 2) or len(array) != n_labels or not np.isfinite(array).all():
        raise GraphError(f"values have shape {array.shape}, expected finite numbers for each of the {n_labels} labels")
    return array.reshape(n_labels, -1)


# -- Contrast of neighbouring pixels: weights of pairs that let labels change at the edges of an image ----------------


def contrast_weights(
    guide: ArrayLike,
    weight: float = 1.0,
    *,
    neighbours: int | None = None,
    sigma: float | None = None,
    floor: float = 0.0,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: ChannelAxis = "guess",
) -> dict[Offset, Floats]:
    """Weight pairs of neighbours by their similarity, so that borders between labels fall on edges of an image.

    A pair of pixels has the weight ``weight / |p - q| * (floor + (1 - floor) * exp(-|I_p - I_q|^2 / (2 sigma^2)))``,
    where ``|p - q|`` is their distance: 1, or the square root of 2 for diagonal neighbours.

    Parameters
    ----------
    guide : (H, W) or (H, W, C)
        The image `I`, in any unit; a signal is (N,), a volume (D, H, W).
    weight
        Weight of two equal pixels at a distance of 1.
    neighbours, spacing : int, (n_axes,)
        As for `grid_model`.
    sigma
        Difference that counts as contrast, in the unit of the guide; the root mean square difference of all pairs of
        neighbours if not given.
    floor
        Share of the weight that remains across the strongest edge, from 0 to 1.
    mask : (H, W)
        True for pixels to use; pairs with any other have weight 0. Pixels outside are not read.
    channel_axis
        Axis of the channels, None if there is none. By default, the last axis holds channels if the mask has one axis
        less; without a mask, if its size is 3 or 4 in an array of at least three axes, as in a colour photograph.

    Returns
    -------
    dict
        For every offset (rows, columns) the weights of all pairs at it: (H, W - 1) at (0, 1), (H - 1, W) at (1, 0), and
        for 8 neighbours (H - 1, W - 1) at (1, -1) and (1, 1). The first pixel of a pair is the one that comes earlier.

    Examples
    --------
    >>> weights = contrast_weights([[0.0, 0.0, 9.0]], 2.0, sigma=3.0)
    >>> weights[0, 1].round(3).tolist(), weights[1, 0].shape
    ([[2.0, 0.022]], (0, 3))
    """
    channel_axis = channel_axis_of(guide, channel_axis, None if mask is None else np.shape(mask), "the guide")
    image = channels_last(guide, channel_axis)
    shape, n_dims = image.shape[:-1], image.ndim - 1
    lattice = Lattice(shape, checked_mask(mask, shape))
    if channel_axis is None and n_dims == 3 and neighbours in (4, 8):
        raise OptionError(f"neighbours is {neighbours}, expected 6, 18 or 26 on 3 axes; is channel_axis missing?")
    offsets = neighbour_offsets(n_dims, neighbours)
    rule = ContrastRule(weight, sigma, floor, checked_spacing(spacing, n_dims))
    flat = rule.weights(finite_inside(image, lattice.mask), lattice, offsets)
    return dict(zip(offsets, split_pairs(flat, shape, offsets), strict=True))


class ContrastRule(NamedTuple):
    """The rule for weights by contrast: options of `contrast_weights`, with the spacing of every axis."""

    weight: float
    sigma: float | None
    floor: float
    spacing: tuple[float, ...]

    def weights(self, image: Floats, lattice: Lattice, offsets: Sequence[Offset]) -> Floats:
        """Weights of all pairs of a lattice with or without mask, flat, one offset after another."""
        check_weight(self.weight)
        check_sigma(self.sigma)
        if not 0 <= self.floor <= 1:
            raise OptionError(f"floor is {self.floor}, expected a share from 0 to 1")
        flat = np.empty(sum(math.prod(pairs_at(lattice.shape, offset)) for offset in offsets))
        parts = split_pairs(flat, lattice.shape, offsets)
        outside = [None if (inside := lattice.inside(offset)) is None else ~inside for offset in offsets]
        n_pairs = flat.size
        for offset, part, out in zip(offsets, parts, outside, strict=True):
            _differences2(image, offset, part)
            if out is not None:
                part[out] = 0.0
                n_pairs -= int(np.count_nonzero(out))
        mean = float(flat.sum()) / max(1, n_pairs)
        two_sigma2 = 2 * (mean if self.sigma is None else self.sigma**2)
        flat *= -1 / two_sigma2 if two_sigma2 > 0 else 0.0
        np.exp(flat, out=flat)
        flat *= 1 - self.floor
        flat += self.floor
        for offset, part, out in zip(offsets, parts, outside, strict=True):
            part *= self.weight / distance(offset, self.spacing)
            if out is not None:
                part[out] = 0.0
        return flat


def split_pairs(flat: Floats, shape: tuple[int, ...], offsets: Sequence[Offset]) -> list[Floats]:
    """Views of a flat array of all pairs, one in the shape of the pairs at each offset."""
    shapes = [pairs_at(shape, offset) for offset in offsets]
    ends = np.cumsum([math.prod(each) for each in shapes]).tolist()
    return [flat[end - math.prod(each) : end].reshape(each) for each, end in zip(shapes, ends, strict=True)]


def channels_last(image: ArrayLike, channel_axis: int | None, what: str = "the image") -> Floats:
    """An image as floats with its channels on the last axis; `channel_axis` is None if it has no channels yet."""
    array = numbers(image, what)
    legal = channel_axis is None or -array.ndim <= channel_axis < array.ndim
    if array.ndim < 1 + (channel_axis is not None) or array.size == 0 or not legal:
        axis = "" if channel_axis is None else f" and its channels on axis {channel_axis}"
        raise GraphError(f"{what} has shape {array.shape}{axis}, expected (H, W), (H, W, C) or the like")
    return array[..., None] if channel_axis is None else np.moveaxis(array, channel_axis, -1)


def channel_axis_of(
    image: ArrayLike, channel_axis: ChannelAxis, shape: tuple[int, ...] | None, what: str = "the image"
) -> int | None:
    """The axis as given, or a guess: from the shape of the pixels where that is known, else by the size of the axes."""
    if not isinstance(channel_axis, str):
        return channel_axis
    if channel_axis != "guess":
        raise OptionError(f"channel_axis is {channel_axis!r}, expected the number of an axis, None or 'guess'")
    found = np.shape(image)
    if shape is not None:
        return None if found == shape else -1
    if len(found) == 3 and found[0] in (3, 4) and found[-1] not in (3, 4):
        raise GraphError(
            f"{what} has shape {found}: give channel_axis=0 if the first axis holds channels, None for a volume"
        )
    return -1 if len(found) > 2 and found[-1] in (3, 4) else None


def channels_for(image: ArrayLike, lattice: Lattice, channel_axis: int, what: str = "the guide") -> Floats:
    """An image of known shape as floats (..., C): it has channels if it has one more axis. Finite in the mask."""
    array, shape = numbers(image, what), lattice.shape
    axis = None if array.shape == shape else channel_axis
    if axis is None or (array.ndim == len(shape) + 1 and -array.ndim <= axis < array.ndim):
        array = channels_last(array, axis, what)
        if array.shape[:-1] == shape:
            return finite_inside(array, lattice.mask, what)
    channels = [str(n) for n in shape]
    channels.insert(channel_axis if channel_axis >= 0 else len(shape) + 1 + channel_axis, "C")
    raise GraphError(f"{what} has shape {np.shape(image)}, expected {shape} or ({', '.join(channels)})")


def finite_inside(image: Floats, mask: Bools | None, what: str = "the image") -> Floats:
    """An image (..., C), checked to be finite in the mask, and set to 0 outside."""
    if mask is not None:
        image = np.where(mask[..., None], image, 0.0)
    if not (math.isfinite(image.min()) and math.isfinite(image.max())):
        raise GraphError(f"{what} holds {image[~np.isfinite(image)][0]}, expected finite numbers")
    return image


def _differences2(image: Floats, offset: Offset, out: Floats) -> None:
    """Squared distance of the colours of all pairs at an offset."""
    first, second = pair_slices(offset)
    one, other = image[first], image[second]
    rows = max(1, (1 << 15) // max(1, math.prod(one.shape[1:])))  # that are subtracted together, to stay in the cache
    for at in range(0, len(one), rows):
        apart = one[at : at + rows] - other[at : at + rows]
        apart *= apart
        part = out[at : at + rows]
        part[...] = apart[..., 0]
        for c in range(1, apart.shape[-1]):
            part += apart[..., c]
