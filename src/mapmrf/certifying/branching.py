"""Choose the variable whose states are shared out among cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.certifying.node_messages import NodePasses
from mapmrf.graph import FactorGraph

WIDE = 5
"""States from which on a variable is split in two parts, and not into single states."""

STEEP = 4.0
"""A case that comes down by all that is missing counts ``2 ** -STEEP`` as much as one that does not at all."""

PROBED, PROBE_PASSES, TRUSTED = 6, 4, 2
"""Variables that are probed in a node, iterations for each case, and probes after which a variable is known."""


class BranchingNode(NamedTuple):
    """A node that is to be branched on.

    Attributes
    ----------
    left, lam_e
        Its states and messages.
    bound, goal
        Its bound, and what it has to come down to; -inf if that is nothing.
    reach : (n_states,)
        What labellings with each state are worth at most.
    """

    left: Bools
    lam_e: Floats
    bound: float
    goal: float
    reach: Floats

    @property
    def losses(self) -> Floats:
        """What each state takes from the bound, as a part of what is missing, (n_states,)."""
        missing = self.bound - self.goal if self.goal > -math.inf else 1.0
        lost = np.where(self.left, self.bound - np.where(self.left, self.reach, 0.0), 0.0)
        return np.where(self.left, np.clip(lost / max(missing, 1e-300), 0.0, 1.0), 1.0)


class Branching:
    """Branching by what earlier branchings of a variable have brought; variables that are not known are probed.

    Attributes
    ----------
    gains, times : (n_vars,)
        What a case of the variable came down by, as a part of what was missing: the sum over all, and their number.
    degree : (n_vars,)
        Factors of a variable.
    """

    def __init__(self, graph: FactorGraph, passes: NodePasses, stop: Callable[[], bool]) -> None:
        self.passes, self.stop, self.ptr = passes, stop, graph.var_ptr.astype(np.int64)
        self.gains, self.times = np.zeros(graph.n_vars), np.zeros(graph.n_vars)
        self.degree = np.bincount(graph.scope, minlength=graph.n_vars)

    def choose(self, node: BranchingNode) -> tuple[int, list[Ints]]:
        """A variable with several states left, and the states of each case, the most promising one first."""
        some = np.flatnonzero(np.add.reduceat(node.left.astype(np.int64), self.ptr[:-1]) > 1)
        losses = node.losses
        size = np.add.reduceat(np.where(node.left, 2.0 ** (-STEEP * losses), 0.0), self.ptr[:-1])
        known = np.where(self.times > 0, self.gains / np.maximum(self.times, 1), self.mean)
        rank = some[np.argsort((size * 2.0 ** (-STEEP * known) / (1 + np.log1p(self.degree)))[some], kind="stable")]
        best, most = int(rank[0]), math.inf
        for i in rank[:PROBED].tolist() if node.goal > -math.inf else ():
            probe = self.times[i] < TRUSTED * (self.ptr[i + 1] - self.ptr[i])
            estimate = self.probe(node, i, losses) if probe else size[i] * 2.0 ** (-STEEP * known[i])
            if estimate < most:
                best, most = i, estimate
        return best, self.parts(node, best, losses)

    @property
    def mean(self) -> float:
        """What a case of any variable came down by."""
        return float(self.gains.sum() / max(1.0, self.times.sum()))

    def parts(self, node: BranchingNode, i: int, losses: Floats) -> list[Ints]:
        """Single states, or two halves of them if there are many, by what they take from the bound."""
        begin, end = int(self.ptr[i]), int(self.ptr[i + 1])
        states = np.flatnonzero(node.left[begin:end])
        states = states[np.argsort(losses[begin + states], kind="stable")]
        if len(states) < WIDE:
            return [states[k : k + 1] for k in range(len(states))]
        middle = len(states) // 2
        return [np.sort(states[:middle]), np.sort(states[middle:])]

    def probe(self, node: BranchingNode, i: int, losses: Floats) -> float:
        """How much is left to do in the cases of a variable, by a few iterations of message passing for each."""
        total = 0.0
        for part in self.parts(node, i, losses):
            left = self.case(node.left, i, part)
            _, bound = self.passes.improved(node.lam_e, left, node.goal, PROBE_PASSES, self.stop)
            gain = min(1.0, max(0.0, (node.bound - bound) / max(node.bound - node.goal, 1e-300)))
            total += 2.0 ** (-STEEP * gain)
            self.gains[i] += gain
            self.times[i] += 1
        return total

    def case(self, left: Bools, i: int, part: Ints) -> Bools:
        """The states left if a variable has one of some states."""
        kept = left.copy()
        kept[self.ptr[i] : self.ptr[i + 1]] = False
        kept[self.ptr[i] + part] = True
        return kept
