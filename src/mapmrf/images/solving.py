"""From an image to labels in one call: segmentation, denoising and inpainting, and depth from two views."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.grids import checked_prices, grid_model, to_image
from mapmrf.images.neighbours import (
    ChannelAxis,
    Lattice,
    Offset,
    bools,
    channel_axis_of,
    channels_for,
    channels_last,
    check_weight,
    checked_mask,
    checked_spacing,
    contrast_weights,
    distance,
    finite_inside,
    neighbour_offsets,
    numbers,
    smoothness_table,
)
from mapmrf.images.unaries import kmeans, unary_from_differences, unary_from_seeds, unary_from_stereo, without_data
from mapmrf.model.builders import as_ints
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method
from mapmrf.run.result import Result
from mapmrf.run.solve import solve as solve_model

QUICK: dict[str, Any] = {"method": "trws", "max_iterations": 6}  # a good labelling of a relaxation that is nearly tight

LIMITS = {"time_limit": 30.0, "gap_tolerance": 1e-4}  # defaults of `solve=` in a one-call function

Solve = str | Method | Mapping[str, Any] | None
Preset = Literal["default", "fast"]


@dataclass(frozen=True, eq=False)
class LabelledImage:
    """The answer of `segment`, `denoise` and `stereo`; as an array it is its `image`.

    Attributes
    ----------
    image : (H, W)
        The values of the labels: the marks of `segment`, the grey levels of `denoise`, the disparities of `stereo`.
    labels : (H, W)
        The labels, from 0 on; -1 outside the mask.
    result : Result
        The full result of `solve`: value, bound, gap, status, and so on.

    Examples
    --------
    >>> from mapmrf import images
    >>> answer = images.segment([[0.0, 0.1, 0.9, 1.0]], [[7, -1, -1, 9]])
    >>> answer.image.tolist(), answer.labels.tolist(), answer.result.labels.tolist()
    ([[7, 7, 9, 9]], [[0, 0, 1, 1]], [0, 0, 1, 1])
    >>> np.asarray(answer).shape
    (1, 4)
    """

    image: NDArray[Any]
    labels: Ints
    result: Result

    def __repr__(self) -> str:
        size = " x ".join(map(str, self.image.shape))
        return f"LabelledImage({size}, {len(np.unique(self.labels[self.labels >= 0]))} labels, {self.result!r})"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """The image, so that the answer can be passed to functions of arrays."""
        return np.array(self.image, dtype=dtype) if copy else np.asarray(self.image, dtype=dtype)


class Solving(NamedTuple):
    """How a one-call function solves its model: the arguments of `solve`, and whether a good labelling is enough."""

    arguments: dict[str, Any]
    fast: bool

    @classmethod
    def of(cls, solve: Solve, preset: Preset) -> Solving:
        if preset not in get_args(Preset):
            raise OptionError(f"preset is {preset!r}, expected one of {', '.join(get_args(Preset))}")
        given = solve if isinstance(solve, Mapping) else {} if solve is None else {"method": solve}
        if not isinstance(given.get("method", ""), str | Method):
            found = given["method"]
            raise OptionError(f"solve is {found!r}, expected a method, or a dict of arguments of mapmrf.solve")
        return cls({**LIMITS, **given}, preset == "fast" and "method" not in given)

    def run(self, graph: FactorGraph, initial: Ints | None = None, **fast: Any) -> Result:
        """Solve a model, with the arguments `fast` if a good labelling is enough."""
        return solve_model(graph, **{"initial": initial, **(fast if self.fast else {}), **self.arguments})


def labelled(
    result: Result, shape: tuple[int, ...], mask: Bools | None, looks: NDArray[Any], label_costs: bool = False
) -> LabelledImage:
    """Show each label as one of `looks`, the last of which means no label."""
    labels = to_image(result, shape, mask=mask, label_costs=label_costs)
    return LabelledImage(looks[labels], labels, result)


def give_up_labels(graph: FactorGraph, pixels: Ints, n_labels: int) -> Ints:
    """Extend a labelling of the pixels to a model with label costs: labels are given up while that improves it."""
    # Pixels of a label that is given up get their best label among the others in use.
    unary = graph.theta_v[: len(pixels) * n_labels].reshape(-1, n_labels)

    def with_use(pixels: Ints) -> Ints:  # labels of the pixels, and for every label whether any pixel has it
        return np.concatenate([pixels, np.bincount(pixels, minlength=n_labels) > 0])

    best = with_use(pixels)
    value, improved = graph.value(best), True
    while improved:
        improved, current = False, best[: len(pixels)]
        used = np.unique(current)
        for k in used.tolist() if len(used) > 1 else []:
            others, mine, changed = used[used != k], current == k, current.copy()
            changed[mine] = others[unary[mine][:, others].argmax(axis=1)]
            candidate = with_use(changed)
            if (found := graph.value(candidate)) > value:
                best, value, improved = candidate, found, True
    return best


# -- Segmentation of an image or volume in one call: from scribbles, or by colour -------------------------------------


def segment(
    image: ArrayLike,
    seeds: int | ArrayLike,
    *,
    weight: float | None = None,
    sigma: float | None = None,
    floor: float | None = None,
    components: int = 5,
    neighbours: int | None = None,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: ChannelAxis = "guess",
    label_costs: ArrayLike | None = None,
    unmarked: int = -1,
    preset: Preset = "default",
    solve: Solve = None,
) -> LabelledImage:
    """Segment an image or volume, from scribbles or into a number of colours.

    The colours of the labels are learned from the marked pixels (`unary_from_seeds`), which keep their label, or from
    groups of similar colours (`kmeans`). Borders are attracted to edges of the image (`contrast_weights`).

    Parameters
    ----------
    image : (H, W) or (H, W, C)
        The image; a volume is (D, H, W) or (D, H, W, C).
    seeds : (H, W) or int
        Integers: a mark for every pixel, `unmarked` for those to be labelled; or the number of labels.
    weight
        Cost of a border of one pixel where the image has no contrast; by default 30 with scribbles and 5 without.
    sigma, floor
        Difference that counts as contrast, and the share of the weight that remains across the strongest edge, 0.05 by
        default, 0 if colours are not learned; see `contrast_weights`.
    components
        Gaussians per label, with scribbles. With 0, colours are not learned: borders are found by contrast alone, for
        markers that do not show what all of an object looks like.
    neighbours, spacing : int, (n_axes,)
        As for `grid_model`.
    mask : (H, W)
        True for pixels to be labelled; the others get `unmarked`.
    channel_axis
        Axis of the channels, None if there is none. By default, the last axis holds channels if scribbles or the mask
        have one axis less; without them, if its size is 3 or 4 in an array of at least three axes, as in a photograph.
    label_costs : (L,)
        Cost of each label if any pixel has it, or one number for all; see `grid_model`. Labels with scribbles are
        always in use.
    unmarked
        The value of unmarked pixels in `seeds`: 0 for markers as in scikit-image.
    preset
        ``default`` looks for the best labelling until the gap is small; ``fast`` is satisfied with a good one, without
        a bound.
    solve
        How the model is solved: a method, such as ``mapmrf.TRWS(max_iterations=50)``, or a dict of arguments of
        `mapmrf.solve`, such as ``{"method": "trws", "threads": 2}``. The default is `auto` with ``time_limit=30`` and
        ``gap_tolerance=1e-4``.

    Returns
    -------
    LabelledImage
        Its `image` has a mark for every pixel or, without scribbles, the index of its colour.

    Examples
    --------
    >>> segment([[0.0, 0.2, 0.1, 0.9, 1.0]], [[1, 0, 0, 0, 2]], unmarked=0).image.tolist()
    [[1, 1, 1, 2, 2]]
    >>> segment([[0.0, 0.2, 0.1, 0.9, 1.0]], 2, weight=1.0).image.tolist()
    [[0, 0, 0, 1, 1]]
    """
    solving, by_colour = Solving.of(solve, preset), np.ndim(seeds) == 0
    seed = solving.arguments.get("seed", 0)
    if by_colour:
        known = None if mask is None else np.shape(mask)
        pixels = channels_last(image, channel_axis_of(image, channel_axis, known))
        marks = np.full(pixels.shape[:-1], unmarked)
    else:
        marks = as_ints(seeds, "seeds")
        lattice = Lattice(marks.shape, checked_mask(mask, marks.shape))
        axis = channel_axis_of(image, channel_axis, marks.shape)
        pixels = channels_for(image, lattice, -1 if axis is None else axis, "the image")
    inside = checked_mask(mask, marks.shape)
    pixels = finite_inside(pixels, inside)
    if by_colour:
        unary, looks = _by_colour(pixels, inside, int(as_ints(seeds, "seeds")), seed)
    else:
        looks, states = _states(marks, unmarked, inside)
        unary = unary_from_seeds(pixels, states, components=components, mask=inside, seed=seed)
    looks = np.append(looks, unmarked)
    if weight is None:
        weight = 5.0 if by_colour else 30.0
    if floor is None:
        floor = 0.0 if components == 0 and not by_colour else 0.05
    weights = contrast_weights(
        pixels, weight, neighbours=neighbours, sigma=sigma, floor=floor, mask=inside, spacing=spacing, channel_axis=-1
    )
    model = partial(grid_model, unary, weight=weights, mask=inside)
    fast = "maxflow" if unary.shape[-1] == 2 else "expansion"
    if label_costs is None:
        return labelled(solving.run(model(), method=fast), marks.shape, inside, looks)
    # A labelling without label costs gets half of the time; then labels are given up, the most profitable first, as
    # long as that pays. Moves of single pixels alone would rarely give up a label.
    limit = solving.arguments["time_limit"]
    solving.arguments["time_limit"] = None if limit is None else limit / 2
    prices = checked_prices(label_costs, unary.shape[-1])  # refuses bad ones before anything is solved
    plain = solving.run(model(), method=fast).labels
    graph = model(label_costs=prices)
    start = give_up_labels(graph, plain, unary.shape[-1])
    return labelled(solving.run(graph, start, method="expansion"), marks.shape, inside, looks, label_costs=True)


def _by_colour(pixels: Floats, inside: Bools | None, n_labels: int, seed: int) -> tuple[Floats, Ints]:
    """Unaries of `n_labels` groups of similar colours, each a Gaussian of the same spread, and the labels."""
    known = pixels.reshape(-1, pixels.shape[-1]) if inside is None else pixels[inside]
    if not 2 <= n_labels <= len(known):
        raise OptionError(f"seeds is {n_labels}, expected scribbles, or a number of labels from 2 to {len(known)}")
    sample = known[:: max(1, len(known) // 50_000)]  # enough to group by colour
    centres = kmeans(sample, min(n_labels, len(sample)), seed=seed)
    unary = unary_from_differences(pixels, centres)
    nearest = unary.max(axis=-1) if inside is None else unary[inside].max(axis=-1)
    unary *= pixels.shape[-1] / (2 * max(-float(nearest.mean()), 1e-12))
    return unary, np.arange(len(centres))


def _states(marks: Ints, unmarked: int, inside: Bools | None) -> tuple[Ints, Ints]:
    """The distinct marks, and the label of every pixel, -1 where it is not marked."""
    marked = marks != unmarked
    if inside is not None:
        marked &= inside
    if marked.all():
        raise GraphError(
            f"every pixel is marked, expected some that are {unmarked}: if another number means no mark, "
            "as 0 does in scikit-image, give it as unmarked"
        )
    looks, of = np.unique(marks[marked], return_inverse=True)
    if len(looks) == 0:
        raise GraphError(f"no pixel is marked: all seeds are {unmarked}")
    states = np.full(marks.shape, -1, dtype=np.int64)
    states[marked] = of
    return looks, states


# -- Denoising and inpainting of an image or volume in one call -------------------------------------------------------


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
    channel_axis: ChannelAxis = "guess",
    preset: Preset = "default",
    solve: Solve = None,
) -> LabelledImage:
    """Remove noise from an image or volume, and fill in missing pixels: the `image` of the answer.

    Every pixel gets one of some grey levels. With `s` the standard deviation of the noise, a difference `d` from the
    given pixel costs ``d^2 / (2 s^2)``, and a difference `d` between neighbours ``weight * min(d / s, truncation)``. On
    photographs, non-local means are often better and faster. The image of the answer has the type of the given one
    unless levels are given that do not fit it.

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
    neighbours, spacing : int, (n_axes,)
        As for `grid_model`.
    mask : (H, W)
        True for pixels to be denoised; the others are left unchanged.
    channel_axis
        Axis of the channels, None if there is none. By default, the last axis holds channels if the mask or `missing`
        have one axis less; without them, if its size is 3 or 4 in an array of at least three axes, as in a photograph.
    preset, solve
        As for `segment`.

    Examples
    --------
    >>> noisy = [1.0, 1.1, 0.9, 1.0, 5.1, 5.0, 4.9, 5.0]
    >>> denoise(noisy, [1.0, 3.0, 5.0], noise=0.5).image.tolist()
    [1.0, 1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0]
    """
    solving, dtype = Solving.of(solve, preset), np.asarray(image).dtype
    shapes = [np.shape(array) for array in (mask, missing) if array is not None]
    axis = channel_axis_of(image, channel_axis, shapes[0] if shapes else None)
    pixels = np.moveaxis(channels_last(image, axis), -1, 0)  # (C, H, W): channels are slices without pairs
    shape = pixels.shape[1:]
    inside = checked_mask(mask, shape)
    lost = np.zeros(shape, dtype=bool) if missing is None else bools(missing, "missing", shape)
    known = np.broadcast_to(True if inside is None else inside, shape) & ~lost
    if not known.any():
        raise GraphError("no pixel is known, expected some in the mask that are not missing")
    data = np.moveaxis(finite_inside(np.moveaxis(pixels, 0, -1), known), -1, 0)
    levels = _grey_levels(values, data[:, known], dtype)
    scale = _noise(data, known) if noise is None else noise
    if not 0 < scale < math.inf:
        raise OptionError(f"noise is {noise}, expected a finite number above 0")
    check_weight(weight)
    unary = unary_from_differences(data, levels, weight=1 / (2 * scale**2))
    if missing is not None:
        unary = without_data(unary, np.broadcast_to(lost, data.shape))
    apart = checked_spacing(spacing, len(shape))
    steps = neighbour_offsets(len(shape), neighbours)
    weights: dict[Offset, float] = {(0, *step): weight / scale / distance(step, apart) for step in steps}
    limit = None if truncation is None else truncation * scale
    full = None if inside is None else np.broadcast_to(inside, data.shape)
    graph = grid_model(unary, "linear", weight=weights, truncation=limit, values=levels, mask=full)
    answer = labelled(solving.run(graph, **QUICK), data.shape, full, np.append(levels, np.nan))
    clean = answer.image if full is None else np.where(full, answer.image, pixels)
    if dtype.kind == "f" or (dtype.kind in "biu" and np.array_equal(levels, levels.astype(dtype))):
        clean = clean.astype(dtype)
    back = [array[0] if axis is None else np.moveaxis(array, 0, axis) for array in (clean, answer.labels)]
    return LabelledImage(back[0], back[1], answer.result)


def _grey_levels(values: int | ArrayLike, known: Floats, dtype: np.dtype[Any]) -> Floats:
    array = numbers(values, "values")
    if array.ndim == 1 and array.size and np.isfinite(array).all():
        return array
    if array.ndim > 0 or not array >= 2 or array != np.floor(array):
        raise OptionError(f"values is {values!r}, expected at least 2 grey levels, or the levels themselves")
    levels = np.linspace(known.min(), known.max(), int(array))
    return np.unique(np.rint(levels)) if dtype.kind in "biu" else levels


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
    # 0.6745 is the median of the absolute value of a normal variable of standard deviation 1.
    return max(float(np.median(every)) / (0.6745 * math.sqrt(6)), least) if every.size else least


# -- Depth from two views in one call ---------------------------------------------------------------------------------


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
    preset: Preset = "default",
    solve: Solve = None,
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
    preset, solve
        As for `segment`.

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
    solving = Solving.of(solve, preset)
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
    table = smoothness_table("linear", len(steps), truncation=truncation, values=steps)
    graph = grid_model(unary, table, weight=weights, mask=inside)
    if len(steps) <= FEW:
        return labelled(solving.run(graph, **QUICK), shape, inside, np.append(steps, -1))
    began, limit = time.perf_counter(), solving.arguments["time_limit"]
    seen = unary if inside is None else np.where(inside[..., None], unary, 0.0)
    start = coarse_to_fine(seen, table, weights, solving)
    if limit is not None:
        solving.arguments["time_limit"] = max(1e-3, limit - (time.perf_counter() - began))
    result = solving.run(graph, start.ravel() if inside is None else start[inside], method="icm")
    return labelled(result, shape, inside, np.append(steps, -1))


# -- A start for many labels in a row: solve a picture of half the size, then choose among a few labels per pixel -----


FEW = 8  # labels among which a pixel chooses


def coarse_to_fine(unary: Floats, table: Floats, weights: Mapping[Offset, Floats], solving: Solving) -> Ints:
    """Good labels (...) of a grid on which labels next to each other are alike; `table` is that of weight 1."""
    from scipy.ndimage import maximum_filter, minimum_filter

    shape, n_labels = unary.shape[:-1], unary.shape[-1]
    limit = solving.arguments["time_limit"]
    quick = {**QUICK, "time_limit": None if limit is None else limit / 8}  # for each of the sizes
    quick["threads"] = solving.arguments.get("threads", 1)
    if n_labels <= FEW or min(shape) < 16:
        return to_image(solve_model(grid_model(unary, table, weight=weights), **quick), shape)
    across = {o: _crossing(w, o) for o, w in weights.items() if np.count_nonzero(o) == 1}
    coarse = coarse_to_fine(_halved(unary, range(len(shape))), table, across, solving)
    near = coarse[np.ix_(*(np.arange(n) // 2 for n in shape))]
    # Two runs of labels for every pixel, around the smallest and the largest label nearby, or one of twice the length.
    half = FEW // 2
    low, high = minimum_filter(near, 3), maximum_filter(near, 3)
    apart = high - low >= half
    first = np.clip(np.where(apart, low - 1, (low + high) // 2 - half + 1), 0, n_labels - FEW)
    second = np.clip(np.where(apart, high - half + 2, 0), first + half, n_labels - half)
    runs, of = np.unique((first * n_labels + second).ravel(), return_inverse=True)
    chosen = (np.stack(np.divmod(runs, n_labels), axis=1)[:, :, None] + np.arange(half)).reshape(-1, FEW)
    own = np.take_along_axis(unary.reshape(-1, n_labels), chosen[of], axis=1).reshape(*shape, FEW)
    # A model of the few labels: what a pair loses depends on the runs of both pixels.
    graph = grid_model(own, weight=weights)
    ends = of[graph.scope.reshape(-1, 2)]
    pairs, table_of = np.unique(ends[:, 0] * len(runs) + ends[:, 1], return_inverse=True)
    one, other = np.divmod(pairs, len(runs))
    tables = table[chosen[one][:, :, None], chosen[other][:, None]]
    few = replace(
        graph,
        table_of=short(table_of),
        table_ptr=offsets(np.full(len(pairs), FEW**2)),
        theta_t=tables.ravel(),
        weight=np.full(len(ends), -graph.theta_t[1]) if graph.weight is None else graph.weight,
    )
    return np.asarray(chosen[of, solve_model(few, **quick).labels].reshape(shape))


def _halved(array: Floats, axes: Iterable[int]) -> Floats:
    """Sums over two neighbours along each of some axes."""
    for axis in axes:
        array = np.add.reduceat(array, np.arange(0, array.shape[axis], 2), axis=axis)
    return array


def _crossing(weight: Floats, offset: Offset) -> Floats:
    """The weights of neighbouring blocks of two pixels along every axis: of the pairs across their border."""
    axis = offset.index(1)
    between = np.take(weight, np.arange(1, weight.shape[axis], 2), axis=axis)
    return _halved(between, (other for other in range(weight.ndim) if other != axis))
