"""Milliseconds per iteration of TRW-S on large images and networks, with one thread and with two, in one run.

    python benches/trws_speed.py [--repeats 15] [--models binary-1000 potts-1000x8]

The threads take turns, iteration by iteration, so that other work on the machine hits both. The ratio of the smallest
times shows the gain of two free cores; the median shows whether they were free.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from mapmrf import images
from mapmrf.methods.trws import TRWS
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start


def image(side: int, n_labels: int, smoothness: str = "potts", truncation: float | None = None) -> FactorGraph:
    """A picture of noise, with a weight for every pair."""
    rng = np.random.default_rng(0)
    weight = images.contrast_weights(rng.random((side, side)), 1.0)
    return images.grid_model(rng.normal(size=(side, side, n_labels)), smoothness, truncation=truncation, weight=weight)


def network(n_vars: int, n_labels: int) -> FactorGraph:
    """A graph in which any two variables may be neighbours; each has six of them on average."""
    rng = np.random.default_rng(0)
    edges = np.unique(np.sort(rng.integers(0, n_vars, (3 * n_vars, 2)), axis=1), axis=0)
    edges = rng.permutation(edges[edges[:, 0] < edges[:, 1]])
    tables = rng.normal(size=(len(edges), n_labels, n_labels))
    return FactorGraph.from_pairwise(rng.normal(size=(n_vars, n_labels)), edges, tables)


MODELS: dict[str, Callable[[], FactorGraph]] = {
    "binary-1000": lambda: image(1000, 2),
    "potts-500x5": lambda: image(500, 5),
    "potts-1000x8": lambda: image(1000, 8),
    "linear-400x32": lambda: image(400, 32, "linear", 4.0),
    "linear-400x64": lambda: image(400, 64, "linear", 4.0),
    "network-500000x2": lambda: network(500_000, 2),
    "network-200000x5": lambda: network(200_000, 5),
}


def iteration_times(graph: FactorGraph, repeats: int) -> tuple[list[float], list[float]]:
    """Milliseconds of iterations with one thread and with two, in turn."""
    method = TRWS(max_iterations=repeats + 1, tol=0.0)
    problems = [Problem.compile(graph, threads) for threads in (1, 2)]
    states = [method.start(problem, 0, Start()) for problem in problems]
    times: tuple[list[float], list[float]] = ([], [])
    for n in range(repeats + 1):
        for state, found in zip(states, times, strict=True):
            began = time.perf_counter()
            state.passes.iterate(n, n + 1, 1)
            if n > 0:  # the first one loads kernels
                found.append(1e3 * (time.perf_counter() - began))
    for problem, state in zip(problems, states, strict=True):
        method.close(problem, state)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    given = parser.parse_args()
    print("| model | 1 thread (ms) | 2 threads (ms) | ratio | ratio of medians |\n|---|---|---|---|---|")
    for name in given.models:
        one, two = iteration_times(MODELS[name](), given.repeats)
        medians = statistics.median(one) / statistics.median(two)
        print(f"| {name} | {min(one):.1f} | {min(two):.1f} | {min(one) / min(two):.2f} | {medians:.2f} |", flush=True)


if __name__ == "__main__":
    main()
