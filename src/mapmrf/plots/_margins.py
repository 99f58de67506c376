"""The certainty of labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import GraphError
from mapmrf.model.graph import FactorGraph
from mapmrf.plots._lattice import lattice_shape
from mapmrf.plots.style import BLUE, SKY, VERMILION, heading, new_figure, plain_axes
from mapmrf.questions.max_marginals import MaxMarginals
from mapmrf.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIP = 98.0
"""Percentile of the finite margins at which the colour scale of a map ends: a few pixels would stretch it."""


def margins(
    found: Result | MaxMarginals,
    graph: FactorGraph | None = None,
    *,
    shape: tuple[int, int] | None = None,
    title: str = "",
) -> Figure:
    """Draw how certain each label is: its margin over the best other state of the variable.

    With a shape, or the model of a lattice, this is a map of the lower ends: dark where a label is uncertain. Otherwise
    the margins are drawn in ascending order, as a band where they are intervals.

    Parameters
    ----------
    found
        A Result of ``solve(..., margins=True)``, or max-marginals.
    graph
        The model that was solved; a lattice gives a map.
    shape
        Height and width of the map, if the model is not recognised as a lattice or not given.
    title
        Title of the figure.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = margins(mapmrf.solve(graph, margins=True), graph)
    >>> figure.savefig("margins.png")  # doctest: +SKIP
    """
    ends = found.margins() if isinstance(found, MaxMarginals) else found.margins
    if ends is None:
        raise GraphError("the result has no margins: call solve(..., margins=True), or `mapmrf solve --margins`")
    shape = shape if shape is not None or graph is None else lattice_shape(graph)
    return _curve(ends, title) if shape is None else _map(ends, shape, title)


def _map(ends: Floats, shape: tuple[int, int], title: str) -> Figure:
    if len(ends) != shape[0] * shape[1]:
        raise GraphError(f"{len(ends)} margins do not fill {shape[0]} x {shape[1]} pixels")
    low = ends[:, 0]
    finite = low[np.isfinite(low) & (low > 0)]
    most = float(np.percentile(finite, CLIP)) if len(finite) else 1.0
    scale = 4.5 / max(shape)
    figure = new_figure(max(2.2, shape[1] * scale) + 1.1, max(1.6, shape[0] * scale) + 0.35)
    axes = figure.add_subplot()
    image = axes.imshow(
        np.clip(low, 0.0, most).reshape(shape), cmap="cividis", vmin=0.0, vmax=most, interpolation="nearest"
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    heading(axes, title)
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="margin", extend="max")
    bar.outline.set_visible(False)
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
