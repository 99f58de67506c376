"""SparseMAP over the local polytope: a quadratic program by ADMM, and its Jacobian along a direction."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.admm.quadratic import solve_quadratic, table_sums
from mapmrf.model.problem import Problem
from mapmrf.run.dual_state import DualState
from mapmrf.torch.models import StructureSolver

STEP = 1e-3
"""Largest change of a potential along a direction."""


class LocalSparseMAP:
    """The point of the local polytope that maximises ``<theta, mu> - |mu_v|^2 / 2``, for rows of potentials.

    Attributes
    ----------
    solver
        The structure; its inference is not used.
    known
        Multipliers of the last call for each row of a batch.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.zeros((2, 2)))
    >>> local = LocalSparseMAP(StructureSolver(graph))
    >>> local.point(np.array([0.0, 0.4, 0.0, 0.0]), 0).round(5).tolist()
    [0.3, 0.7, 0.5, 0.5]
    >>> local.along(np.array([0.0, 0.4, 0.0, 0.0]), np.array([0.0, 1.0, 0.0, 0.0]), 0).round(3).tolist()
    [-0.5, 0.5, 0.0, 0.0]
    """

    def __init__(self, solver: StructureSolver) -> None:
        self.solver = solver
        self.known: dict[int, DualState | None] = {}

    def point(self, theta: Floats, row: int) -> Floats:
        """The point, as counts of the potentials that are given: (n_potentials,)."""
        problem = Problem.compile(self.solver.model(theta))
        found = solve_quadratic(problem, self.known.get(row))
        self.known[row] = found.dual
        return np.concatenate([found.mu_v, table_sums(problem, found.mu_f)])[: len(theta)]

    def along(self, theta: Floats, direction: Floats, row: int) -> Floats:
        """The Jacobian times a direction, which is the direction times the Jacobian: it is symmetric.

        The point is a piecewise linear function of the potentials, so a central difference is exact within a piece.
        """
        size = float(np.abs(direction).max(initial=0.0))
        if size == 0.0:
            return np.zeros_like(direction)
        h = STEP / size
        up, down = (self.point(theta + sign * h * direction, row) for sign in (1.0, -1.0))
        return np.asarray((up - down) / (2.0 * h))
