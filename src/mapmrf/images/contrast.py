"""Contrast of neighbouring pixels: weights of pairs that let labels change at the edges of an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.lattice import (
    Lattice,
    Offset,
    checked_mask,
    checked_spacing,
    distance,
    neighbour_offsets,
    numbers,
    pair_slices,
    pairs_at,
)

CHUNK = 1 << 15
"""Numbers that are subtracted together, to stay in the cache."""


def contrast_weights(
    guide: ArrayLike,
    weight: float = 1.0,
    *,
    neighbours: int | None = None,
    sigma: float | None = None,
    floor: float = 0.0,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: int | None = None,
) -> dict[Offset, Floats]:
    """Weight pairs of neighbours by their similarity, so that borders between labels fall on edges of an image.

    A pair of pixels has the weight ``weight / |p - q| * (floor + (1 - floor) * exp(-|I_p - I_q|^2 / (2 sigma^2)))``,
    where ``|p - q|`` is their distance: 1, or the square root of 2 for diagonal neighbours.

    Parameters
    ----------
    guide : (H, W) or (H, W, C)
        The image `I`, in any unit; a signal is (N,), a volume (D, H, W). With channels, `channel_axis` says where.
    weight
        Weight of two equal pixels at a distance of 1.
    neighbours
        4 or 8; 6, 18 or 26 in a volume; two for each axis if not given.
    sigma
        Difference that counts as contrast, in the unit of the guide; the root mean square difference of all pairs of
        neighbours if not given.
    floor
        Share of the weight that remains across the strongest edge, from 0 to 1.
    mask : (H, W)
        True for pixels to use; pairs with any other have weight 0. Pixels outside are not read.
    spacing : (n_axes,)
        Distance of neighbours along each axis, such as ``(3, 1, 1)`` for a volume of thick slices; 1 if not given.
    channel_axis
        Axis of the channels, such as -1 for a colour photograph; None if there is none.

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
        self._check()
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

    def _check(self) -> None:
        if not 0 <= self.weight < math.inf:
            raise OptionError(f"weight is {self.weight}, expected a finite number of at least 0")
        if self.sigma is not None and not 0 < self.sigma < math.inf:
            raise OptionError(f"sigma is {self.sigma}, expected a finite number above 0")
        if not 0 <= self.floor <= 1:
            raise OptionError(f"floor is {self.floor}, expected a share from 0 to 1")


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


def channels_for(image: ArrayLike, lattice: Lattice, channel_axis: int, what: str = "the guide") -> Floats:
    """The same for an image of known shape, which has channels if it has one more axis; finite in the mask."""
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
    rows = max(1, CHUNK // max(1, math.prod(one.shape[1:])))
    for at in range(0, len(one), rows):
        apart = one[at : at + rows] - other[at : at + rows]
        apart *= apart
        part = out[at : at + rows]
        part[...] = apart[..., 0]
        for c in range(1, apart.shape[-1]):
            part += apart[..., c]
