"""The granularity of a model's values: if all potentials are multiples of a number, bounds can be rounded down."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.problem import Problem

DECIMALS = 4
"""Maximum number of decimals of the potentials."""

MOST_ENTRIES = 2_000_000
"""Maximum number of potentials examined; larger models are treated as having no step."""

CLEAR = 1e-3
"""Maximum total rounding error, as a share of the step."""


@dataclass(frozen=True)
class Grain:
    """Values are `offset` plus a multiple of `step`, up to `error`; a step of 0 means that none is known."""

    step: float = 0.0
    offset: float = 0.0
    error: float = 0.0

    @classmethod
    def of(cls, problem: Problem) -> Grain:
        """Find the largest step of which all potentials are multiples."""
        graph = problem.graph
        n_entries = problem.n_states + sum(batch.n * batch.n_configs for batch in problem.batches)
        if graph.constraints is not None or n_entries > MOST_ENTRIES:
            return cls()
        tables = [graph.theta_v, *(batch.tables(graph.theta_t, slice(0, batch.n)).ravel() for batch in problem.batches)]
        values = np.concatenate(tables)
        values = values[np.isfinite(values)]
        terms, largest = problem.n_vars + problem.n_factors, float(np.abs(values).max(initial=0.0))
        step, error = _step(values)
        # Every value is a sum of this many entries.
        error = terms * (error + 8 * float(np.finfo(float).eps) * terms * largest) if step > 0 else 0.0
        return cls(step, graph.constant, error) if error < CLEAR * step else cls()

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


def _step(values: Floats) -> tuple[float, float]:
    """Return the largest step, 0 if there is none, and the maximum distance of an entry from a multiple of it."""
    for digits in range(DECIMALS + 1):
        scaled = values * 10.0**digits
        whole = np.rint(scaled)
        if np.abs(whole).max(initial=0.0) > 2**40:
            break
        if np.abs(scaled - whole).max(initial=0.0) <= 1e-9:
            common = int(np.gcd.reduce(whole.astype(np.int64), initial=0))
            error = float(np.abs(values - whole / 10.0**digits).max(initial=0.0))
            return common / 10.0**digits, error
    return 0.0, 0.0
