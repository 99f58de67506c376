"""Branch and bound with soft arc consistency: dives from the best open node."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterator

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.records import blank
from mapmrf.engines.soft_consistency.depth_first import (
    FULL,
    LIMITED,
    PAUSED,
    Dive,
    DiveLabels,
    DiveStack,
    DiveTally,
    dive,
    follow,
    price_constraints,
    project_all,
    propagate_root,
    sweep,
)
from mapmrf.engines.soft_consistency.network import ModelNetwork
from mapmrf.engines.soft_consistency.network_kernels import forget_pending

STEP_WORK = 1_000_000  # work per step: some 30 ms

SMALL_GAIN = 3e-3
"""Share of the gap that a pair of sweeps must close for another one to follow, in a model of few variables."""

FEW_VARIABLES = 500
"""Number of variables of such a model. In larger ones a node takes longer, so that a smaller gain justifies a sweep."""

LEAST_GAIN = 12
"""Increases of the lower bound are worth the work if they close 2 to the power of minus this of the root's gap."""

MOST_BACKTRACKS = 1 << 14  # maximum number of backtracks of a dive
MOST_OPEN = 2_000_000  # number of open nodes from which dives are completed, which opens no more

RARELY, OFTEN = 0.05, 0.1
"""Share of decisions that are replayed to reach open nodes: below the first, dives become shorter, above the second
longer."""


class SoftSearch:
    """Hybrid best-first search: depth-first dives of limited length from the open node with the least lower bound."""

    def __init__(self, network: ModelNetwork, most_nodes: int = sys.maxsize) -> None:
        self.network, self.open, self.finished = network, OpenNodes(), False
        n, room = network.problem.n_vars, network.problem.n_states + 1
        stack = DiveStack(*(np.zeros(room, dtype=np.int64) for _ in DiveStack._fields))
        goal = DiveLabels(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_), np.zeros(n, dtype=np.int64))
        self.way = Dive(stack, goal, blank(DiveTally))
        self.way.tally.latest, self.way.tally.most_nodes = -1, most_nodes
        self._limit, self._replayed, self._root_upper = 1, 0, -1
        self._base: tuple[int, int] | None = None
        self._root_lower = 0

    @property
    def lower(self) -> int:
        """Lower bound on the cost of all labellings; the cost of the best one once the search is closed."""
        best, unit = self.upper + int(self.network.soft.tally.slack), self.network.unit
        if self.finished:
            return best
        lower = max(self._root_lower, self.open.lower(self._base))
        return min(best, -(-lower // unit) * unit)

    @property
    def upper(self) -> int:
        """Only labellings with a smaller cost are of interest."""
        return int(self.network.soft.tally.upper)

    @property
    def labels(self) -> Ints | None:
        return self.way.goal.best.copy() if self.way.tally.found > 0 else None

    @property
    def candidate(self) -> Ints:
        """The candidate labelling of the last node; before the first, the favourite states at the root."""
        if self.nodes > 0:
            return self.way.goal.labels.copy()
        return np.array(self.network.soft.net.variables["favourite"], dtype=np.int64)

    @property
    def nodes(self) -> int:
        return int(self.way.tally.nodes)

    def limit(self, value: float) -> None:
        """Search only for labellings of a larger value."""
        costs = self.network.costs
        if value > -math.inf:
            cost = math.ceil((costs.offset - value) * costs.scale)
            self.network.soft.tally.upper = min(self.upper, max(0, cost - int(self.network.soft.tally.slack)))

    def prepare(self, sweeps: int) -> Iterator[None]:
        """Raise the lower bound at the root and make it consistent; yields after every step."""
        yield from self._sweep(sweeps)
        self.network.soft.tally.least_gain = max(1, self._gap >> LEAST_GAIN)
        if not self._failed:
            yield from self._in_steps(project_all)
            yield from self._propagate_root()
        self.finished = self._failed

    def explore(self) -> Iterator[None]:
        """Search from the root; yields after every step until the search has finished."""
        self.open.push(self.network.lower, -1)
        while self._base is not None or self._next_node():
            if self._dive() == PAUSED:
                yield
            if self.upper < self._root_upper and self._base is None:
                follow(self.network.soft, self.way.stack, 0)  # the better upper bound holds at the root, too
                yield from self._propagate_root()
                if self._failed:
                    self.open.clear()
        self.finished = True

    @property
    def _failed(self) -> bool:
        return bool(self.network.soft.tally.failed)

    def _allow(self) -> None:
        """Set the work limit for one more step."""
        tally = self.network.soft.tally
        tally.pause_at = tally.work + STEP_WORK

    # -- the root -----------------------------------------------------------------------------------------------------

    def _sweep(self, sweeps: int) -> Iterator[None]:
        """Run pairs of sweeps, forward and backward, as long as they close the gap."""
        before = -self.upper
        self._allow()
        least = SMALL_GAIN / (1 + self.network.problem.n_vars / FEW_VARIABLES)
        while sweeps > 0 and not self._failed and self.network.lower - before > least * self._gap:
            before, sweeps = self.network.lower, sweeps - 1
            for forward in (True, False):
                yield from self._in_steps(sweep, forward)
            yield from self._in_steps(price_constraints)
            self._keep()

    def _in_steps(self, kernel: Callable[..., int], *arguments: bool) -> Iterator[None]:
        """Call a kernel, which takes and returns the place to continue at, until it returns 0."""
        place = kernel(self.network.soft, *arguments, 0)
        while place > 0:
            self._keep()
            yield
            self._allow()
            place = kernel(self.network.soft, *arguments, place)

    @property
    def _gap(self) -> int:
        return self.upper - self.network.lower

    def _keep(self) -> None:
        """Make all changes at the root permanent."""
        soft = self.network.soft
        soft.tally.top = 0
        soft.tally.serial += 1
        self._root_lower = self.network.lower

    def _propagate_root(self) -> Iterator[None]:
        soft = self.network.soft
        while not propagate_root(soft):
            self._keep()
            yield
            self._allow()
        self._keep()
        self._root_upper = self.upper

    # -- dives --------------------------------------------------------------------------------------------------------

    def _next_node(self) -> bool:
        """Move to the best open node; False if none is left."""
        node = self.open.pop(self.upper)
        if node is None:
            return False
        stack, counts = self.way.stack, self.way.tally
        path = self.open.path(node[1])
        for k, (var, value, right) in enumerate(path):
            stack.var[k], stack.value[k], stack.right[k] = var, value, right
        follow(self.network.soft, stack, len(path))
        self._replayed += len(path)
        if self._replayed > OFTEN * (self.nodes + 1) and self._limit < MOST_BACKTRACKS:
            self._limit *= 2
        elif self._replayed < RARELY * (self.nodes + 1) and self._limit > 1:
            self._limit //= 2
        limit = sys.maxsize // 2 if len(self.open) > MOST_OPEN else self._limit
        counts.depth, counts.limit = 0, int(counts.backtracks) + limit
        self._base = node
        return True

    def _dive(self) -> int:
        """Search below a node, and open what remains there at the end."""
        if self.network.soft.tally.work >= self.network.soft.tally.pause_at:
            self._allow()
        how = dive(self.network.soft, self.way)
        if how == FULL:
            self.network.grow_trail()
        elif how != PAUSED:
            assert self._base is not None
            forget_pending(self.network.soft)
            if how == LIMITED:
                depth = int(self.way.tally.depth)
                self.open.leave(self._base, [column[:depth].tolist() for column in self.way.stack], self.upper)
            self._base = None
        return how


# -- The open nodes of a search, by lower bound -----------------------------------------------------------------------

ROOM = 1_000_000  # nodes stored before those that no open node needs are discarded


class OpenNodes:
    """A heap of nodes, each with its decision and its parent."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._heap: list[tuple[int, int, int]] = []
        self._parent: list[int] = []
        self._decision: list[tuple[int, int, int]] = []
        self._depth: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def clear(self) -> None:
        self._heap.clear()

    def lower(self, other: tuple[int, int] | None) -> int:
        """Return the least lower bound of the open nodes, and of another node if given."""
        bounds = [] if other is None else [other[0]]
        if self._heap:
            bounds.append(self._heap[0][0])
        return min(bounds, default=0)

    def push(self, lower: int, node: int) -> None:
        """Open a node; -1 is the root."""
        depth = self._depth[node] if node >= 0 else 0
        heapq.heappush(self._heap, (lower, -depth, node))

    def pop(self, upper: int) -> tuple[int, int] | None:
        """Return lower bound and number of the best node; None if there is none with a bound below `upper`."""
        if not self._heap or self._heap[0][0] >= upper:
            self.clear()
            return None
        lower, _, node = heapq.heappop(self._heap)
        return lower, node

    def path(self, node: int) -> list[tuple[int, int, int]]:
        """Return the decisions from the root to a node: variable, state, and 1 if the state is excluded."""
        found = []
        while node >= 0:
            found.append(self._decision[node])
            node = self._parent[node]
        return found[::-1]

    def leave(self, base: tuple[int, int], stack: list[list[int]], upper: int) -> None:
        """Open the node that a dive has reached, and all open alternatives on the path from its base."""
        lower, node = base
        for var, value, right, _, here in zip(*stack, strict=True):
            lower = max(base[0], here)
            if right == 0 and lower < upper:
                self.push(lower, self._add(node, (var, value, 1)))
            node = self._add(node, (var, value, right))
        self.push(lower, node)
        if len(self._parent) > self._room:
            self._forget()
            self._room = max(self._room, 2 * len(self._parent))

    def _forget(self) -> None:
        """Discard the nodes that are on the path to no open node."""
        needed = set[int]()
        for _, _, node in self._heap:
            while node >= 0 and node not in needed:
                needed.add(node)
                node = self._parent[node]
        order = sorted(needed)
        number = {node: k for k, node in enumerate(order)} | {-1: -1}
        self._parent = [number[self._parent[node]] for node in order]
        self._decision = [self._decision[node] for node in order]
        self._depth = [self._depth[node] for node in order]
        self._heap = [(lower, depth, number[node]) for lower, depth, node in self._heap]
        heapq.heapify(self._heap)

    def _add(self, parent: int, decision: tuple[int, int, int]) -> int:
        self._parent.append(parent)
        self._decision.append(decision)
        self._depth.append(1 + (self._depth[parent] if parent >= 0 else 0))
        return len(self._parent) - 1
