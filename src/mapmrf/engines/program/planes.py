"""Rounds of cutting planes over a first-order solver, for any form in spins.

A point that is nearly optimal shows most of the violated cycles, and multipliers that are nearly optimal prove nearly
the bound of the relaxation. On large models a round takes a small part of the time of the simplex method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.product_form import ProductForm
from mapmrf.engines.program.spin_form import SpinForm


class SeparationEffort(NamedTuple):
    """How hard violated cycles are looked for.

    Attributes
    ----------
    violation
        Least violation.
    hop
        Surcharge per pair of a cycle.
    fraction
        How far from 0 or 1 a pair is neither cut nor uncut.
    reach
        Pairs that are looked at from one variable.
    """

    violation: float
    hop: float
    fraction: float
    reach: int


QUIET = 2
"""Rounds in a row without new inequalities after which the next effort is made: the point may not be good yet."""

ROUND, QUIET_ROUND = IterationLimits(60, 300, 0.2), IterationLimits(60, 600, 0.05)
"""Limits of a round's iterations, and those where the last round has found nothing new."""

CLOSING_ROUND, CLOSING_RUNS = IterationLimits(60, 1000, 0.01), 4
"""Limits of further iterations where the gap is nearly closed, and how often they are added at most."""

SLACK = 0.05
"""Slack above which a row without a multiplier is removed."""


class Planes(ABC):
    """A relaxation with the cuts so far, its solver and its bound.

    Attributes
    ----------
    bound
        The best upper bound so far, as a log potential.
    now
        The bound of the last round, with the columns that are fixed.
    n_rounds, n_cuts, n_fixed
        Rounds, inequalities that were added in all of them, and columns that are fixed.
    """

    tail: ClassVar[tuple[int, float]]
    """The rounds end when the last so many of them left more than this share of the gap."""

    def __init__(self, form: SpinForm | ProductForm) -> None:
        self.solver = PrimalDual(form)
        self.bound = math.inf
        self.n_rounds = self.n_cuts = 0
        self._value, self._objective = form.value, form.objective
        self._scale, self._n_spins = form.scale, form.n_spins
        self.now = math.inf
        self._n_quiet = self._n_closing = 0
        self._gaps: list[float] = []

    @property
    @abstractmethod
    def round_off(self) -> float:
        """What the sums of a bound may be off."""

    @abstractmethod
    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove those that are neither tight nor have a multiplier."""

    @abstractmethod
    def rounded(self) -> Ints:
        """A labelling near the point of the last round."""

    @property
    def n_fixed(self) -> int:
        """Columns that are fixed."""
        return int(np.count_nonzero(self.solver.lower == self.solver.upper))

    def solve(self, value: float) -> Iterator[None]:
        """A round's iterations, in short steps, and what they give; a labelling of this value is known."""
        self.n_rounds += 1
        yield from self._run(ROUND if self._n_quiet == 0 else QUIET_ROUND, value)

    def is_closing(self, value: float, tolerance: float) -> bool:
        """Whether the gap is nearly closed and worth closing: a better labelling may be left within it."""
        return self.now - value <= tolerance and self._n_closing < CLOSING_RUNS and self.decided() is None

    def close(self, value: float) -> Iterator[None]:
        """More iterations in the same round."""
        self._n_closing += 1
        yield from self._run(CLOSING_ROUND, value)

    def _run(self, limits: IterationLimits, value: float) -> Iterator[None]:
        """Iterations within limits, the bound after them, and the columns that it decides."""
        known = self._objective(value - 2 * self.round_off)
        yield from self.solver.run(limits._replace(known=known))
        self.now = self._value(self.solver.bound) + self.round_off
        self.bound = min(self.bound, self.now)
        self.fix_by_cost(value)

    def fix_by_cost(self, value: float) -> None:
        """Fix the columns whose reduced cost rules out all but one of -1 and 1, given a labelling of this value."""
        solver = self.solver
        price = 2 * self._scale * np.abs(solver.reduced)
        free = solver.lower < solver.upper
        places = np.flatnonzero(free & (self.now - price < value - self.round_off))
        solver.fix(places, np.sign(solver.reduced[places]))

    def decided(self) -> Ints | None:
        """The only labelling that can be better than the one by which columns were fixed, if they all are."""
        lower = self.solver.lower[: self._n_spins]
        return (lower > 0).astype(np.int64) if np.all(lower == self.solver.upper[: self._n_spins]) else None

    def tails_off(self, value: float) -> bool:
        """Whether the last rounds have closed little of the gap."""
        n, gain = self.tail
        self._gaps.append(self.bound - value)
        return len(self._gaps) > n and not self._gaps[-1] < gain * self._gaps[-1 - n]
