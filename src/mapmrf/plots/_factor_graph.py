"""The structure of a model: variables as circles, factors as squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import GraphError
from mapmrf.model.graph import FactorGraph
from mapmrf.plots._lattice import lattice_shape, neighbours
from mapmrf.plots._places import FactorGraphLayout, PrimalLayout, factor_graph_layout, primal_layout
from mapmrf.plots.pictures import colours
from mapmrf.plots.style import INK, MOST_SQUARES, MUTED, VERMILION, heading, label_bar, literal, new_figure, shade
from mapmrf.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FULL_VARS, FULL_FACTORS, FULL_LATTICE = 150, 500, 400
"""Largest model that is drawn with its factors; a lattice may be larger."""
PRIMAL_VARS, PRIMAL_LATTICE, PRIMAL_PAIRS = 1000, 10_000, 25_000
"""Variables, and pairs that share a factor, of the largest model that is drawn at all."""
LONGEST_INSIDE = 3
"""Number of letters that fit into a circle."""
ROOM = 1.5
"""Factor on the distance of circles if their names are below them."""
SMALLEST_PRINT = 4.0
"""Font size below which a name is left out."""


def factor_graph(graph: FactorGraph, *, labels: ArrayLike | Result | None = None, title: str = "") -> Figure:
    """Draw the structure of a small model: variables as circles, factors on two or more of them as squares.

    Lattices are drawn as lattices; in other layouts, distances follow those in the graph. Unary potentials are part of
    the circles. For a model with more than some hundred variables, only the primal graph is drawn: dots for the
    variables, lines between those that share a factor.

    Parameters
    ----------
    graph
        The model.
    labels : (n_vars,)
        A labelling, or a result: the circles get the colours of their labels.
    title
        Title of the figure.

    Raises
    ------
    GraphError
        If the model is too large to draw.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1, 2), (0, 2)], [[0.0] * 8, [0.0] * 4])
    >>> figure = factor_graph(graph, labels=[0, 1, 1])
    >>> figure.savefig("model.png")  # doctest: +SKIP
    """
    chosen = None if labels is None else graph.check_labels(labels.labels if isinstance(labels, Result) else labels)
    shape = lattice_shape(graph)
    _check_size(graph, shape)
    texts = _texts(graph, chosen)
    inside = max(map(len, texts)) <= LONGEST_INSIDE
    room = 1.0 if inside else ROOM
    layout = factor_graph_layout(graph, shape, room) if _drawn_in_full(graph, shape) else primal_layout(graph, shape)
    sheet = _sheet(layout)
    heading(sheet.axes, title or _title(graph, isinstance(layout, FactorGraphLayout)))
    _edges(sheet.axes, layout)
    if isinstance(layout, FactorGraphLayout):
        _squares(sheet, graph, layout)
    _circles(sheet, graph, layout, chosen)
    if isinstance(layout, FactorGraphLayout):
        _names(sheet, texts, layout.variables, None if chosen is None else _inks(graph, chosen), inside)
    _legend(sheet, graph, layout, chosen)
    return sheet.axes.figure  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Sheet:
    """The axes, and the length of a layout unit in points."""

    axes: Any
    unit: float


def _drawn_in_full(graph: FactorGraph, shape: tuple[int, int] | None) -> bool:
    if shape is not None:
        return graph.n_vars <= FULL_LATTICE
    return graph.n_vars <= FULL_VARS and graph.n_factors <= FULL_FACTORS


def _check_size(graph: FactorGraph, shape: tuple[int, int] | None) -> None:
    if graph.n_vars == 0:
        raise GraphError("the model has no variables, nothing to draw")
    most = PRIMAL_VARS if shape is None else PRIMAL_LATTICE
    if graph.n_vars > most:
        what = "variables" if shape is None else "variables of a lattice"
        raise GraphError(f"the model has {graph.n_vars} variables, too many to draw: expected at most {most} {what}")
    pairs = len(neighbours(graph))
    if shape is None and pairs > PRIMAL_PAIRS:
        many = f"{pairs} pairs of variables share a factor"
        raise GraphError(f"{many}, too many to draw: expected at most {PRIMAL_PAIRS}")


def _title(graph: FactorGraph, in_full: bool) -> str:
    """The title, with what the drawing leaves out."""
    parts = []
    if not in_full:
        parts.append(f"{graph.n_vars} variables; lines join those that share one of {graph.n_factors} factors")
    if graph.n_constraints:
        parts.append(f"{graph.n_constraints} constraints are not drawn")
    return "; ".join(parts)


def _sheet(layout: PrimalLayout) -> _Sheet:
    """A figure sized to fit the layout."""
    nodes = np.concatenate([layout.variables, layout.lines.reshape(-1, 2)])
    low, high = nodes.min(axis=0) - 1.0, nodes.max(axis=0) + 1.0
    wide, tall = (high - low).tolist()
    unit = min(0.36, 9.0 / wide, 8.0 / tall)
    axes = new_figure(max(3.0, wide * unit), max(1.4, tall * unit) + 0.6).add_subplot()
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.axis("off")
    return _Sheet(axes, 72 * unit)


def _edges(axes: Any, layout: PrimalLayout) -> None:
    from matplotlib.collections import LineCollection

    full = isinstance(layout, FactorGraphLayout)
    style: dict[str, Any] = {"colors": MUTED, "linewidths": 0.9, "alpha": 0.8 if full else 0.4, "zorder": 1}
    axes.add_collection(LineCollection(list(layout.lines), **style))
    if isinstance(layout, FactorGraphLayout):
        axes.add_collection(LineCollection(list(layout.stubs), linestyles=":", **style))


def _squares(sheet: _Sheet, graph: FactorGraph, layout: FactorGraphLayout) -> None:
    hard = _hard(graph)
    size = (0.42 * sheet.unit) ** 2
    for where, colour in ((~hard, INK), (hard, VERMILION)):
        place = layout.factors[where]
        sheet.axes.scatter(*place.T, s=size, marker="s", color=colour, linewidths=0, zorder=2)


def _hard(graph: FactorGraph) -> Bools:
    """Which factors forbid configurations."""
    before = np.concatenate([[0], np.cumsum(np.isneginf(graph.theta_t))])
    forbidden: Bools = np.diff(before[graph.table_ptr]) > 0
    return forbidden[graph.table_of]


def _circles(sheet: _Sheet, graph: FactorGraph, layout: PrimalLayout, labels: Ints | None) -> None:
    full = isinstance(layout, FactorGraphLayout)
    size = (sheet.unit * (1.05 if full else 0.5)) ** 2
    faces: Any = "white" if full else INK
    if labels is not None:
        faces = [shade(k, int(graph.card.max())) for k in labels.tolist()]
    edge = {"edgecolors": INK, "linewidths": 1.0 if full else 0.3}
    sheet.axes.scatter(*layout.variables.T, s=size, c=faces, marker="o", zorder=3, **edge)


def _names(sheet: _Sheet, texts: list[str], places: Floats, inks: list[str] | None, inside: bool) -> None:
    """Write names into the circles, or below them if they are long."""
    size = min(9.5, sheet.unit * (0.36 if inside else 0.3))
    if size < SMALLEST_PRINT:
        return
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.0, foreground="white")]
    for i, (text, (x, y)) in enumerate(zip(texts, places.tolist(), strict=True)):
        if inside:
            ink = INK if inks is None else inks[i]
            sheet.axes.text(x, y, text, ha="center", va="center_baseline", fontsize=size, color=ink, zorder=4)
        else:
            style: dict[str, Any] = {"fontsize": size, "color": INK, "zorder": 4, "path_effects": halo}
            sheet.axes.text(x, y - 0.6, text, ha="center", va="top", **style)


def _texts(graph: FactorGraph, labels: Ints | None) -> list[str]:
    """Names of the variables, with those of their states if known; indices if there are no names."""
    if graph.names is None:
        return [str(i) for i in range(graph.n_vars)]
    states = graph.names.states
    if labels is None or states is None:
        return [literal(name) for name in graph.names.variables]
    pairs = zip(graph.names.variables, states, labels.tolist(), strict=True)
    return [f"{literal(name)}\n{literal(known[k])}" for name, known, k in pairs]


def _inks(graph: FactorGraph, labels: Ints) -> list[str]:
    """Black or white for every circle, whichever contrasts better with the colour of its label."""
    rgb = colours(labels, int(graph.card.max())) / 255.0
    return ["black" if bright > 0.5 else "white" for bright in rgb @ [0.3, 0.6, 0.1]]


def _legend(sheet: _Sheet, graph: FactorGraph, layout: PrimalLayout, labels: Ints | None) -> None:
    from matplotlib.lines import Line2D

    def mark(marker: str, face: Any, text: str, size: float = 8.0) -> Any:
        style: dict[str, Any] = {"markerfacecolor": face, "markersize": size, "markeredgewidth": 0.8}
        return Line2D([], [], linestyle="", marker=marker, label=text, markeredgecolor=INK, **style)

    handles = [mark("o", "white", "variable")] if isinstance(layout, FactorGraphLayout) else []
    if isinstance(layout, FactorGraphLayout) and graph.n_factors:
        hard = _hard(graph)
        handles += [] if hard.all() else [mark("s", INK, "factor", 6)]
        handles += [mark("s", VERMILION, "hard factor", 6)] if hard.any() else []
        if len(layout.stubs):
            handles.append(Line2D([], [], color=MUTED, linestyle=":", label="continues on the other side"))
    if labels is not None:
        count, used = int(graph.card.max()), np.unique(labels).tolist()
        if len(used) > MOST_SQUARES:
            label_bar(sheet.axes, count)
        else:
            handles += [mark("o", shade(k, count), f"label {k}") for k in used]
    if handles:
        columns = min(len(handles), max(2, int(sheet.axes.figure.get_size_inches()[0] / 1.5)))
        style = {"fontsize": 8.5, "handletextpad": 0.5, "columnspacing": 1.2}
        sheet.axes.figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False, **style)
