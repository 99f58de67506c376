"""A labelling of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.plots.style import MOST_SQUARES, colours, heading, image_axes, label_bar, literal, shade, squares
from mapmrf.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def label_map(
    labels: ArrayLike | Result,
    *,
    shape: tuple[int, int] | None = None,
    n_labels: int | None = None,
    names: Sequence[str] | None = None,
    image: ArrayLike | None = None,
    opacity: float = 0.55,
    title: str = "",
) -> Figure:
    """Draw a labelling of pixels as an image with a legend, or a colour bar if there are many labels.

    Parameters
    ----------
    labels : (height, width) or (height * width,)
        The labels, or a result, row by row.
    shape
        Height and width, if the labels are one-dimensional.
    n_labels
        Number of labels over which the colours are spread; the largest label plus one if not given.
    image : (height, width) or (height, width, 3)
        An image to overlay with the labels: grey, or red, green and blue; in any range, 0 to 255 for bytes.
    opacity
        Opacity of the labels over the image, from 0 to 1.

    Examples
    --------
    >>> figure = label_map([0, 1, 2, 1], shape=(2, 2), names=["sky", "tree", "road"], title="four pixels")
    >>> figure.savefig("labels.png")  # doctest: +SKIP
    """
    picture = np.asarray(labels.labels if isinstance(labels, Result) else labels)
    if shape is not None:
        if picture.size != shape[0] * shape[1]:
            raise GraphError(f"{picture.size} labels do not fill {shape[0]} x {shape[1]} pixels")
        if picture.ndim != 1 and picture.shape != tuple(shape):
            raise GraphError(f"labels have shape {picture.shape}, expected one axis, or {tuple(shape)}")
        picture = picture.reshape(shape)
    if picture.ndim != 2 or picture.size == 0:
        raise GraphError(f"labels have shape {picture.shape}, expected (height, width), or give shape=(height, width)")
    if not np.issubdtype(picture.dtype, np.integer) or picture.min() < 0:
        raise GraphError("labels must be whole numbers from 0")
    count = _count(picture, n_labels, names)
    if not 0 <= opacity <= 1:
        raise OptionError(f"opacity={opacity}, expected a number from 0 to 1")
    paint: Floats = colours(picture, count) / 255.0
    if image is not None:
        paint = opacity * paint + (1 - opacity) * _background(image, (picture.shape[0], picture.shape[1]))
    axes = image_axes((picture.shape[0], picture.shape[1]), 1.1)
    axes.imshow(paint, interpolation="nearest")
    heading(axes, title)
    used = [int(k) for k in np.unique(picture)]
    if len(used) > MOST_SQUARES:
        label_bar(axes, count)
    else:
        squares(
            axes,
            {str(k) if names is None else literal(names[k]): shade(k, count) for k in used},
            "" if names else "label",
        )
    return axes.figure  # type: ignore[no-any-return]


def _count(picture: Ints, n_labels: int | None, names: Sequence[str] | None) -> int:
    """Number of labels over which the colours are spread."""
    largest = int(picture.max())
    if names is not None and len(names) <= largest:
        raise OptionError(f"{len(names)} names, but there is a label {largest}")
    if n_labels is not None:
        return n_labels
    return largest + 1 if names is None else len(names)


def _background(image: ArrayLike, shape: tuple[int, int]) -> Floats:
    """The image as red, green and blue from 0 to 1; other ranges are scaled to fit."""
    given: NDArray[np.generic] = np.asarray(image)
    if given.shape not in (shape, (*shape, 3), (*shape, 4)):
        raise GraphError(f"the image has shape {given.shape}, expected {shape} or {(*shape, 3)}, as the labels")
    levels = given.astype(np.float64)
    if given.dtype == np.uint8:
        levels = levels / 255.0
    elif levels.min() < 0 or levels.max() > 1:
        levels = (levels - levels.min()) / (levels.max() - levels.min())
    return np.repeat(levels[..., None], 3, axis=-1) if levels.ndim == 2 else levels[..., :3]


# -- Pairs of variables that share a factor, and whether they form a lattice ------------------------------------------


WHOLE = 0.75  # share of the pairs of neighbours that a lattice must have: some may be removed by conditioning


def neighbours(graph: FactorGraph) -> Ints:
    """Pairs of variables that share a factor, each once, the smaller first, (n_pairs, 2)."""
    n = graph.n_vars
    found = [np.zeros(0, dtype=np.int64)]
    for arity in np.unique(graph.arity):
        at = graph.scope_ptr[:-1][graph.arity == arity]
        scopes = np.sort(graph.scope[at[:, None] + np.arange(arity)], axis=1).astype(np.int64)
        first, second = np.triu_indices(arity, 1)
        found.append((scopes[:, first] * n + scopes[:, second]).ravel())
    codes = np.unique(np.concatenate(found))
    return np.stack([codes // max(1, n), codes % max(1, n)], axis=1)


def lattice_shape(graph: FactorGraph) -> tuple[int, int] | None:
    """Height and width, if the variables form a lattice row by row, each joined with its neighbours; otherwise None.

    Diagonal neighbours are allowed, and so are tori.

    Examples
    --------
    >>> from mapmrf.datasets import grid, random_graph
    >>> lattice_shape(grid(4, 5)), lattice_shape(random_graph(20, 30, seed=1))
    ((4, 5), None)
    """
    pairs = neighbours(graph)
    for width in np.unique(pairs[:, 1] - pairs[:, 0]).tolist():
        if 2 <= width <= graph.n_vars // 2 and graph.n_vars % width == 0 and _is_lattice(pairs, graph.n_vars, width):
            return graph.n_vars // width, width
    return None


def _is_lattice(pairs: Ints, n: int, width: int) -> bool:
    """Return whether the pairs join neighbours only, and most of them."""
    height = n // width
    down = pairs[:, 1] // width - pairs[:, 0] // width
    right = pairs[:, 1] % width - pairs[:, 0] % width
    vertical = np.count_nonzero((down == 1) & (right == 0))
    horizontal = np.count_nonzero((down == 0) & (right == 1))
    if vertical < WHOLE * (height - 1) * width or horizontal < WHOLE * height * (width - 1):
        return False
    rows, columns = _steps(down, height), _steps(right, width)
    # Two rows or columns with diagonals are more often a chain of second order.
    diagonal = bool(np.any((rows == 1) & (columns == 1)))
    return bool(np.all((rows <= 1) & (columns <= 1))) and not (diagonal and min(height, width) < 3)


def _steps(difference: Ints, size: int) -> Ints:
    """Steps between two rows or columns, also around the torus; tori have at least four."""
    steps = np.abs(difference)
    return np.minimum(steps, size - steps) if size >= 4 else steps
