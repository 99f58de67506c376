"""Images compared with PyMaxflow, gco-wrapper and scikit-image: values, bounds and seconds, as a table.

    python benches/images.py                           # all models at full size, some minutes
    python benches/images.py --only potts-500 --seconds 20
    python benches/images.py --scale 0.05 --seconds 2   # a small run

The peers are in the extra `peers`; those that are not installed are left out. All get the same arrays: unaries, weights
of pairs, and the table of smoothness. *Build* is the time from these arrays to the package's own model, *solve* that
until the labelling is there. Every labelling is evaluated by mapmrf, with weights that are not rounded; gco supports
only integers and gets energies rounded to a millionth of the largest.

- PyMaxflow: the minimum cut, exact for two labels; its alpha-expansion for more, if all pairs have the same weight.
- gco: alpha-expansion until no label improves.
- scikit-image has no graph cuts. Its random walker minimises another function, from the scribbles alone; its labelling
  is shown with its value in our model, and is not a competitor in that.

With `--processor` these two are processor time, which other work on the machine changes less.

*gco's value* is the time after which the best labelling is at least as good as gco's last one, *first* that of the
first full labelling; both are counted from the call of `solve`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import mapmrf
from mapmrf import images
from mapmrf.arrays import Floats, Ints
from mapmrf.errors import UnsupportedModel

CLOCK = [time.perf_counter]
"""What *build* and *solve* are measured by."""
METHODS = ("maxflow", "expansion", "trws", "auto")
ROUNDED = 1e6
"""gco's largest energy."""
EQUAL = 1e-7
"""Relative difference of values that counts as none: gco works on rounded numbers."""


@dataclass(frozen=True)
class Case:
    """A labelling problem as arrays: log potentials, and what pairs lose, by name and weight."""

    name: str
    unary: Floats
    weight: float | dict[tuple[int, ...], Floats]
    smoothness: str = "potts"
    truncation: float | None = None
    neighbours: int | None = None
    photo: Floats | None = None
    seeds: Ints | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the picture or volume."""
        return self.unary.shape[:-1]

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return self.unary.shape[-1]

    @cached_property
    def table(self) -> Floats:
        """What a pair of weight 1 costs."""
        return -images.smoothness_table(self.smoothness, self.n_labels, truncation=self.truncation)

    def graph(self) -> mapmrf.FactorGraph:
        """The model as mapmrf has it."""
        return images.grid_model(
            self.unary,
            self.smoothness,
            weight=self.weight,
            truncation=self.truncation,
            neighbours=self.neighbours if isinstance(self.weight, float) else None,
        )

    def weights(self) -> dict[tuple[int, ...], Floats]:
        """Weights of the pairs at every offset."""
        if not isinstance(self.weight, float):
            return self.weight
        offsets = images.neighbour_offsets(len(self.shape), self.neighbours)
        return {offset: np.asarray(self.weight / math.hypot(*offset)) for offset in offsets}


@dataclass(frozen=True)
class Row:
    """What one solver did with one case."""

    by: str
    labels: Ints
    build: float
    solve: float
    result: mapmrf.Result | None = None
    note: str = ""


# -- the models -------------------------------------------------------------------------------------------------------


def waves(shape: tuple[int, ...], n_labels: int) -> Ints:
    """Smooth regions of so many labels."""
    at = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    height = np.sin(9 * at[-1] + 4 * at[0]) * np.cos(7 * at[0] - 3 * at[-1]) + 0.5 * np.sin(13 * at[len(at) // 2])
    edges = np.quantile(height, np.linspace(0, 1, n_labels + 1)[1:-1])
    return np.digitize(height, edges)


def noisy(shape: tuple[int, ...], n_labels: int, noise: float) -> Floats:
    clean = waves(shape, n_labels)
    return clean + np.random.default_rng(0).normal(scale=noise, size=shape)


def binary(scale: float) -> Case:
    picture = noisy(sides(scale, 1000, 1000), 2, 0.8)
    unary = images.unary_from_differences(picture, [0, 1])
    return Case("binary-1000", unary, images.contrast_weights(picture, 1.5))


def potts(side: int, n_labels: int) -> Callable[[float], Case]:
    def make(scale: float) -> Case:
        picture = noisy(sides(scale, side, side), n_labels, 1.0)
        unary = images.unary_from_differences(picture, range(n_labels), weight=0.5)
        return Case(f"potts-{side}x{n_labels}", unary, 1.0)

    return make


def linear(scale: float) -> Case:
    picture = noisy(sides(scale, 400, 400), 4, 0.5) * 31 / 3
    unary = images.unary_from_differences(picture, range(32), difference="absolute", truncation=10.0, weight=0.2)
    return Case("linear-400x32", unary, 0.25, "linear", 5.0)


def volume(scale: float) -> Case:
    picture = noisy(sides(scale ** (2 / 3), 64, 64, 64), 2, 1.0)
    unary = images.unary_from_differences(picture, [0, 1])
    weights = images.contrast_weights(picture, 0.3, neighbours=26)
    return Case("volume-64", unary, weights, neighbours=26)


def photo(scale: float) -> Case:
    """A cup on a table, from scribbles: three labels, contrast-sensitive weights on 8 neighbours."""
    from skimage import data

    step = max(1, round(1 / scale**0.5)) if scale < 1 else 1
    picture = data.coffee()[::step, ::step].astype(float)
    seeds = np.full((400, 600), -1)
    seeds[300:385, 470:580], seeds[60:250, 500:580] = 0, 0  # table
    seeds[60:150, 230:330], seeds[330:350, 190:300] = 1, 1  # cup and saucer
    seeds[2:40, 2:40] = 2  # the dark corner
    seeds = seeds[::step, ::step]
    unary = np.maximum(images.unary_from_seeds(picture, seeds), -1000.0)
    weights = images.contrast_weights(picture, 30.0, neighbours=8, floor=0.05, channel_axis=-1)
    return Case("photo-400x600x3", unary, weights, neighbours=8, photo=picture, seeds=seeds)


def sides(scale: float, *full: int) -> tuple[int, ...]:
    """Sides of a picture with about `scale` of the pixels."""
    return tuple(max(4, round(n * scale**0.5)) for n in full)


CASES: dict[str, Callable[[float], Case]] = {
    "binary-1000": binary,
    "potts-500x5": potts(500, 5),
    "potts-1000x8": potts(1000, 8),
    "linear-400x32": linear,
    "volume-64": volume,
    "photo-400x600x3": photo,
}


# -- the peers --------------------------------------------------------------------------------------------------------


def by_maxflow(case: Case) -> Row | None:
    """The minimum cut of PyMaxflow for two labels, its alpha-expansion for even weights on straight neighbours."""
    peer = importlib.import_module("maxflow")
    if case.n_labels > 2:
        if not isinstance(case.weight, float) or case.neighbours is not None:
            return None
        expand = importlib.import_module("maxflow.fastmin").aexpansion_grid
        began = CLOCK[0]()
        labels = expand(-case.unary, case.weight * case.table)
        return Row("PyMaxflow expansion", labels.ravel(), math.nan, CLOCK[0]() - began, note="build in solve")
    began = CLOCK[0]()
    weights = case.weights()
    network = peer.GraphFloat(math.prod(case.shape), len(weights) * math.prod(case.shape))
    nodes = network.add_grid_nodes(case.shape)
    for offset, array in weights.items():
        full = np.zeros(case.shape)
        full[tuple(slice(max(0, -o), -o if o > 0 else None) for o in offset)] = array
        structure = np.zeros((3,) * len(offset))
        structure[tuple(1 + o for o in offset)] = 1
        network.add_grid_edges(nodes, full, structure=structure, symmetric=True)
    network.add_grid_tedges(nodes, -case.unary[..., 1], -case.unary[..., 0])
    built = CLOCK[0]()
    network.maxflow()
    labels = np.asarray(network.get_grid_segments(nodes), dtype=np.int64).ravel()
    return Row("PyMaxflow cut", labels, built - began, CLOCK[0]() - built)


def by_gco(case: Case) -> Row:
    """Alpha-expansion of gco until no label improves."""
    peer = importlib.import_module("gco").GCO
    scope = case.graph().scope.reshape(-1, 2)  # pairs are not what is timed: gco's users have them, too
    began = CLOCK[0]()
    parts = [np.broadcast_to(w, pairs_shape(case.shape, offset)).ravel() for offset, w in case.weights().items()]
    weight = np.concatenate(parts)
    largest = max(float(-case.unary.min()), float(weight.max() * case.table.max()))
    scale = ROUNDED / largest
    network = peer()
    network.create_general_graph(len(case.unary.reshape(-1, case.n_labels)), case.n_labels)
    network.set_data_cost(np.rint(-scale * case.unary).reshape(-1, case.n_labels).astype(np.intc))
    first, second = scope.min(axis=1), scope.max(axis=1)
    network.set_all_neighbors(first, second, np.rint(scale * weight).astype(np.intc))
    network.set_smooth_cost(case.table.astype(np.intc))
    built = CLOCK[0]()
    network.expansion(-1)
    labels = network.get_labels().astype(np.int64)
    done = CLOCK[0]()
    network.destroy_graph()
    return Row("gco expansion", labels, built - began, done - built)


def by_walker(case: Case) -> Row | None:
    """The random walker of scikit-image, from the scribbles."""
    if case.seeds is None or case.photo is None:
        return None
    walker = importlib.import_module("skimage.segmentation").random_walker
    began = CLOCK[0]()
    found = walker(case.photo / 255, case.seeds + 1, mode="cg_j", channel_axis=-1)
    return Row("random walker", found.ravel() - 1, math.nan, CLOCK[0]() - began, note="another function")


PEERS: dict[str, Callable[[Case], Row | None]] = {"gco": by_gco, "maxflow": by_maxflow, "skimage": by_walker}
"""By the module that they need; gco first, as its value is what the others are compared with."""


# -- the runs ---------------------------------------------------------------------------------------------------------


def pairs_shape(shape: tuple[int, ...], offset: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(n - abs(o) for n, o in zip(shape, offset, strict=True))


def by_method(case: Case, method: str, given: argparse.Namespace) -> Row | None:
    """One of our methods; None if the model is not one for it."""
    began = CLOCK[0]()
    graph = case.graph()
    built = CLOCK[0]()
    try:
        result = mapmrf.solve(graph, method, time_limit=given.seconds, threads=given.threads)
    except UnsupportedModel:
        return None
    return Row(method, result.labels, built - began, CLOCK[0]() - built, result, result.status.value)


def rows(case: Case, given: argparse.Namespace) -> Iterator[Row]:
    for module, peer in PEERS.items():
        if module in given.peers and importlib.util.find_spec(module) is not None:
            row = peer(case)
            if row is not None:
                yield row
    for method in given.methods:
        if method in mapmrf.methods():
            row = by_method(case, method, given)
            if row is not None:
                yield row


def reached(result: mapmrf.Result | None, value: float) -> float | None:
    """Seconds after which a run had a labelling of at least this value."""
    least = value - EQUAL * abs(value)
    times = [] if result is None else [point.time for point in result.trace if point.value >= least]
    return min(times, default=None)


def line(case: Case, row: Row, value: float, gco: float | None) -> str:
    """A row of the table."""
    result = row.result
    bound = f"{result.bound:.2f}" if result is not None and result.bound is not None else ""
    cells: list[Any] = [case.name, row.by, f"{value:.2f}", bound, seconds(row.build), seconds(row.solve)]
    cells.append(seconds(None if gco is None else reached(result, gco)))
    cells.append(seconds(reached(result, -math.inf) if result is not None else None))
    return f"| {' | '.join(cells)} | {row.note} |"


def seconds(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.2f}"


def warm_up(given: argparse.Namespace) -> None:
    """Load the kernels: a small model of every kind for every method."""
    few = argparse.Namespace(**{**vars(given), "seconds": 5.0})
    for name in given.only:
        case = CASES[name](0.003)
        for method in given.methods:
            if method in mapmrf.methods():
                by_method(case, method, few)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="MODEL")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the pixels of every model")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of each of our methods")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="*", default=METHODS)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS), metavar="MODULE")
    parser.add_argument("--processor", action="store_true", help="measure processor time")
    given = parser.parse_args()
    if given.processor:
        CLOCK[0] = time.process_time
    if importlib.util.find_spec("skimage") is None:  # the photograph is scikit-image's
        given.only = [name for name in given.only if not name.startswith("photo")]
    warm_up(given)
    print("| model | by | value | bound | build (s) | solve (s) | gco's value (s) | first (s) | |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in given.only:
        case = CASES[name](given.scale)
        graph, gco = case.graph(), None
        for row in rows(case, given):
            value = graph.value(row.labels)
            gco = value if row.by == "gco expansion" else gco
            print(line(case, row, value, gco), flush=True)


if __name__ == "__main__":
    main()
