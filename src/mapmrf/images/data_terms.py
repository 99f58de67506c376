"""Unaries of images: from probabilities, from differences to the values of labels, and none where data is missing."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, row_sums
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.lattice import numbers

Difference = Literal["squared", "absolute"]


def unary_from_probabilities(probabilities: ArrayLike, *, floor: float | None = None) -> Floats:
    """Natural logarithm of class probabilities, such as those of a classifier.

    Parameters
    ----------
    probabilities : (H, W, L), or (..., L)
        Probability of each of the `L` classes, at least 0; they need not add up to 1. The axis of the classes is the
        last one.
    floor
        Smaller probabilities are raised to this. By default, zeros stay zeros: their log potential is `-inf`, and no
        labelling may use them.

    Returns
    -------
    (H, W, L)
        Log potentials.

    Examples
    --------
    >>> unary_from_probabilities([[[1.0, 0.0]]]).tolist()
    [[[0.0, -inf]]]
    >>> unary_from_probabilities([[[1.0, 0.0]]], floor=0.01).round(3).tolist()
    [[[0.0, -4.605]]]
    """
    array = numbers(probabilities, "probabilities")
    if floor is not None and not 0 < floor < math.inf:
        raise OptionError(f"floor is {floor}, expected a number above 0")
    wrong = ~((array >= 0) & (array < np.inf))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        hint = "; are these already log potentials?" if array[at] < 0 else ""
        raise GraphError(f"probability at {at} is {array[at]}, expected a finite number of at least 0{hint}")
    if floor is not None:
        return np.log(np.maximum(array, floor))
    if array.ndim and not (array.max(axis=-1, initial=0.0) > 0).all():
        at = tuple(int(i) for i in np.argwhere(array.max(axis=-1) == 0)[0])
        raise GraphError(f"all classes have probability 0 at pixel {at}: give a floor, or correct it")
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(array))


def unary_from_differences(
    image: ArrayLike,
    values: ArrayLike,
    *,
    difference: Difference = "squared",
    truncation: float | None = None,
    weight: float = 1.0,
    channel_axis: int = -1,
) -> Floats:
    """Log potentials that decrease with the difference between a pixel and the value of a label.

    They are ``-weight * min(|I_p - v_k|^2, truncation)``, or with the absolute difference instead of its square; for
    several channels, squares and absolute differences are summed over them. With Gaussian noise of standard deviation
    s, they are log probabilities for the weight ``1 / (2 s^2)``.

    Parameters
    ----------
    image : (H, W) or (H, W, C)
        The image; a volume is (D, H, W) or (D, H, W, C).
    values : (L,) or (L, C)
        Grey level or colour of each label, in the unit of the image.
    difference
        ``squared`` or ``absolute``.
    truncation
        Upper limit of a difference (or its square), for data with outliers; no limit if not given.
    weight
        Factor on the differences, at least 0.
    channel_axis
        Axis of the channels, where labels are colours, (L, C).

    Returns
    -------
    (H, W, L)
        Log potentials.

    Examples
    --------
    >>> unary_from_differences([[0.0, 3.0]], [0, 1, 2], truncation=4.0).tolist()
    [[[0.0, -1.0, -4.0], [-4.0, -4.0, -1.0]]]
    """
    pixels, looks = _with_channels(numbers(image, "image"), numbers(values, "values"), channel_axis)
    if difference not in get_args(Difference):
        raise OptionError(f"difference is {difference!r}, expected one of {', '.join(get_args(Difference))}")
    if truncation is not None and not truncation >= 0:
        raise OptionError(f"truncation is {truncation}, expected a number of at least 0")
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")
    unary = np.empty((*pixels.shape[:-1], len(looks)))
    for k, look in enumerate(looks):
        apart = pixels - look
        apart = np.abs(apart, out=apart) if difference == "absolute" else np.multiply(apart, apart, out=apart)
        unary[..., k] = row_sums(apart)
    if truncation is not None:
        np.minimum(unary, truncation, out=unary)
    unary *= -weight
    unary += 0.0  # no -0.0
    return unary


def without_data(unary: ArrayLike, missing: ArrayLike) -> Floats:
    """Unaries with no preference where data is missing, so that the neighbours decide: for inpainting.

    Parameters
    ----------
    unary : (H, W, L)
        Log potentials (or costs).
    missing : (H, W)
        True for unknown pixels; their unaries become 0.

    Examples
    --------
    >>> without_data([[[-1.0, -2.0], [-3.0, -4.0]]], [[False, True]]).tolist()
    [[[-1.0, -2.0], [0.0, 0.0]]]
    """
    result = np.array(numbers(unary, "unary"))
    mask = np.asarray(missing)
    if mask.dtype != np.bool_ or mask.shape != result.shape[:-1]:
        raise GraphError(f"missing is {mask.dtype} of shape {mask.shape}, expected bool of shape {result.shape[:-1]}")
    result[mask] = 0.0
    return result


def _with_channels(image: Floats, values: Floats, channel_axis: int) -> tuple[Floats, Floats]:
    """Both arrays with channels on the last axis."""
    coloured = values.ndim == 2 and image.ndim >= 2 and -image.ndim <= channel_axis < image.ndim
    if values.ndim == 1 and image.ndim >= 1:
        image, values = image[..., None], values[:, None]
    elif not coloured or image.shape[channel_axis] != values.shape[1]:
        found = f"an image of shape {image.shape} with values of shape {values.shape}"
        raise GraphError(f"{found}, expected (H, W) with (L,), or (H, W, C) with (L, C)")
    else:
        image = np.moveaxis(image, channel_axis, -1)
    for what, array in (("image", image), ("values", values)):
        if not np.isfinite(array).all():
            raise GraphError(f"{what} holds {array[~np.isfinite(array)][0]}, expected finite numbers")
    return image, values
