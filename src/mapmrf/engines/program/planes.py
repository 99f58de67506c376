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

from mapmrf.arrays import Ints
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.product_form import ProductForm
from mapmrf.engines.program.spin_form import SpinForm


class SeparationEffort(NamedTuple):
    """Effort of separation.

    Attributes
    ----------
    violation
        Minimum violation.
    hop
        Surcharge per pair of a cycle.
    fraction
        Distance from 0 or 1 beyond which a cut value is fractional.
    reach
        Pairs visited from one variable.
    """

    violation: float
    hop: float
    fraction: float
    reach: int


QUIET = 2
"""Rounds in a row without new inequalities after which the effort is increased: the point may still be inaccurate."""

ROUND, QUIET_ROUND = IterationLimits(60, 300, 0.2), IterationLimits(60, 600, 0.05)
"""Iteration limits of a round, and those after a round that has found nothing new."""

CLOSING_ROUND, CLOSING_RUNS = IterationLimits(60, 1000, 0.01), 4
"""Limits of further iterations if the gap is nearly closed, and their maximum number."""

SLACK = 0.05
"""Slack above which a row with zero multiplier is removed."""


class Planes(ABC):
    """A relaxation with the current cuts, its solver and its bound.

    Attributes
    ----------
    bound
        The best upper bound so far, in log potentials.
    now
        The bound of the last round, with the fixed columns.
    n_rounds, n_cuts, n_fixed
        Number of rounds, of inequalities added so far, and of fixed columns.
    """

    tail: ClassVar[tuple[int, float]]
    """The rounds end when this many of them left more than this share of the gap."""

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
