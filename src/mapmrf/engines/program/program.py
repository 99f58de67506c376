"""The program passed to the solvers: sparse rows, bounded columns, and bounds valid for any multipliers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_max
from mapmrf.model.problem import Problem

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DUAL_TOL = 1e-9  # dual feasibility tolerance of branch and cut: possible error of a reduced cost, in the program's unit
ROUND_OFF = 8 * float(np.finfo(float).eps)  # relative error that long sums over a program are allowed


@dataclass(frozen=True)
class Rows:
    """Constraints lower <= matrix x <= upper, with a sparse matrix."""

    matrix: csr_array
    lower: Floats
    upper: Floats

    @property
    def n(self) -> int:
        return len(self.upper)

    def plus(self, *more: Rows) -> Rows:
        from scipy import sparse  # not imported for models that need no program

        parts = (self, *more)
        matrix = sparse.vstack([part.matrix for part in parts], format="csr")
        lower = np.concatenate([part.lower for part in parts])
        return Rows(matrix, lower, np.concatenate([part.upper for part in parts]))

    def only(self, kept: Bools) -> Rows:
        return Rows(self.matrix[np.flatnonzero(kept)], self.lower[kept], self.upper[kept])


@dataclass(frozen=True)
class Program:
    """Maximise offset + scale cost x over rows and lower <= x <= upper; the first `n_integer` columns are 0 or 1.

    The cost is in a unit in which a typical entry is 1, so that the solvers' absolute tolerances suit any model. The
    sum of the columns of any point is at most `mass`.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    n_integer: int
    rows: Rows
    offset: float
    scale: float
    mass: float

    @property
    def round_off(self) -> float:
        """Possible error of long sums over the program."""
        size = abs(self.offset) + self.scale * float(np.abs(self.cost).sum())
        return ROUND_OFF * size

    @property
    def margin(self) -> float:
        """Margin added to a solver's bound: its dual tolerance on all columns of a point, and round-off."""
        return self.scale * DUAL_TOL * self.mass + self.round_off

    def in_unit(self, tolerance: float) -> Program:
        """Return the program in a smaller unit, at most a thousandth, if that brings the margin down to a tolerance."""
        factor = min(1.0, max(1e-3, tolerance / max(self.scale * DUAL_TOL * self.mass, 1e-300)))
        return dataclasses.replace(self, cost=self.cost / factor, scale=self.scale * factor)

    def value(self, objective: float) -> float:
        """Convert an objective of the program to a log potential."""
        return self.offset + self.scale * objective


def lagrangian(program: Program, rows: Rows, weights: Floats) -> tuple[float, Floats]:
    """Return an upper bound on the program with `rows`, as a log potential, and the reduced costs in its unit."""
    # ``w limits + sum_j max over x_j of (cost - A' w)_j x_j`` is valid for all multipliers w, however inexact the
    # solver that produced them: positive ones refer to the upper side of a row, negative ones to the lower, and those
    # of a side without limit are ignored. The bound includes what round-off may take from it.
    weights = np.where(np.isinf(np.where(weights > 0, rows.upper, rows.lower)), 0.0, weights)
    limits = np.where(weights > 0, rows.upper, np.where(weights < 0, rows.lower, 0.0))
    reduced: Floats = program.cost - rows.matrix.T @ weights
    objective = float(weights @ limits + np.maximum(reduced * program.lower, reduced * program.upper).sum())
    terms = np.abs(program.cost) + np.abs(rows.matrix).T @ np.abs(weights)
    size = np.abs(weights * limits).sum() + terms @ np.maximum(np.abs(program.lower), np.abs(program.upper))
    return program.value(objective) + ROUND_OFF * (abs(program.offset) + program.scale * float(size)), reduced


def value_range(problem: Problem) -> float:
    """Return the maximum difference between the values of two labellings, ignoring -inf."""
    graph = problem.graph
    sizes = None if graph.weight is None else np.abs(graph.weight)
    used = np.bincount(graph.table_of, weights=sizes, minlength=graph.n_tables)
    _, _, range_v = block_losses(graph.theta_v, graph.var_ptr)
    _, _, range_t = block_losses(graph.theta_t, graph.table_ptr)
    penalties = 0.0 if graph.constraints is None else graph.constraints.size
    return float(range_v.sum() + range_t @ used) + penalties


def block_losses(theta: Floats, ptr: Ints) -> tuple[Floats, Floats, Floats]:
    """Return the loss of every entry against the best of its block, the best entries, and the largest finite losses."""
    best = segment_max(theta, ptr)
    safe = np.where(best > -np.inf, best, 0.0)
    loss = np.repeat(safe, np.diff(ptr)) - theta
    largest = segment_max(np.where(np.isfinite(loss), loss, 0.0), ptr)
    return loss, best, largest


def cost_scale(typical: Floats, cost: Floats) -> float:
    """The unit of a program's costs: the median of the sizes of some that are not 0, bounded below for large ones."""
    sizes = np.abs(typical[typical != 0])
    if len(sizes) == 0:
        return 1.0
    # costs of a program are at most this: HiGHS takes 1e20 for infinite
    return max(float(np.median(sizes)), float(np.abs(cost).max()) / 1e18, float(np.finfo(np.float64).tiny))
