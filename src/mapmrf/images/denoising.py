"""Denoising and inpainting of an image or volume in one call."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.colours import unary_from_differences, without_data
from mapmrf.images.grids import grid_model
from mapmrf.images.lattice import Offset, checked_mask, checked_spacing, distance, neighbour_offsets, numbers
from mapmrf.images.smoothness import channels_last, finite_inside
from mapmrf.images.solving import GAP_TOLERANCE, TIME_LIMIT, LabelledImage, SolveOptions
from mapmrf.run.method import Method

MAD = 0.6745  # median of the absolute value of a normal variable of standard deviation 1


def denoise(
    image: ArrayLike,
    values: int | ArrayLike = 64,
    *,
    noise: float | None = None,
    weight: float = 0.55,
    truncation: float | None = 3.2,
    missing: ArrayLike | None = None,
    neighbours: int | None = None,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: int | None = None,
    method: str | Method = "auto",
    time_limit: float | None = TIME_LIMIT,
    gap_tolerance: float = GAP_TOLERANCE,
    threads: int | None = 1,
    seed: int = 0,
    progress: bool = False,
) -> LabelledImage:
    """Remove noise from an image or volume, and fill in missing pixels.

    Every pixel gets one of some grey levels. With `s` the standard deviation of the noise, a difference `d` from the
    given pixel costs ``d^2 / (2 s^2)``, and a difference `d` between neighbours ``weight * min(d / s, truncation)``.

    Parameters
    ----------
    image : (H, W)
        The image; a signal is (N,), a volume (D, H, W). Channels are denoised separately, in one model.
    values : int or (L,)
        The grey levels of the answer, or their number, evenly spaced from the smallest to the largest in the image.
    noise
        Standard deviation of the noise in the unit of the image; estimated from second differences if not given.
    weight
        Cost per difference of one `noise` between neighbours.
    truncation
        Difference of neighbours, in units of `noise`, beyond which the cost does not grow, so that edges survive; None
        for no limit.
    missing : (H, W)
        True for unknown pixels: their neighbours decide.
    neighbours
        4 or 8; 6, 18 or 26 in a volume; two for each axis if not given.
    spacing : (n_axes,)
        Distance of neighbours along each axis, by which weights are divided; 1 if not given.
    mask : (H, W)
        True for pixels to be denoised; the others are left unchanged.
    channel_axis
        Axis of the channels, such as -1 for a colour photograph; None if there is none.
    method, time_limit, gap_tolerance, threads, seed, progress
        As for `solve`. Use a method object such as ``mapmrf.TRWS(max_iterations=50)`` to set its options.

    Returns
    -------
    LabelledImage
        Its `image` is the denoised image, of the same shape.

    Examples
    --------
    >>> noisy = [1.0, 1.1, 0.9, 1.0, 5.1, 5.0, 4.9, 5.0]
    >>> denoise(noisy, [1.0, 3.0, 5.0], noise=0.5).image.tolist()
    [1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]
    """
    pixels = np.moveaxis(channels_last(image, channel_axis), -1, 0)  # (C, H, W): channels are slices without pairs
    shape = pixels.shape[1:]
    inside, lost = checked_mask(mask, shape), _checked_missing(missing, shape)
    known = np.broadcast_to(True if inside is None else inside, shape) & ~lost
    if not known.any():
        raise GraphError("no pixel is known, expected some in the mask that are not missing")
    data = np.moveaxis(finite_inside(np.moveaxis(pixels, 0, -1), known), -1, 0)
    levels = _grey_levels(values, data[:, known])
    scale = _noise(data, known) if noise is None else noise
    if not 0 < scale < math.inf:
        raise OptionError(f"noise is {noise}, expected a finite number above 0")
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")
    unary = unary_from_differences(data, levels, weight=1 / (2 * scale**2))
    if missing is not None:
        unary = without_data(unary, np.broadcast_to(lost, data.shape))
    weights = _within_channels(weight / scale, shape, neighbours, spacing)
    limit = None if truncation is None else truncation * scale
    full = None if inside is None else np.broadcast_to(inside, data.shape)
    graph = grid_model(unary, "linear", weight=weights, truncation=limit, values=levels, mask=full)
    options = SolveOptions(method, time_limit, gap_tolerance, threads, seed, progress)
    answer = options.image(graph, data.shape, full, np.append(levels, np.nan))
    clean = answer.image if full is None else np.where(full, answer.image, pixels)
    last = -1 if channel_axis is None else channel_axis
    back = [np.moveaxis(array, 0, last) if channel_axis is not None else array[0] for array in (clean, answer.labels)]
    return LabelledImage(back[0], back[1], answer.result)


def _checked_missing(missing: ArrayLike | None, shape: tuple[int, ...]) -> Bools:
    array = np.zeros(shape, dtype=bool) if missing is None else np.asarray(missing)
    if array.dtype != np.bool_ or array.shape != shape:
        raise GraphError(f"missing is {array.dtype} of shape {array.shape}, expected bool of shape {shape}")
    return array


def _grey_levels(values: int | ArrayLike, known: Floats) -> Floats:
    array = numbers(values, "values")
    if array.ndim == 1 and array.size and np.isfinite(array).all():
        return array
    if array.ndim > 0 or not array >= 2 or array != np.floor(array):
        raise OptionError(f"values is {values!r}, expected at least 2 grey levels, or the levels themselves")
    return np.linspace(known.min(), known.max(), int(array))


def _noise(data: Floats, known: Bools) -> float:
    """Standard deviation of the noise in (C, H, W), by the median of second differences along all axes."""
    apart = [np.zeros(0)]
    for axis in range(1, data.ndim):
        rows, seen = np.moveaxis(data, axis, 0), np.moveaxis(known, axis - 1, 0)
        all_seen = seen[:-2] & seen[1:-1] & seen[2:]
        second = rows[:-2] - 2 * rows[1:-1] + rows[2:]
        apart.append(np.abs(np.moveaxis(second, 1, 0)[:, all_seen]).ravel())
    every = np.concatenate(apart)
    spread = float(np.ptp(data[:, known]))
    least = spread / 255 if spread > 0 else 1.0
    return max(float(np.median(every)) / (MAD * math.sqrt(6)), least) if every.size else least


def _within_channels(
    weight: float, shape: tuple[int, ...], neighbours: int | None, spacing: ArrayLike | None
) -> dict[Offset, float]:
    """Weights of the pairs of (C, H, W) inside of each channel."""
    apart = checked_spacing(spacing, len(shape))
    return {(0, *offset): weight / distance(offset, apart) for offset in neighbour_offsets(len(shape), neighbours)}
