"""Exact elimination of tiny models in numpy: this takes a millisecond, importing numba a third of a second."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints, largest_size
from mapmrf.errors import UnsupportedModel
from mapmrf.model.factor_pool import FactorPool, Neighbours, by_smallest_table, greedy_order, neighbours_of
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
    order: SmallOrder = {}
    for i, ring, entries in by_smallest_table(graph, graph.card.tolist(), range(graph.n_vars)):
        max_entries -= entries
        if max_entries < 0:
            return None
        order[i] = sorted(ring)
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


class SumOrder(NamedTuple):
    """An order in which variables are summed out, and its cost."""

    order: list[int]  # the variables in the order of summation; incomplete if their tables are hopelessly large
    width: int  # induced width: the largest number of other variables in a table
    bytes: float  # memory for the largest table, its exponentials, and the tables that remain


def find_sum_order(graph: FactorGraph, variables: Iterable[int]) -> SumOrder:
    """Return the better of two greedy orders: smallest table first, and fewest new neighbours first."""
    left, card = list(dict.fromkeys(variables)), graph.card.tolist()
    log_card: list[float] = np.log2(graph.card.astype(np.float64)).tolist()

    def size(i: int, beside: Neighbours) -> float:
        return sum([log_card[j] for j in beside[i]])

    def fill(i: int, beside: Neighbours) -> float:
        return sum([len(beside[i] - beside[j]) - 1 for j in beside[i]]) + 1e-3 * size(i, beside)

    def ordered(score: Callable[[int, Neighbours], float], far: bool) -> SumOrder:
        order, width, largest, kept = [], 0, 0.0, 0.0
        for i, ring, _ in greedy_order(neighbours_of(graph, card), left, score, far):
            message = math.prod([float(card[j]) for j in ring])
            order.append(i)
            width, largest, kept = max(width, len(ring)), max(largest, card[i] * message), kept + message
            # entries of a table at which ordering stops, as no memory would suffice
            if largest >= 1e15:
                break
        return SumOrder(order, width, 8 * (2 * largest + kept))

    found = ordered(size, far=False)
    if 1 < found.width < MOST_TO_FILL and len(left) <= MOST_TO_FILL:
        found = min(found, ordered(fill, far=True), key=lambda order: order.bytes)
    return found


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
