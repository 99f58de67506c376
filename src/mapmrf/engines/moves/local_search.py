"""Iterated local search on a problem: the first labelling of an exact method, and better ones along the way."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.local_search_kernels import perturb_and_descend
from mapmrf.problem import Problem

LARGEST = 12
"""Variables that a perturbation draws anew, at most."""


class LocalSearch:
    """A labelling that gets better: single-variable ascent, and random perturbations of small neighbourhoods.

    Attributes
    ----------
    labels
        The best labelling so far, if `value` is the best that `restart` or `run` have seen.
    trials
        Perturbations tried.
    """

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        graph = problem.graph
        n = problem.n_vars
        owner = problem.edge_factor
        self.problem, self.trials = problem, 0
        self._factor_of = owner[problem.nbr]
        self._stride_of = problem.edge_stride[problem.nbr]
        self._place = np.zeros(problem.n_factors, dtype=np.int64)
        self._random = np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64)
        self._queue, self._queued = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
        self._state = np.zeros(2, dtype=np.int64)
        self._log = np.zeros(2 * (16 * LARGEST + n), dtype=np.int64)
        widest = int(graph.card.max(initial=1))
        self._broken, self._score = np.zeros(widest, dtype=np.int64), np.zeros(widest)
        self.labels, self.value = labels.copy(), graph.value(labels)
        self._now = labels.copy()
        self.restart(labels)

    @property
    def descending(self) -> bool:
        """Whether the first descent is still under way."""
        return bool(self._state[1] > 0)

    def restart(self, labels: Ints) -> None:
        """Go on from another labelling."""
        self._now[:] = labels
        self._place[:] = self.problem.table_at
        moved = self._stride_of * np.repeat(self._now, self.problem.degree)
        np.add.at(self._place, self._factor_of, moved)
        self._queue[:] = np.arange(len(labels))
        self._queued[:] = True
        self._state[:] = 0, len(labels)

    def run(self, entries: int, max_trials: int) -> bool:
        """Look at about so many table entries; True if that gave a better labelling than all before."""
        if len(self._now) == 0:
            return False
        graph, problem = self.problem.graph, self.problem
        self.trials += perturb_and_descend(
            entries, self._random, LARGEST, self._now, self._place, graph.card, graph.var_ptr, graph.theta_v,
            graph.theta_t, problem.nbr_ptr, problem.scope_ptr, problem.scope, self._factor_of, self._stride_of,
            self._queue, self._queued, self._state, self._log, self._broken, self._score, max_trials,
        )  # fmt: skip
        return self.offer(self._now)

    def offer(self, labels: Ints) -> bool:
        """Keep a labelling if it is better than all before."""
        value = self.problem.graph.value(labels)
        if value > self.value:
            self.labels[:], self.value = labels, value
            return True
        return False
