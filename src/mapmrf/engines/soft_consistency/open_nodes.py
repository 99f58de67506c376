"""The open nodes of a search, by lower bound."""

from __future__ import annotations

import heapq

ROOM = 1_000_000
"""Nodes stored before those that no open node needs are discarded."""


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
        """Close all nodes."""
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
