"""Separation of odd-cycle inequalities at a point of the compact program."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
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

STEP_WORK = 1_000_000
"""Pairs visited in one step of separation: some 15 ms, and three times as much on large models."""


class OddCycleSeparation:
    """Separation of odd cycles for a compact program.

    Attributes
    ----------
    found, n_found
        The cycles of the last search, and their number.
    """

    found: OddCycles
    n_found: int

    def __init__(self, n: int, first: Ints, second: Ints, column: Ints | None = None) -> None:
        m = len(first)
        self.n, self.first, self.second = n, first, second
        ends = np.concatenate([first, second])
        order = np.argsort(ends, kind="stable")
        self._graph = PairAdjacency(
            offsets(np.bincount(ends, minlength=n)),
            np.concatenate([second, first])[order],
            np.concatenate([np.arange(m), np.arange(m)])[order],
        )
        self._paths, self._walk = _paths(n, m), _walk(n)
        # Sums of these identify cycles, which are equal if all their columns are.
        column = np.arange(m) if column is None else column
        self._code = np.random.default_rng(0).random((int(column.max(initial=0)) + 1, 2))[column].ravel()

    def run(
        self, cut: Floats, violation: float, hop: float, fraction: float = 1e-9, reach: int = sys.maxsize
    ) -> Iterator[None]:
        """Search for the shortest odd cycles through all variables that may have a violated one, in short steps.

        For this choice of variables, cut values within `fraction` of 0 or 1 count as integral; about `reach` pairs are
        visited from each.
        """
        sources = self._sources(cut, fraction)
        limits = SeparationLimits(STEP_WORK, violation, hop, reach)
        found, place = self._room(), SeparationPlace(0, 0)
        self._paths.stamp.fill(-1)
        while place.turn < len(sources):
            place = odd_cycles(place, limits, sources, cut, self._graph, self._paths, self._walk, found)
            yield
        self.found, self.n_found = found, place.n_found

    def best(self, n_most: int) -> OddCycles:
        """Return the distinct cycles found, the most violated ones if there are too many."""
        n, found = self.n_found, self.found
        ptr, violation = found.ptr[: n + 1], found.violation[:n]
        if n == 0:
            return OddCycles(ptr, found.var[:0], found.edge[:0], found.odd[:0], violation)
        _, once = np.unique(self.codes(found._replace(ptr=ptr)), return_index=True)
        order = np.argsort(-np.round(violation[once], 9), kind="stable")[:n_most]
        chosen = np.sort(once[order])
        counts = np.diff(ptr)[chosen]
        places = ranges(ptr[:-1][chosen], counts)
        return OddCycles(offsets(counts), found.var[places], found.edge[places], found.odd[places], violation[chosen])

    def codes(self, cycles: OddCycles) -> Floats:
        """Return a positive number that identifies each cycle."""
        if len(cycles.ptr) == 1:
            return np.zeros(0)
        end = cycles.ptr[-1]
        of_entries = self._code[2 * cycles.edge[:end] + cycles.odd[:end]]
        return np.asarray(np.round(np.add.reduceat(of_entries, cycles.ptr[:-1]), 9))

    def _sources(self, cut: Floats, fraction: float) -> Ints:
        """Return the variables that may lie on a violated cycle."""
        parent, parity, is_source = np.zeros((3, self.n), dtype=np.int64)
        sources_of(self.first, self.second, cut, fraction, parent, parity, is_source)
        return np.flatnonzero(is_source)

    def _room(self) -> OddCycles:
        """Allocate a cycle per variable."""
        n = self.n
        var, edge, odd = np.zeros((3, min(32 * n, 8 * n + 2_000_000)), dtype=np.int32)
        return OddCycles(np.zeros(n + 1, dtype=np.int64), var, edge, odd, np.zeros(n))


def _paths(n: int, m: int) -> ShortestPaths:
    """Allocate scratch for n variables and m pairs."""
    came_from, came_by = np.zeros((2, 2 * n), dtype=np.int64)
    heap_key, heap_node = np.zeros(4 * m + 1), np.zeros(4 * m + 1, dtype=np.int64)
    return ShortestPaths(np.zeros(2 * n), np.full(2 * n, -1), came_from, came_by, heap_key, heap_node)


def _walk(n: int) -> ClosedWalk:
    """Allocate scratch for n variables."""
    var, edge, odd = np.zeros((3, 4 * n + 1), dtype=np.int64)
    return ClosedWalk(var, edge, odd, place_of=np.full(n, -1))
