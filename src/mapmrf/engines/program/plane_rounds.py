"""Rounds of cutting planes with a first-order solver, for any form in spins.

A nearly optimal point violates most of the relevant cycles, and nearly optimal multipliers prove nearly the bound of
the relaxation. On large models, a round takes a small fraction of the time of the simplex method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.product_form import ProductForm, Products
from mapmrf.engines.program.spin_form import SpinForm


class SeparationEffort(NamedTuple):
    """Effort of separation."""

    violation: float  # Minimum violation
    hop: float  # Surcharge per pair of a cycle
    fraction: float  # Distance from 0 or 1 beyond which a cut value is fractional
    reach: int  # Pairs visited from one variable


QUIET = 2
"""Rounds in a row without new inequalities after which the effort is increased: the point may still be inaccurate."""

ROUND, QUIET_ROUND = IterationLimits(60, 300, 0.2), IterationLimits(60, 600, 0.05)
"""Iteration limits of a round, and those after a round that has found nothing new."""

CLOSING_ROUND, CLOSING_RUNS = IterationLimits(60, 1000, 0.01), 4
"""Limits of further iterations if the gap is nearly closed, and their maximum number."""

SLACK = 0.05
"""Slack above which a row with zero multiplier is removed."""


class Planes(ABC):
    """A relaxation with the current cuts, its solver and its bound."""

    tail: ClassVar[tuple[int, float]]
    """The rounds end when this many of them left more than this share of the gap."""

    def __init__(self, form: SpinForm | ProductForm) -> None:
        self.solver = PrimalDual(form)
        self.bound = math.inf  # the best upper bound so far, in log potentials
        # n_rounds, n_cuts, n_fixed: number of rounds, of inequalities added so far, and of fixed columns
        self.n_rounds = self.n_cuts = 0
        self._value, self._objective = form.value, form.objective
        self._scale, self._n_spins = form.scale, form.n_spins
        self.now = math.inf  # the bound of the last round, with the fixed columns
        self._n_quiet = self._n_closing = 0
        self._gaps: list[float] = []

    @property
    @abstractmethod
    def round_off(self) -> float:
        """Possible error of the sums in a bound."""

    @abstractmethod
    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove slack ones with zero multiplier."""

    @abstractmethod
    def rounded(self) -> Ints:
        """Round the point of the last round to a labelling."""

    @property
    def n_fixed(self) -> int:
        """Number of fixed columns."""
        return int(np.count_nonzero(self.solver.lower == self.solver.upper))

    def solve(self, value: float) -> Iterator[None]:
        """Run the iterations of a round, in short steps, given the value of the incumbent."""
        self.n_rounds += 1
        yield from self._run(ROUND if self._n_quiet == 0 else QUIET_ROUND, value)

    def is_closing(self, value: float, tolerance: float) -> bool:
        """Return whether the gap is nearly closed but may still contain a better labelling."""
        return self.now - value <= tolerance and self._n_closing < CLOSING_RUNS and self.decided() is None

    def close(self, value: float) -> Iterator[None]:
        """Run more iterations in the same round."""
        self._n_closing += 1
        yield from self._run(CLOSING_ROUND, value)

    def _run(self, limits: IterationLimits, value: float) -> Iterator[None]:
        """Iterate within limits, then compute the bound and fix columns by it."""
        known = self._objective(value - 2 * self.round_off)
        yield from self.solver.run(limits._replace(known=known))
        self.now = self._value(self.solver.bound) + self.round_off
        self.bound = min(self.bound, self.now)
        self.fix_by_cost(value)

    def fix_by_cost(self, value: float) -> None:
        """Fix columns whose reduced cost excludes all but one of -1 and 1, given the value of a labelling."""
        solver = self.solver
        price = 2 * self._scale * np.abs(solver.reduced)
        free = solver.lower < solver.upper
        places = np.flatnonzero(free & (self.now - price < value - self.round_off))
        solver.fix(places, np.sign(solver.reduced[places]))

    def decided(self) -> Ints | None:
        """Return the only labelling that can be better than the one used for fixing, if all columns are fixed."""
        lower = self.solver.lower[: self._n_spins]
        return (lower > 0).astype(np.int64) if np.all(lower == self.solver.upper[: self._n_spins]) else None

    def tails_off(self, value: float) -> bool:
        """Return whether the last rounds have closed little of the gap."""
        n, gain = self.tail
        self._gaps.append(self.bound - value)
        return len(self._gaps) > n and not self._gaps[-1] < gain * self._gaps[-1 - n]


# -- Branching over cutting planes: a depth-first tree whose nodes fix spins, with one first-order solver -------------


Packed = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

GAIN = 0.1
"""Share of its gap that a round must close, or else its node is branched on."""

SURE = 0.999
"""Absolute value from which a spin counts as 1 or -1."""


class OpenNode(NamedTuple):
    """An open node: its inherited bound, and bit sets of the columns fixed at 1 and -1."""

    bound: float
    plus: Packed
    minus: Packed


class PlaneTree:
    """The open nodes of a branch and bound, the next one last.

    Multipliers of one node prove bounds at any other, so that each starts from those of the last; cuts are global.
    """

    def __init__(self, planes: Planes, weight: Floats) -> None:
        self.planes = planes  # the relaxation; its columns have the bounds of the current node
        self.open: list[OpenNode] = []  # open nodes, without the current one
        self._weight = weight
        self.bound_here = planes.bound  # the bound of the current node

    def bound(self, least: float) -> float:
        """Return the bound over all open nodes and the current one, at least `least`."""
        return max(least, self.bound_here, *(node.bound for node in self.open))

    def is_slow(self, value: float) -> bool:
        """Return whether the last round has closed little of the gap at the current node."""
        before, self.bound_here = self.bound_here, min(self.bound_here, self.planes.now)
        return before - self.bound_here < GAIN * (self.bound_here - value)

    def split(self) -> bool:
        """Branch on a fractional spin: replace the current node by two children; False if there is none."""
        solver, n = self.planes.solver, len(self._weight)
        spin = solver.z[:n]
        free = solver.lower[:n] < solver.upper[:n]
        if not free.any():
            return False
        between = free & (np.abs(spin) < SURE)
        score = np.where(between if between.any() else free, (1.0 - spin**2 + 1e-6) * self._weight, -1.0)
        i = int(np.argmax(np.round(score, 9)))
        plus, minus = solver.lower > 0, solver.upper < 0
        for near in (False, True):  # the closer one is explored next
            up = (spin[i] > 0) == near
            self.open.append(OpenNode(self.bound_here, _with(plus, i, up), _with(minus, i, not up)))
        return True

    def enter(self) -> None:
        """Make the last open node the current one."""
        self.bound_here, plus, minus = self.open.pop()
        solver = self.planes.solver
        m = len(solver.z)
        up, down = np.unpackbits(plus, count=m) == 1, np.unpackbits(minus, count=m) == 1
        solver.lower[:], solver.upper[:] = np.where(up, 1.0, -1.0), np.where(down, -1.0, 1.0)
        np.clip(solver.z, solver.lower, solver.upper, out=solver.z)

    def leave(self) -> None:
        """Close the current node."""
        self.bound_here = -np.inf


def _with(marks: Bools, i: int, mark: bool) -> Packed:
    """Return packed marks with one of them set."""
    changed = marks.copy()
    changed[i] |= mark
    return np.packbits(changed)


# -- Cutting planes on the product form: odd cycles of its pairs and splits -------------------------------------------


PRODUCT_EFFORTS = (
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
    """The relaxation of a product form with the current cuts."""

    tail: ClassVar[tuple[int, float]] = (12, 0.95)

    def __init__(self, form: ProductForm) -> None:
        super().__init__(form)
        self.form = form  # the product form
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
        effort = PRODUCT_EFFORTS[min(self._n_quiet, len(PRODUCT_EFFORTS) - 1)]
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
        return slow or self._n_quiet > len(PRODUCT_EFFORTS) or self.is_decisive

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
