"""The granularity of a model's values: if all potentials are multiples of a number, bounds can be rounded down."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats


@dataclass(frozen=True)
class Granularity:
    """Values are `offset` plus a multiple of `step`, up to `error`; a step of 0 means that none is known."""

    step: float = 0.0
    offset: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, potentials: Floats, n_terms: int, round_off: float, offset: float) -> Granularity:
        """Find the step of the sums of `n_terms` of these potentials; `round_off` is the error of such a sum."""
        step, deviation = common_step(potentials)
        error = n_terms * deviation + round_off
        # maximum total rounding error, as a share of the step
        return cls(step, offset, error) if error < 1e-4 * step else cls()

    def down(self, bound: float) -> float:
        """Return the largest possible value of a labelling below a bound."""
        if self.step == 0 or not math.isfinite(bound):
            return bound
        steps = math.floor((bound - self.offset + self.error) / self.step)
        return min(bound, self.offset + self.step * steps + self.error)

    @property
    def slack(self) -> float:
        """How far a bound may be above the optimum and still prove it; 0 if no step is known."""
        return 0.98 * self.step


def common_step(numbers: Floats) -> tuple[float, float]:
    """Return the largest step of which all finite numbers are multiples, 0 if none, and their maximum deviation."""
    sizes = np.abs(numbers[np.isfinite(numbers)])
    largest = float(sizes.max(initial=0.0))
    tol = 16 * sys.float_info.epsilon * largest
    if tol == 0.0:
        return 0.0, 0.0
    step, deviation = largest, 0.0
    # potentials examined first: most models without a step show it at once
    for some in (sizes[:64], sizes):
        while (deviation := float(np.abs(some - np.rint(some / step) * step).max())) > tol:
            rest = deviation
            while rest > tol:  # Euclid's algorithm
                step, rest = rest, abs(step - round(step / rest) * rest)
            # minimum step, relative to the round-off of the largest potential
            if step < 1e4 * tol:
                return 0.0, 0.0
            step = largest / round(largest / step)  # as precise as the largest number
    return step, deviation
