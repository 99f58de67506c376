"""Single-variable ascent, the descent that everything else falls back on."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.ascent_kernels import ascend
from mapmrf.problem import Problem

STEP_ENTRIES = 3_000_000
"""Table entries that one step looks at, at most: some 40 ms."""


class Ascent:
    """A labelling that climbs: the labels, what every factor contributes, and the variables to visit.

    Attributes
    ----------
    factor_of, stride_of
        The factor, and the variable's stride in its table, of every edge; laid out by variable like `problem.nbr`.
    place : (n_factors,)
        Entry of `theta_t` that every factor takes now.
    labels : (n_vars,)
        Where the ascent stands.
    visits
        Variables visited so far, over all restarts.
    """

    def __init__(self, problem: Problem) -> None:
        n, widest = problem.n_vars, int(problem.graph.card.max(initial=1))
        self.problem = problem
        self.factor_of: Ints = problem.edge_factor[problem.nbr]
        self.stride_of: Ints = problem.edge_stride[problem.nbr]
        self.place: Ints = np.zeros(problem.n_factors, dtype=np.int64)
        self.labels: Ints = np.zeros(n, dtype=np.int64)
        self.visits = 0
        self._block = 1 + math.isqrt(n)
        self._marked = np.zeros(n, dtype=bool)
        self._marks_in = np.zeros(self._block, dtype=np.int64)
        self._cursor = np.zeros(2, dtype=np.int64)
        self._broken, self._score = np.zeros(widest, dtype=np.int64), np.zeros(widest)

    @property
    def at_optimum(self) -> bool:
        """Whether no single change helps."""
        return bool(self._cursor[0] == 0)

    def restart(self, labels: Ints) -> None:
        """Start again at a labelling, with every variable marked."""
        n = self.problem.n_vars
        self.labels[:] = labels
        self.place[:] = self.problem.table_at
        moved = self.stride_of * np.repeat(self.labels, self.problem.degree)
        np.add.at(self.place, self.factor_of, moved)
        self._marked[:] = True
        self._marks_in[:] = np.bincount(np.arange(n) // self._block, minlength=len(self._marks_in))
        self._cursor[:] = n, 0

    def run(self, max_visits: int) -> None:
        """Visit marked variables until there is none, or a step's work is done."""
        graph, problem = self.problem.graph, self.problem
        self.visits += ascend(
            graph.card, graph.var_ptr, graph.theta_v, graph.theta_t, problem.nbr_ptr, problem.scope_ptr, problem.scope,
            self.factor_of, self.stride_of, self.place, self.labels, self._marked, self._marks_in, self._cursor,
            self._broken, self._score, self._block, max_visits, STEP_ENTRIES,
        )  # fmt: skip
