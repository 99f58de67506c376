"""Models with one variable per region of an over-segmented image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, short
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.grids import PairTerms, UnaryTerms, as_given, checked_prices
from mapmrf.images.neighbours import (
    ContrastRule,
    Lattice,
    base_table,
    channels_for,
    check_sigma,
    check_weight,
    checked_spacing,
    distance,
    neighbour_offsets,
    numbers,
    pair_slices,
    pairs_at,
    split_pairs,
)
from mapmrf.model.builders import as_ints
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import Result

Contrast = Literal["borders", "regions"]


@dataclass(frozen=True, eq=False)
class Adjacency:
    """Which regions touch, and the length of their borders.

    Attributes
    ----------
    pairs : (n_pairs, 2)
        Regions that touch, the smaller index first, in ascending order.
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
    segments: ArrayLike,
    *,
    neighbours: int | None = None,
    guide: ArrayLike | None = None,
    sigma: float | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: int = -1,
) -> Adjacency:
    """Find the regions that touch, and the length of the border between them.

    Parameters
    ----------
    segments : (H, W)
        Number of the region of every pixel, from 0 on. A volume is (D, H, W).
    neighbours
        4 or 8: whether pixels that meet at a corner touch; 6, 18 or 26 in a volume; two for each axis if not given.
    guide : (H, W) or (H, W, C)
        An image: pairs of pixels across the border are weighted by their contrast, as in `contrast_weights`.
    sigma
        Difference that counts as contrast in the guide; the root mean square difference of all pairs of neighbours, in
        the whole image, if not given.
    spacing, channel_axis : (n_axes,), int
        As for `grid_model`.

    Examples
    --------
    >>> touching = region_adjacency([[0, 0, 1], [2, 2, 1]])
    >>> touching.pairs.tolist(), touching.lengths.tolist()
    ([[0, 1], [0, 2], [1, 2]], [1.0, 2.0, 1.0])
    """
    regions = _regions(segments)
    lattice = Lattice(regions.shape)
    offsets = neighbour_offsets(regions.ndim, neighbours)
    rule = ContrastRule(1.0, sigma, 0.0, checked_spacing(spacing, regions.ndim))
    if guide is not None:
        flat = rule.weights(channels_for(guide, lattice, channel_axis), lattice, offsets)
        weights = split_pairs(flat, lattice.shape, offsets)
    elif sigma is not None:
        raise OptionError("sigma is given without a guide")
    else:
        weights = [np.array(1 / distance(offset, rule.spacing)) for offset in offsets]
    n = int(regions.max()) + 1
    codes, parts = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    for offset, weight in zip(offsets, weights, strict=True):
        first, second = pair_slices(offset)
        a, b = regions[first], regions[second]
        apart = a != b
        codes.append(np.minimum(a, b)[apart] * n + np.maximum(a, b)[apart])
        parts.append(np.broadcast_to(weight, pairs_at(regions.shape, offset))[apart])
    distinct, of = np.unique(np.concatenate(codes), return_inverse=True)
    lengths = np.bincount(of, np.concatenate(parts), len(distinct)).astype(np.float64)
    return Adjacency(np.stack([distinct // n, distinct % n], axis=1), lengths)


def region_sums(pixels: ArrayLike, segments: ArrayLike) -> Floats:
    """Sums of an image's channels, or of the log potentials of labels, over every region: (n_segments, C).

    Parameters
    ----------
    pixels : (H, W, C)
        The values to sum, such as the unaries (H, W, L) of a `grid_model`.
    segments : (H, W)
        Number of the region of every pixel, from 0 on.

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
    neighbours: int | None = None,
    guide: ArrayLike | None = None,
    sigma: float | None = None,
    contrast: Contrast = "borders",
    spacing: ArrayLike | None = None,
    channel_axis: int = -1,
    label_costs: ArrayLike | None = None,
    costs: bool = False,
    memory_limit: float | None = None,
) -> FactorGraph:
    """Build the model of regions: a label per region, and touching regions tend to agree.

    A pair of regions has `weight` times the length of its border (see `region_adjacency`) as weight. With unaries that
    are sums over pixels (`region_sums`), this is `grid_model` on the same image with one label for all pixels of a
    region: every labelling has the same log potential in both.

    Parameters
    ----------
    segments : (H, W)
        Number of the region of every pixel, from 0 to ``n_segments - 1``; (D, H, W) in a volume. Superpixels of
        scikit-image begin at 0 with ``start_label=0``.
    unary : (n_segments, L)
        Log potential of each label for each region; `-inf` forbids a label.
    smoothness
        ``potts``, ``linear``, ``quadratic``, or a table (L, L) of log potentials.
    values, label_costs, spacing : (L,), (L,), (n_axes,)
        As for `grid_model`, and so are truncation, neighbours, channel_axis, costs and memory_limit.
    weight
        Weight of a border of length 1, at least 0.
    guide : (H, W) or (H, W, C)
        An image at whose edges labels may change.
    contrast
        ``borders``: each pair of pixels across a border is weighted by their difference; sigma is by default the root
        mean square difference of neighbouring pixels. ``regions``: the whole border is weighted by the difference of
        the mean colours of the two regions; sigma is by default the root mean square of these differences.

    Returns
    -------
    FactorGraph
        Variable `i` is region `i`; `label_image` turns a result into an image.

    Examples
    --------
    >>> import mapmrf
    >>> segments = [[0, 0, 1], [2, 2, 1]]
    >>> graph = superpixel_model(segments, [[2.0, 0.0], [0.0, 3.0], [0.5, 0.6]], weight=0.5)
    >>> label_image(mapmrf.solve(graph), segments).tolist()
    [[0, 0, 1], [0, 0, 1]]
    """
    given = as_given(unary, "unary")
    if given.ndim != 2 or given.size == 0:
        raise GraphError(f"unary has shape {given.shape}, expected (n_segments, L)")
    regions, n = _regions(segments), len(given)
    if regions.max() >= n:
        raise GraphError(
            f"segments go up to {regions.max()}, expected 0 to {n - 1}: unary has {n} rows, one per region"
        )
    check_weight(weight)
    n_labels = given.shape[1]
    table = base_table(smoothness, n_labels, truncation, values, costs)
    unaries = UnaryTerms(given, costs, "region", prices=checked_prices(label_costs, n_labels))
    if contrast not in get_args(Contrast):
        raise OptionError(f"contrast is {contrast!r}, expected one of {', '.join(get_args(Contrast))}")
    seen = None if contrast == "regions" else guide
    touching = region_adjacency(
        regions,
        neighbours=neighbours,
        guide=seen,
        sigma=sigma if seen is not None or guide is None else None,
        spacing=spacing,
        channel_axis=channel_axis,
    )
    if guide is not None and contrast == "regions":
        touching = _by_means(touching, regions, channels_for(guide, Lattice(regions.shape), channel_axis), sigma)
    unaries.check_size(len(touching.pairs), True, memory_limit)
    weights = weight * touching.lengths
    used = weights > 0
    return PairTerms(short(touching.pairs[used].reshape(-1)), table, weights[used]).model(unaries)


def label_image(result: Result | ArrayLike, segments: ArrayLike) -> Ints:
    """Give every pixel the label of its region.

    Parameters
    ----------
    result : Result or (n_segments,)
        The answer of `solve` on a `superpixel_model`, or its labels.
    segments : (H, W)
        Number of the region of every pixel.

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
    if regions.ndim < 1 or regions.size == 0:
        raise GraphError(f"segments have shape {regions.shape}, expected (H, W), (D, H, W) or (N,)")
    if regions.min() < 0:
        raise GraphError(f"segments hold {regions.min()}, expected region numbers from 0 on")
    return regions


def _by_means(touching: Adjacency, regions: Ints, image: Floats, sigma: float | None) -> Adjacency:
    """The borders, with their lengths weighted by the contrast of the regions' mean colours."""
    check_sigma(sigma)
    size = np.maximum(1, np.bincount(regions.ravel()))[:, None]
    mean = region_sums(image, regions) / size
    apart2 = ((mean[touching.pairs[:, 0]] - mean[touching.pairs[:, 1]]) ** 2).sum(axis=1)
    sigma2 = float(apart2.mean()) if sigma is None and len(apart2) else (sigma or 0.0) ** 2
    alike = np.exp(apart2 / (-2 * sigma2)) if sigma2 > 0 else np.ones_like(apart2)
    return Adjacency(touching.pairs, touching.lengths * alike)
