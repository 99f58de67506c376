"""Cutting planes on the spin form: rounds of odd-cycle inequalities over a first-order solver.

A point that is nearly optimal shows most of the violated cycles, and multipliers that are nearly optimal prove nearly
the bound of the relaxation. On large models a round takes a small part of the time of the simplex method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.program import Program
from mapmrf.engines.program.spin_form import SpinForm


class SeparationEffort(NamedTuple):
    """Least violation, surcharge per pair of a cycle, and how far from 0 or 1 a pair is neither cut nor uncut."""

    violation: float
    hop: float
    fraction: float


EFFORTS = SeparationEffort(0.05, 0.03, 0.05), SeparationEffort(0.02, 0.005, 0.02), SeparationEffort(2e-3, 1e-3, 2e-3)
"""The next one is tried after rounds in which one has found nothing new."""

QUIET = 2
"""Rounds in a row without new inequalities after which the next effort is made: the point may not be good yet."""

ROUND, QUIET_ROUND = IterationLimits(60, 300, 0.2), IterationLimits(60, 600, 0.05)
"""Limits of a round's iterations, and those where the last round has found nothing new."""

CLOSING_ROUND, CLOSING_RUNS = IterationLimits(60, 1000, 0.01), 4
"""Limits of further iterations where the gap is nearly closed, and how often they are added at most."""

SLACK = 0.05
"""Slack above which a row without a multiplier is removed."""

TAIL, TAIL_GAIN = 8, 0.8
"""The rounds end when the last `TAIL` of them left more than this share of the gap."""


class SpinPlanes:
    """The relaxation with the cuts so far, its point and its bound.

    Attributes
    ----------
    bound
        The best upper bound so far, as a log potential.
    point
        A nearly optimal point of the compact program after the last round.
    n_rounds, n_cuts, n_fixed
        Rounds, inequalities that were added in all of them, and columns that are fixed.
    """

    def __init__(self, compact: Compact) -> None:
        self.compact = compact
        self.form = SpinForm.of(compact)
        self.solver = PrimalDual(self.form)
        self.bound = math.inf
        self.point: Floats = np.full(self.form.n_columns, 0.5)
        self.n_rounds = self.n_cuts = 0
        self._now = math.inf
        self._n_quiet = self._n_closing = 0
        self._gaps: list[float] = []
        self._separation = OddCycleSeparation(compact)

    @property
    def n_fixed(self) -> int:
        """Columns that are fixed."""
        return int(np.count_nonzero(self.solver.lower == self.solver.upper))

    @property
    def round_off(self) -> float:
        """What the sums of a bound may be off."""
        return 4 * self.compact.program.round_off

    def solve(self, value: float) -> Iterator[None]:
        """A round's iterations, in short steps, and what they give; a labelling of this value is known."""
        self.n_rounds += 1
        yield from self._run(ROUND if self._n_quiet == 0 else QUIET_ROUND, value)

    def is_closing(self, value: float, tolerance: float) -> bool:
        """Whether the gap is nearly closed and worth closing: a better labelling may be left within it."""
        return self._now - value <= tolerance and self._n_closing < CLOSING_RUNS and self.decided() is None

    def close(self, value: float) -> Iterator[None]:
        """More iterations in the same round."""
        self._n_closing += 1
        yield from self._run(CLOSING_ROUND, value)

    def _run(self, limits: IterationLimits, value: float) -> Iterator[None]:
        """Iterations within limits, the bound after them, and the columns that it decides."""
        known = self.form.objective(value - 2 * self.round_off)
        yield from self.solver.run(limits._replace(known=known))
        self._now = self.form.value(self.solver.bound) + self.round_off
        self.bound = min(self.bound, self._now)
        self.point = self.form.columns(self.solver.z)
        self.fix_by_cost(value)

    def fix_by_cost(self, value: float) -> None:
        """Fix the columns whose reduced cost rules out all but one of -1 and 1, given a labelling of this value."""
        solver = self.solver
        price = 2 * self.compact.program.scale * np.abs(solver.reduced)
        free = solver.lower < solver.upper
        places = np.flatnonzero(free & (self._now - price < value - self.round_off))
        solver.fix(places, np.sign(solver.reduced[places]))

    def decided(self) -> Ints | None:
        """The only labelling that can be better than the one by which columns were fixed, if they all are."""
        lower = self.solver.lower[: self.compact.n]
        return (lower > 0).astype(np.int64) if np.all(lower == self.solver.upper[: self.compact.n]) else None

    def tails_off(self, value: float) -> bool:
        """Whether the last rounds have closed little of the gap."""
        self._gaps.append(self.bound - value)
        return len(self._gaps) > TAIL and self._gaps[-1] > TAIL_GAIN * self._gaps[-1 - TAIL]

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove those that are neither tight nor have a multiplier."""
        solver, form = self.solver, self.form
        kept = (solver.y_cut > 0) | (solver.slack() <= SLACK)
        known = solver.cuts.only(kept)
        effort = EFFORTS[min(self._n_quiet // QUIET, len(EFFORTS) - 1)]
        yield from self._separation.run(self.compact.cut(self.point), *effort)
        cycles = self._separation.best(self.compact.n)
        found = form.missing(solver.z, 2 * effort.violation).plus(form.cycles(cycles, self._separation.codes(cycles)))
        new = found.new(known)
        self._n_quiet = 0 if new.n else self._n_quiet + 1
        self.n_cuts += new.n
        solver.replace_cuts(kept, new)

    def strengthened(self) -> Program:
        """The compact program with the cuts that have a multiplier, and with the variables that are fixed."""
        solver, program, n = self.solver, self.compact.program, self.compact.n
        rows = program.rows.plus(self.form.rows(solver.cuts.only(solver.y_cut > 0)))
        lower, upper = program.lower.copy(), program.upper.copy()
        lower[:n], upper[:n] = (1 + solver.lower[:n]) / 2, (1 + solver.upper[:n]) / 2
        return dataclasses.replace(program, lower=lower, upper=upper, rows=rows)
