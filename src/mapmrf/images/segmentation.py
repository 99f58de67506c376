"""Segmentation of an image or volume in one call: from scribbles, or by colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.colours import kmeans, unary_from_differences, unary_from_seeds
from mapmrf.images.grids import checked_prices, grid_model, to_image
from mapmrf.images.lattice import Lattice, checked_mask
from mapmrf.images.smoothness import channels_for, channels_last, contrast_weights, finite_inside
from mapmrf.images.solving import GAP_TOLERANCE, TIME_LIMIT, LabelledImage, SolveOptions
from mapmrf.model.checks import as_ints
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Method

SAMPLE = 50_000  # approximate number of pixels that are grouped by colour
TINY = 1e-12


def segment(
    image: ArrayLike,
    seeds: int | ArrayLike,
    *,
    weight: float | None = None,
    sigma: float | None = None,
    floor: float = 0.05,
    components: int = 5,
    neighbours: int | None = None,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: int | None = None,
    label_costs: ArrayLike | None = None,
    unmarked: int = -1,
    method: str | Method = "auto",
    time_limit: float | None = TIME_LIMIT,
    gap_tolerance: float = GAP_TOLERANCE,
    threads: int | None = 1,
    seed: int = 0,
    progress: bool = False,
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
        Difference that counts as contrast, and the share of the weight that remains across the strongest edge; see
        `contrast_weights`.
    components
        Gaussians per label, with scribbles.
    neighbours
        4 or 8; 6, 18 or 26 in a volume; two for each axis if not given.
    spacing : (n_axes,)
        Distance of neighbours along each axis, by which weights are divided; 1 if not given.
    mask : (H, W)
        True for pixels to be labelled; the others get `unmarked`.
    channel_axis
        Axis of the channels. With scribbles, the default is the last axis if the image has one more than they;
        without, the image has no channels by default.
    label_costs : (L,)
        Cost of each label if any pixel has it, or one number for all; see `grid_model`. Labels with scribbles are
        always in use.
    unmarked
        The value of unmarked pixels in `seeds`: 0 for markers as in scikit-image.
    method, time_limit, gap_tolerance, threads, seed, progress
        As for `solve`. Use a method object such as ``mapmrf.TRWS(max_iterations=50)`` to set its options.

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
    if np.ndim(seeds) == 0:
        pixels = channels_last(image, channel_axis)
        marks = np.full(pixels.shape[:-1], unmarked)
    else:
        marks = as_ints(seeds, "seeds")
        lattice = Lattice(marks.shape, checked_mask(mask, marks.shape))
        pixels = channels_for(image, lattice, -1 if channel_axis is None else channel_axis, "the image")
    inside = checked_mask(mask, marks.shape)
    pixels = finite_inside(pixels, inside)
    if np.ndim(seeds) == 0:
        unary, looks = _by_colour(pixels, inside, int(as_ints(seeds, "seeds")), seed)
    else:
        looks, states = _states(marks, unmarked, inside)
        unary = unary_from_seeds(pixels, states, components=components, mask=inside, seed=seed)
    looks = np.append(looks, unmarked)
    if weight is None:
        weight = 5.0 if np.ndim(seeds) == 0 else 30.0
    weights = contrast_weights(
        pixels,
        weight,
        neighbours=neighbours,
        sigma=sigma,
        floor=floor,
        mask=inside,
        spacing=spacing,
        channel_axis=-1,
    )
    options = SolveOptions(method, time_limit, gap_tolerance, threads, seed, progress)
    prices = checked_prices(label_costs, unary.shape[-1])
    if prices is None:
        return options.image(grid_model(unary, weight=weights, mask=inside), marks.shape, inside, looks)

    def build(prices: Floats | None) -> FactorGraph:
        return grid_model(unary, weight=weights, mask=inside, label_costs=prices)

    result = options.with_prices(build, prices)
    labels = to_image(result, marks.shape, mask=inside, label_costs=True)
    return LabelledImage(looks[labels], labels, result)


def _by_colour(pixels: Floats, inside: Bools | None, n_labels: int, seed: int) -> tuple[Floats, Ints]:
    """Unaries of `n_labels` groups of similar colours, each a Gaussian of the same spread, and the labels."""
    known = pixels.reshape(-1, pixels.shape[-1]) if inside is None else pixels[inside]
    if not 2 <= n_labels <= len(known):
        raise OptionError(f"seeds is {n_labels}, expected scribbles, or a number of labels from 2 to {len(known)}")
    sample = known[:: max(1, len(known) // SAMPLE)]
    centres = kmeans(sample, min(n_labels, len(sample)), seed=seed)
    unary = unary_from_differences(pixels, centres)
    nearest = unary.max(axis=-1) if inside is None else unary[inside].max(axis=-1)
    unary *= pixels.shape[-1] / (2 * max(-float(nearest.mean()), TINY))
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
