"""Cutting planes on the product form: odd cycles of its pairs."""

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
"""The next one is tried after rounds in which one has found nothing new. Most violated cycles are short: those near a
variable are found in a hundredth of the time that all of them take."""

TREE_PLACES = 10_000
"""Configurations of all factors above which branching over products is left to the first-order solver."""

OPEN_SHARE, OPEN_SPIN = 0.1, 0.9
"""Share of the spins below a size from which such a branching is hopeless, and rounds are better."""


class ProductPlanes(Planes):
    """The relaxation of a product form with the cuts so far.

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
        # Cycles of pairs are cheaper to find, and most of those that matter.
        self._separations = [OddCycleSeparation(form.n_spins, one[:m], other[:m], column[:m])]
        if len(column) > m:
            self._separations.append(OddCycleSeparation(form.n_spins + m, one, other, column))

    @property
    def round_off(self) -> float:
        """What the sums of a bound may be off."""
        return self.form.round_off

    def rounded(self) -> Ints:
        """A labelling near the point of the last round."""
        return self.form.rounded(self.solver.z)

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove those that are neither tight nor have a multiplier."""
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
        """Whether many spins are fixed, so that the others should become a model of their own."""
        n = self.form.n_spins
        return 2 * int(np.count_nonzero(self.solver.lower[:n] < self.solver.upper[:n])) <= n

    def tails_off(self, value: float) -> bool:
        """Whether the last rounds have closed little of the gap, no cuts are left, or many spins are fixed."""
        slow = super().tails_off(value) and not self._is_far
        return slow or self._n_quiet > len(EFFORTS) or self.is_decisive

    @property
    def _is_far(self) -> bool:
        """Whether a tree would have no end."""
        is_open = np.abs(self.solver.z[: self.form.n_spins]) < OPEN_SPIN
        return self.form.blocks.ptr[-1] > TREE_PLACES and float(np.mean(is_open)) > OPEN_SHARE

    @property
    def weight(self) -> Floats:
        """Places of every spin in the factors."""
        column = self.form.blocks.column
        return np.bincount(column[column < self.form.n_spins], minlength=self.form.n_spins).astype(np.float64)

    def excluded(self) -> Bools:
        """States, two by variable, that no labelling has that is better than the one by which columns were fixed."""
        n = self.form.n_spins
        return np.stack([self.solver.lower[:n] > 0, self.solver.upper[:n] < 0], axis=1).ravel()

    def strengthened(self) -> Products:
        """The 0/1 program with the cuts that have a multiplier, and with the columns that are fixed."""
        solver = self.solver
        return Products.of(self.form, solver.cuts.only(solver.y_cut > 0), solver.lower, solver.upper)
