"""Cutting planes on the compact program: rounds of odd-cycle inequalities on its linear relaxation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.highs import LPRelaxation
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.program import DUAL_TOL, Program, Rows, lagrangian
from mapmrf.engines.program.scip import SolverOutcome
from mapmrf.engines.program.spin_planes import SpinPlanes
from mapmrf.model.problem import Problem

SIMPLEX_EFFORTS = ((1e-3, 1e-2), (1e-5, 1e-4))
"""Minimum violation and surcharge per pair of a cycle; the second is tried if the first finds nothing."""

MAX_AGE = 3
"""Rounds after which a cut that is not tight is removed."""

TIGHT = 1e-6
"""Slack above which a row is not tight."""

TAIL, TAIL_GAIN = 10, 0.9
"""The rounds end when the last `TAIL` of them left more than this share of the gap."""


class CuttingPlanes:
    """The linear relaxation with the current cuts, its point and its bound; it may continue from the quick rounds."""

    def __init__(self, compact: Compact, seed: int, quick: SpinPlanes | None = None) -> None:
        program = compact.program if quick is None else quick.strengthened()
        self.compact = compact
        lower, upper = program.lower.copy(), program.upper.copy()
        # the program, with the bounds of fixed columns and the rows of the formulation only
        self.program = dataclasses.replace(program, lower=lower, upper=upper, rows=compact.program.rows)
        self.rows = program.rows  # these rows and the cuts in the relaxation
        # The dual tolerance is that of branch and cut; each round starts from the last basis.
        settings = {"dual_feasibility_tolerance": DUAL_TOL, "presolve": "off", "solver": "simplex", "parallel": "off"}
        self.relaxation = LPRelaxation(program, seed, settings)
        self.bound = math.inf if quick is None else quick.bound  # the best upper bound so far, in log potentials
        self.point: Floats = np.zeros(len(program.cost))  # the optimal point of the last relaxation
        self.n_rounds = 0 if quick is None else quick.n_rounds
        self.n_cuts = 0 if quick is None else quick.n_cuts
        self._reduced: Floats = np.zeros(len(program.cost))
        self._now = math.inf
        self._age = np.zeros(self.rows.n - self.program.rows.n, dtype=np.int64)
        self._gaps: list[float] = []
        self._separation = OddCycleSeparation(compact.n, compact.first, compact.second)

    @property
    def n_fixed(self) -> int:
        """Number of fixed columns."""
        return int(np.count_nonzero(self.program.lower == self.program.upper))

    def read(self) -> None:
        """Take over the point and the bound of a solved relaxation."""
        point, weights = self.relaxation.point(), self.relaxation.weights()
        assert point is not None and weights is not None
        self.point = point
        self._now, self._reduced = lagrangian(self.program, self.rows, weights)
        self.bound = min(self.bound, self._now)
        self.n_rounds += 1

    def fix_by_cost(self, value: float) -> None:
        """Fix columns by reduced cost, given the value of a labelling."""
        price = self.program.scale * np.abs(self._reduced)
        places = np.flatnonzero(self._now - price < value - self.program.round_off)
        self._fix(places, (self._reduced > 0).astype(np.float64))

    def _fix(self, places: Ints, point: Floats) -> None:
        free = places[self.program.lower[places] < self.program.upper[places]]
        self.program.lower[free] = self.program.upper[free] = np.round(point[free])
        if len(free):
            self.relaxation.change_bounds(free, self.program.lower[free], self.program.upper[free])

    def decided(self) -> Ints | None:
        """Return the only labelling that can be better than the one used for fixing, if all columns are fixed."""
        lower = self.program.lower[: self.compact.n]
        return lower.astype(np.int64) if np.all(lower == self.program.upper[: self.compact.n]) else None

    def tails_off(self, value: float) -> bool:
        """Return whether the last rounds have closed little of the gap."""
        self._gaps.append(self.bound - value)
        return len(self._gaps) > TAIL and self._gaps[-1] > TAIL_GAIN * self._gaps[-1 - TAIL]

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in steps of some milliseconds, and remove cuts that are no longer tight."""
        self._purge()
        for violation, hop in SIMPLEX_EFFORTS:
            missing = self.compact.missing(self.point, violation)
            yield from self._separation.run(self.compact.cut(self.point), violation, hop)
            cycles = self.compact.cycles(self._separation.best(self.compact.n))
            if missing.n or cycles.n:
                self._add(missing, cycles)
                return

    def _add(self, *cuts: Rows) -> None:
        n_new = sum(rows.n for rows in cuts)
        for rows in cuts:
            self.relaxation.add(rows)
        self.rows = self.rows.plus(*cuts)
        self._age = np.concatenate([self._age, np.zeros(n_new, dtype=np.int64)])
        self.n_cuts += n_new

    def _purge(self) -> None:
        n_needed = self.program.rows.n
        loose = (self.rows.upper - self.rows.matrix @ self.point)[n_needed:] > TIGHT
        self._age = np.where(loose, self._age + 1, 0)
        old = self._age >= MAX_AGE
        if old.any():
            self.relaxation.delete(n_needed + np.flatnonzero(old))
            self.rows = self.rows.only(np.concatenate([np.ones(n_needed, dtype=bool), ~old]))
            self._age = self._age[~old]

    def strengthened(self) -> Program:
        """Return the program with the tight cuts and the fixed columns."""
        n_needed = self.program.rows.n
        tight = self.rows.upper - self.rows.matrix @ self.point <= TIGHT
        tight[:n_needed] = True
        return dataclasses.replace(self.program, rows=self.rows.only(tight))


# -- The dual solution of the compact program with odd cycles, as messages and multipliers of cycles ------------------


POLL = 0.05
"""Seconds between checks of whether to stop."""

PATIENCE = 1.0
"""Seconds that the solver has to stop."""

MOST_ROUNDS = 200
"""Maximum number of rounds of odd-cycle inequalities."""


class CycleDual(NamedTuple):
    """Messages and cycles."""

    lam_e: Floats  # (n_edge_states,): Messages, in the order of the problem's edges
    # ptr, pair, odd, weight: The cycles: their offsets; their pairs, as factors of the problem; which of them are in F;
    # the multipliers
    ptr: Ints
    pair: Ints
    odd: Ints
    weight: Floats


def cycle_dual(problem: Problem, value: float, tol: float, stop: Callable[[], bool]) -> CycleDual | None:
    """Compute the dual solution by rounds of odd cycles, until its bound is `value` up to `tol`, or nothing helps.

    Nothing is fixed, so that the solution is valid for the whole model. None if the first relaxation was not solved in
    time.
    """
    compact = Compact.build(problem)
    planes = CuttingPlanes(compact, 0)
    best: tuple[Rows, Floats] | None = None
    try:
        while planes.n_rounds < MOST_ROUNDS and _solved(planes, stop):
            before = planes.bound
            planes.read()
            weights = planes.relaxation.weights()
            if weights is not None and (best is None or planes.bound < before):
                best = planes.rows, np.maximum(weights, 0.0)
            n_cuts = planes.n_cuts
            if planes.bound - value <= tol or not _separated(planes, stop):
                break
            if planes.n_cuts == n_cuts or planes.tails_off(value):
                break
    finally:
        planes.relaxation.close(PATIENCE)
    return None if best is None else _dual(problem, compact, *best)


def _separated(planes: CuttingPlanes, stop: Callable[[], bool]) -> bool:
    """Add violated inequalities; False if stopped."""
    return not any(stop() for _ in planes.separate())


def _solved(planes: CuttingPlanes, stop: Callable[[], bool]) -> bool:
    """Solve the relaxation; False if stopped."""
    if stop():
        return False
    planes.relaxation.start()
    while not planes.relaxation.wait(POLL):
        if stop():
            planes.relaxation.stop()
            planes.relaxation.wait(PATIENCE)
            return False
    return planes.relaxation.outcome is SolverOutcome.OPTIMAL


def _dual(problem: Problem, compact: Compact, rows: Rows, weights: Floats) -> CycleDual:
    """Convert row multipliers: rows with one y, those of y = x_i x_j, become messages; rows with several are cycles."""
    matrix, n, scale = rows.matrix, compact.n, compact.program.scale
    owner = np.repeat(np.arange(rows.n), np.diff(matrix.indptr))
    is_y = matrix.indices >= n
    n_y = np.bincount(owner[is_y], minlength=rows.n)
    cycles = np.flatnonzero((n_y > 1) & (weights > 0))
    chosen = np.isin(owner, cycles) & is_y
    pair, odd = matrix.indices[chosen] - n, (matrix.data[chosen] < 0).astype(np.int64)
    # Rows of cycles are halved in the program.
    weight = scale * weights[cycles] / 2
    factor = _factor_of(problem, compact)
    lam_e = _messages(problem, compact, rows, (factor, n_y == 1, weights * scale))
    lam_e -= _cycle_part(problem, factor[pair], np.repeat(weight, n_y[cycles]) * (1 - 2 * odd))
    return CycleDual(lam_e, offsets(n_y[cycles]), factor[pair], odd, weight)


def _factor_of(problem: Problem, compact: Compact) -> Ints:
    """Return a factor for each pair of the program."""
    ends = np.sort(problem.scope.reshape(-1, 2).astype(np.int64), axis=1)
    code = ends[:, 0] * compact.n + ends[:, 1]
    order = np.argsort(code, kind="stable")
    wanted = compact.first.astype(np.int64) * compact.n + compact.second
    return np.asarray(order[np.searchsorted(code[order], wanted)])


def _messages(problem: Problem, compact: Compact, rows: Rows, parts: tuple[Ints, Bools, Floats]) -> Floats:
    """Move every table's linear part to the variables, minus the contribution of the rows of y = x_i x_j."""
    factor, single, weights = parts
    lam = np.zeros((problem.n_factors, 2, 2))
    for batch in problem.batches:
        table = batch.tables(problem.graph.theta_t, slice(0, batch.n))
        lam[batch.factors, :, 1] = table[:, :1] - table[:, [2, 1]]
    matrix, n = rows.matrix, compact.n
    owner = np.repeat(np.arange(rows.n), np.diff(matrix.indptr))
    is_y = matrix.indices >= n
    pair_of = np.zeros(rows.n, dtype=np.int64)
    pair_of[owner[is_y]] = matrix.indices[is_y] - n
    of_x = single[owner] & ~is_y
    a, column = factor[pair_of[owner[of_x]]], matrix.indices[of_x]
    side = (problem.scope[2 * a] != column).astype(np.int64)
    np.add.at(lam, (a, side, 1), weights[owner[of_x]] * matrix.data[of_x])
    return lam.ravel()


def _cycle_part(problem: Problem, factors: Ints, amounts: Floats) -> Floats:
    """Return the linear part of the cycles' contribution to tables where labels differ, per edge state."""
    cut = np.bincount(factors, weights=amounts, minlength=problem.n_factors)
    part = np.zeros((problem.n_factors, 2, 2))
    part[:, :, 1] = cut[:, None]
    return part.ravel()
