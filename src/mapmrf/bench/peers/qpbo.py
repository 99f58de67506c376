"""Roof duality by thinqpbo, and its improvement of labellings (QPBO-I) until the time is up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.bench.peers import Found, Ready, binary_pairs
from mapmrf.model.graph import FactorGraph

PACKAGE, MODULE = "thinqpbo", "thinqpbo"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Find persistent labels and the roof bound first; then improve from there."""
    import thinqpbo

    pairs = binary_pairs(graph, "qpbo")
    energy = thinqpbo.QPBODouble(graph.n_vars, len(pairs.edges))
    energy.add_node(graph.n_vars)
    for i, (low, high) in enumerate((-pairs.unary).tolist()):
        energy.add_unary_term(i, low, high)
    for (i, j), table in zip(pairs.edges.tolist(), (-pairs.tables).reshape(-1, 4).tolist(), strict=True):
        energy.add_pairwise_term(i, j, *table)
    energy.merge_parallel_edges()
    yield Ready()
    energy.solve()
    energy.compute_weak_persistencies()
    bound = graph.constant - energy.compute_twice_lower_bound() / 2
    labels = _labels(energy, segment_argmax(graph.theta_v, graph.var_ptr))
    yield Found(labels, bound, iterations=1)
    for i, label in enumerate(labels.tolist()):
        energy.set_label(i, label)
    iterations = 1
    while True:
        energy.improve()
        iterations += 1
        yield Found(_labels(energy, labels), iterations=iterations)


def _labels(energy: Any, otherwise: Ints) -> Ints:
    found = np.array([energy.get_label(i) for i in range(len(otherwise))], dtype=np.int64)
    return np.where(found >= 0, found, otherwise)
