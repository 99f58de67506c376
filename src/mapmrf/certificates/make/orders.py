"""Orders in which variables are maximised out."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.model.graph import FactorGraph


class _Neighbours:
    """The variables with several states, and those with which each shares a table, including itself."""

    def __init__(self, graph: FactorGraph, n_states: Ints) -> None:
        self.sizes = n_states.tolist()
        self.near: dict[int, set[int]] = {i: {i} for i, size in enumerate(self.sizes) if size > 1}
        scope = graph.scope.tolist()
        for begin, end in pairwise(graph.scope_ptr.tolist()):
            some = [i for i in scope[begin:end] if i in self.near]
            for i in some:
                self.near[i].update(some)
        self.heap = [(self.entries(i), i) for i in self.near]
        heapq.heapify(self.heap)

    def entries(self, i: int) -> int:
        """Entries of the table of a variable."""
        return math.prod([self.sizes[j] for j in self.near[i]])

    def smallest(self) -> tuple[int, int]:
        """The variable with the smallest table, and its entries."""
        while True:
            entries, i = heapq.heappop(self.heap)
            if i in self.near and entries == self.entries(i):
                return i, entries

    def remove(self, i: int) -> None:
        """Remove a variable: its neighbours then share a table."""
        others = self.near.pop(i) - {i}
        for j in others:
            self.near[j] |= others
            self.near[j].discard(i)
            heapq.heappush(self.heap, (self.entries(j), j))


def greedy_start(graph: FactorGraph, max_table: int) -> Ints:
    """Variables that can be maximised out one by one with tables of at most this many entries, but not all of them."""
    model, order = _Neighbours(graph, graph.card), []
    while len(model.near) > 1:
        i, entries = model.smallest()
        if entries > max_table:
            break
        order.append(i)
        model.remove(i)
    return np.array(order, dtype=np.int64)


def greedy_order(graph: FactorGraph, n_states: Ints, max_entries: int) -> Ints:
    """Greedy elimination order of the variables with several states: always the one with the smallest table next.

    Empty if the tables would have more than `max_entries` entries together.
    """
    model, order = _Neighbours(graph, n_states), []
    while model.near:
        i, entries = model.smallest()
        max_entries -= entries
        if max_entries < 0:
            return np.zeros(0, dtype=np.int64)
        order.append(i)
        model.remove(i)
    return np.array(order, dtype=np.int64)
