"""The exact solver toulbar2, through the method of that name."""

from __future__ import annotations

from collections.abc import Iterator

import mapmrf
from mapmrf.bench.peers import Found
from mapmrf.graph import FactorGraph
from mapmrf.result import Status

PACKAGE, MODULE = "pytoulbar2", "pytoulbar2"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found]:
    """Solve once; the course of the run is that of the method's trace."""
    result = mapmrf.solve(graph, "toulbar2", time_limit=seconds, seed=seed)
    for point in result.trace[:-1]:
        yield Found(bound=point.bound, iterations=point.iterations, seconds=point.time)
    done = result.status in (Status.OPTIMAL, Status.INFEASIBLE)
    yield Found(result.labels, result.bound, result.iterations, finished=done)
