"""Exact elimination of tiny models in numpy: this takes a millisecond, importing numba a third of a second."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, largest_size
from mapmrf.model.graph import FactorGraph

MAX_FUNCTIONS = 200
"""Maximum total number of variables and factors of a tiny model: numpy takes some microseconds for each."""

MAX_ENTRIES = 1 << 14  # maximum number of entries of all its tables, including those of elimination


class SmallOrder(NamedTuple):
    """An elimination order of a tiny model."""

    # every variable of two or more states with its neighbours at the time of its elimination, in elimination order: the
    # variable itself comes first
    cliques: list[list[int]]
    place: dict[int, int]  # the position of every such variable in the order

    @property
    def width(self) -> int:
        return max((len(clique) - 1 for clique in self.cliques), default=0)


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
    for scope in _scopes(graph):
        free = {i for i in scope if card[i] > 1}
        for i in free:
            neighbours[i] |= free - {i}
    sizes = {i: r * math.prod(card[j] for j in neighbours[i]) for i, r in enumerate(card) if r > 1}
    order: list[int] = []
    n_entries = 0
    while sizes:
        i = min(sizes, key=sizes.__getitem__)
        n_entries += sizes.pop(i)
        if n_entries > max_entries:
            return None
        order.append(i)
        ring = neighbours[i]
        for j in ring:
            neighbours[j] |= ring
            neighbours[j] -= {i, j}
            sizes[j] = card[j] * math.prod([card[k] for k in neighbours[j]])
    place = {i: number for number, i in enumerate(order)}
    return SmallOrder([[i, *sorted(neighbours[i], key=place.__getitem__)] for i in order], place)


def _scopes(graph: FactorGraph) -> Iterator[list[int]]:
    scope, ptr = graph.scope.tolist(), graph.scope_ptr.tolist()
    return (scope[begin:end] for begin, end in pairwise(ptr))


def eliminate_small(graph: FactorGraph, order: SmallOrder) -> Optimum:
    """Maximise over one variable after another, and recover the labels in reverse."""
    buckets = _Buckets(graph, order)
    choices = []
    for clique, functions in zip(order.cliques, buckets.functions, strict=True):
        table = np.zeros([buckets.card[i] for i in clique])
        for scope, function in functions:
            table += function.reshape([buckets.card[i] if i in scope else 1 for i in clique])
        choices.append(table.argmax(axis=0))
        buckets.add(clique[1:], table.max(axis=0))
    labels = np.zeros(graph.n_vars, dtype=np.int64)
    if buckets.value > -math.inf:
        for clique, choice in zip(reversed(order.cliques), reversed(choices), strict=True):
            labels[clique[0]] = choice[tuple(labels[clique[1:]])]
    return Optimum(buckets.value, labels)


class _Buckets:
    """The functions of each bucket, and the sum of those without variables.

    The axes of functions and cliques are in elimination order, so that reshaping aligns them.
    """

    def __init__(self, graph: FactorGraph, order: SmallOrder) -> None:
        self.place, self.card = order.place, graph.card.tolist()
        self.value = graph.constant
        self.functions: list[list[tuple[list[int], Floats]]] = [[] for _ in order.cliques]
        ptr = graph.var_ptr.tolist()
        for i in range(graph.n_vars):
            self.add([i] if self.card[i] > 1 else [], graph.theta_v[ptr[i] : ptr[i + 1]])
        starts, size = graph.table_ptr[graph.table_of].tolist(), np.diff(graph.table_ptr)[graph.table_of].tolist()
        for a, scope in enumerate(_scopes(graph)):
            table = graph.theta_t[starts[a] : starts[a] + size[a]]
            table = table if graph.weight is None else graph.weight[a] * table
            free = [i for i in scope if self.card[i] > 1]
            sorted_scope = sorted(free, key=self.place.__getitem__)
            axes = [free.index(i) for i in sorted_scope]
            self.add(sorted_scope, table.reshape([self.card[i] for i in free]).transpose(axes))

    def add(self, scope: list[int], function: Floats) -> None:
        """Add a function whose scope is in elimination order."""
        if scope:
            self.functions[self.place[scope[0]]].append((scope, function))
        else:
            self.value += float(function.item())
