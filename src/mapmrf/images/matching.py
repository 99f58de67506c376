"""Unaries of a rectified stereo pair: how well pixels match at every disparity."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.smoothness import channels_last, finite_inside
from mapmrf.model.checks import as_ints

Matching = Literal["absolute", "census"]
MAX_CENSUS = 7  # widest window whose comparisons fit into 64 bits

_BITS = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)


def unary_from_stereo(
    left: ArrayLike,
    right: ArrayLike,
    disparities: int | ArrayLike,
    *,
    matching: Matching = "absolute",
    window: int | None = None,
    truncation: float | None = None,
    weight: float = 1.0,
    channel_axis: int = -1,
) -> Floats:
    """Log potentials of disparities: minus the cost of matching a pixel of the left image to the right one.

    With disparity `d`, the pixel (r, c) of the left image is at (r, c - d) in the right one.

    Parameters
    ----------
    left, right : (H, W) or (H, W, C)
        The rectified pair.
    disparities : int or (L,)
        The disparities of the labels, integers of at least 0; a number `L` means 0 to ``L - 1``.
    matching
        ``absolute``: mean absolute difference over the channels and over a window around the pixel, in the unit of the
        images. ``census``: share of the pixels in a window that are darker than its centre in one image but not in the
        other, from 0 to 1; it is insensitive to different exposures.
    window
        Side of the square window, odd; by default 1, and 5 for ``census``, where it is 3 to 7.
    truncation
        Upper limit of a pixel's cost, so that pixels hidden in the right image do little harm.

    Returns
    -------
    (H, W, L)
        Log potentials. Where ``c - d`` lies outside the right image nothing is known: the cost is the mean of all
        others.

    Examples
    --------
    >>> right = [[0.0, 5.0, 9.0, 2.0]]
    >>> left = [[7.0, 0.0, 5.0, 9.0]]
    >>> unary_from_stereo(left, right, 2).argmax(axis=-1).tolist()[0][1:]
    [1, 1, 1]
    """
    one, other = (_channels(picture, channel_axis) for picture in (left, right))
    if one.shape != other.shape or one.ndim != 3:
        raise GraphError(f"the images have shapes {one.shape} and {other.shape}, expected one (H, W, C) for both")
    steps = _disparities(disparities, one.shape[1])
    if window is None:
        window = 5 if matching == "census" else 1
    _check_options(matching, window, truncation, weight)
    if matching == "census":
        one_code, other_code = census(one.mean(axis=-1), window), census(other.mean(axis=-1), window)
    unary = np.empty((*one.shape[:2], len(steps)))
    for k, d in enumerate(steps.tolist()):
        width = one.shape[1] - d
        if matching == "census":
            cost = _hamming(one_code[:, d:], other_code[:, :width]) / (window * window - 1)
        else:
            cost = _box_mean(np.abs(one[:, d:] - other[:, :width]).mean(axis=-1), window)
        unary[:, :d, k] = np.nan
        unary[:, d:, k] = cost
    unary[np.isnan(unary)] = np.nanmean(unary)
    if truncation is not None:
        np.minimum(unary, truncation, out=unary)
    unary *= -weight
    unary += 0.0  # no -0.0
    return unary


def census(image: ArrayLike, window: int = 5) -> NDArray[np.uint64]:
    """Census transform: for every pixel, a bit for each other one in a window around it, set if that is darker.

    Parameters
    ----------
    image : (H, W)
        The image; beyond its border, the nearest pixel is used.
    window
        Side of the window, odd, from 3 to 7.

    Examples
    --------
    >>> census([[1, 2, 3]], 3).tolist() == [[0, 0b101001, 0b101001]]
    True
    """
    grey = _channels(image, -1)[..., 0]
    _check_window(window, 3, MAX_CENSUS)
    reach = window // 2
    padded = np.pad(grey, reach, mode="edge")
    code: NDArray[np.uint64] = np.zeros(grey.shape, dtype=np.uint64)
    bit = 0
    for r in range(window):
        for c in range(window):
            if (r, c) != (reach, reach):
                darker = padded[r : r + grey.shape[0], c : c + grey.shape[1]] < grey
                code |= darker.astype(np.uint64) << np.uint64(bit)
                bit += 1
    return code


def _channels(image: ArrayLike, channel_axis: int) -> Floats:
    """An image with channels at the end, (H, W, C)."""
    return finite_inside(channels_last(image, channel_axis if np.ndim(image) > 2 else None), None)


def _hamming(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> Floats:
    differ = np.ascontiguousarray(one ^ other)
    return np.asarray(_BITS[differ.view(np.uint8)].reshape(*differ.shape, 8).sum(axis=-1, dtype=np.float64))


def _box_mean(values: Floats, window: int) -> Floats:
    """Mean over a square window; beyond the border, the nearest value is used."""
    if window == 1:
        return values
    from scipy.ndimage import uniform_filter

    return np.asarray(uniform_filter(values, window, mode="nearest"))


def _disparities(disparities: int | ArrayLike, width: int) -> Ints:
    steps = as_ints(disparities, "disparities")
    steps = np.arange(int(steps)) if steps.ndim == 0 else steps
    if steps.ndim != 1 or len(steps) == 0 or steps.min() < 0 or steps.max() >= width:
        found = f"{steps.min()} to {steps.max()}" if steps.size else "none"
        raise OptionError(f"disparities are {found}, expected whole numbers from 0 to {width - 1}, the width minus 1")
    return steps


def _check_options(matching: str, window: int, truncation: float | None, weight: float) -> None:
    if matching not in get_args(Matching):
        raise OptionError(f"matching is {matching!r}, expected one of {', '.join(get_args(Matching))}")
    if matching == "census":
        _check_window(window, 3, MAX_CENSUS)
    else:
        _check_window(window, 1, math.inf)
    if truncation is not None and not truncation >= 0:
        raise OptionError(f"truncation is {truncation}, expected a number of at least 0")
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")


def _check_window(window: int, least: int, most: float) -> None:
    if not (least <= window <= most and window % 2 == 1):
        limit = f" to {most}" if most < math.inf else ""
        raise OptionError(f"window is {window}, expected an odd number from {least}{limit}")
