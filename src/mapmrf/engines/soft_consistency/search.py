"""Branch and bound with soft arc consistency: dives from the best open node."""

from __future__ import annotations

import heapq

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.soft_consistency.dive_kernels import (
    CLOSED,
    FULL,
    LIMITED,
    Dive,
    DiveLabels,
    DiveStack,
    DiveTally,
    dive,
    follow,
)
from mapmrf.engines.soft_consistency.network import Network
from mapmrf.engines.soft_consistency.network_kernels import forget_pending
from mapmrf.engines.soft_consistency.open_nodes import OpenNodes
from mapmrf.engines.soft_consistency.sweep_kernels import settle_all, sweep
from mapmrf.kernels.records import blank

MOST_BACKTRACKS = 1 << 14
"""Backtracks of a dive, at most."""

RARELY, OFTEN = 0.05, 0.1
"""Share of decisions that are made again to get to open nodes: below the first, dives become shorter, above the second
longer."""


class SoftSearch:
    """Hybrid best-first search: depth-first dives of limited length from the open node with the least lower bound.

    Attributes
    ----------
    network
        The network.
    open
        The open nodes.
    finished
        Whether every labelling is known to cost at least as much as the best.
    """

    def __init__(self, network: Network, labels: Ints | None = None) -> None:
        self.network, self.open, self.finished = network, OpenNodes(), False
        n = network.problem.n_vars
        room = network.problem.n_states + 1
        stack = DiveStack(*(np.zeros(room, dtype=np.int64) for _ in DiveStack._fields))
        goal = DiveLabels(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64))
        self.way = Dive(stack, goal, blank(DiveTally))
        self.way.tally.latest, self.way.tally.limit = -1, 1
        self._limit, self._replayed, self._under_way = 1, 0, False
        self._root_upper = -1
        self._has_labels = False
        if labels is not None:
            self.offer(labels)

    @property
    def lower(self) -> int:
        """Lower bound on the cost of all labellings; that of the best one once the search is closed."""
        return int(self.upper) if self.finished else min(int(self.upper), self.open.lower(self._base_lower()))

    @property
    def upper(self) -> int:
        """Cost of the best labelling; more than any can cost while there is none."""
        return int(self.network.soft.tally.upper)

    @property
    def labels(self) -> Ints | None:
        """The best labelling, None while there is none."""
        return self.way.goal.best.copy() if self._has_labels or self.way.tally.found > 0 else None

    @property
    def nodes(self) -> int:
        """Nodes so far."""
        return int(self.way.tally.nodes)

    def offer(self, labels: Ints) -> None:
        """Take over a labelling if it costs less than the best."""
        cost = self.network.cost_of(labels)
        if cost < self.upper:
            self.network.soft.tally.upper = int(cost)
            self.way.goal.best[:] = labels
            self._has_labels = True

    def raise_root(self, forward: bool) -> int:
        """One sweep before the search; the lower bound after it."""
        sweep(self.network.soft, forward)
        self.network.soft.tally.top = 0
        self.network.soft.tally.serial += 1
        return self.network.lower

    def begin(self) -> None:
        """Make the root consistent, and open it."""
        self._settle_root()
        if not self.finished:
            self.open.push(self.network.lower, -1)

    def advance(self, work: int) -> None:
        """Search for some work, or to the end."""
        tally = self.network.soft.tally
        end = int(tally.work) + work
        while not self.finished and tally.work < end:
            if not self._under_way and not self._next_dive():
                self.finished = True
                return
            how = dive(self.network.soft, self.way, end - int(tally.work))
            if how == FULL:
                self.network.grow_trail()
            elif how in (CLOSED, LIMITED):
                self._end_dive(how)

    def _base_lower(self) -> int | None:
        return self._base[1] if self._under_way else None

    def _settle_root(self) -> None:
        """Propagate at the root, for good; the search is over if that fails."""
        settle_all(self.network.soft)
        self._root_upper = self.upper
        self.finished = bool(self.network.soft.tally.failed)

    def _next_dive(self) -> bool:
        """Go to the best open node; False if none is left."""
        node = self.open.pop(self.upper)
        if node is None:
            return False
        soft, counts = self.network.soft, self.way.tally
        path = self.open.path(node[1])
        if self.upper < self._root_upper:
            follow(soft, self.way.stack, 0)
            self._settle_root()
            if self.finished:
                return False
        for k, (var, value, right) in enumerate(path):
            self.way.stack.var[k], self.way.stack.value[k], self.way.stack.right[k] = var, value, right
        follow(soft, self.way.stack, len(path))
        self._replayed += len(path)
        self._adapt()
        counts.depth, counts.limit = 0, int(counts.backtracks) + self._limit
        self._base, self._under_way = (node[1], node[0]), True
        return True

    def _adapt(self) -> None:
        """Longer dives if decisions are made again too often, shorter ones if rarely."""
        nodes = self.nodes + 1
        if self._replayed > OFTEN * nodes and self._limit < MOST_BACKTRACKS:
            self._limit *= 2
        elif self._replayed < RARELY * nodes and self._limit > 1:
            self._limit //= 2

    def _end_dive(self, how: int) -> None:
        """Open what the dive has left."""
        forget_pending(self.network.soft)
        self._under_way = False
        if how == LIMITED:
            stack, depth = self.way.stack, int(self.way.tally.depth)
            self.open.leave(self._base, [column[:depth].tolist() for column in stack], self.upper)
