"""Cutting planes on the spin form of a compact program: odd cycles, and missing rows of pairs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import ClassVar

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.plane_rounds import QUIET, SLACK, Planes, SeparationEffort
from mapmrf.engines.program.program import Program
from mapmrf.engines.program.spin_form import SpinForm

SPIN_EFFORTS = (
    SeparationEffort(0.05, 0.03, 0.05, sys.maxsize),
    SeparationEffort(0.02, 0.005, 0.02, sys.maxsize),
    SeparationEffort(2e-3, 1e-3, 2e-3, sys.maxsize),
)
"""The next effort follows after rounds in which one has found nothing new."""


class SpinPlanes(Planes):
    """The relaxation with the current cuts, its point and its bound."""

    tail: ClassVar[tuple[int, float]] = (8, 0.8)

    def __init__(self, compact: Compact) -> None:
        # compact, form: the compact program, and the same in spins
        self.compact = compact
        self.form = SpinForm.of(compact)
        super().__init__(self.form)
        self._separation = OddCycleSeparation(compact.n, compact.first, compact.second)

    @property
    def round_off(self) -> float:
        """Possible error of the sums in a bound."""
        return 4 * self.compact.program.round_off

    @property
    def point(self) -> Floats:
        """A nearly optimal point of the compact program after the last round."""
        return self.form.columns(self.solver.z)

    def rounded(self) -> Ints:
        """Round the point of the last round to a labelling."""
        return self.compact.rounded(self.point)

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove slack ones with zero multiplier."""
        solver, form = self.solver, self.form
        kept = (solver.y_cut > 0) | (solver.slack() <= SLACK)
        known = solver.cuts.only(kept)
        effort = SPIN_EFFORTS[min(self._n_quiet // QUIET, len(SPIN_EFFORTS) - 1)]
        yield from self._separation.run(self.compact.cut(self.point), *effort)
        cycles = self._separation.best(self.compact.n)
        found = form.missing(solver.z, 2 * effort.violation).plus(form.cycles(cycles, self._separation.codes(cycles)))
        new = found.new(known)
        self._n_quiet = 0 if new.n else self._n_quiet + 1
        self.n_cuts += new.n
        solver.replace_cuts(kept, new)

    def strengthened(self) -> Program:
        """Return the compact program with the cuts of non-zero multiplier, and with the fixed variables."""
        solver, program, n = self.solver, self.compact.program, self.compact.n
        rows = program.rows.plus(self.form.rows(solver.cuts.only(solver.y_cut > 0)))
        lower, upper = program.lower.copy(), program.upper.copy()
        lower[:n], upper[:n] = (1 + solver.lower[:n]) / 2, (1 + solver.upper[:n]) / 2
        return dataclasses.replace(program, lower=lower, upper=upper, rows=rows)
