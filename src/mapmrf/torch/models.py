"""Many models of one structure: potentials as rows of an array, answers as counts of the potentials used."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError
from mapmrf.learn.features import potential_counts
from mapmrf.learn.inference import Inference, infer
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import Result


class StructureSolver:
    """MAP inference on models that differ from a graph only in their potentials.

    A row of potentials is ``theta_v``, or ``theta_v`` and ``theta_t``, one after the other. Forbidden entries of the
    graph stay forbidden. The last result of each row of a batch is kept: the next call starts from its labels and
    messages.
    """

    def __init__(self, graph: FactorGraph, inference: Inference = "quick", seed: int = 0, jobs: int = 1) -> None:
        # graph: the structure, and the tables for rows without tables
        self.graph, self.inference, self.seed, self.jobs = graph, inference, seed, jobs
        self.known: dict[int, Result] = {}  # the last result of each row of a batch

    def model(self, theta: Floats) -> FactorGraph:
        graph = self.graph
        n, m = len(graph.theta_v), len(graph.theta_t)
        if theta.shape not in ((n,), (n + m,)):
            raise GraphError(f"a row has {theta.size} potentials, expected {n}, or {n + m} with those of the tables")
        theta_v = np.where(np.isneginf(graph.theta_v), -np.inf, theta[:n])
        if len(theta) == n:
            return replace(graph, theta_v=theta_v)
        return replace(graph, theta_v=theta_v, theta_t=np.where(np.isneginf(graph.theta_t), -np.inf, theta[n:]))

    def whole(self, theta: Floats) -> Floats:
        """Rows with all potentials: tables of the graph where rows have none; forbidden entries are not used, and 0."""
        n, m = len(self.graph.theta_v), len(self.graph.theta_t)
        if theta.shape[1] != n:
            return theta
        tables = np.where(np.isneginf(self.graph.theta_t), 0.0, self.graph.theta_t)
        return np.concatenate([theta, np.broadcast_to(tables, (len(theta), m))], axis=1)

    def counts(self, labels: Ints, size: int) -> Floats:
        """Number of times that labels use each of the first `size` potentials."""
        return potential_counts(self.graph, labels)[:size]

    def solve(self, theta: Floats, rows: Ints | None = None) -> Floats:
        """Counts of the best labellings of models, one per row of `theta`; `rows` are their indices in the batch."""
        places = list(range(len(theta))) if rows is None else rows.tolist()
        before = [self.known.get(place) for place in places]

        def one(k: int) -> Result:
            return infer(self.model(theta[k]), self.inference, initial=before[k], seed=self.seed)

        if self.jobs > 1:
            with ThreadPoolExecutor(self.jobs) as pool:
                results = list(pool.map(one, range(len(theta))))
        else:
            results = [one(k) for k in range(len(theta))]
        self.known.update(zip(places, results, strict=True))
        return np.array([self.counts(result.labels, theta.shape[1]) for result in results]).reshape(theta.shape)
