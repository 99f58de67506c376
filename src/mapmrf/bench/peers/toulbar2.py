"""The exact solver toulbar2, through the method of that name."""

from __future__ import annotations

from collections.abc import Iterator

import mapmrf
from mapmrf.arrays import Ints
from mapmrf.bench.peers import Found, Ready
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import Status, TracePoint

PACKAGE, MODULE = "pytoulbar2", "pytoulbar2"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Solve once; the course of the run is that of the method's trace."""
    # It runs in a separate process, whose start and imports are subtracted: they are measured on a model of one pair.
    pair = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    start_up = mapmrf.solve(pair, "toulbar2").runtime
    yield Ready(start_up)
    seen: list[Found] = []

    def watch(point: TracePoint, labels: Ints) -> None:
        better = not seen or seen[-1].labels is not labels
        if better or point.bound != seen[-1].bound:
            seen.append(Found(labels, point.bound, point.iterations, max(0.0, point.time - start_up)))

    result = mapmrf.solve(graph, "toulbar2", time_limit=seconds + start_up, seed=seed, callback=watch)
    yield from seen
    done = result.status.closes_gap or result.status is Status.INFEASIBLE
    at = min(seconds, max(0.0, result.runtime - start_up))
    yield Found(result.labels, result.bound, result.iterations, seconds=at, finished=done)
