"""Simulated annealing of dwave-samplers: reads of growing length until the time is up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from mapmrf.bench.peers import Found, Ready, binary_pairs
from mapmrf.model.graph import FactorGraph

PACKAGE, MODULE = "dwave-samplers", "dwave.samplers"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Anneal repeatedly; twice as slowly after every ten reads."""
    import dimod
    from dwave.samplers import SimulatedAnnealingSampler

    pairs = binary_pairs(graph, "dwave")
    t = pairs.tables
    linear = pairs.unary[:, 0] - pairs.unary[:, 1]
    np.add.at(linear, pairs.edges[:, 0], t[:, 0, 0] - t[:, 1, 0])
    np.add.at(linear, pairs.edges[:, 1], t[:, 0, 0] - t[:, 0, 1])
    both = t[:, 1, 0] + t[:, 0, 1] - t[:, 0, 0] - t[:, 1, 1]
    quadratic = (pairs.edges[:, 0], pairs.edges[:, 1], both)
    bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(linear, quadratic, 0.0, dimod.BINARY)
    sampler = SimulatedAnnealingSampler()
    yield Ready()
    end = time.perf_counter() + seconds
    sweeps, reads = 1000, 0
    while True:
        sample = sampler.sample(
            bqm, num_reads=1, num_sweeps=sweeps, seed=seed + reads, interrupt_function=lambda: time.perf_counter() > end
        )
        order = np.argsort(np.asarray(list(sample.variables)))
        reads += 1
        yield Found(sample.record.sample[0][order].astype(np.int64), iterations=reads)
        if reads % 10 == 0:
            sweeps *= 2
