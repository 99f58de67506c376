"""Elimination orders: min-fill with random ties, and front sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.elimination.order_kernels import ball, contexts, fill_order, front_order
from mapmrf.engines.elimination.primal_graph import PrimalGraph

MAX_LISTED = 10_000_000
"""Growth of the neighbour lists at which an order is abandoned: its tables would not fit anyway."""

MAX_WIDTH = 300
"""Induced width at which an order is abandoned."""

FRONT_VARIABLES = 20_000
"""Maximum number of variables for front sweeps, which take time proportional to variables times front size."""

ORDER_WORK = 300_000
"""Total number of variables and neighbours over the restarts after which no further restart begins."""


@dataclass(frozen=True, eq=False)
class Order:
    """An elimination order.

    Attributes
    ----------
    order
        The variables, the first eliminated first.
    n_known
        Number of variables with a known context; the rest are in arbitrary order, since their tables would not fit.
    width
        Induced width: the largest number of neighbours at elimination, among the known.
    entries
        Total entries of all tables, each over a variable and its neighbours at elimination.
    """

    order: Ints
    n_known: int
    width: int
    entries: float

    def cost(self) -> tuple[int, float]:
        """Key by which orders are compared: variables without a known context, then entries."""
        return -self.n_known, self.entries

    def better_than(self, other: Order | None) -> bool:
        """Return whether this order has more known contexts, or as many with smaller tables."""
        if other is None:
            return True
        return (-self.n_known, self.entries, self.width) < (-other.n_known, other.entries, other.width)


def find_order(graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10) -> Order:
    """Return the order with the smallest tables among `fill_orders` and `front_orders`."""
    best: Order | None = None
    for found in chain(fill_orders(graph, card, seed, restarts), front_orders(graph, card)):
        best = found if found.better_than(best) else best
    assert best is not None
    return best


def fill_orders(
    graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10, max_entries: float = math.inf
) -> Iterator[Order]:
    """Yield min-fill orders, unweighted and weighted by the logarithms of the cardinalities, with random ties.

    There are `restarts` of each, fewer on large models. An order is abandoned as soon as its tables exceed those of the
    best so far, or `max_entries`.
    """
    random = np.random.default_rng(seed)
    log_card = np.log2(card.astype(np.float64))
    weights = [np.ones(graph.n)] if len(np.unique(card)) <= 1 else [np.ones(graph.n), np.maximum(log_card, 1.0)]
    smallest, work = float(max_entries), 0  # an integer would compile another kernel
    max_listed = 2 * len(graph.nbr) + 4 * graph.n + MAX_LISTED
    for turn in range(restarts * len(weights)):
        noise, weight = random.random(graph.n), weights[turn % len(weights)]
        found = Order(*fill_order(graph.ptr, graph.nbr, weight, log_card, noise, max_listed, MAX_WIDTH, smallest))
        if found.n_known == graph.n:
            smallest = min(smallest, found.entries)
        yield found
        work += len(graph.nbr) + graph.n
        if work > ORDER_WORK or found.width <= 1:
            break


def min_fill_order(graph: PrimalGraph, card: Ints, noise: Floats, max_entries: float) -> Order:
    """Compute one order by weighted min-fill, ties broken by `noise`; abandoned if its tables exceed `max_entries`."""
    log_card = np.log2(card.astype(np.float64))
    weight = np.maximum(log_card, 1.0)
    return Order(*fill_order(graph.ptr, graph.nbr, weight, log_card, noise, 2**62, 2**62, max_entries))


def front_orders(graph: PrimalGraph, card: Ints) -> Iterator[Order]:
    """Yield sweeps over the graph from either end, if it is small enough: narrow on grids and long graphs."""
    if not 0 < graph.n <= FRONT_VARIABLES:
        return
    one = int(ball(graph.ptr, graph.nbr, 0, graph.n)[-1])
    for first in (one, int(ball(graph.ptr, graph.nbr, one, graph.n)[-1])):
        yield measured(graph, card, front_order(graph.ptr, graph.nbr, first))


def measured(graph: PrimalGraph, card: Ints, order: Ints) -> Order:
    """Return an order with its induced width and table sizes."""
    complete, ptr, context, _ = contexts(graph.ptr, graph.nbr, order, graph.n, MAX_LISTED)
    if not complete:
        return Order(order, 0, 0, math.inf)
    log_card = np.log2(card.astype(np.float64))
    sizes = log_card[order] + segment_sums(log_card[context], ptr)
    entries = float(np.exp2(np.minimum(sizes, 1000.0)).sum())
    return Order(order, graph.n, int(np.diff(ptr).max(initial=0)), entries)


def induced_width(graph: PrimalGraph, order: Ints) -> int:
    """Return the largest number of neighbours of a variable at its elimination in this order."""
    return measured(graph, np.ones(graph.n, dtype=np.int64), order).width


def segment_sums(values: Floats, ptr: Ints) -> Floats:
    """Return the sum of every block of `values`."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[ptr[1:]] - total[ptr[:-1]])
