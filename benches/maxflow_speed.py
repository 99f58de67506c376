"""Speed of `maxflow` on binary images, next to PyMaxflow (if it is installed) and `auto`: seconds and values.

All solve the same model: pixels that are white or black with noise, a 4-neighbourhood with individual weights. Times
include everything from the FactorGraph, or from the arrays, to the labelling.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator

import numpy as np

import mapmrf
from mapmrf.engines.flow.cut_model import CutModel
from mapmrf.model.problem import Problem

Row = tuple[str, float, float, str]


class Picture:
    """A noisy picture: unary potentials, and a weight for every pair of neighbours that differ."""

    def __init__(self, side: int, smoothness: float, seed: int) -> None:
        random = np.random.default_rng(seed)
        y, x = np.mgrid[:side, :side] / side
        clean = (np.sin(9 * x + 4 * y) * np.cos(7 * y - 3 * x) > 0.1).astype(float)
        noisy = clean + random.normal(scale=0.8, size=clean.shape)
        self.unary = np.stack([-(noisy**2), -((noisy - 1) ** 2)], axis=-1)
        self.across = smoothness * np.exp(-np.abs(np.diff(noisy, axis=1)))
        self.down = smoothness * np.exp(-np.abs(np.diff(noisy, axis=0)))
        self.place = np.arange(side * side).reshape(side, side)

    def graph(self) -> mapmrf.FactorGraph:
        """The model: one table, and a weight for every pair."""
        place = self.place
        pairs = [np.stack([place[:, :-1], place[:, 1:]], axis=-1), np.stack([place[:-1], place[1:]], axis=-1)]
        edges = np.concatenate([each.reshape(-1, 2) for each in pairs])
        weights = np.concatenate([self.across.ravel(), self.down.ravel()])
        return mapmrf.FactorGraph.from_pairwise(self.unary.reshape(-1, 2), edges, np.eye(2) - 1, weight=weights)

    def by_peer(self) -> np.ndarray:
        """Labels by PyMaxflow, with its own functions for grids."""
        peer = importlib.import_module("maxflow")
        network = peer.GraphFloat(self.place.size, 2 * self.place.size)
        nodes = network.add_grid_nodes(self.place.shape)
        for weights, offset in ((self.across, (0, 1)), (self.down, (1, 0))):
            full = np.zeros(self.place.shape)
            full[: weights.shape[0], : weights.shape[1]] = weights
            structure = np.zeros((3, 3))
            structure[1 + offset[0], 1 + offset[1]] = 1
            network.add_grid_edges(nodes, full, structure=structure, symmetric=True)
        network.add_grid_tedges(nodes, -self.unary[..., 1], -self.unary[..., 0])
        network.maxflow()
        return np.asarray(network.get_grid_segments(nodes), dtype=np.int64).ravel()


def timed(work: Callable[[], np.ndarray], repeats: int) -> tuple[float, np.ndarray]:
    """Shortest of several runs in seconds, and what the last one returned."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        labels = work()
        times.append(time.perf_counter() - began)
    return min(times), labels


def cut(graph: mapmrf.FactorGraph) -> np.ndarray:
    """Labels without the loop and its report: compiling, network and flow."""
    model = CutModel(Problem.compile(graph))
    model.flow.run()
    return model.labels


def rows(picture: Picture, repeats: int, limit: float) -> Iterator[Row]:
    """Who, seconds, value, status."""
    seconds, _ = timed(lambda: picture.graph().card, repeats)
    graph = picture.graph()
    yield "building the FactorGraph", seconds, float("nan"), ""
    seconds, labels = timed(lambda: cut(graph), repeats)
    yield "the engine alone", seconds, graph.value(labels), ""
    found: list[mapmrf.Result] = []

    def ours(method: str) -> np.ndarray:
        found.append(mapmrf.solve(graph, method, time_limit=limit))
        return found[-1].labels

    for method in ("maxflow", "auto"):
        seconds, labels = timed(lambda: ours(method), repeats)  # noqa: B023
        yield method, seconds, graph.value(labels), f"{found[-1].status.value}, gap {found[-1].gap:.1e}"
    if importlib.util.find_spec("maxflow") is not None:
        seconds, labels = timed(picture.by_peer, repeats)
        yield "PyMaxflow", seconds, graph.value(labels), ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--smoothness", type=float, default=1.5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()
    mapmrf.solve(Picture(20, 1.0, 0).graph(), "maxflow")  # loads the kernels
    mapmrf.solve(Picture(20, 1.0, 0).graph())
    print("| picture | by | seconds | value | |\n|---|---|---|---|---|")
    for side in options.sizes:
        picture = Picture(side, options.smoothness, seed=0)
        for name, seconds, value, note in rows(picture, options.repeats, options.time_limit):
            print(f"| {side}x{side} | {name} | {seconds:.3f} | {value:.6f} | {note} |", flush=True)


if __name__ == "__main__":
    main()
