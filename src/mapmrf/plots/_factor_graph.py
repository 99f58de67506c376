"""The structure of a model: variables as circles, factors as squares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.errors import GraphError
from mapmrf.model.graph import FactorGraph
from mapmrf.plots._maps import lattice_shape, neighbours
from mapmrf.plots.style import (
    INK,
    MOST_SQUARES,
    MUTED,
    VERMILION,
    colours,
    heading,
    label_bar,
    literal,
    new_figure,
    shade,
)
from mapmrf.run.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def factor_graph(graph: FactorGraph, *, labels: ArrayLike | Result | None = None, title: str = "") -> Figure:
    """Draw the structure of a small model: variables as circles, factors on two or more of them as squares.

    Lattices are drawn as lattices; in other layouts, distances follow those in the graph. Unary potentials are part of
    the circles. For a model with more than some hundred variables, only the primal graph is drawn: dots for the
    variables, lines between those that share a factor.

    Parameters
    ----------
    labels : (n_vars,)
        A labelling, or a result: the circles get the colours of their labels.

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
    chosen = _chosen(graph, labels)
    shape = lattice_shape(graph)
    if graph.n_vars == 0:
        raise GraphError("the model has no variables, nothing to draw")
    most = 1000 if shape is None else 10_000
    if graph.n_vars > most:
        what = "variables" if shape is None else "variables of a lattice"
        raise GraphError(f"the model has {graph.n_vars} variables, too many to draw: expected at most {most} {what}")
    pairs = len(neighbours(graph))
    if shape is None and pairs > 25_000:
        raise GraphError(f"{pairs} pairs of variables share a factor, too many to draw: expected at most 25000")
    texts = _texts(graph, chosen)
    full = graph.n_vars <= 150 and graph.n_factors <= 500 if shape is None else graph.n_vars <= 400
    layout = factor_graph_layout(graph, shape, 1.0 if _inside(texts) else 1.5) if full else primal_layout(graph, shape)
    sheet = _sheet(layout)
    parts = [] if full else [f"{graph.n_vars} variables; lines join those that share one of {graph.n_factors} factors"]
    parts += [f"{graph.n_constraints} constraints are not drawn"] if graph.n_constraints else []
    heading(sheet.axes, title or "; ".join(parts))
    _edges(sheet.axes, layout)
    if isinstance(layout, FactorGraphLayout):
        hard = _hard(graph)
        for where, colour in ((~hard, INK), (hard, VERMILION)):
            place = layout.factors[where]
            square: dict[str, Any] = {"s": (0.42 * sheet.unit) ** 2, "marker": "s", "color": colour, "linewidths": 0}
            sheet.axes.scatter(*place.T, **square, zorder=2)
    _circles(sheet, graph, layout, chosen, texts if full else [])
    _legend(sheet, graph, layout, chosen)
    return sheet.axes.figure  # type: ignore[no-any-return]


def bayesian_network(graph: FactorGraph, *, labels: ArrayLike | Result | None = None, title: str = "") -> Figure:
    """Draw a Bayesian network: variables as circles below their parents, with arrows from parents to children.

    Every factor must be the conditional probability table of a variable, as in a network that was read from a file.

    Parameters
    ----------
    labels : (n_vars,)
        A labelling, or a result: the circles get the colours of their labels.

    Raises
    ------
    GraphError
        If the model has more than 150 variables; FormatError if it is no Bayesian network.

    Examples
    --------
    >>> import mapmrf
    >>> wet = np.log([[0.9, 0.1], [0.2, 0.8]])  # a row for each state of rain
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [np.log([0.7, 0.3]), wet])
    >>> figure = bayesian_network(graph)
    >>> figure.savefig("network.png")  # doctest: +SKIP
    """
    from mapmrf.formats.bayes import network_of

    if not 0 < graph.n_vars <= 150:
        raise GraphError(f"the model has {graph.n_vars} variables, expected 1 to 150")
    chosen, texts = _chosen(graph, labels), _texts(graph, _chosen(graph, labels))
    arrows = [(i, table.child) for table in network_of(Path("the model"), graph) for i in table.parents]
    pairs = np.array(arrows, dtype=np.int64).reshape(-1, 2)
    places = layered(graph.n_vars, pairs, 2.0 if _inside(texts) else 3.0)
    layout = PrimalLayout(places, places[pairs])
    sheet = _sheet(layout)
    heading(sheet.axes, title)
    style = {"arrowstyle": "-|>", "color": MUTED, "linewidth": 0.9, "shrinkA": 0.53 * sheet.unit}
    for parent, child in layout.lines:
        sheet.axes.annotate("", child, parent, arrowprops={**style, "shrinkB": style["shrinkA"]})
    _circles(sheet, graph, layout, chosen, texts)
    _legend(sheet, graph, layout, chosen)
    return sheet.axes.figure  # type: ignore[no-any-return]


def layered(n: int, arrows: Ints, room: float) -> Floats:
    """Places of the nodes of an acyclic graph, (n, 2), in rows: every node below its parents, and near them."""
    row = np.zeros(n, dtype=np.int64)
    for _ in range(n):  # the longest way from a node without parents
        np.maximum.at(row, arrows[:, 1], row[arrows[:, 0]] + 1)
    above = np.full(n, n)
    np.minimum.at(above, arrows[:, 0], row[arrows[:, 1]] - 1)
    first = (row == 0) & (above < n)
    row[first] = above[first]  # such a node is just above its first child
    across = np.zeros(n)
    near = np.concatenate([arrows, arrows[:, ::-1]])
    degree = np.maximum(1, np.bincount(near[:, 0], minlength=n))
    for _ in range(20):  # rows are ordered by the mean place of the neighbours
        wish = (across + np.bincount(near[:, 0], across[near[:, 1]], n) / degree) / 2
        for k in range(int(row.max(initial=0)) + 1):
            mine = np.flatnonzero(row == k)
            across[mine[np.argsort(wish[mine], kind="stable")]] = np.arange(len(mine)) - (len(mine) - 1) / 2
    return np.stack([room * across, -1.25 * room * row], axis=1)


def _chosen(graph: FactorGraph, labels: ArrayLike | Result | None) -> Ints | None:
    return None if labels is None else graph.check_labels(labels.labels if isinstance(labels, Result) else labels)


def _inside(texts: list[str]) -> bool:
    """Whether names fit into circles; longer ones are below, and need more room."""
    return max(map(len, texts)) <= 3


def _circles(sheet: _Sheet, graph: FactorGraph, layout: PrimalLayout, labels: Ints | None, texts: list[str]) -> None:
    """Draw the variables, with names, or as dots without."""
    size = (sheet.unit * (1.05 if texts else 0.5)) ** 2
    faces: Any = "white" if texts else INK
    if labels is not None:
        faces = [shade(k, int(graph.card.max())) for k in labels.tolist()]
    edge = {"edgecolors": INK, "linewidths": 1.0 if texts else 0.3}
    sheet.axes.scatter(*layout.variables.T, s=size, c=faces, marker="o", zorder=3, **edge)
    if texts:
        inks = [INK] * graph.n_vars
        if labels is not None:  # black or white, whichever contrasts better with the colour of the label
            bright = colours(labels, int(graph.card.max())) / 255.0 @ [0.3, 0.6, 0.1]
            inks = np.where(bright > 0.5, "black", "white").tolist()
        _names(sheet, texts, layout.variables, inks, _inside(texts))


@dataclass(frozen=True)
class _Sheet:
    """The axes, and the length of a layout unit in points."""

    axes: Any
    unit: float


def _sheet(layout: PrimalLayout) -> _Sheet:
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


def _hard(graph: FactorGraph) -> Bools:
    before = np.concatenate([[0], np.cumsum(np.isneginf(graph.theta_t))])
    forbidden: Bools = np.diff(before[graph.table_ptr]) > 0
    return forbidden[graph.table_of]


def _names(sheet: _Sheet, texts: list[str], places: Floats, inks: list[str], inside: bool) -> None:
    """Write names into the circles, or below them if they are long."""
    size = min(9.5, sheet.unit * (0.36 if inside else 0.3))
    if size < 4.0:  # too small to be read
        return
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=2.0, foreground="white")]
    for text, (x, y), ink in zip(texts, places.tolist(), inks, strict=True):
        if inside:
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


# -- Positions of variables, factors and lines in the drawing of a model ----------------------------------------------


SPACING = 2.0  # distance of two variables that share a factor


@dataclass(frozen=True)
class PrimalLayout:
    """Positions of the variables, (n_vars, 2), and the ends of all lines, (n_lines, 2, 2)."""

    variables: Floats
    lines: Floats


@dataclass(frozen=True)
class FactorGraphLayout(PrimalLayout):
    """Also positions of the factors, (n_factors, 2), and of lines that leave a lattice which is a torus."""

    factors: Floats
    stubs: Floats


def primal_layout(graph: FactorGraph, shape: tuple[int, int] | None) -> PrimalLayout:
    """Variables, and a line for every pair that shares a factor."""
    pairs = neighbours(graph)
    if shape is not None:
        places = _rows(shape)
        # Lines around a torus would cover the picture.
        return PrimalLayout(places, places[pairs[~_around(places[pairs])]])
    places = node_layout(pairs, np.full(graph.n_vars, 0.35), SPACING)
    return PrimalLayout(places, places[pairs])


def factor_graph_layout(graph: FactorGraph, shape: tuple[int, int] | None, room: float) -> FactorGraphLayout:
    """Variables, factors and all edges of the factor graph; `room` is 1, or more if names are below circles."""
    higher = bool(np.any(graph.arity > 2))
    if shape is not None and not (higher and _around(_rows(shape)[neighbours(graph)]).any()):
        # Place factors between their variables; those around the torus outside, to the right or below.
        variables, owner = _rows(shape), _owner(graph)
        factors = np.zeros((graph.n_factors, 2))
        np.add.at(factors, owner, variables[graph.scope] / graph.arity[owner, None])
        pairs = np.flatnonzero(graph.arity == 2)
        scopes = graph.scope[graph.scope_ptr[pairs][:, None] + np.arange(2)]
        # Positions on the lines between two variables: in the middle, or spread evenly if several share a line.
        low, high = np.sort(scopes, axis=1).T
        _, group, size = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True, return_counts=True)
        group = group.ravel()
        order = np.argsort(group, kind="stable")
        rank = np.empty(len(scopes), dtype=np.int64)
        rank[order] = np.arange(len(scopes)) - np.repeat(np.cumsum(size) - size, size)
        # Clear of both circles, which cover a quarter of the line at each end.
        share = 0.3 + 0.4 * (rank + 1) / (size[group] + 1)
        factors[pairs] = np.asarray(variables[low] + share[:, None] * (variables[high] - variables[low]))
        around = _around(variables[scopes])
        last, first, out = _outward(variables[scopes[around]], shape)
        factors[pairs[around]] = last + out
        lines = _lines(graph, variables, factors)[~np.isin(owner, pairs[around])]
        inner = np.stack([last, last + out], axis=1)
        return FactorGraphLayout(
            variables, np.concatenate([lines, inner]), factors, np.stack([first, first - out], axis=1)
        )
    # Space around variables and factors, and the length of a line between them.
    radius = np.repeat([room * 0.75, 0.42], [graph.n_vars, graph.n_factors])
    edges = np.stack([graph.scope, graph.n_vars + _owner(graph)], axis=1)
    nodes = node_layout(edges, radius, room * 1.2)
    variables, factors = nodes[: graph.n_vars], nodes[graph.n_vars :]
    return FactorGraphLayout(variables, _lines(graph, variables, factors), factors, np.zeros((0, 2, 2)))


def _outward(ends: Floats, shape: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
    """For pairs joined around the torus: the end further right or down, the other, and the way out at the first."""
    step = ends[:, 1] - ends[:, 0]
    second = np.where(np.abs(step[:, 0]) > SPACING, step[:, 0] > 0, step[:, 1] < 0)[:, None]
    period = SPACING * np.array([shape[1], shape[0]])
    short = (step - period * np.round(step / period)) / 2
    last, first = np.where(second, ends[:, 1], ends[:, 0]), np.where(second, ends[:, 0], ends[:, 1])
    return last, first, np.where(second, -short, short)


def _around(ends: Floats) -> Bools:
    """Which pairs of a lattice are not adjacent in the drawing."""
    return np.asarray(np.abs(ends[:, 1] - ends[:, 0]).max(axis=1, initial=0.0) > SPACING)


def _rows(shape: tuple[int, int]) -> Floats:
    down, right = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    return SPACING * np.stack([right, -down], axis=1).astype(np.float64)


def _owner(graph: FactorGraph) -> Ints:
    return np.repeat(np.arange(graph.n_factors), graph.arity)


def _lines(graph: FactorGraph, variables: Floats, factors: Floats) -> Floats:
    """From each variable to each of its factors."""
    return np.stack([variables[graph.scope], factors[_owner(graph)]], axis=1)


# -- Layout of a graph: components are laid out by networkx, without overlaps, and packed into rows -------------------


def node_layout(edges: Ints, radius: Floats, length: float) -> Floats:
    """Positions of the nodes, (n, 2): each component separately, the components in rows, largest first."""
    try:
        import networkx as nx
    except ImportError:
        raise ImportError(
            "drawing a factor graph needs networkx: pip install 'mapmrf[plots]' ('.[plots]' in a checkout)"
        ) from None
    n = len(radius)
    graph = nx.empty_graph(n)
    graph.add_edges_from(edges.tolist())
    blocks: list[tuple[Ints, Floats]] = []
    for nodes in sorted((sorted(nodes) for nodes in nx.connected_components(graph)), key=len, reverse=True):
        component = nx.Graph()  # with nodes and edges in order: the layout depends on it
        component.add_nodes_from(nodes)
        component.add_edges_from(sorted(graph.subgraph(nodes).edges))
        members = np.array(nodes)
        blocks.append((members, _turned(_parted(_spread(component, length), radius[members]))))
    # Pack components into rows such that the whole is about as wide as high.
    places = np.zeros((n, 2))
    sizes = [np.ptp(part, axis=0) + 1.5 for _, part in blocks]  # with some space between them
    width = max([1.3 * np.sqrt(sum(float(s.prod()) for s in sizes)), *(float(s[0]) for s in sizes)], default=0.0)
    x = y = tallest = 0.0
    for (members, part), size in zip(blocks, sizes, strict=True):
        if x > 0 and x + size[0] > width:
            x, y, tallest = 0.0, y - tallest, 0.0
        corner = np.array([part[:, 0].min(), part[:, 1].max()])
        places[members] = part - corner + [x, y]
        x, tallest = x + float(size[0]), max(tallest, float(size[1]))
    return places


def _spread(graph: Any, length: float) -> Floats:
    """Positions of the nodes of a connected graph, with distances close to those in the graph."""
    import networkx as nx

    if len(graph) == 1:
        return np.zeros((1, 2))
    # Springs are faster on large graphs.
    large = len(graph) > 200
    places = nx.spring_layout(graph, seed=0, iterations=300) if large else nx.kamada_kawai_layout(graph)
    found = np.array([places[node] for node in graph])
    edges = np.array([(a, b) for a, b in nx.convert_node_labels_to_integers(graph).edges])
    typical = np.median(np.linalg.norm(found[edges[:, 0]] - found[edges[:, 1]], axis=1))
    return np.asarray(found * (length / max(float(typical), 1e-9)))


def _parted(places: Floats, radius: Floats) -> Floats:
    """Push overlapping nodes apart, a little at a time."""
    need = radius[:, None] + radius
    np.fill_diagonal(need, 0.0)
    for _ in range(300):
        x, y = places.T
        found = np.asarray(np.hypot(x[:, None] - x, y[:, None] - y))
        lack = np.maximum(need - found, 0.0)
        if lack.max(initial=0.0) <= 0.05 * need.max(initial=0.0):
            break
        # Each of the two moves a quarter of the way, since several pushes may add up.
        share = 0.25 * lack / np.maximum(found, 1e-9)
        places = places + places * share.sum(axis=1)[:, None] - share @ places
    return places


def _turned(places: Floats) -> Floats:
    """Rotate to be wider than high, and centre."""
    centred = places - places.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes.T) if len(places) > 1 else centred
