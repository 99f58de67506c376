"""Speed of `expansion` next to gco's alpha-expansion (gco-wrapper, if it is installed): seconds and values.

Both solve the same models from the same start, the best label of every pixel on its own, with one core. Costs are whole
numbers, because gco rounds others. The time of gco includes handing over the model; that of `expansion` is of a whole
`solve`. The last columns say when `expansion` had the value at which gco stopped. Peers get `--repeats` runs as well;
all times are the shortest of these.

With `--costs`, `expansion` runs alone on an image whose labels have a cost, for costs that let it give up none, some
or most labels.

With `--threads`, `expansion` runs alone on one and two threads: processor time of the calling thread, which is the
busier one, and of all. Other work on the machine changes that less than the clock.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import time

import numpy as np

import mapmrf
from mapmrf.datasets import potts_image
from mapmrf.images import grid_model

SCALE = 100
"""Costs are multiplied by this and rounded."""


def potts(side: int, labels: int) -> mapmrf.FactorGraph:
    """A picture of a few shapes under noise, whose labels cost something where they change."""
    observed = potts_image(side, side, labels=labels, noise=1.2, seed=0).observed
    costs = np.round(SCALE * (observed[..., None] - np.arange(labels)) ** 2 / 2.88)
    return grid_model(costs, "potts", weight=0.8 * SCALE, costs=True)


def depth(side: int, labels: int) -> mapmrf.FactorGraph:
    """A smooth surface with a step, measured with noise: truncated linear costs."""
    y, x = np.mgrid[:side, :side]
    truth = (labels / 2 + labels / 2.5 * np.sin(x / 40) * np.cos(y / 55)).clip(0, labels - 1)
    truth[side // 4 : side // 2, side // 4 : side // 2] = 0.8 * labels
    measured = truth + np.random.default_rng(0).normal(0, labels / 12, truth.shape)
    costs = np.minimum(np.abs(measured[..., None] - np.arange(labels)), labels / 4)
    return grid_model(np.round(SCALE * costs), "linear", weight=float(SCALE), truncation=4, costs=True)


def with_costs(side: int, cost: float) -> mapmrf.FactorGraph:
    """A picture of five labels under strong noise, eight labels to choose from, and a cost for every label used."""
    blocks = np.arange(side) // (side // 4)
    truth = np.add.outer(blocks, blocks) % 5
    gains = np.random.default_rng(0).normal(size=(side, side, 8)) + 1.2 * (truth[..., None] == np.arange(8))
    return grid_model(gains, weight=0.7, label_costs=cost)


def report_costs(side: int, repeats: int) -> None:
    """A line for every cost of a label."""
    for cost in (50.0, 3000.0, 20000.0):
        graph = with_costs(side, cost)
        results = [ours(graph) for _ in range(repeats)]
        used = len(np.unique(results[0].labels[: side * side]))
        seconds = min(result.runtime for result in results)
        print(f"| {side} x {side} | {cost:g} | {used} | {results[0].value:.0f} | {seconds:.2f} |", flush=True)


def by_peer(graph: mapmrf.FactorGraph, labels: int) -> tuple[float, float]:
    """Seconds and value of gco."""
    gco = importlib.import_module("gco")
    unary = -graph.theta_v.reshape(-1, labels)
    pairs = np.sort(graph.scope.reshape(-1, 2), axis=1)
    first = unary.argmin(axis=1)
    began = time.perf_counter()
    found = gco.cut_general_graph(
        pairs, np.ones(len(pairs)), unary, -graph.table(0), init_labels=first, down_weight_factor=SCALE
    )
    return time.perf_counter() - began, graph.value(found)


def ours(graph: mapmrf.FactorGraph) -> mapmrf.Result:
    return mapmrf.solve(graph, "expansion")


def report(name: str, graph: mapmrf.FactorGraph, labels: int, repeats: int) -> None:
    """A line for a model."""
    results = [ours(graph) for _ in range(repeats)]
    line = f"| {name} | {min(result.runtime for result in results):.2f} | {results[0].value:.0f} |"
    if importlib.util.find_spec("gco") is not None:
        peer = [by_peer(graph, labels) for _ in range(repeats)]
        seconds, value = min(each[0] for each in peer), peer[0][1]
        reached = [min((p.time for p in result.trace if p.value >= value), default=np.inf) for result in results]
        line += f" {seconds:.2f} | {value:.0f} | {min(reached):.2f} | {min(reached) / seconds:.2f} |"
    print(line, flush=True)


def report_threads(name: str, graph: mapmrf.FactorGraph, repeats: int) -> None:
    """A line for a model on one and two threads."""
    cells = [name]
    for threads in (1, 2):
        times = []
        for _ in range(repeats):
            own, every = time.thread_time(), time.process_time()
            result = mapmrf.solve(graph, "expansion", threads=threads)
            times.append((time.thread_time() - own, time.process_time() - every))
        cells += [f"{seconds:.2f}" for seconds in min(times)]
    cells += [str(result.iterations), f"{result.details['helpful_moves']:.0f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="also run 1000 x 1000 pixels")
    parser.add_argument("--threads", action="store_true", help="one and two threads, without gco")
    parser.add_argument("--costs", action="store_true", help="labels with costs, without gco")
    options = parser.parse_args()
    ours(potts(20, 3))  # loads the kernels
    if options.costs:
        print("| pixels | cost of a label | labels used | value | seconds |\n|---|---|---|---|---|")
        report_costs(500, options.repeats)
        return
    if options.threads:
        print("| model | one thread | all | two, busier | all | moves | helpful |\n|---|---|---|---|---|---|---|")
        report_threads("Potts 500 x 500, 5 labels", potts(500, 5), options.repeats)
        report_threads("truncated linear 400 x 400, 32 labels", depth(400, 32), options.repeats)
        return
    print("| model | seconds | value | gco | its value | reached after | ratio |\n|---|---|---|---|---|---|---|")
    report("Potts 500 x 500, 5 labels", potts(500, 5), 5, options.repeats)
    report("truncated linear 400 x 400, 32 labels", depth(400, 32), 32, options.repeats)
    if options.large:
        report("Potts 1000 x 1000, 8 labels", potts(1000, 8), 8, options.repeats)


if __name__ == "__main__":
    main()
