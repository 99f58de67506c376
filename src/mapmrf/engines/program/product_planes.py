"""Cutting planes on the product form: odd cycles of its pairs and splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.planes import SLACK, Planes, SeparationEffort
from mapmrf.engines.program.product_form import ProductForm, Products

EFFORTS = (
    SeparationEffort(0.15, 0.08, 0.1, 500),
    SeparationEffort(0.05, 0.03, 0.05, 1000),
    SeparationEffort(0.02, 0.005, 0.02, 5000),
    SeparationEffort(2e-3, 1e-3, 2e-3, 20_000),
)
"""The next effort follows after rounds in which one has found nothing new. Most violated cycles are short: those near a
variable are found in a hundredth of the time needed for all of them."""

TREE_PLACES = 10_000
"""Number of configurations of all factors above which branching over products uses the first-order solver."""

OPEN_SHARE, OPEN_SPIN = 0.1, 0.9
"""Branching is hopeless if more than this share of the spins is below this absolute value; rounds are better then."""


class ProductPlanes(Planes):
    """The relaxation of a product form with the current cuts.

    Attributes
    ----------
    form
        The product form.
    """

    tail: ClassVar[tuple[int, float]] = (12, 0.95)

    def __init__(self, form: ProductForm) -> None:
        super().__init__(form)
        self.form = form
        column, one, other = form.splits
        m = len(form.pairs)
        # Cycles of pairs are cheaper to find, and are most of those that matter.
        self._separations = [OddCycleSeparation(form.n_spins, one[:m], other[:m], column[:m])]
        if len(column) > m:
            self._separations.append(OddCycleSeparation(form.n_spins + m, one, other, column))

    @property
    def round_off(self) -> float:
        """Possible error of the sums in a bound."""
        return self.form.round_off

    def rounded(self) -> Ints:
        """Round the point of the last round to a labelling."""
        return self.form.rounded(self.solver.z)

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove slack ones with zero multiplier."""
        solver = self.solver
        kept = (solver.y_cut > 0) | (solver.slack() <= SLACK)
        effort = EFFORTS[min(self._n_quiet, len(EFFORTS) - 1)]
        known, cut = solver.cuts.only(kept), self.form.cut(solver.z)
        new = known.only(np.zeros(known.n, dtype=bool))
        for separation in self._separations:
            yield from separation.run(cut[: len(separation.first)], *effort)
            found = separation.best(2 * self.form.n_spins)
            new = self.form.cycles(found, separation.codes(found)).new(known)
            if new.n:
                break
        self._n_quiet = 0 if new.n else self._n_quiet + 1
        self.n_cuts += new.n
        solver.replace_cuts(kept, new)

    @property
    def is_decisive(self) -> bool:
        """Whether so many spins are fixed that the others should become a separate model."""
        n = self.form.n_spins
        return 2 * int(np.count_nonzero(self.solver.lower[:n] < self.solver.upper[:n])) <= n

    def tails_off(self, value: float) -> bool:
        """Return whether the last rounds have closed little of the gap, no cuts are left, or many spins are fixed."""
        slow = super().tails_off(value) and not self._is_far
        return slow or self._n_quiet > len(EFFORTS) or self.is_decisive

    @property
    def _is_far(self) -> bool:
        """Whether a branch and bound would be hopeless."""
        is_open = np.abs(self.solver.z[: self.form.n_spins]) < OPEN_SPIN
        return self.form.blocks.ptr[-1] > TREE_PLACES and float(np.mean(is_open)) > OPEN_SHARE

    @property
    def weight(self) -> Floats:
        """Number of factors of every spin."""
        column = self.form.blocks.column
        return np.bincount(column[column < self.form.n_spins], minlength=self.form.n_spins).astype(np.float64)

    def excluded(self) -> Bools:
        """States, two per variable, that are excluded from labellings better than the one used for fixing columns."""
        n = self.form.n_spins
        return np.stack([self.solver.lower[:n] > 0, self.solver.upper[:n] < 0], axis=1).ravel()

    def strengthened(self) -> Products:
        """Return the 0/1 program with the cuts of non-zero multiplier, and with the fixed columns."""
        solver = self.solver
        return Products.of(self.form, solver.cuts.only(solver.y_cut > 0), solver.lower, solver.upper)
