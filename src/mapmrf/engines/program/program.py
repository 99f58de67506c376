"""The program passed to the solvers: sparse rows, bounded columns, and bounds valid for any multipliers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, segment_max, short
from mapmrf.model.problem import Problem

DUAL_TOL = 1e-9  # dual feasibility tolerance of branch and cut: possible error of a reduced cost, in the program's unit
ROUND_OFF = 8 * float(np.finfo(float).eps)  # relative error that long sums over a program are allowed


def summed(place: Ints, parts: Floats, n: int) -> Floats:
    return np.asarray(np.bincount(place, weights=parts, minlength=n), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A matrix by rows: row r has `data[ptr[r]:ptr[r + 1]]` in columns `indices[ptr[r]:ptr[r + 1]]`.

    Not scipy.sparse: its import takes longer than many a model, and solvers need the arrays only.
    """

    data: Floats
    indices: Ints
    ptr: Ints
    n_columns: int

    @classmethod
    def of_entries(cls, data: Floats, rows: Ints, columns: Ints, shape: tuple[int, int]) -> SparseMatrix:
        """Sort entries in any order, at most one per place."""
        order = np.lexsort((columns, rows))
        ptr = offsets(np.bincount(rows, minlength=shape[0]))
        return cls(data[order], short(columns[order]), ptr, shape[1])

    @property
    def n_rows(self) -> int:
        return len(self.ptr) - 1

    @cached_property
    def rows(self) -> Ints:
        """The row of every entry."""
        return np.repeat(np.arange(self.n_rows), np.diff(self.ptr))

    def __matmul__(self, x: Floats) -> Floats:
        return summed(self.rows, self.data * x[self.indices], self.n_rows)

    def transposed_times(self, y: Floats, sizes: bool = False) -> Floats:
        """The product of the transpose, or of that of the `sizes` of the entries, with a vector."""
        data = np.abs(self.data) if sizes else self.data
        return summed(self.indices, data * y[self.rows], self.n_columns)

    def row_sums(self) -> Floats:
        return summed(self.rows, self.data, self.n_rows)

    def only(self, kept: Ints) -> SparseMatrix:
        """Return some rows."""
        counts = np.diff(self.ptr)[kept]
        taken = ranges(self.ptr[kept], counts)
        return SparseMatrix(self.data[taken], self.indices[taken], offsets(counts), self.n_columns)

    def only_columns(self, kept: Ints) -> SparseMatrix:
        """Return some columns, ascending."""
        number = np.full(self.n_columns, -1, dtype=np.int32)
        number[kept] = np.arange(len(kept))
        indices = number[self.indices]
        inside = indices >= 0
        ptr = offsets(np.bincount(self.rows[inside], minlength=self.n_rows))
        return SparseMatrix(self.data[inside], indices[inside], ptr, len(kept))

    def shifted(self, n: int) -> SparseMatrix:
        """Return the matrix with `n` empty columns before its own."""
        return SparseMatrix(self.data, self.indices + np.int32(n), self.ptr, n + self.n_columns)

    def above(self, *more: SparseMatrix) -> SparseMatrix:
        parts = (self, *more)
        return SparseMatrix(
            np.concatenate([part.data for part in parts]),
            np.concatenate([part.indices for part in parts]),
            offsets(np.concatenate([np.diff(part.ptr) for part in parts])),
            self.n_columns,
        )


@dataclass(frozen=True)
class Rows:
    """Constraints lower <= matrix x <= upper, with a sparse matrix."""

    matrix: SparseMatrix
    lower: Floats
    upper: Floats

    @property
    def n(self) -> int:
        return len(self.upper)

    def plus(self, *more: Rows) -> Rows:
        parts = (self, *more)
        matrix = self.matrix.above(*(part.matrix for part in more))
        lower = np.concatenate([part.lower for part in parts])
        return Rows(matrix, lower, np.concatenate([part.upper for part in parts]))

    def only(self, kept: Bools) -> Rows:
        return Rows(self.matrix.only(np.flatnonzero(kept)), self.lower[kept], self.upper[kept])


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
    reduced: Floats = program.cost - rows.matrix.transposed_times(weights)
    objective = float(weights @ limits + np.maximum(reduced * program.lower, reduced * program.upper).sum())
    terms = np.abs(program.cost) + rows.matrix.transposed_times(np.abs(weights), sizes=True)
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
