"""Iterations that the messages of an earlier run save after a small change: ``python benches/warm_start.py``.

A model is solved, its potentials get noise of some percent of their mean size, and the changed model is solved from
scratch, from the labels of the first run, and from its whole `Result`. A run counts as done when its bound is within
0.01 % of the best bound that any of the three reaches: the iterations until then are printed, averaged over seeds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

import mapmrf
from mapmrf.datasets import grid, potts_image

METHODS: dict[str, dict[str, Any]] = {
    "trws": {},
    "mplp": {},
    "ad3": {},
    "lslp": {"sphere": "off"},
    "dd_sg": {},
    "psdd": {},
}
CHANGES, SEEDS, CLOSE = (0.01, 0.1), range(3), 1e-4


def noisy(graph: mapmrf.FactorGraph, part: float, seed: int) -> mapmrf.FactorGraph:
    """The model with noise on all potentials, in parts of their mean size."""
    random = np.random.default_rng(seed)

    def more(theta: np.ndarray) -> np.ndarray:
        return theta + part * np.abs(theta).mean() * random.normal(size=len(theta))

    return dataclasses.replace(graph, theta_v=more(graph.theta_v), theta_t=more(graph.theta_t))


def iterations_until(result: mapmrf.Result, bound: float) -> int:
    """Iterations after which a run's bound is as low."""
    return next((p.iterations for p in result.trace if p.bound is not None and p.bound <= bound), result.iterations)


def counts(graph: mapmrf.FactorGraph, method: str, part: float, seed: int) -> list[int]:
    """Iterations from scratch, from labels, and from the result."""
    options = METHODS[method]
    first = mapmrf.solve(graph, method, **options)
    changed = noisy(graph, part, seed)
    runs = [mapmrf.solve(changed, method, initial=each, **options) for each in (None, first.labels, first)]
    best = min(math.inf if run.bound is None else run.bound for run in runs)
    return [iterations_until(run, best + CLOSE * abs(best)) for run in runs]


def random_pairs(side: int, states: int) -> mapmrf.FactorGraph:
    """A grid with one random table for all pairs, as the first steps of learning make them."""
    random = np.random.default_rng(0)
    at = np.arange(side * side).reshape(side, side)
    edges = [np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1), np.stack([at[:-1].ravel(), at[1:].ravel()], 1)]
    unary, table = random.normal(size=(side * side, states)), random.normal(size=(states, states))
    return mapmrf.FactorGraph.from_pairwise(unary, np.concatenate(edges), table)


def main() -> None:
    """Print a line per model, method and change."""
    models = {
        "Potts image 40 x 40, 5 labels": potts_image(40, 40, labels=5, seed=1).graph,
        "random pairs 40 x 40, 5 labels": random_pairs(40, 5),
        "grid 20 x 20, binary": grid(20, 20, coupling=1.0, seed=1),
    }
    print(f"{'model':32} {'method':7} {'change':>7} {'scratch':>8} {'labels':>8} {'result':>8}")
    for name, graph in models.items():
        for method in METHODS:
            for part in CHANGES:
                found = np.mean([counts(graph, method, part, seed) for seed in SEEDS], axis=0)
                print(f"{name:32} {method:7} {part:7.0%} " + " ".join(f"{n:8.0f}" for n in found), flush=True)


if __name__ == "__main__":
    main()
