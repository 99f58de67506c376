"""Unaries of images: from scribbles, probabilities, differences to the values of labels, and stereo pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Floats, Ints, row_sums
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.neighbours import (
    Lattice,
    bools,
    channels_for,
    channels_last,
    check_truncation,
    check_weight,
    checked_mask,
    finite_inside,
    numbers,
)
from mapmrf.model.builders import as_ints

CHUNK = 1 << 16  # samples processed together, to bound the memory


def kmeans(samples: ArrayLike, k: int, *, seed: int = 0, max_iterations: int = 100) -> Floats:
    """Centres (k, C) of `k` groups of samples, by Lloyd's algorithm from a spread-out random start (k-means++).

    They are in ascending order of their first channel.

    Parameters
    ----------
    samples : (n, C)
        Colours or other features, such as ``image.reshape(-1, 3)``.
    seed
        Seed of the start; the same seed gives the same centres.
    max_iterations
        Iteration limit; the algorithm usually converges earlier.

    Examples
    --------
    >>> kmeans([[0.0], [1.0], [10.0], [11.0]], 2).tolist()
    [[0.5], [10.5]]
    """
    points = _samples(samples, k)
    centres = _spread_out(points, k, np.random.default_rng(seed))
    for _ in range(max_iterations):
        of = _nearest(points, centres)
        size = np.bincount(of, minlength=k)
        sums = np.stack([np.bincount(of, weights=column, minlength=k) for column in points.T], axis=1)
        moved = np.where(size[:, None] > 0, sums / np.maximum(size, 1)[:, None], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return np.asarray(centres[np.lexsort(centres.T[::-1])])


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """A mixture of Gaussians in colour space.

    Attributes
    ----------
    weights : (K,)
        Shares of the components, which add up to 1.
    means : (K, C)
        Their centres.
    covariances : (K, C, C)
        Their covariances.

    Examples
    --------
    >>> mixture = GaussianMixture.fit([[0.0], [2.0], [100.0], [102.0]], components=2)
    >>> mixture.means.round(2).tolist()
    [[1.0], [101.0]]
    >>> density = mixture.log_density([[1.0], [50.0]])
    >>> bool(density[0] > density[1])
    True
    """

    weights: Floats
    means: Floats
    covariances: Floats

    @classmethod
    def fit(
        cls,
        samples: ArrayLike,
        components: int = 5,
        *,
        spread: float = 0.0,
        seed: int = 0,
        max_iterations: int = 50,
        tol: float = 1e-4,
    ) -> GaussianMixture:
        """Fit by expectation maximisation, from the groups of k-means.

        Parameters
        ----------
        samples : (n, C)
            Colours or other features.
        components
            Number of Gaussians; at most the number of distinct samples is used.
        spread
            Minimum variance to add to the components, so that one of nearly equal samples is not arbitrarily narrow; a
            thousandth of the samples' variance if that is larger.
        max_iterations, tol
            Iteration limit, and the gain of the mean log density below which the fit has converged.

        Examples
        --------
        >>> mixture = GaussianMixture.fit([[0.0, 1.0], [0.2, 1.0], [9.0, 0.0], [9.2, 0.0]], components=2)
        >>> mixture.weights.tolist(), mixture.means.shape
        ([0.5, 0.5], (2, 2))
        """
        points = _samples(samples, components)
        k = min(components, len(np.unique(points[:CHUNK], axis=0)))
        # On the diagonal of a covariance, at least a thousandth of the samples' mean variance.
        extra = max(1e-3 * float(points.var(axis=0).mean()), spread, 1e-15) * np.eye(points.shape[1])
        of = _nearest(points, kmeans(points, k, seed=seed))
        mixture = cls._from_shares(points, np.eye(k)[of], extra)
        before = -math.inf
        for _ in range(max_iterations):
            joint = mixture._log_joint(points)
            density = _log_sum(joint)
            if density.mean() - before < tol:
                break
            before = float(density.mean())
            mixture = cls._from_shares(points, np.exp(joint - density[:, None]), extra)
        return mixture

    def log_density(self, samples: ArrayLike) -> Floats:
        """Natural logarithm of the density at every sample: (..., C) -> (...).

        Examples
        --------
        >>> mixture = GaussianMixture.fit([[-1.0], [1.0]], components=1)
        >>> mixture.log_density([[[0.0], [1.0]]]).round(1).tolist()
        [[-0.9, -1.4]]
        """
        points = numbers(samples, "samples")
        if points.shape[-1:] != self.means.shape[1:]:
            raise GraphError(f"samples have shape {points.shape}, expected (..., {self.means.shape[1]})")
        flat = points.reshape(-1, points.shape[-1])
        parts = [_log_sum(self._log_joint(flat[at : at + CHUNK])) for at in range(0, len(flat), CHUNK)]
        return np.concatenate([np.zeros(0), *parts]).reshape(points.shape[:-1])

    @classmethod
    def _from_shares(cls, points: Floats, shares: Floats, extra: Floats) -> GaussianMixture:
        """The best mixture for given responsibilities of the components for every point, (n, K)."""
        size = np.maximum(shares.sum(axis=0), 1e-12)
        means = shares.T @ points / size[:, None]
        covariances = np.empty((len(size), *extra.shape))
        for j, mean in enumerate(means):
            off = points - mean
            covariances[j] = (off * shares[:, j, None]).T @ off / size[j] + extra
        return cls(size / size.sum(), means, covariances)

    def _log_joint(self, points: Floats) -> Floats:
        """Log of weight times density of every component at every point, (n, K)."""
        result = np.empty((len(points), len(self.weights)))
        for j, (mean, covariance) in enumerate(zip(self.means, self.covariances, strict=True)):
            root = np.linalg.cholesky(covariance)
            white = np.linalg.solve(root, (points - mean).T)
            log_det = 2 * np.log(np.diag(root)).sum() + len(mean) * math.log(2 * math.pi)
            result[:, j] = math.log(self.weights[j]) - 0.5 * (log_det + (white**2).sum(axis=0))
        return result


def unary_from_seeds(
    image: ArrayLike,
    seeds: ArrayLike,
    *,
    components: int = 5,
    keep_seeds: bool = True,
    mask: ArrayLike | None = None,
    channel_axis: int = -1,
    seed: int = 0,
) -> Floats:
    """Log likelihood of every pixel's colour under each label, (H, W, L), learned from scribbles.

    A Gaussian mixture is fitted to the marked pixels of each label.

    Parameters
    ----------
    image : (H, W) or (H, W, C)
        The image, or any other features of the pixels; a volume is (D, H, W) or (D, H, W, C).
    seeds : (H, W)
        The scribbles: a label from 0 on for marked pixels, -1 everywhere else. Every label up to the largest one needs
        some.
    components
        Gaussians per label; fewer for a label with less than five marked pixels per Gaussian. With 0, colours are not
        learned, and all likelihoods are 0.
    keep_seeds
        Forbid (`-inf`) all other labels at marked pixels.
    mask : (H, W)
        True for pixels to use; all others, and their seeds, are ignored and get unaries of 0.
    channel_axis
        Axis of the channels of an image that has one axis more than the seeds.

    Examples
    --------
    >>> unary = unary_from_seeds([[0.0, 0.2, 0.9, 1.0]], [[0, -1, -1, 1]], components=1)
    >>> unary.argmax(axis=-1).tolist(), unary[0, 0].tolist()[1]
    ([[0, 0, 1, 1]], -inf)
    """
    marks = as_ints(seeds, "seeds")
    lattice = Lattice(marks.shape, checked_mask(mask, marks.shape))
    pixels = channels_for(image, lattice, channel_axis, "the image")
    if lattice.mask is not None:
        marks[~lattice.mask] = -1
    n_labels = int(marks.max(initial=-1)) + 1
    if marks.min(initial=-1) < -1 or n_labels < 1:
        raise GraphError(f"seeds go from {marks.min()} to {marks.max()}, expected -1 for no mark and labels from 0 on")
    if components < 0:
        raise OptionError(f"components is {components}, expected at least 0")
    seen = pixels.reshape(-1, pixels.shape[-1]) if lattice.mask is None else pixels[lattice.mask]
    spread = 1e-3 * float(seen.var(axis=0).mean())
    unary = np.zeros((*marks.shape, n_labels))
    for label in range(n_labels):
        mine = pixels[marks == label]
        if len(mine) == 0:
            raise GraphError(f"no pixel is marked with label {label}, expected some for each of 0 to {n_labels - 1}")
        if components == 0:
            continue
        affordable = max(1, min(components, len(mine) // 5))
        mixture = GaussianMixture.fit(mine, affordable, spread=spread, seed=seed)
        if lattice.mask is None:
            unary[..., label] = mixture.log_density(pixels)
        else:
            unary[lattice.mask, label] = mixture.log_density(pixels[lattice.mask])
    if keep_seeds:
        others = (marks >= 0)[..., None] & (marks[..., None] != np.arange(n_labels))
        unary[others] = -np.inf
    return unary


def _samples(samples: ArrayLike, k: int) -> Floats:
    points = numbers(samples, "samples")
    if points.ndim != 2 or points.size == 0 or not np.isfinite(points).all():
        raise GraphError(f"samples have shape {points.shape}, expected finite numbers (n, C)")
    if not 1 <= k <= len(points):
        raise OptionError(f"{k} groups of {len(points)} samples, expected 1 to {len(points)}")
    return points


def _spread_out(points: Floats, k: int, random: np.random.Generator) -> Floats:
    """Samples far from each other: each is drawn by its squared distance to those before it."""
    centres = [points[random.integers(len(points))]]
    nearest2 = np.full(len(points), np.inf)
    for _ in range(k - 1):
        nearest2 = np.minimum(nearest2, ((points - centres[-1]) ** 2).sum(axis=1))
        total = nearest2.sum()
        share = nearest2 / total if total > 0 else None
        centres.append(points[random.choice(len(points), p=share)])
    return np.array(centres)


def _nearest(points: Floats, centres: Floats) -> Ints:
    parts = []
    for at in range(0, len(points), CHUNK):
        off = points[at : at + CHUNK, None] - centres
        parts.append((off * off).sum(axis=-1).argmin(axis=1))
    return np.concatenate(parts)


def _log_sum(joint: Floats) -> Floats:
    """log(sum(exp)) over the last axis, without overflow."""
    top = joint.max(axis=1, keepdims=True)
    return np.asarray(top[:, 0] + np.log(np.exp(joint - top).sum(axis=1)))


# Unaries of images: from probabilities, from differences to the values of labels, and none where data is missing.


Difference = Literal["squared", "absolute"]


def unary_from_probabilities(probabilities: ArrayLike, *, floor: float | None = None) -> Floats:
    """Natural logarithm of class probabilities (H, W, L), such as those of a classifier.

    Parameters
    ----------
    probabilities : (H, W, L), or (..., L)
        Probability of each of the `L` classes, at least 0; they need not add up to 1. The axis of the classes is the
        last one.
    floor
        Smaller probabilities are raised to this. By default, zeros stay zeros: their log potential is `-inf`, and no
        labelling may use them.

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
    """Log potentials, (H, W, L), that decrease with the difference between a pixel and the value of a label.

    They are ``-weight * min(|I_p - v_k|^2, truncation)``, or with the absolute difference instead of its square; for
    several channels, squares and absolute differences are summed over them. With Gaussian noise of standard deviation
    s, they are log probabilities for the weight ``1 / (2 s^2)``.

    Parameters
    ----------
    image : (H, W) or (H, W, C)
        The image; a volume is (D, H, W) or (D, H, W, C).
    values : (L,) or (L, C)
        Grey level or colour of each label, in the unit of the image.
    truncation
        Upper limit of a difference (or its square), for data with outliers; no limit if not given.
    channel_axis
        Axis of the channels, where labels are colours, (L, C).

    Examples
    --------
    >>> unary_from_differences([[0.0, 3.0]], [0, 1, 2], truncation=4.0).tolist()
    [[[0.0, -1.0, -4.0], [-4.0, -4.0, -1.0]]]
    """
    pixels, looks = _with_channels(numbers(image, "image"), numbers(values, "values"), channel_axis)
    if difference not in get_args(Difference):
        raise OptionError(f"difference is {difference!r}, expected one of {', '.join(get_args(Difference))}")
    check_truncation(truncation)
    check_weight(weight)
    unary = np.empty((*pixels.shape[:-1], len(looks)))
    for k, look in enumerate(looks):
        apart = pixels - look
        apart = np.abs(apart, out=apart) if difference == "absolute" else np.multiply(apart, apart, out=apart)
        unary[..., k] = row_sums(apart)
    return _log_potentials(unary, truncation, weight)


def _log_potentials(costs: Floats, truncation: float | None, weight: float) -> Floats:
    """Truncated and weighted, in place."""
    if truncation is not None:
        np.minimum(costs, truncation, out=costs)
    costs *= -weight
    costs += 0.0  # no -0.0
    return costs


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
    result[bools(missing, "missing", result.shape[:-1])] = 0.0
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


# -- Unaries of a rectified stereo pair: how well pixels match at every disparity -------------------------------------


Matching = Literal["absolute", "census"]


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
    (height, width), steps = one.shape[:2], as_ints(disparities, "disparities")
    steps = np.arange(int(steps)) if steps.ndim == 0 else steps
    if steps.ndim != 1 or len(steps) == 0 or steps.min() < 0 or steps.max() >= width:
        found = f"{steps.min()} to {steps.max()}" if steps.size else "none"
        raise OptionError(f"disparities are {found}, expected whole numbers from 0 to {width - 1}, the width minus 1")
    if window is None:
        window = 5 if matching == "census" else 1
    if matching not in get_args(Matching):
        raise OptionError(f"matching is {matching!r}, expected one of {', '.join(get_args(Matching))}")
    _check_window(window, *((3, 7) if matching == "census" else (1, math.inf)))
    check_truncation(truncation)
    check_weight(weight)
    from scipy.ndimage import uniform_filter

    unary, total, rows = np.empty((height, width, len(steps))), 0.0, height
    if matching == "census":
        one_code, other_code = census(one.mean(axis=-1), window), census(other.mean(axis=-1), window)
        rows = max(1, CHUNK // (width * len(steps)))  # for which all disparities stay in the cache
    for at in range(0, height, rows):
        some = slice(at, at + rows)
        for k, d in enumerate(steps.tolist()):
            if matching == "census":
                cost = _n_bits(one_code[some, d:] ^ other_code[some, : width - d]) / (window * window - 1)
            else:
                cost = np.abs(one[:, d:] - other[:, : width - d]).mean(axis=-1)
                cost = cost if window == 1 else uniform_filter(cost, window, mode="nearest")
            total += float(cost.sum())
            unary[some, d:, k] = cost
    mean = total / (height * int((width - steps).sum()))
    for k, d in enumerate(steps.tolist()):
        unary[:, :d, k] = mean
    return _log_potentials(unary, truncation, weight)


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
    _check_window(window, 3, 7)  # the comparisons of which fit into 64 bits
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


def _n_bits(words: NDArray[np.uint64]) -> NDArray[np.uint8]:
    if hasattr(np, "bitwise_count"):  # since NumPy 2
        return np.asarray(np.bitwise_count(words))
    n_bits = np.array([number.bit_count() for number in range(256)], dtype=np.uint8)
    of_bytes = n_bits[np.ascontiguousarray(words).view(np.uint8)].reshape(*words.shape, 8)
    return np.asarray(of_bytes.sum(axis=-1, dtype=np.uint8))


def _check_window(window: int, least: int, most: float) -> None:
    if not (least <= window <= most and window % 2 == 1):
        limit = f" to {most}" if most < math.inf else ""
        raise OptionError(f"window is {window}, expected an odd number from {least}{limit}")
