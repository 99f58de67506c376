"""Images of the experiments, and PyMaxflow, gco-wrapper and scikit-image on the same arrays (extra `peers`).

All packages get the same unaries, weights of pairs and table of smoothness. *Build* is the time from these arrays to
the package's own model, *solve* that until the labelling is there. gco supports only integers and gets energies rounded
to a millionth of the largest.

- PyMaxflow: the minimum cut, exact for two labels; its alpha-expansion for more, if all pairs have the same weight.
- gco: alpha-expansion until no label improves.
- scikit-image has no graph cuts. Its random walker minimises another function, from the scribbles alone; its labelling
  is shown with its value in our model, and is not a competitor in that.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

import mapmrf
from mapmrf import datasets, images
from mapmrf.arrays import Floats, Ints
from mapmrf.errors import UnsupportedModel

ROUNDED = 1e6
"""gco's largest energy."""
WHOLE = 100.0
"""Costs of the images for `expansion` are multiplied by this and rounded, because gco rounds others."""


@dataclass(frozen=True)
class Case:
    """A labelling problem as arrays: log potentials, and what pairs lose, by name and weight."""

    unary: Floats
    weight: float | dict[tuple[int, ...], Floats]
    smoothness: str = "potts"
    truncation: float | None = None
    neighbours: int | None = None
    photo: Floats | None = None
    seeds: Ints | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.unary.shape[:-1]

    @property
    def n_labels(self) -> int:
        return self.unary.shape[-1]

    @cached_property
    def table(self) -> Floats:
        """What a pair of weight 1 costs."""
        return -images.smoothness_table(self.smoothness, self.n_labels, truncation=self.truncation)

    def graph(self) -> mapmrf.FactorGraph:
        neighbours = self.neighbours if isinstance(self.weight, float) else None
        shared = {"weight": self.weight, "truncation": self.truncation, "neighbours": neighbours}
        return images.grid_model(self.unary, self.smoothness, **shared)

    def weights(self) -> dict[tuple[int, ...], Floats]:
        """Weights of the pairs at every offset."""
        if not isinstance(self.weight, float):
            return self.weight
        offsets = images.neighbour_offsets(len(self.shape), self.neighbours)
        return {offset: np.asarray(self.weight / math.hypot(*offset)) for offset in offsets}


@dataclass(frozen=True)
class Found:
    """A labelling by a peer, and seconds to build and to solve its model, by the clock and of the processor."""

    labels: Ints
    build: tuple[float, float]
    solve: tuple[float, float]


def lap(last: list[float]) -> tuple[float, float]:
    """Seconds since the last call with the same list, by the clock and of the processor."""
    before, last[:] = last[:], [time.perf_counter(), time.process_time()]
    return (last[0] - before[0], last[1] - before[1]) if before else (0.0, 0.0)


# -- the models -------------------------------------------------------------------------------------------------------


def noisy(shape: tuple[int, ...], n_labels: int, noise: float) -> Floats:
    """Smooth regions of so many labels, under noise."""
    at = np.meshgrid(*(np.linspace(0, 1, n) for n in shape), indexing="ij")
    height = np.sin(9 * at[-1] + 4 * at[0]) * np.cos(7 * at[0] - 3 * at[-1]) + 0.5 * np.sin(13 * at[len(at) // 2])
    edges = np.quantile(height, np.linspace(0, 1, n_labels + 1)[1:-1])
    return np.digitize(height, edges) + np.random.default_rng(0).normal(scale=noise, size=shape)


def sides(scale: float, *full: int) -> tuple[int, ...]:
    """Sides of a picture with about `scale` of the pixels."""
    return tuple(max(4, round(n * scale**0.5)) for n in full)


def binary(scale: float) -> Case:
    picture = noisy(sides(scale, 1000, 1000), 2, 0.8)
    return Case(images.unary_from_differences(picture, [0, 1]), images.contrast_weights(picture, 1.5))


def potts(side: int, n_labels: int, scale: float) -> Case:
    picture = noisy(sides(scale, side, side), n_labels, 1.0)
    return Case(images.unary_from_differences(picture, range(n_labels), weight=0.5), 1.0)


def linear(scale: float) -> Case:
    picture = noisy(sides(scale, 400, 400), 4, 0.5) * 31 / 3
    unary = images.unary_from_differences(picture, range(32), difference="absolute", truncation=10.0, weight=0.2)
    return Case(unary, 0.25, "linear", 5.0)


def volume(scale: float) -> Case:
    picture = noisy(sides(scale ** (2 / 3), 64, 64, 64), 2, 1.0)
    weights = images.contrast_weights(picture, 0.3, neighbours=26)
    return Case(images.unary_from_differences(picture, [0, 1]), weights, neighbours=26)


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
    return Case(unary, weights, neighbours=8, photo=picture, seeds=seeds)


def whole_potts(side: int, n_labels: int, scale: float) -> Case:
    """A picture of a few shapes under noise, whose labels cost whole numbers where they change."""
    observed = datasets.potts_image(*sides(scale, side, side), labels=n_labels, noise=1.2, seed=0).observed
    costs = np.round(WHOLE * (observed[..., None] - np.arange(n_labels)) ** 2 / 2.88)
    return Case(-costs, 0.8 * WHOLE)


def depth(scale: float) -> Case:
    """A smooth surface with a step, measured with noise: truncated linear costs, whole numbers."""
    (side, _), n_labels = sides(scale, 400, 400), 32
    y, x = np.mgrid[:side, :side]
    truth = (n_labels / 2 + n_labels / 2.5 * np.sin(x / 40) * np.cos(y / 55)).clip(0, n_labels - 1)
    truth[side // 4 : side // 2, side // 4 : side // 2] = 0.8 * n_labels
    measured = truth + np.random.default_rng(0).normal(0, n_labels / 12, truth.shape)
    costs = np.minimum(np.abs(measured[..., None] - np.arange(n_labels)), n_labels / 4)
    return Case(-np.round(WHOLE * costs), WHOLE, "linear", 4.0)


CASES: dict[str, Callable[[float], Case]] = {
    "binary-1000": binary,
    "potts-500x5": partial(potts, 500, 5),
    "potts-1000x8": partial(potts, 1000, 8),
    "linear-400x32": linear,
    "volume-64": volume,
    "photo-400x600x3": photo,
    "whole-potts-500x5": partial(whole_potts, 500, 5),
    "whole-potts-1000x8": partial(whole_potts, 1000, 8),
    "whole-linear-400x32": depth,
}


# -- the peers --------------------------------------------------------------------------------------------------------


def by_maxflow(case: Case) -> Found:
    """The minimum cut of PyMaxflow for two labels, its alpha-expansion for even weights on straight neighbours."""
    peer, watch = importlib.import_module("maxflow"), []
    if case.n_labels > 2:
        if not isinstance(case.weight, float) or case.neighbours is not None:
            raise UnsupportedModel("PyMaxflow expands labels on grids of one weight only")
        expand = importlib.import_module("maxflow.fastmin").aexpansion_grid
        lap(watch)
        labels = expand(-case.unary, case.weight * case.table)
        return Found(labels.ravel(), (math.nan, math.nan), lap(watch))
    lap(watch)
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
    built = lap(watch)
    network.maxflow()
    return Found(np.asarray(network.get_grid_segments(nodes), dtype=np.int64).ravel(), built, lap(watch))


def by_gco(case: Case, start: bool = False) -> Found:
    """Alpha-expansion of gco until no label improves; with `start`, from the best label of every pixel on its own."""
    peer, watch = importlib.import_module("gco").GCO, []
    scope = case.graph().scope.reshape(-1, 2)  # pairs are not what is timed: gco's users have them, too
    unary = case.unary.reshape(-1, case.n_labels)
    lap(watch)
    sizes = {offset: np.subtract(case.shape, np.abs(offset)) for offset in case.weights()}
    weight = np.concatenate([np.broadcast_to(w, sizes[offset]).ravel() for offset, w in case.weights().items()])
    largest = max(float(-case.unary.min()), float(weight.max() * case.table.max()))
    scale = 1.0 if np.all(unary == np.rint(unary)) and largest < ROUNDED else ROUNDED / largest
    network = peer()
    network.create_general_graph(len(unary), case.n_labels)
    network.set_data_cost(np.rint(-scale * unary).astype(np.intc))
    first, second = scope.min(axis=1), scope.max(axis=1)
    network.set_all_neighbors(first, second, np.rint(scale * weight).astype(np.intc))
    network.set_smooth_cost(case.table.astype(np.intc))
    for i, label in enumerate(unary.argmax(axis=1).tolist() if start else ()):
        network.init_label_at_site(i, label)
    built = lap(watch)
    network.expansion(-1)
    found = Found(network.get_labels().astype(np.int64), built, lap(watch))
    network.destroy_graph()
    return found


def by_walker(case: Case) -> Found:
    """The random walker of scikit-image, from the scribbles."""
    if case.seeds is None or case.photo is None:
        raise UnsupportedModel("the random walker needs scribbles")
    walker, watch = importlib.import_module("skimage.segmentation").random_walker, []
    lap(watch)
    found = walker(case.photo / 255, case.seeds + 1, mode="cg_j", channel_axis=-1)
    return Found(found.ravel() - 1, (math.nan, math.nan), lap(watch))


PEERS: dict[str, Callable[..., Found]] = {"gco": by_gco, "maxflow": by_maxflow, "skimage": by_walker}
"""By the module that they need."""
