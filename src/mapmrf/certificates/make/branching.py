"""Choose the variable whose states are divided among cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.certificates.make.node_messages import NodePasses
from mapmrf.model.graph import FactorGraph

WIDE = 5
"""Number of states from which a variable is split in two halves instead of single states."""

STEEP = 4.0
"""A case whose bound closes the whole gap counts ``2 ** -STEEP`` as much as one whose bound does not change."""

PROBED, PROBE_PASSES, TRUSTED = 6, 4, 2
"""Variables probed in a node, iterations for each case, and probes after which a variable is known."""


class BranchingNode(NamedTuple):
    """A node to branch on.

    Attributes
    ----------
    left, lam_e
        Its states and messages.
    bound, goal
        Its bound, and the bound to reach; -inf if there is no feasible labelling.
    reach : (n_states,)
        Upper bound on the labellings with each state.
    """

    left: Bools
    lam_e: Floats
    bound: float
    goal: float
    reach: Floats

    @property
    def losses(self) -> Floats:
        """Decrease of the bound by each state, as a fraction of the gap, (n_states,)."""
        missing = self.bound - self.goal if self.goal > -math.inf else 1.0
        lost = np.where(self.left, self.bound - np.where(self.left, self.reach, 0.0), 0.0)
        return np.where(self.left, np.clip(lost / max(missing, 1e-300), 0.0, 1.0), 1.0)


class Branching:
    """Branching by pseudo-costs: gains of earlier branchings on a variable; unknown variables are probed.

    Attributes
    ----------
    gains, times : (n_vars,)
        Decrease of the bound in a case of the variable, as a fraction of the gap: the sum over all cases, and their
        number.
    degree : (n_vars,)
        Factors of a variable.
    """

    def __init__(self, graph: FactorGraph, passes: NodePasses, stop: Callable[[], bool]) -> None:
        self.passes, self.stop, self.ptr = passes, stop, graph.var_ptr.astype(np.int64)
        self.gains, self.times = np.zeros(graph.n_vars), np.zeros(graph.n_vars)
        self.degree = np.bincount(graph.scope, minlength=graph.n_vars)

    def choose(self, node: BranchingNode) -> tuple[int, list[Ints]]:
        """A variable with several remaining states, and the states of each case, the most promising one first."""
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
        """Mean decrease of the bound in a case of any variable."""
        return float(self.gains.sum() / max(1.0, self.times.sum()))

    def parts(self, node: BranchingNode, i: int, losses: Floats) -> list[Ints]:
        """Single states, or two halves of them if there are many, ordered by their decrease of the bound."""
        begin, end = int(self.ptr[i]), int(self.ptr[i + 1])
        states = np.flatnonzero(node.left[begin:end])
        states = states[np.argsort(losses[begin + states], kind="stable")]
        if len(states) < WIDE:
            return [states[k : k + 1] for k in range(len(states))]
        middle = len(states) // 2
        return [np.sort(states[:middle]), np.sort(states[middle:])]

    def probe(self, node: BranchingNode, i: int, losses: Floats) -> float:
        """Estimated remaining work in the cases of a variable, by a few iterations of message passing for each."""
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
        """The remaining states if a variable has one of some states."""
        kept = left.copy()
        kept[self.ptr[i] : self.ptr[i + 1]] = False
        kept[self.ptr[i] + part] = True
        return kept
