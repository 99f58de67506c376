"""The mixed-integer program that branch and cut works on: its arrays, and a bound that holds for any multipliers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.problem import Problem

DUAL_TOL = 1e-9
"""Dual feasibility tolerance asked of the solvers: what a reduced cost may be off, in the program's unit."""


def summed(place: Ints, parts: Floats, n: int) -> Floats:
    """The sum of the parts of every place below `n`."""
    return np.asarray(np.bincount(place, weights=parts, minlength=n), dtype=np.float64)


@dataclass(frozen=True)
class Rows:
    """Constraints lower <= A x <= upper; row r has the entries ``ptr[r]:ptr[r + 1]`` of `column` and `entry`."""

    ptr: Ints
    column: Ints
    entry: Floats
    lower: Floats
    upper: Floats

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of all parts, one below another."""
        column, entry = np.concatenate([part.column for part in parts]), np.concatenate([part.entry for part in parts])
        lower, upper = np.concatenate([part.lower for part in parts]), np.concatenate([part.upper for part in parts])
        return cls(offsets(np.concatenate([np.diff(part.ptr) for part in parts])), column, entry, lower, upper)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.upper)

    def plus(self, more: Rows) -> Rows:
        """These rows and some more below."""
        return Rows.joined([self, more])

    def only(self, kept: Bools) -> Rows:
        """Some of the rows."""
        counts = np.diff(self.ptr)[kept]
        places = ranges(self.ptr[:-1][kept], counts)
        return Rows(offsets(counts), self.column[places], self.entry[places], self.lower[kept], self.upper[kept])

    def times(self, x: Floats) -> Floats:
        """A x."""
        owner = np.repeat(np.arange(self.n), np.diff(self.ptr))
        return summed(owner, self.entry * x[self.column], self.n)

    def transposed_times(self, weights: Floats, n_columns: int) -> Floats:
        """A' w."""
        parts = self.entry * np.repeat(weights, np.diff(self.ptr))
        return summed(self.column, parts, n_columns)


@dataclass(frozen=True)
class Program:
    """Maximise offset + scale cost x over rows and lower <= x <= upper; the first `n_integer` columns are 0 or 1.

    The cost is in a unit in which a typical entry is 1, so that the solvers' absolute tolerances suit any model. No
    point has a larger sum of columns than `mass`.
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
        """What long sums over the program may be off."""
        size = abs(self.offset) + self.scale * float(np.abs(self.cost).sum())
        return 8 * float(np.finfo(float).eps) * size

    @property
    def margin(self) -> float:
        """What is added to a solver's bound: its dual tolerance on all columns of a point, and round-off."""
        return self.scale * DUAL_TOL * self.mass + self.round_off

    def in_unit(self, tolerance: float) -> Program:
        """The program in a smaller unit, if that brings the margin down to a tolerance; at most a thousandth."""
        factor = min(1.0, max(1e-3, tolerance / max(self.scale * DUAL_TOL * self.mass, 1e-300)))
        return dataclasses.replace(self, cost=self.cost / factor, scale=self.scale * factor)

    def value(self, objective: float) -> float:
        """An objective of the program as a log potential."""
        return self.offset + self.scale * objective


class Formulation(Protocol):
    """A way to write a problem as a program."""

    @property
    def program(self) -> Program:
        """The program."""

    def columns(self, labels: Ints) -> Floats:
        """The point that stands for a labelling."""

    def labels(self, columns: Floats) -> Ints:
        """The labelling of an integer point, given at least its integer columns."""


def lagrangian(program: Program, rows: Rows, weights: Floats) -> tuple[float, Floats]:
    """A bound on the program with `rows` (all of the form A x <= upper), in its unit, and the reduced costs.

    ``w upper + sum_j max over x_j of (cost - A' w)_j x_j`` holds for all weights w >= 0, however inexact the solver
    that they come from.
    """
    reduced = program.cost - rows.transposed_times(weights, len(program.cost))
    return float(weights @ rows.upper + np.maximum(reduced * program.lower, reduced * program.upper).sum()), reduced


def spread(problem: Problem) -> float:
    """How far the values of two labellings can be apart at most, -inf left out."""
    graph = problem.graph
    used = np.bincount(graph.table_of, minlength=graph.n_tables)
    return float(_ranges(graph.theta_v, graph.var_ptr).sum() + _ranges(graph.theta_t, graph.table_ptr) @ used)


def _ranges(theta: Floats, ptr: Ints) -> Floats:
    """Largest minus smallest finite entry of every block."""
    if len(ptr) < 2:
        return np.zeros(0)
    best = np.maximum.reduceat(theta, ptr[:-1])
    safe = np.where(best > -np.inf, best, 0.0)
    loss = np.repeat(safe, np.diff(ptr)) - theta
    return np.asarray(np.maximum.reduceat(np.where(np.isfinite(loss), loss, 0.0), ptr[:-1]))
