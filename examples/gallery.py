"""Draw the pictures of the gallery in the documentation that are not photographs.

Run: python examples/gallery.py --output FOLDER [NAME]...
Needs matplotlib and networkx: pip install 'mapmrf[plots,networkx]'
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.figure import Figure

import mapmrf
from mapmrf import bridges, datasets, images, plots
from mapmrf.arrays import Ints

DOTS = 100
"""Dots per inch."""
COLOURS = ("#e8c468", "#5b8fb0", "#a5452f", "#dfe7e0")
"""Of a map: sand, water, brick, snow."""


def voronoi(height: int, width: int, n_cells: int, seed: int = 0) -> Ints:
    """Countries: every pixel belongs to the nearest of some random capitals."""
    capitals = np.random.default_rng(seed).uniform(size=(n_cells, 2)) * (height, width)
    row, column = np.indices((height, width))
    away = (row[..., None] - capitals[:, 0]) ** 2 + (column[..., None] - capitals[:, 1]) ** 2
    return np.asarray(away.argmin(axis=-1))


def auto() -> Figure:
    """The default method on a spin glass compared with others: better labellings, and a proof."""
    graph = datasets.grid(24, 24, coupling=2.0, seed=1)
    names = ("icm", "trws", "lslp", "auto")
    for name in names:
        mapmrf.solve(graph, name)  # loads the kernels
    return plots.compare([mapmrf.solve(graph, name) for name in names], title="24 x 24 spin glass")


def ground_state() -> Figure:
    """A spin glass: where a simple method and the optimum differ."""
    graph = datasets.grid(60, 60, coupling=0.8, field=0.35, seed=5)
    simple, best = mapmrf.solve(graph, "icm"), mapmrf.solve(graph, time_limit=60)
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    shown = {
        f"icm: {simple.value:.1f}": simple.labels,
        f"auto: {best.value:.1f}, {best.status.value}": best.labels,
        "where they differ": 2 * (simple.labels != best.labels),
    }
    for axes, (title, labels) in zip(figure.subplots(1, 3), shown.items(), strict=True):
        axes.imshow(labels.reshape(60, 60), cmap="cividis" if labels.max() < 2 else "Greys", vmin=0, vmax=labels.max())
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def four_colours() -> Figure:
    """A map in four colours: hard constraints, and as much sand as possible, then water, then brick."""
    countries = voronoi(240, 360, 90)
    borders = images.region_adjacency(countries).pairs
    unlike = np.where(np.eye(4, dtype=bool), -np.inf, 0.0)
    graph = mapmrf.FactorGraph.from_pairwise(np.tile([3.0, 2.0, 1.0, 0.0], (90, 1)), borders, unlike)
    result = mapmrf.solve(graph, time_limit=60)
    picture = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in COLOURS], dtype=np.uint8)
    coloured = picture[images.label_image(result, countries)]
    for axis in (0, 1):
        coloured[countries != np.roll(countries, 1, axis)] = 40
    used = np.bincount(result.labels, minlength=4)
    figure = Figure(figsize=(6, 4.3), layout="constrained")
    axes = figure.subplots()
    axes.imshow(coloured[1:, 1:])
    axes.set_title(f"{used[0]} + {used[1]} + {used[2]} + {used[3]} countries, {result.status.value}")
    axes.set_axis_off()
    return figure


def max_cut() -> Figure:
    """Max-Cut of a random geometric graph: edges inside a side are red."""
    network = nx.random_geometric_graph(120, 0.15, seed=2)
    nx.set_node_attributes(network, 2, "card")
    result = mapmrf.solve(bridges.from_networkx(network, default=1 - np.eye(2)), time_limit=60)
    place = nx.get_node_attributes(network, "pos")
    inside = ["#d55e00" if result.labels[i] == result.labels[j] else "#9aa5ad" for i, j in network.edges]
    figure = Figure(figsize=(6, 4.6), layout="constrained")
    axes = figure.subplots()
    for (i, j), colour in zip(network.edges, inside, strict=True):
        axes.plot(*zip(place[i], place[j], strict=True), color=colour, linewidth=1.2, zorder=1)
    x, y = np.array([place[i] for i in network.nodes]).T
    axes.scatter(x, y, s=42, c=result.labels, cmap="cividis", edgecolors="black", zorder=2)
    axes.set_title(f"{result.value:.0f} of {len(inside)} edges cut, {result.status.value}")
    axes.set_axis_off()
    return figure


MAKERS: dict[str, Callable[[], Figure]] = {
    "auto": auto,
    "ground-state": ground_state,
    "four-colours": four_colours,
    "max-cut": max_cut,
}


def main() -> None:
    """Draw the given pictures, all by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MAKERS)}; all if none is given")
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the pictures")
    given = parser.parse_args()
    for name in given.names or MAKERS:
        path = given.output / f"gallery-{name}.webp"
        MAKERS[name]().savefig(path, dpi=DOTS)
        print(f"drawn: {path}")


if __name__ == "__main__":
    main()
