"""The edges of every variable, for kernels."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Ints
from mapmrf.model.problem import Problem


class Neighbours(NamedTuple):
    """The edges of every variable, ``edge[ptr[i]:ptr[i + 1]]``, and the factor of every edge."""

    ptr: Ints
    edge: Ints
    factor_of: Ints

    @classmethod
    def of(cls, problem: Problem) -> Neighbours:
        """Return the neighbours of a problem."""
        return cls(problem.nbr_ptr, problem.nbr, problem.edge_factor)
