"""The dual solution of the compact program with odd cycles, as messages and multipliers of cycles."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.cutting_planes import CuttingPlanes
from mapmrf.engines.program.program import Rows
from mapmrf.engines.program.solver_run import SolverOutcome
from mapmrf.model.problem import Problem

POLL = 0.05
"""Seconds between checks of whether to stop."""

PATIENCE = 1.0
"""Seconds that the solver has to stop."""

MOST_ROUNDS = 200
"""Maximum number of rounds of odd-cycle inequalities."""


class CycleDual(NamedTuple):
    """Messages and cycles.

    Attributes
    ----------
    lam_e : (n_edge_states,)
        Messages, in the order of the problem's edges.
    ptr, pair, odd, weight
        The cycles: their offsets; their pairs, as factors of the problem; which of them are in F; the multipliers.
    """

    lam_e: Floats
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
