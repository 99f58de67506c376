"""Branching over cutting planes: a depth-first tree whose nodes fix spins, over one first-order solver."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats
from mapmrf.engines.program.planes import Planes

Packed = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]

GAIN = 0.1
"""Share of its gap that a round must close, or else its node is split."""

SURE = 0.999
"""Size from which a spin counts as 1 or -1."""


class OpenNode(NamedTuple):
    """A node to be solved: the bound that it inherits, and the columns that are 1 and -1 there, a bit for each."""

    bound: float
    plus: Packed
    minus: Packed


class PlaneTree:
    """The open nodes of a branch and bound, the next one last.

    Multipliers of one node prove bounds at any other, so that each begins with those of the last; cuts hold everywhere.

    Attributes
    ----------
    planes
        The relaxation; its columns have the bounds of the present node.
    bound_here
        The bound of the present node.
    open
        Nodes that are to be solved, without the present one.
    """

    def __init__(self, planes: Planes, weight: Floats) -> None:
        self.planes = planes
        self.open: list[OpenNode] = []
        self._weight = weight
        self.bound_here = planes.bound

    def bound(self, least: float) -> float:
        """The bound of all open nodes and the present one, if it is above `least`."""
        return max(least, self.bound_here, *(node.bound for node in self.open))

    def is_slow(self, value: float) -> bool:
        """Whether the last round has closed little of the gap at the present node."""
        before, self.bound_here = self.bound_here, min(self.bound_here, self.planes.now)
        return before - self.bound_here < GAIN * (self.bound_here - value)

    def split(self) -> bool:
        """Replace the present node by two that fix a spin which is neither 1 nor -1; False if there is none."""
        solver, n = self.planes.solver, len(self._weight)
        spin = solver.z[:n]
        free = solver.lower[:n] < solver.upper[:n]
        if not free.any():
            return False
        between = free & (np.abs(spin) < SURE)
        score = np.where(between if between.any() else free, (1.0 - spin**2 + 1e-6) * self._weight, -1.0)
        i = int(np.argmax(np.round(score, 9)))
        plus, minus = solver.lower > 0, solver.upper < 0
        for near in (False, True):  # the nearer one is the next
            up = (spin[i] > 0) == near
            self.open.append(OpenNode(self.bound_here, _with(plus, i, up), _with(minus, i, not up)))
        return True

    def enter(self) -> None:
        """Make the last open node the present one."""
        self.bound_here, plus, minus = self.open.pop()
        solver = self.planes.solver
        m = len(solver.z)
        up, down = np.unpackbits(plus, count=m) == 1, np.unpackbits(minus, count=m) == 1
        solver.lower[:], solver.upper[:] = np.where(up, 1.0, -1.0), np.where(down, -1.0, 1.0)
        np.clip(solver.z, solver.lower, solver.upper, out=solver.z)

    def leave(self) -> None:
        """Be done with the present node."""
        self.bound_here = -np.inf


def _with(marks: Bools, i: int, mark: bool) -> Packed:
    """Marks packed, with one of them set."""
    changed = marks.copy()
    changed[i] |= mark
    return np.packbits(changed)
