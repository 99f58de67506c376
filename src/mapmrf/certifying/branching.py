"""Choose the variable whose states are shared out among cases."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.certificates.dual_check import DualCheck
from mapmrf.certificates.whole import WholeModel
from mapmrf.certifying.node_messages import NodePasses
from mapmrf.graph import FactorGraph

WIDE = 5
"""States from which on a variable is split in two parts, and not into single states."""

STEEP = 4.0
"""A case that comes down by all that is missing counts ``2 ** -STEEP`` as much as one that does not at all."""

PROBED, PROBE_PASSES, TRUSTED = 6, 4, 2
"""Variables that are probed in a node, iterations for each case, and probes after which a variable is known."""


class Branching:
    """Branching by what earlier branchings of a variable have brought; variables that are not known are probed.

    Attributes
    ----------
    gains, times : (n_vars,)
        What a case of the variable came down by, as a part of what was missing: the sum over all, and their number.
    degree : (n_vars,)
        Factors of a variable.
    """

    def __init__(self, graph: FactorGraph, model: WholeModel, passes: NodePasses, stop: Callable[[], bool]) -> None:
        self.graph, self.model, self.passes, self.stop = graph, model, passes, stop
        self.gains, self.times = np.zeros(graph.n_vars), np.zeros(graph.n_vars)
        self.degree = np.bincount(graph.scope, minlength=graph.n_vars)

    def choose(self, check: DualCheck, lam: Floats, goal: float) -> tuple[int, list[Ints]]:
        """A variable with several states left, and the states of each case, the most promising one first."""
        some = np.flatnonzero(check.n_left() > 1)
        losses = self.losses(check)
        size = np.add.reduceat(np.where(check.left, 2.0 ** (-STEEP * losses), 0.0), check.ptr[:-1])
        if check.target is not None:
            known = np.where(self.times > 0, self.gains / np.maximum(self.times, 1), self.mean)
            size *= 2.0 ** (-STEEP * known)
        rank = some[np.argsort((size / (1 + np.log1p(self.degree)))[some], kind="stable")]
        best, most = int(rank[0]), math.inf
        if check.target is None:
            return best, self.parts(check, best, losses)
        for i in rank[:PROBED].tolist():
            estimate = size[i] if self.times[i] >= TRUSTED else self.probe(check, lam, goal, (i, losses))
            if estimate < most:
                best, most = i, estimate
        return best, self.parts(check, best, losses)

    @property
    def mean(self) -> float:
        """What a case of any variable came down by."""
        return float(self.gains.sum() / max(1.0, self.times.sum()))

    def losses(self, check: DualCheck) -> Floats:
        """What each state takes from the bound, as a part of what is missing, (n_states,)."""
        reach = check.reach.astype(np.float64)
        top = float(reach[check.left].max())
        missing = max(1.0, top - check.target) if check.target is not None else 1.0
        return np.where(check.left, np.clip((top - reach) / missing, 0.0, 1.0), 1.0)

    def parts(self, check: DualCheck, i: int, losses: Floats) -> list[Ints]:
        """Single states, or two halves of them if there are many, by what they take from the bound."""
        begin, end = int(check.ptr[i]), int(check.ptr[i + 1])
        states = np.flatnonzero(check.left[begin:end])
        states = states[np.argsort(losses[begin + states], kind="stable")]
        if len(states) < WIDE:
            return [states[k : k + 1] for k in range(len(states))]
        middle = len(states) // 2
        return [np.sort(states[:middle]), np.sort(states[middle:])]

    def probe(self, check: DualCheck, lam: Floats, goal: float, candidate: tuple[int, Floats]) -> float:
        """How much is left to do in the cases of a variable, by a few iterations of message passing for each."""
        i, losses = candidate
        before = math.ldexp(float(check.reach[check.left].max() - self.model.offset), -self.model.shift)
        total = 0.0
        for part in self.parts(check, i, losses):
            _, bound = self.passes.improved(lam, self.case(check, i, part), goal, PROBE_PASSES, self.stop)
            gain = 1.0 if bound <= goal else max(0.0, (before - bound) / (before - goal))
            total += 2.0 ** (-STEEP * min(gain, 1.0))
            self.gains[i] += min(gain, 1.0)
            self.times[i] += 1
        return total

    def case(self, check: DualCheck, i: int, part: Ints) -> Bools:
        """The states left if a variable has one of some states."""
        left = check.left.copy()
        left[check.ptr[i] : check.ptr[i + 1]] = False
        left[check.ptr[i] + part] = True
        return left
