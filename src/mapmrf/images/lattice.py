"""The pixels of a picture or volume as a lattice: which are neighbours, and how alike neighbours look."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError

Offset = tuple[int, ...]
"""From a pixel to its neighbour, (rows, columns) in a picture; the first number that is not 0 is positive."""
Slices = tuple[slice, ...]


def neighbour_offsets(n_dims: int, neighbours: int) -> tuple[Offset, ...]:
    """List the steps from a pixel to its later neighbours, straight ones first.

    Parameters
    ----------
    n_dims
        Number of axes: 2 for a picture, 3 for a volume.
    neighbours
        Neighbours of an inner pixel: 4 or 8 in a picture, 6 or 26 in a volume. Every pair is listed once.

    Examples
    --------
    >>> neighbour_offsets(2, 8)
    ((0, 1), (1, 0), (1, -1), (1, 1))
    """
    straight, every = 2 * n_dims, 3**n_dims - 1
    if neighbours not in (straight, every):
        expected = f"{straight} or {every}" if every > straight else f"{straight}"
        raise OptionError(f"neighbours is {neighbours}, expected {expected} on {n_dims} axes")
    later = [step for step in itertools.product((-1, 0, 1), repeat=n_dims) if step > (0,) * n_dims]
    longest = 1 if neighbours == straight else n_dims
    kept = [step for step in later if _length2(step) <= longest]
    return tuple(sorted(kept, key=lambda step: (_length2(step), step)))


def pair_slices(offset: Offset) -> tuple[Slices, Slices]:
    """Where the earlier and the later pixels of all pairs at an offset are, in an array of pixels."""
    first = tuple(slice(max(0, -o), -o if o > 0 else None) for o in offset)
    second = tuple(slice(max(0, o), o if o < 0 else None) for o in offset)
    return first, second


def pairs_at(shape: tuple[int, ...], offset: Offset) -> tuple[int, ...]:
    """Shape of the array of all pairs of pixels at an offset."""
    return tuple(max(0, n - abs(o)) for n, o in zip(shape, offset, strict=True))


def distance(offset: Offset) -> float:
    """Euclidean distance of two pixels at an offset."""
    return math.sqrt(_length2(offset))


def contrast_weights(
    guide: ArrayLike, weight: float = 1.0, *, neighbours: int = 4, sigma: float | None = None, floor: float = 0.0
) -> dict[Offset, Floats]:
    """Weigh pairs of neighbours by how alike they look, so that borders between labels fall on edges of a picture.

    A pair of pixels weighs ``weight / |p - q| * (floor + (1 - floor) * exp(-|I_p - I_q|^2 / (2 sigma^2)))``, where
    ``|p - q|`` is the distance of the two: 1, or the square root of 2 for diagonal neighbours.

    Parameters
    ----------
    guide : (H, W) or (H, W, C)
        The picture `I`, with one or more channels of any unit. A volume is (D, H, W, C): its last axis is always that
        of the channels.
    weight
        Weight of two equal pixels that are next to each other.
    neighbours
        4 or 8; 6 or 26 in a volume.
    sigma
        Difference that counts as contrast, in the unit of the guide; the root mean square difference of all pairs of
        neighbours if not given.
    floor
        Share of the weight that is left across the strongest edge, from 0 to 1.

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
    image = as_channels(guide)
    _check_options(weight, sigma, floor)
    apart = {offset: _differences2(image, offset) for offset in neighbour_offsets(image.ndim - 1, neighbours)}
    two_sigma2 = 2 * (mean_square(apart) if sigma is None else sigma**2)
    result = {}
    for offset, d2 in apart.items():
        alike = np.exp(d2 / -two_sigma2) if two_sigma2 > 0 else np.ones_like(d2)
        result[offset] = (weight / distance(offset)) * (floor + (1 - floor) * alike)
    return result


def as_channels(image: ArrayLike) -> Floats:
    """A picture as floats with an axis of channels at the end, checked."""
    array = numbers(image, "the picture")
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim not in (3, 4) or array.size == 0:
        raise GraphError(f"the picture has shape {array.shape}, expected (H, W), (H, W, C) or (D, H, W, C)")
    if not np.isfinite(array).all():
        raise GraphError(f"the picture holds {array[~np.isfinite(array)][0]}, expected finite numbers")
    return array


def guide_for(guide: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """A guide with channels, if it has the pixels of a picture or volume of this shape."""
    image = numbers(guide, "the guide")
    if shape not in (image.shape, image.shape[:-1]):
        channels = ", ".join(map(str, shape)) + ", C"
        raise GraphError(f"the guide has shape {image.shape}, expected {shape} or ({channels})")
    return as_channels(image[..., None] if image.shape == shape else image)


def numbers(values: ArrayLike, what: str) -> Floats:
    """An array of floats, or a GraphError that says what is none."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what} is not an array of numbers ({error})") from None


def mean_square(apart: Mapping[Offset, Floats]) -> float:
    """Mean over all entries of several arrays, 0 if there is none."""
    count = sum(d2.size for d2 in apart.values())
    return float(sum(d2.sum() for d2 in apart.values()) / count) if count else 0.0


def lattice_pairs(shape: tuple[int, ...], offset: Offset) -> Ints:
    """Numbers of the pixels of all pairs at an offset, (n_pairs, 2); pixels are numbered row by row."""
    dtype = np.int32 if math.prod(shape) < 2**31 else np.int64
    at = np.arange(math.prod(shape)).astype(dtype).reshape(shape)
    first, second = pair_slices(offset)
    return np.stack([at[first].ravel(), at[second].ravel()], axis=1)


def _differences2(image: Floats, offset: Offset) -> Floats:
    """Squared distance of the colours of all pairs at an offset."""
    first, second = pair_slices(offset)
    return np.asarray(((image[first] - image[second]) ** 2).sum(axis=-1))


def _check_options(weight: float, sigma: float | None, floor: float) -> None:
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")
    if sigma is not None and not 0 < sigma < math.inf:
        raise OptionError(f"sigma is {sigma}, expected a finite number above 0")
    if not 0 <= floor <= 1:
        raise OptionError(f"floor is {floor}, expected a share from 0 to 1")


def _length2(offset: Offset) -> int:
    return sum(o * o for o in offset)
