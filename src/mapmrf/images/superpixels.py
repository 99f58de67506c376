"""Models with one variable per region of an over-segmented picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.graph import FactorGraph
from mapmrf.graph_checks import as_ints
from mapmrf.images.grids import PairTerms, UnaryTerms
from mapmrf.images.lattice import Offset, contrast_weights, distance, guide_for, neighbour_offsets, numbers, pair_slices
from mapmrf.images.smoothness import LEVELS, base_table
from mapmrf.result import Result

Contrast = Literal["borders", "regions"]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Which regions touch, and the length of their borders.

    Attributes
    ----------
    pairs : (n_pairs, 2)
        Regions that touch, the smaller number first, in ascending order.
    lengths : (n_pairs,)
        Pairs of neighbouring pixels across the border, diagonal ones counted as one over the square root of 2; with a
        guide, the sum of their contrast weights.

    Examples
    --------
    >>> region_adjacency([[0, 0, 1], [2, 2, 1]]).pairs.tolist()
    [[0, 1], [0, 2], [1, 2]]
    """

    pairs: Ints
    lengths: Floats


def region_adjacency(
    segments: ArrayLike, *, neighbours: int = 4, guide: ArrayLike | None = None, sigma: float | None = None
) -> Adjacency:
    """Find the regions that touch, and the length of the border between them.

    Parameters
    ----------
    segments : (H, W)
        Number of the region of every pixel, from 0 on. A volume is (D, H, W).
    neighbours
        4 or 8: whether pixels that meet at a corner touch; 6 or 26 in a volume.
    guide : (H, W) or (H, W, C)
        A picture: pairs of pixels across the border are weighted by their contrast, as in `contrast_weights`.
    sigma
        Difference that counts as contrast in the guide; the root mean square difference of all pairs of neighbours, in
        the whole picture, if not given.

    Examples
    --------
    >>> touching = region_adjacency([[0, 0, 1], [2, 2, 1]])
    >>> touching.pairs.tolist(), touching.lengths.tolist()
    ([[0, 1], [0, 2], [1, 2]], [1.0, 2.0, 1.0])
    """
    regions = _regions(segments)
    offsets = neighbour_offsets(regions.ndim, neighbours)
    weights: Mapping[Offset, Floats] = {offset: np.array(1 / distance(offset)) for offset in offsets}
    if guide is not None:
        weights = contrast_weights(guide_for(guide, regions.shape), neighbours=neighbours, sigma=sigma)
    elif sigma is not None:
        raise OptionError("sigma is given without a guide")
    n = int(regions.max()) + 1
    codes, parts = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for offset in offsets:
        first, second = pair_slices(offset)
        a, b = regions[first], regions[second]
        apart = a != b
        codes.append(np.minimum(a, b)[apart] * n + np.maximum(a, b)[apart])
        parts.append(np.broadcast_to(weights[offset], a.shape)[apart])
    distinct, of = np.unique(np.concatenate(codes), return_inverse=True)
    lengths = np.bincount(of, np.concatenate(parts), len(distinct)).astype(np.float64)
    return Adjacency(np.stack([distinct // n, distinct % n], axis=1), lengths)


def region_sums(pixels: ArrayLike, segments: ArrayLike) -> Floats:
    """Sum of a picture's channels, or of the log potentials of labels, over every region.

    Parameters
    ----------
    pixels : (H, W, C)
        What is summed up, such as the unaries (H, W, L) of a `grid_model`.
    segments : (H, W)
        Number of the region of every pixel, from 0 on.

    Returns
    -------
    (n_segments, C)
        The sums; `-inf` at one pixel makes it `-inf`.

    Examples
    --------
    >>> region_sums([[[1.0], [2.0], [4.0]]], [[0, 1, 1]]).tolist()
    [[1.0], [6.0]]
    """
    regions = _regions(segments)
    array = numbers(pixels, "pixels")
    if array.shape[:-1] != regions.shape:
        raise GraphError(f"pixels have shape {array.shape}, expected {(*regions.shape, 'C')}")
    flat = regions.ravel()
    columns = [np.bincount(flat, weights=array[..., c].ravel()) for c in range(array.shape[-1])]
    return np.stack(columns, axis=1)


def superpixel_model(
    segments: ArrayLike,
    unary: ArrayLike,
    smoothness: str | ArrayLike = "potts",
    *,
    weight: float = 1.0,
    truncation: float | None = None,
    values: ArrayLike | None = None,
    neighbours: int = 4,
    guide: ArrayLike | None = None,
    sigma: float | None = None,
    contrast: Contrast = "borders",
    levels: int | None = LEVELS,
    costs: bool = False,
    memory_limit: float | None = None,
) -> FactorGraph:
    """Build the model of regions: a label per region, and touching regions tend to agree.

    A pair of regions has `weight` times the length of its border (see `region_adjacency`) as weight. With unaries that
    are sums over pixels (`region_sums`) this is `grid_model` on the same picture with one label for all pixels of a
    region: every labelling has the same log potential in both, up to the rounding of weights.

    Parameters
    ----------
    segments : (H, W)
        Number of the region of every pixel, from 0 to ``n_segments - 1``; (D, H, W) in a volume. Superpixels of
        scikit-image begin at 0 with ``start_label=0``.
    unary : (n_segments, L)
        Log potential of each label for each region; `-inf` forbids a label.
    smoothness
        ``potts``, ``linear``, ``quadratic``, or a table (L, L) of log potentials.
    values : (L,)
        Values of the labels.
    truncation, neighbours, levels, costs, memory_limit
        As for `grid_model`.
    weight
        Weight of a border of length 1, at least 0.
    guide : (H, W) or (H, W, C)
        A picture whose edges are where labels may change.
    sigma
        Difference that counts as contrast in the guide.
    contrast
        ``borders``: each pair of pixels across a border is weighted by their difference; sigma is by default the root
        mean square difference of neighbouring pixels. ``regions``: the whole border is weighted by the difference of
        the mean colours of the two regions; sigma is by default the root mean square of these differences.

    Returns
    -------
    FactorGraph
        Variable `i` is region `i`; `label_image` turns a result into a picture.

    Examples
    --------
    >>> import mapmrf
    >>> segments = [[0, 0, 1], [2, 2, 1]]
    >>> graph = superpixel_model(segments, [[2.0, 0.0], [0.0, 3.0], [0.5, 0.6]], weight=0.5)
    >>> label_image(mapmrf.solve(graph), segments).tolist()
    [[0, 0, 1], [0, 0, 1]]
    """
    theta, regions = _region_unaries(unary, segments)
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")
    table = base_table(smoothness, theta.shape[1], truncation, values, costs)
    touching = _weighted(regions, neighbours, guide, sigma, contrast)
    terms = PairTerms(weight * touching.lengths, lambda: touching.pairs, table)
    return terms.model(UnaryTerms(theta, costs, "region"), levels, memory_limit)


def _region_unaries(unary: ArrayLike, segments: ArrayLike) -> tuple[Floats, Ints]:
    """The unaries, one row per region, and the regions of the pixels."""
    theta = numbers(unary, "unary")
    if theta.ndim != 2 or theta.size == 0:
        raise GraphError(f"unary has shape {theta.shape}, expected (n_segments, L)")
    regions, n = _regions(segments), len(theta)
    if regions.max() >= n:
        raise GraphError(
            f"segments go up to {regions.max()}, expected 0 to {n - 1}: unary has {n} rows, one per region"
        )
    return theta, regions


def label_image(result: Result | ArrayLike, segments: ArrayLike) -> Ints:
    """Give every pixel the label of its region.

    Parameters
    ----------
    result : Result or (n_segments,)
        The answer of `solve` on a `superpixel_model`, or its labels.
    segments : (H, W)
        Number of the region of every pixel.

    Returns
    -------
    (H, W)
        The label of every pixel.

    Examples
    --------
    >>> label_image([5, 7], [[0, 1], [1, 1]]).tolist()
    [[5, 7], [7, 7]]
    """
    labels = np.asarray(result.labels if isinstance(result, Result) else result)
    regions = _regions(segments)
    if labels.ndim != 1 or regions.max() >= len(labels):
        raise GraphError(f"labels have shape {labels.shape}, expected one for each region, 0 to {regions.max()}")
    return np.asarray(labels[regions])


def _regions(segments: ArrayLike) -> Ints:
    regions = as_ints(segments, "segments")
    if regions.ndim not in (2, 3) or regions.size == 0:
        raise GraphError(f"segments have shape {regions.shape}, expected (H, W) or (D, H, W)")
    if regions.min() < 0:
        raise GraphError(f"segments hold {regions.min()}, expected region numbers from 0 on")
    return regions


def _weighted(
    regions: Ints, neighbours: int, guide: ArrayLike | None, sigma: float | None, contrast: Contrast
) -> Adjacency:
    """The borders, with their lengths weighted by the contrast."""
    if contrast not in get_args(Contrast):
        raise OptionError(f"contrast is {contrast!r}, expected one of {', '.join(get_args(Contrast))}")
    if guide is None or contrast == "borders":
        return region_adjacency(regions, neighbours=neighbours, guide=guide, sigma=sigma)
    if sigma is not None and not 0 < sigma < math.inf:
        raise OptionError(f"sigma is {sigma}, expected a finite number above 0")
    touching = region_adjacency(regions, neighbours=neighbours)
    size = np.maximum(1, np.bincount(regions.ravel()))[:, None]
    mean = region_sums(guide_for(guide, regions.shape), regions) / size
    apart2 = ((mean[touching.pairs[:, 0]] - mean[touching.pairs[:, 1]]) ** 2).sum(axis=1)
    sigma2 = float(apart2.mean()) if sigma is None and len(apart2) else (sigma or 0.0) ** 2
    alike = np.exp(apart2 / (-2 * sigma2)) if sigma2 > 0 else np.ones_like(apart2)
    return Adjacency(touching.pairs, touching.lengths * alike)
