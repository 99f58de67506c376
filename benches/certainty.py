"""Time the m best labellings, max-marginals and marginal MAP: ``python benches/certainty.py [MODEL]...``.

Without files, generated models are used. Times are processor time in seconds, the first call of each kind, which loads
kernels, not counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import mapmrf
from mapmrf.datasets import grid, potts_image

LABELLINGS, LIMIT = 10, 60.0


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The answer, and processor time in seconds."""
    began = time.process_time()
    return call(), time.process_time() - began


def measure(name: str, graph: mapmrf.FactorGraph) -> None:
    """Print a line per question about a model."""
    best, seconds = timed(lambda: mapmrf.solve_best(graph, LABELLINGS, time_limit=LIMIT))
    proven = sum(result.status is mapmrf.Status.OPTIMAL for result in best)
    print(f"{name:28} {LABELLINGS} best        {seconds:8.2f} s  {len(best)} found, {proven} proven")
    result, alone = timed(lambda: mapmrf.solve(graph, time_limit=LIMIT))
    found, seconds = timed(lambda: mapmrf.max_marginals(graph, time_limit=LIMIT, initial=result))
    certain = float(np.mean(found.margins(result.labels)[:, 0] > 0))
    kind = "exact" if found.exact else "intervals"
    print(f"{name:28} max-marginals  {seconds:8.2f} s  {kind}, {certain:.1%} certain; solve takes {alone:.2f} s")
    asked = np.arange(0, graph.n_vars, max(1, graph.n_vars // 10)).tolist()
    try:
        answer, seconds = timed(lambda: mapmrf.marginal_map(graph, asked, time_limit=LIMIT))
        print(f"{name:28} marginal MAP   {seconds:8.2f} s  {len(asked)} variables, {answer.status.value}")
    except mapmrf.UnsupportedModel as error:
        print(f"{name:28} marginal MAP   {error}")


def chain(n: int) -> mapmrf.FactorGraph:
    """A chain of five states."""
    random = np.random.default_rng(0)
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    return mapmrf.FactorGraph.from_pairwise(random.normal(size=(n, 5)), pairs, random.normal(size=(n - 1, 5, 5)))


def main(paths: list[str]) -> None:
    """Measure files, or generated models."""
    small = grid(4, 4)
    mapmrf.solve_best(small, 2)
    mapmrf.max_marginals(small, memory=0)
    models: dict[str, Callable[[], mapmrf.FactorGraph]] = {
        "chain of 10000": lambda: chain(10_000),
        "grid 16 x 16": lambda: grid(16, 16, coupling=2.0, seed=1),
        "grid 20 x 20": lambda: grid(20, 20, coupling=2.0, seed=1),
        "image 200 x 300, 4 labels": lambda: potts_image(200, 300, labels=4).graph,
    }
    for path in paths:
        models[path] = lambda path=path: mapmrf.read(path)  # type: ignore[misc]
    for name in paths or list(models):
        measure(name.rpartition("/")[2], models[name]())


if __name__ == "__main__":
    main(sys.argv[1:])
