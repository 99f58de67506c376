"""Exact elimination of tiny models in numpy: this takes a millisecond, importing numba a third of a second."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, largest_size
from mapmrf.errors import UnsupportedModel
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


# -- Exact summation of variables: the MAP of the remaining model is a marginal MAP -----------------------------------


MEMORY = 1024.0  # default memory for the tables, in megabytes
MOST_TO_FILL = 1000
"""Maximum number of variables, and width of the first order, for which a min-fill order is tried: it takes longer."""
HOPELESS = 1e15  # entries of a table at which ordering stops, as no memory would suffice
Factor = tuple[tuple[int, ...], Floats]
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
    for scope in map(set, _scopes(graph)):
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
    pool = _Pool(graph)
    for i in plan.order:
        pool.eliminate(i)
    kept = [i for i in range(graph.n_vars) if i not in pool.gone]
    place = {i: at for at, i in enumerate(kept)}
    scopes = [tuple(place[i] for i in scope) for scope, _ in pool.factors.values()]
    tables = [table for _, table in pool.factors.values()]
    rest = FactorGraph.from_tables(graph.card[kept], [(), *scopes], [[graph.constant], *tables])
    return rest, kept


class _Pool:
    """The remaining factors, and the factors of each variable."""

    def __init__(self, graph: FactorGraph) -> None:
        self.card = graph.card.tolist()
        self.gone: set[int] = set()
        self.factors: dict[int, Factor] = {}
        self.factors_of: list[set[int]] = [set() for _ in self.card]
        self._next = 0
        for i in range(graph.n_vars):
            self.add((i,), graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
        for a in range(graph.n_factors):
            self.add(tuple(graph.scope_of(a).tolist()), graph.table(a))

    def add(self, scope: tuple[int, ...], table: Floats) -> None:
        self.factors[self._next] = (scope, table)
        for i in scope:
            self.factors_of[i].add(self._next)
        self._next += 1

    def eliminate(self, i: int) -> None:
        scope = [*sorted({j for a in self.factors_of[i] for j in self.factors[a][0]} - {i}), i]
        total = np.zeros([self.card[j] for j in scope])
        for a in sorted(self.factors_of[i]):
            total += aligned(*self.factors.pop(a), scope)
            for j in scope:
                self.factors_of[j].discard(a)
        self.gone.add(i)
        largest = total.max(axis=-1)
        shift = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(divide="ignore"):
            self.add(tuple(scope[:-1]), np.log(np.exp(total - shift[..., None]).sum(axis=-1)) + shift)


def aligned(scope: Sequence[int], table: Floats, onto: list[int]) -> Floats:
    """Return a table with an axis for each variable of a larger scope, of length 1 where it does not depend on it."""
    order = sorted(range(len(scope)), key=lambda k: onto.index(scope[k]))
    shape = [table.shape[scope.index(j)] if j in scope else 1 for j in onto]
    return table.transpose(order).reshape(shape)
