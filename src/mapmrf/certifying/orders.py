"""Orders in which variables are maximised out."""

from __future__ import annotations

import heapq
import math
from itertools import pairwise

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.graph import FactorGraph


def greedy_order(graph: FactorGraph, n_states: Ints, max_entries: int) -> Ints:
    """An order of the variables with several states that always takes the one with the smallest table next.

    Empty if the tables would have more than `max_entries` entries together.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.datasets import grid
    >>> greedy_order(grid(2, 2), np.array([2, 2, 1, 2]), 100).tolist()
    [0, 1, 3]
    """
    sizes = n_states.tolist()
    near: dict[int, set[int]] = {i: set() for i, size in enumerate(sizes) if size > 1}
    ptr, scope = graph.scope_ptr.tolist(), graph.scope.tolist()
    for begin, end in pairwise(ptr):
        some = [i for i in scope[begin:end] if i in near]
        for i in some:
            near[i].update(some)
    heap = [(math.prod(sizes[j] for j in near[i] | {i}), i) for i in near]
    heapq.heapify(heap)
    order = []
    while near:
        weight, i = heapq.heappop(heap)
        if i not in near or weight != math.prod(sizes[j] for j in near[i] | {i}):
            continue  # eliminated, or entered again with another weight
        max_entries -= weight
        if max_entries < 0:
            return np.zeros(0, dtype=np.int64)
        order.append(i)
        others = near.pop(i) - {i}
        for j in others:
            near[j] |= others
            near[j].discard(i)
            heapq.heappush(heap, (math.prod(sizes[k] for k in near[j] | {j}), j))
    return np.array(order, dtype=np.int64)
