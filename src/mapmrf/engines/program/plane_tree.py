"""Branching over cutting planes: a depth-first tree whose nodes fix spins, with one first-order solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats
from mapmrf.engines.program.planes import Planes

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

    Attributes
    ----------
    planes
        The relaxation; its columns have the bounds of the current node.
    bound_here
        The bound of the current node.
    open
        Open nodes, without the current one.
    """

    def __init__(self, planes: Planes, weight: Floats) -> None:
        self.planes = planes
        self.open: list[OpenNode] = []
        self._weight = weight
        self.bound_here = planes.bound

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
