"""Cutting planes on the compact program: rounds of odd-cycle inequalities on its linear relaxation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.highs import LPRelaxation
from mapmrf.engines.program.odd_cycle_kernels import (
    ClosedWalk,
    OddCycles,
    PairAdjacency,
    SeparationLimits,
    SeparationPlace,
    ShortestPaths,
    odd_cycles,
    sources_of,
)
from mapmrf.engines.program.program import DUAL_TOL, Program, Rows, lagrangian

STEP_WORK = 3_000_000
"""Pairs visited in one step of separation: some 40 ms."""

EFFORTS = ((1e-3, 1e-2), (1e-5, 1e-4))
"""Least violation and surcharge per pair of a cycle; the second is tried where the first finds nothing."""

MAX_AGE = 3
"""Rounds after which a cut that is not tight is removed."""

SLACK = 1e-6
"""Slack above which a row is not tight."""

TAIL, TAIL_GAIN = 10, 0.9
"""The rounds end when the last `TAIL` of them left more than this share of the gap."""


class CuttingPlanes:
    """The linear relaxation with the cuts so far, its point and its bound.

    Attributes
    ----------
    program
        The program, with the bounds of fixed columns; its rows are those of the formulation alone.
    rows
        These rows and the cuts that are in the relaxation.
    bound
        The best upper bound so far, as a log potential.
    point
        The optimal point of the last relaxation.
    """

    def __init__(self, compact: Compact, seed: int) -> None:
        program = compact.program
        self.compact = compact
        self.program = dataclasses.replace(program, lower=program.lower.copy(), upper=program.upper.copy())
        self.rows = program.rows
        # The dual tolerance is that of a branch and cut; each round starts from the last basis.
        settings = {"dual_feasibility_tolerance": DUAL_TOL, "presolve": "off", "solver": "simplex", "parallel": "off"}
        self.relaxation = LPRelaxation(program, seed, settings)
        self.bound = math.inf
        self.point: Floats = np.zeros(len(program.cost))
        self.n_rounds = 0
        self.n_cuts = 0
        self._reduced: Floats = np.zeros(len(program.cost))
        self._now = math.inf
        self._age = np.zeros(0, dtype=np.int64)
        self._gaps: list[float] = []
        self._separation = OddCycleSeparation(compact)

    @property
    def n_fixed(self) -> int:
        """Columns that are fixed."""
        return int(np.count_nonzero(self.program.lower == self.program.upper))

    def read(self) -> None:
        """Take over the point and the bound of a solved relaxation."""
        point, weights = self.relaxation.point(), self.relaxation.weights()
        assert point is not None and weights is not None
        self.point = point
        # All rows are of the form A x <= upper, so that a negative weight can only be round-off.
        objective, self._reduced = lagrangian(self.program, self.rows, np.maximum(weights, 0.0))
        self._now = self.program.value(objective) + self.program.round_off
        self.bound = min(self.bound, self._now)
        self.n_rounds += 1

    def fix_persistent(self) -> None:
        """Fix the variables that are 0 or 1 in the relaxation without cuts: some optimum agrees with them."""
        # Weak persistency of roof duality (Hammer, Hansen and Simeone 1984), which holds for any optimal point.
        n = self.compact.n
        self._fix(np.flatnonzero(np.abs(self.point[:n] - 0.5) > 0.5 - 1e-9), self.point)

    def fix_by_cost(self, value: float) -> None:
        """Fix the columns whose reduced cost rules out their other bound, given a labelling of this value."""
        price = self.program.scale * np.abs(self._reduced)
        places = np.flatnonzero(self._now - price < value - self.program.round_off)
        self._fix(places, (self._reduced > 0).astype(np.float64))

    def _fix(self, places: Ints, point: Floats) -> None:
        free = places[self.program.lower[places] < self.program.upper[places]]
        self.program.lower[free] = self.program.upper[free] = np.round(point[free])
        if len(free):
            self.relaxation.change_bounds(free, self.program.lower[free], self.program.upper[free])

    def tails_off(self, value: float) -> bool:
        """Whether the last rounds have closed little of the gap."""
        self._gaps.append(self.bound - value)
        return len(self._gaps) > TAIL and self._gaps[-1] > TAIL_GAIN * self._gaps[-1 - TAIL]

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in steps of some milliseconds, and remove cuts that are no longer tight."""
        self._purge()
        for violation, hop in EFFORTS:
            missing = self.compact.missing(self.point, violation)
            yield from self._separation.run(self.compact.cut(self.point), violation, hop)
            cycles = self.compact.cycles(self._separation.best(self.compact.n))
            if missing.n or cycles.n:
                self._add(missing, cycles)
                return

    def _add(self, *cuts: Rows) -> None:
        n_new = sum(rows.n for rows in cuts)
        for rows in cuts:
            self.relaxation.add(rows)
        self.rows = self.rows.plus(*cuts)
        self._age = np.concatenate([self._age, np.zeros(n_new, dtype=np.int64)])
        self.n_cuts += n_new

    def _purge(self) -> None:
        n_needed = self.program.rows.n
        loose = (self.rows.upper - self.rows.matrix @ self.point)[n_needed:] > SLACK
        self._age = np.where(loose, self._age + 1, 0)
        old = self._age >= MAX_AGE
        if old.any():
            self.relaxation.delete(n_needed + np.flatnonzero(old))
            self.rows = self.rows.only(np.concatenate([np.ones(n_needed, dtype=bool), ~old]))
            self._age = self._age[~old]

    def strengthened(self) -> Program:
        """The program with the tight cuts and the fixed columns."""
        n_needed = self.program.rows.n
        tight = self.rows.upper - self.rows.matrix @ self.point <= SLACK
        tight[:n_needed] = True
        return dataclasses.replace(self.program, rows=self.rows.only(tight))


class OddCycleSeparation:
    """The search for violated odd cycles of a compact program.

    Attributes
    ----------
    found, n_found
        The cycles of the last search, and how many there are.
    """

    found: OddCycles
    n_found: int

    def __init__(self, compact: Compact) -> None:
        n, m = compact.n, len(compact.first)
        self.n = n
        self.first, self.second = compact.first, compact.second
        ends = np.concatenate([compact.first, compact.second])
        order = np.argsort(ends, kind="stable")
        self._graph = PairAdjacency(
            offsets(np.bincount(ends, minlength=n)),
            np.concatenate([compact.second, compact.first])[order],
            np.concatenate([np.arange(m), np.arange(m)])[order],
        )
        self._paths, self._walk = _paths(n, m), _walk(n)
        # Sums of these tell cycles apart.
        self._code = np.random.default_rng(0).random(2 * m)

    def run(self, cut: Floats, violation: float, hop: float) -> Iterator[None]:
        """Look for the shortest odd cycles through all variables that may have a violated one, in short steps."""
        sources = self._sources(cut)
        limits = SeparationLimits(STEP_WORK, violation, hop)
        found, place = self._room(), SeparationPlace(0, 0)
        self._paths.stamp.fill(-1)
        while place.turn < len(sources):
            place = odd_cycles(place, limits, sources, cut, self._graph, self._paths, self._walk, found)
            yield
        self.found, self.n_found = found, place.n_found

    def best(self, n_most: int) -> OddCycles:
        """The cycles found, each once, the most violated if there are too many."""
        n, found = self.n_found, self.found
        ptr, violation = found.ptr[: n + 1], found.violation[:n]
        if n == 0:
            return OddCycles(ptr, found.var[:0], found.edge[:0], found.odd[:0], violation)
        end = ptr[-1]
        code = np.add.reduceat(self._code[2 * found.edge[:end] + found.odd[:end]], ptr[:-1])
        _, once = np.unique(np.round(code, 9), return_index=True)
        order = np.argsort(-np.round(violation[once], 9), kind="stable")[:n_most]
        chosen = np.sort(once[order])
        counts = np.diff(ptr)[chosen]
        places = ranges(ptr[:-1][chosen], counts)
        return OddCycles(offsets(counts), found.var[places], found.edge[places], found.odd[places], violation[chosen])

    def _sources(self, cut: Floats) -> Ints:
        """The variables through which a violated cycle may go."""
        parent, parity, is_source = np.zeros((3, self.n), dtype=np.int64)
        sources_of(self.first, self.second, cut, 1e-9, parent, parity, is_source)
        return np.flatnonzero(is_source)

    def _room(self) -> OddCycles:
        """Room for a cycle per variable."""
        n = self.n
        var, edge, odd = np.zeros((3, min(32 * n, 8 * n + 2_000_000)), dtype=np.int32)
        return OddCycles(np.zeros(n + 1, dtype=np.int64), var, edge, odd, np.zeros(n))


def _paths(n: int, m: int) -> ShortestPaths:
    """Scratch for n variables and m pairs."""
    came_from, came_by = np.zeros((2, 2 * n), dtype=np.int64)
    heap_key, heap_node = np.zeros(4 * m + 1), np.zeros(4 * m + 1, dtype=np.int64)
    return ShortestPaths(np.zeros(2 * n), np.full(2 * n, -1), came_from, came_by, heap_key, heap_node)


def _walk(n: int) -> ClosedWalk:
    """Scratch for n variables."""
    var, edge, odd = np.zeros((3, 4 * n + 1), dtype=np.int64)
    return ClosedWalk(var, edge, odd, place_of=np.full(n, -1))
