"""Partition crossover of two labellings of a problem."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints, largest_size
from mapmrf.engines.moves.crossover_kernels import PartScratch, fuse
from mapmrf.engines.moves.move_model import lay_out
from mapmrf.model.problem import Problem

TOLERANCE = 1e-12
"""Minimum gain of a part, relative to the size of the potentials; less counts as round-off."""


class Crossover:
    """Crossover of labellings of one problem.

    Parameters
    ----------
    tol
        Minimum gain of a part, relative to the size of the potentials.

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> from mapmrf.engines.moves.crossover import Crossover
    >>> from mapmrf.model.problem import Problem
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [2, 0]], np.zeros((0, 2), dtype=int), np.zeros((2, 2)))
    >>> labels = np.array([0, 0])
    >>> Crossover(Problem.compile(graph)).fuse(labels, np.array([1, 1]))
    1.0
    >>> labels.tolist()
    [1, 0]
    """

    def __init__(self, problem: Problem, tol: float = TOLERANCE) -> None:
        n = problem.n_vars
        self._model = lay_out(problem)
        self._scratch = new_part_scratch(problem)
        self._all = np.arange(n)
        self._tol = tol * _largest_potential(problem) if tol > 0 else 0.0

    def fuse(self, labels: Ints, other: Ints, region: Ints | None = None) -> float:
        """Take over all better parts of another labelling, in place; return the gain.

        If all variables that differ lie in a region, passing it avoids a scan of all others.
        """
        among = self._all if region is None else region
        return float(fuse(self._model, labels, other, among, self._scratch, self._tol))


def _largest_potential(problem: Problem) -> float:
    """Return the size of the largest finite potential of a factor; an upper limit if tables have weights."""
    return largest_size(problem.graph.theta_t) * (largest_size(problem.weight) if len(problem.weight) else 1.0)


def new_part_scratch(problem: Problem) -> PartScratch:
    """Allocate scratch for finding parts."""
    n = problem.n_vars
    return PartScratch(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), np.zeros(problem.n_factors, dtype=bool))
