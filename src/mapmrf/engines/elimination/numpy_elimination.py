"""Exact elimination of tiny models in numpy: this takes a millisecond, importing numba a third of a second."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints, largest_size
from mapmrf.errors import UnsupportedModel
from mapmrf.model.factor_pool import FactorPool, scopes_of
from mapmrf.model.graph import FactorGraph

MAX_FUNCTIONS = 200
"""Maximum total number of variables and factors of a tiny model: numpy takes some microseconds for each."""
MAX_ENTRIES = 1 << 14  # maximum number of entries of all its tables, including those of elimination


SmallOrder = dict[int, list[int]]
"""The variables of a tiny model in elimination order, with their neighbours at the time."""


class Optimum(NamedTuple):
    """The optimal value, -inf if the model is infeasible, and labels (n_vars,) that attain it."""

    value: float
    labels: Ints


def small_order(graph: FactorGraph, max_entries: float = MAX_ENTRIES) -> SmallOrder | None:
    """Return a greedy order by smallest table; None if the model is not tiny."""
    max_entries = min(max_entries, MAX_ENTRIES)
    if graph.n_vars + graph.n_factors > MAX_FUNCTIONS or len(graph.theta_v) + len(graph.theta_t) > max_entries:
        return None
    largest_weight = 1.0 if graph.weight is None else max(1.0, largest_size(graph.weight))
    largest = max(largest_size(graph.theta_v), largest_size(graph.theta_t))
    if largest > sys.float_info.max / MAX_FUNCTIONS / largest_weight:
        return None  # sums could overflow
    card = graph.card.tolist()
    neighbours: list[set[int]] = [set() for _ in card]
    for scope in scopes_of(graph):
        free = {i for i in scope if card[i] > 1}
        for i in free:
            neighbours[i] |= free - {i}
    sizes = {i: r * math.prod(card[j] for j in neighbours[i]) for i, r in enumerate(card)}
    order: SmallOrder = {}
    n_entries = 0
    while sizes:
        i = min(sizes, key=sizes.__getitem__)
        n_entries += sizes.pop(i)
        if n_entries > max_entries:
            return None
        ring = neighbours[i]
        order[i] = sorted(ring)
        for j in ring:
            neighbours[j] |= ring
            neighbours[j] -= {i, j}
            sizes[j] = card[j] * math.prod([card[k] for k in neighbours[j]])
    return order


def eliminate_small(graph: FactorGraph, order: SmallOrder) -> Optimum:
    """Maximise over one variable after another, and recover the labels in reverse."""
    pool = FactorPool.of_graph(graph)
    choices = []
    for i, around in order.items():
        table, axis = pool.take(i, around)
        choices.append((i, around, table.argmax(axis)))
        pool.put(around, table.max(axis))
    value, labels = float(pool.constant.item()), np.zeros(graph.n_vars, dtype=np.int64)
    if value > -math.inf:
        for i, around, choice in reversed(choices):
            labels[i] = choice[tuple(labels[around])]
    return Optimum(value, labels)


# -- Exact summation of variables: the MAP of the remaining model is a marginal MAP -----------------------------------


MEMORY = 1024.0  # default memory for the tables, in megabytes
MOST_TO_FILL = 1000
"""Maximum number of variables, and width of the first order, for which a min-fill order is tried: it takes longer."""
HOPELESS = 1e15  # entries of a table at which ordering stops, as no memory would suffice
Neighbours = dict[int, set[int]]


class SumOrder(NamedTuple):
    """An order in which variables are summed out, and its cost."""

    order: list[int]  # the variables in the order of summation; incomplete if their tables are hopelessly large
    width: int  # induced width: the largest number of other variables in a table
    bytes: float  # memory for the largest table, its exponentials, and the tables that remain


def find_sum_order(graph: FactorGraph, variables: Iterable[int]) -> SumOrder:
    """Return the better of two greedy orders: smallest table first, and fewest new neighbours first."""
    left = list(dict.fromkeys(variables))
    log_card: list[float] = np.log2(graph.card.astype(np.float64)).tolist()

    def size(i: int, beside: Neighbours) -> float:
        return sum(log_card[j] for j in beside[i])

    def fill(i: int, beside: Neighbours) -> float:
        return sum(len(beside[i] - beside[j]) - 1 for j in beside[i]) + 1e-3 * size(i, beside)

    found = _greedy_order(graph, left, size, far=False)
    if 1 < found.width < MOST_TO_FILL and len(left) <= MOST_TO_FILL:
        found = min(found, _greedy_order(graph, left, fill, far=True), key=lambda order: order.bytes)
    return found


def _greedy_order(
    graph: FactorGraph, left: list[int], score: Callable[[int, Neighbours], float], far: bool
) -> SumOrder:
    """Greedily take the variable with the smallest score, until the tables are hopelessly large.

    Eliminating a variable changes the scores of its neighbours and, if `far`, of their neighbours.
    """
    card = [float(r) for r in graph.card.tolist()]
    beside: Neighbours = {i: set() for i in range(graph.n_vars)}
    for scope in map(set, scopes_of(graph)):
        for i in scope:
            beside[i] |= scope
    for i, others in beside.items():
        others.discard(i)
    scores = {i: score(i, beside) for i in left}
    heap = [(value, i) for i, value in scores.items()]
    heapq.heapify(heap)
    order, width, largest, kept = [], 0, 0.0, 0.0
    while scores and largest < HOPELESS:
        value, i = heapq.heappop(heap)
        if scores.get(i) != value:
            continue
        del scores[i]
        ring = beside.pop(i)
        for j in ring:
            beside[j] |= ring
            beside[j] -= {i, j}
        for j in sorted((ring.union(*(beside[j] for j in ring)) if far else ring) & scores.keys()):
            scores[j] = score(j, beside)
            heapq.heappush(heap, (scores[j], j))
        message = math.prod([card[j] for j in ring])
        order.append(i)
        width, largest, kept = max(width, len(ring)), max(largest, card[i] * message), kept + message
    return SumOrder(order, width, 8 * (2 * largest + kept))


def sum_out(
    graph: FactorGraph, variables: Iterable[int], max_bytes: float = MEMORY * 2**20
) -> tuple[FactorGraph, list[int]]:
    """Sum variables out; return the model of the others, without names, and their indices in `graph`."""
    variables = list(dict.fromkeys(variables))
    plan = find_sum_order(graph, variables)
    if plan.bytes > max_bytes:
        least = "at least " if len(plan.order) < len(variables) else ""
        raise UnsupportedModel(
            f"summing out {len(variables)} variables has induced width {least}{plan.width} and needs {least}"
            f"{plan.bytes:.3g} bytes, "
            f"expected at most {max_bytes:.3g}: ask for more variables, give more evidence, or allow more memory"
        )
    pool = FactorPool.of_graph(graph)
    for i in plan.order:
        around = pool.around(i)
        total, axis = pool.take(i, around)
        largest = total.max(axis, keepdims=True)
        shift = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            pool.merge(around, (np.log(np.exp(total - shift).sum(axis, keepdims=True)) + shift).squeeze(axis))
    kept = np.delete(np.arange(graph.n_vars), plan.order)
    return pool.graph(kept), kept.tolist()
