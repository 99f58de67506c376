"""pgmpy's MPLP with triplets, on pairwise models of a size that it can handle."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from mapmrf.bench.peers import Found, Ready
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph

PACKAGE, MODULE = "pgmpy", "pgmpy"


def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
    """Run one query; it has no time limit, so a long one is killed."""
    if not np.all(graph.arity == 2) or graph.n_factors > 1000:  # it considers all pairs of edges first
        raise UnsupportedModel("pgmpy's MPLP supports pairwise models, here of at most 1000 pairs")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all()):
        raise UnsupportedModel("pgmpy's MPLP supports only finite potentials")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pgmpy.inference import Mplp

        solver = Mplp(_network(graph))
    yield Ready()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = solver.map_query()
    labels = np.array([answer.get(f"x{i}", 0) for i in range(graph.n_vars)], dtype=np.int64)
    yield Found(labels, iterations=1, finished=True)


def _network(graph: FactorGraph) -> Any:
    """The model with additive, non-negative tables: the objective must be above 0 for it to keep an assignment."""
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.models import DiscreteMarkovNetwork

    network = DiscreteMarkovNetwork()
    network.add_nodes_from([f"x{i}" for i in range(graph.n_vars)])
    tables: dict[tuple[int, int], Any] = {}
    for a in range(graph.n_factors):
        i, j = graph.scope_of(a).tolist()
        table = graph.table(a) if i < j else graph.table(a).T
        pair = (min(i, j), max(i, j))
        tables[pair] = tables.get(pair, 0.0) + table
    for i in range(graph.n_vars):
        block = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        network.add_factors(DiscreteFactor([f"x{i}"], [len(block)], block - block.min()))
    for (i, j), table in tables.items():
        network.add_edge(f"x{i}", f"x{j}")
        network.add_factors(DiscreteFactor([f"x{i}", f"x{j}"], table.shape, table - table.min()))
    return network
