"""Elimination orders, their bucket trees, and exact maximisation by bucket elimination."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.engines.elimination.elimination_kernels import BLOCK, eliminate, substitute
from mapmrf.engines.elimination.order_kernels import ball, contexts, fill_order, front_order, preorder
from mapmrf.problem import Problem

MAX_LISTED = 10_000_000
"""Places that the lists of neighbours may grow by before an order is given up: no table would fit anyway."""

MAX_WIDTH = 300
"""Induced width at which an order is given up."""

FRONT_VARIABLES = 20_000
"""Sweeps by a front, whose time is the number of variables times the front, are tried up to this size."""

ORDER_WORK = 300_000
"""Variables and neighbours that the restarts may begin with together."""


@dataclass(frozen=True, eq=False)
class PrimalGraph:
    """Which variables share a factor: the neighbours of `i` are ``nbr[ptr[i]:ptr[i + 1]]``, ascending."""

    ptr: Ints
    nbr: Ints

    @property
    def n(self) -> int:
        """Number of variables."""
        return len(self.ptr) - 1

    @classmethod
    def of(cls, problem: Problem) -> PrimalGraph:
        """Build it from the scopes of all factors."""
        n = problem.n_vars
        keys = [np.zeros(0, dtype=np.int64)]
        for batch in problem.batches:
            scope = batch.scope.astype(np.int64)
            for j, k in combinations(range(batch.arity), 2):
                keys.append(scope[:, j] * n + scope[:, k])
                keys.append(scope[:, k] * n + scope[:, j])
        pairs = np.unique(np.concatenate(keys))
        return cls(offsets(np.bincount(pairs // max(n, 1), minlength=n)), (pairs % max(n, 1)).astype(np.int32))


@dataclass(frozen=True, eq=False)
class Order:
    """An elimination order.

    Attributes
    ----------
    order
        The variables, the first eliminated first.
    n_known
        How many of them have a known context; the rest stands in no particular order, since its tables fit nowhere.
    width
        Induced width: the largest number of neighbours at elimination, among the known.
    entries
        Entries of all tables, each over a variable and its neighbours at elimination.
    """

    order: Ints
    n_known: int
    width: int
    entries: float

    def better_than(self, other: Order | None) -> bool:
        """Whether this one gets further, or as far with smaller tables."""
        if other is None:
            return True
        return (-self.n_known, self.entries, self.width) < (-other.n_known, other.entries, other.width)


def find_order(graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10) -> Order:
    """The order with the smallest tables among those of `fill_orders` and `front_orders`."""
    best: Order | None = None
    for found in chain(fill_orders(graph, card, seed, restarts), front_orders(graph, card)):
        best = found if found.better_than(best) else best
    assert best is not None
    return best


def fill_orders(
    graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10, max_entries: float = math.inf
) -> Iterator[Order]:
    """Orders by min-fill, plain and weighted by the logarithms of the cardinalities, ties broken at random.

    There are `restarts` of each, on large models fewer. One whose tables outgrow the best so far, or `max_entries`, is
    not finished.
    """
    random = np.random.default_rng(seed)
    log_card = np.log2(card.astype(np.float64))
    weights = [np.ones(graph.n)] if len(np.unique(card)) <= 1 else [np.ones(graph.n), np.maximum(log_card, 1.0)]
    smallest, work = max_entries, 0
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


def front_orders(graph: PrimalGraph, card: Ints) -> Iterator[Order]:
    """Sweeps over the graph from either end, where it is small enough: narrow on grids and long graphs."""
    if not 0 < graph.n <= FRONT_VARIABLES:
        return
    one = int(ball(graph.ptr, graph.nbr, 0, graph.n)[-1])
    for first in (one, int(ball(graph.ptr, graph.nbr, one, graph.n)[-1])):
        yield measured(graph, card, front_order(graph.ptr, graph.nbr, first))


def measured(graph: PrimalGraph, card: Ints, order: Ints) -> Order:
    """An order with its induced width and its table sizes."""
    complete, ptr, context, _ = contexts(graph.ptr, graph.nbr, order, graph.n, MAX_LISTED)
    if not complete:
        return Order(order, 0, 0, math.inf)
    log_card = np.log2(card.astype(np.float64))
    sizes = log_card[order] + _segment_sums(log_card[context], ptr)
    entries = float(np.exp2(np.minimum(sizes, 1000.0)).sum())
    return Order(order, graph.n, int(np.diff(ptr).max(initial=0)), entries)


def induced_width(graph: PrimalGraph, order: Ints) -> int:
    """Largest number of neighbours that a variable has when it is eliminated in this order."""
    return measured(graph, np.ones(graph.n, dtype=np.int64), order).width


def _segment_sums(values: Floats, ptr: Ints) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[ptr[1:]] - total[ptr[:-1]])


@dataclass(frozen=True, eq=False)
class BucketTree:
    """The variables numbered by position in a tree of buckets: roots first, every subtree a range of positions.

    The buckets are eliminated from the last position to the first. All variables below are positions.

    Attributes
    ----------
    var_of : (n,)
        The variable at every position.
    card : (n,)
        Number of states at every position.
    parent, end : (n,)
        The position of the parent (-1 for a root), and the end of the subtree's range.
    context_ptr, context
        The ancestors that the subtree of a position depends on, ascending; empty where `known` is false.
    known : (n,)
        Whether the context is known.
    peak
        Entries of messages that are alive at once in exact elimination, at most.
    entries
        Entries of all messages of exact elimination.
    """

    var_of: Ints
    card: Ints
    parent: Ints
    end: Ints
    context_ptr: Ints
    context: Ints
    known: Ints
    peak: float
    entries: float

    @property
    def n(self) -> int:
        """Number of variables."""
        return len(self.var_of)

    @classmethod
    def build(cls, graph: PrimalGraph, card: Ints, order: Order) -> BucketTree:
        """Find the contexts along an order and number the positions."""
        n = graph.n
        _, ptr, context, parent = contexts(graph.ptr, graph.nbr, order.order, order.n_known, 2**62)
        log_size = np.zeros(n)
        log_size[order.order] = _segment_sums(np.log2(card.astype(np.float64))[context], ptr)
        size = np.exp2(np.minimum(log_size, 1000.0)) if order.n_known == n else np.full(n, math.inf)
        size[(parent < 0) & (log_size == 0)] = 1.0
        var_of, peak = preorder(order.order, parent, size if order.n_known == n else np.ones(n))
        position = np.empty(n, dtype=np.int64)
        position[var_of] = np.arange(n)
        rank = np.empty(n, dtype=np.int64)
        rank[order.order] = np.arange(n)
        by_rank = rank[var_of]
        lengths = np.diff(ptr)[by_rank]
        context = position[context[ranges(ptr[by_rank], lengths)]]
        owner = np.repeat(np.arange(n), lengths)
        context = context[np.lexsort((context, owner))]
        up = np.where(parent[var_of] >= 0, position[parent[var_of]], -1)
        return cls(
            var_of=var_of,
            card=card[var_of].astype(np.int64),
            parent=up,
            end=_subtree_ends(up),
            context_ptr=offsets(lengths),
            context=context,
            known=by_rank < order.n_known,
            peak=peak if order.n_known == n else math.inf,
            entries=float(size.sum()),
        )


def _subtree_ends(parent: Ints) -> Ints:
    """End of every subtree's range of positions: where the next position begins that is not below."""
    n = len(parent)
    end = np.arange(1, n + 1)
    for p in range(n - 1, -1, -1):
        if parent[p] >= 0:
            end[parent[p]] = max(end[parent[p]], end[p])
    return end


@dataclass(frozen=True, eq=False)
class Functions:
    """Tables over positions of a bucket tree: first the unary potentials, by position, then the factors.

    Attributes
    ----------
    ptr, var, stride
        The variables of every function, ascending, with their strides in its table.
    at
        Where the tables start in `theta`.
    theta
        All tables.
    """

    ptr: Ints
    var: Ints
    stride: Ints
    at: Ints
    theta: Floats

    @property
    def n(self) -> int:
        """Number of functions."""
        return len(self.at)

    @property
    def bucket(self) -> Ints:
        """The bucket of every function: its last position, which is the first to be eliminated."""
        return self.var[self.ptr[1:] - 1]

    @classmethod
    def of(cls, problem: Problem, tree: BucketTree, theta_v: Floats, tables: Floats, table_at: Ints) -> Functions:
        """Unary potentials and tables of a problem: its own, or others; factor `a` has its table at ``table_at[a]``."""
        stride = problem.edge_stride
        return cls.arranged(
            tree,
            np.concatenate([theta_v, tables]),
            problem.graph.var_ptr[:-1],
            len(theta_v) + table_at.astype(np.int64),
            (problem.scope_ptr, problem.scope, stride),
        )

    @classmethod
    def arranged(
        cls, tree: BucketTree, theta: Floats, unary_at: Ints, table_at: Ints, scopes: tuple[Ints, Ints, Ints]
    ) -> Functions:
        """Functions given by variable, not by position; `scopes` are offsets, variables and strides of the tables."""
        n = tree.n
        ptr, scope, stride = scopes
        position = np.empty(n, dtype=np.int64)
        position[tree.var_of] = np.arange(n)
        places = position[scope]
        by = np.lexsort((places, np.repeat(np.arange(len(table_at)), np.diff(ptr))))
        return cls(
            ptr=np.concatenate([np.arange(n), n + ptr.astype(np.int64)]),
            var=np.concatenate([np.arange(n), places[by]]),
            stride=np.concatenate([np.ones(n, dtype=np.int64), stride[by]]),
            at=np.concatenate([unary_at[tree.var_of], table_at]).astype(np.int64),
            theta=theta,
        )


class Elimination:
    """Exact maximisation by bucket elimination, some of the work at a time.

    Messages that were used are forgotten; of every bucket the best state for each of its message's entries is kept.
    """

    def __init__(self, tree: BucketTree, given: Functions) -> None:
        n = tree.n
        self.tree, self.given = tree, given
        lengths = np.diff(tree.context_ptr)
        self._ptr = np.concatenate([given.ptr, given.ptr[-1] + np.cumsum(lengths)]).astype(np.int64)
        self._var = np.concatenate([given.var, tree.context])
        stride, sizes = row_major(tree.card, tree.context_ptr, tree.context)
        self._stride = np.concatenate([given.stride, stride])
        self._at = np.concatenate([given.at, np.zeros(n, dtype=np.int64)])
        bucket = np.concatenate([given.bucket, tree.parent])
        used = np.flatnonzero(bucket >= 0)
        used = used[np.argsort(bucket[used], kind="stable")]
        self._member = used
        self._member_ptr = offsets(np.bincount(bucket[used], minlength=n)).astype(np.int64)
        self._choice_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        small = int(tree.card.max(initial=1)) <= 256
        self._choice: Ints = np.zeros(int(self._choice_at[-1]), dtype=np.uint8 if small else np.uint16)
        self._arena = np.empty(int(tree.peak) + 1)
        self._inner = np.empty((2 + int(np.diff(self._member_ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = np.array([n - 1, 0, 0], dtype=np.int64)
        self.value = 0.0

    @staticmethod
    def bytes_needed(tree: BucketTree) -> float:
        """Memory of the messages alive at once and of the choices."""
        return 8 * tree.peak + (1 if int(tree.card.max(initial=1)) <= 256 else 2) * tree.entries

    @property
    def n_done(self) -> int:
        """Buckets eliminated."""
        return self.tree.n - 1 - int(self._cursor[0])

    @property
    def finished(self) -> bool:
        """Whether the value is the optimum."""
        return bool(self._cursor[0] < 0)

    def advance(self, additions: int, max_done: int) -> None:
        """Do about so many additions of table entries, at least a block, until `max_done` buckets are eliminated."""
        self.value += eliminate(
            self._cursor,
            additions,
            max(0, self.tree.n - max_done),
            self.tree.card,
            self._member_ptr,
            self._member,
            self._ptr,
            self._var,
            self._stride,
            self._at,
            self.given.n,
            self.given.theta,
            self._arena,
            self._choice,
            self._choice_at,
            self._inner,
        )

    def labels(self) -> Ints:
        """The best labels, by variable, once finished."""
        at = np.zeros(self.tree.n, dtype=np.int64)
        substitute(self.given.n, self._ptr, self._var, self._stride, self._choice, self._choice_at, at)
        labels = np.empty_like(at)
        labels[self.tree.var_of] = at
        return labels


def row_major(card: Ints, ptr: Ints, var: Ints) -> tuple[Ints, Ints]:
    """Strides of tables over the scopes given, last variable fastest, and their sizes (0: 2^62 or more)."""
    first, lengths = int(ptr[0]), np.diff(ptr)
    stride = np.ones(int(ptr[-1]) - first, dtype=np.int64)
    sizes = np.ones(len(lengths), dtype=np.int64)
    for back in range(1, int(lengths.max(initial=0)) + 1):
        of = np.flatnonzero(lengths >= back)
        at = ptr[1:][of] - back
        stride[at - first] = sizes[of]
        times = card[var[at]]
        sizes[of] = np.where(sizes[of] <= 2**62 // times, sizes[of] * times, 0)
    return stride, sizes
