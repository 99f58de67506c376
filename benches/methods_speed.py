"""Nanoseconds per factor and iteration of the iterative methods, one thread, as a Markdown table.

The time of a short run is subtracted from that of a longer one, so that reading, compiling and starting do not count.
Of several such differences the smallest is printed, because other work on the machine only adds to it. Processor time
is measured, not wall-clock time. The models are frustrated, so that no method ends before its iteration limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

import numpy as np

import mapmrf
from mapmrf.datasets import grid
from mapmrf.run.registry import method_class

METHODS = ("bp", "trbp", "trws", "adsal", "dd_sg", "psdd", "ad3", "mplp", "lslp")
OPEN = {"tol": 0.0, "patience": 10**9, "lp_phase": False, "starts": 1, "stop": "plain", "adapt_every": 10}
"""Settings that keep a run from ending early, for the methods that have such an option."""


def labels21(side: int) -> mapmrf.FactorGraph:
    """A grid of 21-label variables with random tables: no method solves it immediately."""
    rng = np.random.default_rng(0)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    unary = rng.normal(size=(side * side, 21))
    return mapmrf.FactorGraph.from_pairwise(unary, edges, 2 * rng.normal(size=(len(edges), 21, 21)))


def seconds(graph: mapmrf.FactorGraph, method: str, iterations: int) -> tuple[float, int]:
    """Processor time of a run, and its iterations."""
    known = {item.name for item in dataclasses.fields(method_class(method))}  # type: ignore[arg-type]
    options: dict[str, Any] = {key: value for key, value in OPEN.items() if key in known}
    if options.get("tol") == 0.0 and method in ("lslp", "ad3", "l2box"):
        options["tol"] = 1e-300
    began = time.process_time()
    result = mapmrf.solve(graph, method, max_iterations=iterations, **options)
    return time.process_time() - began, result.iterations


def per_factor(graph: mapmrf.FactorGraph, method: str, low: int, high: int, repeats: int) -> float | None:
    """Nanoseconds per factor and iteration; None if the method ends too early to be measured."""
    seconds(graph, method, low)  # compiles
    found = []
    for _ in range(repeats):
        short, first = seconds(graph, method, low)
        long, last = seconds(graph, method, high)
        if last <= first:
            return None
        found.append(1e9 * (long - short) / (last - first) / graph.n_factors)
    return min(found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--methods", nargs="+", default=list(METHODS))
    options.add_argument("--repeats", type=int, default=5)
    args = options.parse_args()
    models = {
        "grid 80x80": (grid(80, 80, 3.0, seed=0), 20, 120),
        "grid 300x300": (grid(300, 300, 3.0, seed=0), 20, 80),
        "21 labels, 15x15": (labels21(15), 10, 60),
    }
    print("| method | " + " | ".join(f"{name}, ns" for name in models) + " |")
    print("|---" * (len(models) + 1) + "|")
    for method in args.methods:
        found = [per_factor(*model[:1], method, *model[1:], args.repeats) for model in models.values()]
        print(f"| `{method}` | " + " | ".join("" if x is None else f"{x:.0f}" for x in found) + " |", flush=True)


if __name__ == "__main__":
    main()
