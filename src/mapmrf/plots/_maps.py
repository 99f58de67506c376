"""Labels, their margins and the kinds of a relaxed solution: maps of lattices, otherwise curves and bars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.model.polytope import TOLERANCE, Kind, KindFractions, describe
from mapmrf.plots.style import (
    BLUE,
    MOST_SQUARES,
    ORANGE,
    SKY,
    VERMILION,
    colours,
    heading,
    image_axes,
    label_bar,
    literal,
    new_figure,
    plain_axes,
    shade,
    squares,
)
from mapmrf.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mapmrf.questions.max_marginals import MaxMarginals

NAMES = {Kind.VALID: "integer", Kind.UNIFORM: "uniform", Kind.FRACTIONAL: "fractional"}

COLOURS = {Kind.VALID: "#dbe6ec", Kind.UNIFORM: ORANGE, Kind.FRACTIONAL: BLUE}
"""Light, medium and dark, so that they also differ in greyscale."""


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
    largest = int(picture.max())
    if names is not None and len(names) <= largest:
        raise OptionError(f"{len(names)} names, but there is a label {largest}")
    count = n_labels if n_labels is not None else largest + 1 if names is None else len(names)
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


def kinds(
    result: Result, graph: FactorGraph | None = None, *, shape: tuple[int, int] | None = None, title: str | None = None
) -> Figure:
    """Draw which variables of a relaxed solution are integer, uniform, or otherwise fractional.

    For the model of a lattice this is a map, otherwise a bar with the fractions. Whether the solution is approximate,
    that is, outside the local polytope, depends on all variables together: this is stated in the title, with the
    largest violation of a constraint.

    Parameters
    ----------
    result
        A result with a relaxed solution.
    graph
        The model that was solved; a map needs it and `result.mu_v`.
    shape
        Height and width of the map, if the model is not a lattice or not recognised as one.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = kinds(mapmrf.solve(graph, "lp"), graph)
    >>> figure.savefig("kinds.png")  # doctest: +SKIP
    """
    if result.kind is None or result.kind_fractions is None:
        raise GraphError(f"the result of {result.method} has no relaxed solution, so there are no kinds to draw")
    if title is None:
        title = f"{result.method}: {result.kind.value} ({describe(result.kind, result.kind_fractions)})"
        if result.kind is Kind.APPROXIMATE and result.residuals is not None:
            title += f", violated by {result.residuals.largest:.2g}"
    if graph is None or result.mu_v is None:
        if shape is not None:
            raise GraphError(f"a map needs {'the model' if graph is None else 'result.mu_v'}, which is missing")
        return _bar(result.kind_fractions, title)
    from matplotlib.colors import ListedColormap

    shape = shape or lattice_shape(graph)
    found = kinds_of(graph, result.mu_v)
    if shape is None:
        return _bar(result.kind_fractions, title)
    cmap = ListedColormap(list(COLOURS.values()))
    axes = _map(found, shape, title, "variables", 2.5, cmap=cmap, vmin=0, vmax=2)
    squares(axes, _entries(np.bincount(found, minlength=3) / len(found)))
    return axes.figure  # type: ignore[no-any-return]


def kinds_of(graph: FactorGraph, mu_v: Floats) -> Ints:
    """The index in `NAMES` of every variable's kind, by the tolerance of `mapmrf.model.polytope`."""
    if mu_v.shape != graph.theta_v.shape:
        raise GraphError(f"mu_v has {mu_v.size} entries, expected {graph.theta_v.size}: it belongs to another model")
    if graph.n_vars == 0:
        return np.zeros(0, dtype=np.int64)
    starts = graph.var_ptr[:-1]
    from_integer = np.maximum.reduceat(np.minimum(np.abs(mu_v), np.abs(mu_v - 1)), starts)
    from_uniform = np.maximum.reduceat(np.abs(mu_v - np.repeat(1 / graph.card, graph.card)), starts)
    return np.where(from_integer <= TOLERANCE, 0, np.where(from_uniform <= TOLERANCE, 1, 2))


def _entries(fractions: Floats) -> dict[str, Any]:
    """Legend entries with percentages, and colours, of the kinds that occur."""
    shares = {kind: share for kind, share in zip(NAMES, fractions.tolist(), strict=True) if share > 0}
    rounded = {kind: f"{100 * share:.2f}".rstrip("0").rstrip(".") for kind, share in shares.items()}
    return {f"{NAMES[kind]}  {'<0.01' if text == '0' else text} %": COLOURS[kind] for kind, text in rounded.items()}


def _bar(fractions: KindFractions, title: str) -> Figure:
    figure = new_figure(7.0, 1.5)
    axes = figure.add_subplot()
    shares = np.array([fractions.valid, fractions.uniform, fractions.fractional])
    left = 0.0
    for share, colour in zip(shares.tolist(), COLOURS.values(), strict=True):
        axes.barh(0, 100 * share, left=left, color=colour, height=0.8)
        left += 100 * share
    axes.set(xlim=(0, 100), yticks=[], xlabel="% of the variables")
    axes.spines[["top", "right", "left"]].set_visible(False)
    heading(axes, title)
    squares(axes, _entries(shares))
    return figure


def margins(
    found: Result | MaxMarginals,
    graph: FactorGraph | None = None,
    *,
    shape: tuple[int, int] | None = None,
    title: str = "",
) -> Figure:
    """Draw how certain each label is: its margin over the best other state of the variable.

    With a shape, or the model of a lattice, this is a map of the lower ends: dark where a label is uncertain. Where
    variables have names, the least certain ones are listed with their states. Otherwise the margins are drawn in
    ascending order, as a band where they are intervals.

    Parameters
    ----------
    found
        A Result of ``solve(..., margins=True)``, or max-marginals.
    graph
        The model that was solved; a lattice gives a map.
    shape
        Height and width of the map, if the model is not recognised as a lattice or not given.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = margins(mapmrf.solve(graph, margins=True), graph)
    >>> figure.savefig("margins.png")  # doctest: +SKIP
    """
    ends = found.margins if isinstance(found, Result) else found.margins()
    if ends is None:
        raise GraphError("the result has no margins: call solve(..., margins=True), or `mapmrf solve --margins`")
    shape = shape if shape is not None or graph is None else lattice_shape(graph)
    names = graph.names if graph is not None else found.names if not isinstance(found, Result) else None
    if shape is None:
        return _curve(ends, title) if names is None else _listed(ends, names, found.labels, title)
    low = ends[:, 0]
    finite = low[np.isfinite(low) & (low > 0)]
    most = float(np.percentile(finite, 98.0)) if len(finite) else 1.0  # a few pixels would stretch the scale of colours
    axes = _map(np.clip(low, 0.0, most), shape, title, "margins", 1.1, cmap="cividis", vmin=0.0, vmax=most)
    bar = axes.figure.colorbar(axes.images[0], ax=axes, fraction=0.046, pad=0.02, label="margin", extend="max")
    bar.outline.set_visible(False)
    return axes.figure  # type: ignore[no-any-return]


LISTED = 30  # variables whose margins are listed by name


def _listed(ends: Floats, names: Names, labels: Ints, title: str) -> Figure:
    """A bar for each of the least certain variables, thin where the margin may be larger."""
    order = np.lexsort((ends[:, 1], ends[:, 0]))[:LISTED]
    low, high = np.maximum(ends[order], 0.0).T
    finite = np.concatenate([low[np.isfinite(low)], high[np.isfinite(high)]])
    most = 1.15 * max(float(finite.max(initial=0.0)), 1e-9)  # of the axis: the only states there are have no margin
    figure = new_figure(6.0, 0.9 + 0.24 * len(order))
    axes = figure.add_subplot()
    rows = np.arange(len(order))
    axes.barh(rows, np.minimum(high, most), height=0.25, color=SKY, alpha=0.6)
    axes.barh(rows, np.minimum(low, most), height=0.7, color=BLUE)
    texts = []
    for i in order.tolist():
        state = str(labels[i]) if names.states is None else names.states[i][labels[i]]
        texts.append(literal(f"{names.variables[i]} = {state}"))
    axes.set(xlabel="margin of the label", xlim=(0, most), ylim=(len(order) - 0.4, -0.6))
    axes.set_yticks(rows, texts)
    plain_axes(axes)
    heading(axes, title or ("" if len(order) == len(ends) else f"the {LISTED} least certain of {len(ends)} variables"))
    return figure


def _curve(ends: Floats, title: str) -> Figure:
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    low, high = (np.where(np.isfinite(column[order]), column[order], np.nan) for column in ends.T)
    figure = new_figure(7.0, 3.2)
    axes = figure.add_subplot()
    places = np.arange(1, len(ends) + 1)
    if not np.array_equal(low, high, equal_nan=True):
        axes.fill_between(places, low, high, color=SKY, alpha=0.4, linewidth=0, label="margin, as far as known")
        axes.plot(places, low, color=BLUE, linewidth=1.4, label="at least")
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.plot(places, low, color=BLUE, linewidth=1.4, label="margin")
    axes.axhline(0.0, color=VERMILION, linewidth=0.8, linestyle="--")
    axes.set(xlabel="variables, the least certain first", ylabel="margin of the label")
    plain_axes(axes)
    heading(axes, title)
    return figure


def _map(values: Floats | Ints, shape: tuple[int, int], title: str, what: str, beside: float, **style: Any) -> Any:
    """The axes of an image with a value per variable, row by row."""
    if len(values) != shape[0] * shape[1]:
        raise GraphError(f"{len(values)} {what} do not fill {shape[0]} x {shape[1]} pixels")
    axes = image_axes(shape, beside)
    axes.imshow(values.reshape(shape), interpolation="nearest", **style)
    heading(axes, title)
    return axes


# -- Pairs of variables that share a factor, and whether they form a lattice ------------------------------------------


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
    # Some pairs may be removed by conditioning.
    if vertical < 0.75 * (height - 1) * width or horizontal < 0.75 * height * (width - 1):
        return False
    rows, columns = _steps(down, height), _steps(right, width)
    # Two rows or columns with diagonals are more often a chain of second order, and three around a torus a clique.
    diagonal = bool(np.any((rows == 1) & (columns == 1)))
    clique = any(size == 3 and np.any(np.abs(steps) == 2) for size, steps in ((height, down), (width, right)))
    small = min(height, width) < 3 or clique
    return bool(np.all((rows <= 1) & (columns <= 1))) and not (diagonal and small)


def _steps(difference: Ints, size: int) -> Ints:
    """Steps between two rows or columns, also around the torus; tori have at least three."""
    steps = np.abs(difference)
    return np.minimum(steps, size - steps) if size >= 3 else steps
