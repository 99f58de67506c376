"""Depth from two views in one call."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.images.grids import grid_model
from mapmrf.images.lattice import Lattice, checked_mask
from mapmrf.images.matching import unary_from_stereo
from mapmrf.images.smoothness import channels_for, contrast_weights
from mapmrf.images.solving import GAP_TOLERANCE, TIME_LIMIT, LabelledImage, SolveOptions
from mapmrf.model.checks import as_ints
from mapmrf.run.method import Method


def stereo(
    left: ArrayLike,
    right: ArrayLike,
    disparities: int | ArrayLike,
    *,
    window: int = 5,
    data_weight: float = 8.0,
    weight: float = 1.0,
    truncation: float | None = 4.0,
    sigma: float | None = None,
    floor: float = 0.3,
    neighbours: int | None = None,
    mask: ArrayLike | None = None,
    channel_axis: int = -1,
    method: str | Method = "auto",
    time_limit: float | None = TIME_LIMIT,
    gap_tolerance: float = GAP_TOLERANCE,
    threads: int | None = 1,
    seed: int = 0,
    progress: bool = False,
) -> LabelledImage:
    """Find the disparity of every pixel of a rectified stereo pair.

    Pixels are matched by the census of a window around them (`unary_from_stereo`); neighbours of different disparity
    cost their truncated difference, and less across edges of the left image.

    Parameters
    ----------
    left, right : (H, W) or (H, W, C)
        The rectified pair.
    disparities : int or (L,)
        The disparities of the labels, integers of at least 0; a number `L` means 0 to ``L - 1``.
    window
        Side of the census window, odd, from 3 to 7.
    data_weight
        Cost of a pixel if all comparisons in its window differ.
    weight, truncation
        Cost of neighbours per step of disparity, and the number of steps beyond which it does not grow.
    sigma, floor
        Difference that counts as contrast, and the share of the weight that remains across the strongest edge; see
        `contrast_weights`.
    mask : (H, W)
        True for pixels that get a disparity; the others get -1.
    method, time_limit, gap_tolerance, threads, seed, progress
        As for `solve`. Use a method object such as ``mapmrf.TRWS(max_iterations=50)`` to set its options.

    Returns
    -------
    LabelledImage
        Its `image` has the disparities: the pixel (r, c) of the left image is at (r, c - d) in the right one.

    Examples
    --------
    >>> right = np.random.default_rng(0).random((6, 9))
    >>> stereo(np.roll(right, 2, axis=1), right, 4).image[3].tolist()[2:]
    [2, 2, 2, 2, 2, 2, 2]
    """
    unary = unary_from_stereo(
        left, right, disparities, matching="census", window=window, weight=data_weight, channel_axis=channel_axis
    )
    shape = unary.shape[:-1]
    inside = checked_mask(mask, shape)
    steps = np.arange(unary.shape[-1]) if np.ndim(disparities) == 0 else as_ints(disparities, "disparities")
    guide = channels_for(left, Lattice(shape, inside), channel_axis, "the left image")
    weights = contrast_weights(
        guide, weight, neighbours=neighbours, sigma=sigma, floor=floor, mask=inside, channel_axis=-1
    )
    graph = grid_model(unary, "linear", weight=weights, truncation=truncation, values=steps, mask=inside)
    options = SolveOptions(method, time_limit, gap_tolerance, threads, seed, progress)
    return options.image(graph, shape, inside, np.append(steps, -1))
