"""Repeated removal of states that a dual solution excludes."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats
from mapmrf.engines.reduction.dropping_kernels import DropModel, DropRoom, drop_states
from mapmrf.model.problem import Problem


class StateDrops:
    """Rounds of state removal on one problem, with any messages.

    Attributes
    ----------
    reach : (n_states,)
        Upper bound on the labellings with each state, after `settle`; -inf for removed states.

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 3], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> left = np.ones(4, dtype=bool)
    >>> StateDrops(Problem.compile(graph)).settle(np.zeros(4), left, target=3.0), left.tolist()
    (4.0, [False, True, False, True])
    """

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.model = DropModel(
            var_ptr=graph.var_ptr.astype(np.int64),
            theta_v=graph.theta_v,
            scope_ptr=problem.scope_ptr.astype(np.int64),
            edge_ptr=problem.edge_ptr.astype(np.int64),
            state_at=graph.var_ptr[problem.scope].astype(np.int64),
            table_at=graph.table_ptr[graph.table_of[problem.order]].astype(np.int64),
            weight=problem.weight if len(problem.weight) else np.ones(problem.n_factors),
            tables=graph.theta_t,
            constant=float(graph.constant),
        )
        n, largest = problem.n_states, int(np.diff(problem.scope_ptr).max(initial=1))
        best, digit = np.zeros(problem.n_edge_states), np.zeros(largest, dtype=np.int64)
        self.room = DropRoom(np.zeros(n), np.zeros(n), np.zeros(n), best, digit)

    @property
    def reach(self) -> Floats:
        """Upper bound on the labellings with each state."""
        return self.room.reach

    def settle(self, lam_e: Floats, left: Bools, target: float) -> float:
        """Remove states from `left` that no labelling above `target` has; return the bound, -inf if nothing is left."""
        return drop_states(self.model, lam_e, left, target, self.room)
