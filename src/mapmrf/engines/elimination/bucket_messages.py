"""Bucket elimination that keeps its messages: exact m best labellings and max-marginals."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.engines.elimination.bucket_messages_kernels import (
    CollectCursor,
    StateMarginals,
    collect,
    complete,
    distribute,
    losses,
)
from mapmrf.engines.elimination.bucket_tree import BucketTree, row_major
from mapmrf.engines.elimination.elimination import gathered, label_type
from mapmrf.engines.elimination.elimination_kernels import BLOCK, FunctionTables
from mapmrf.engines.elimination.functions import Functions
from mapmrf.engines.elimination.orders import Order, fill_orders, front_orders
from mapmrf.engines.elimination.primal_graph import PrimalGraph
from mapmrf.model.problem import Problem

RESTARTS = 5
"""Number of elimination orders of each kind to try."""


def fitting_tree(problem: Problem, max_bytes: float, seed: int = 0) -> BucketTree | None:
    """Return the bucket tree of the best order found; None if its messages, both ways, exceed `max_bytes`.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> from mapmrf.model.problem import Problem
    >>> problem = Problem.compile(grid(5, 5))
    >>> fitting_tree(problem, 2**20).n, fitting_tree(problem, 100.0)
    (25, None)
    """
    tree = narrow_tree(problem, max_bytes, seed)
    return tree if tree is not None and BucketMessages.bytes_needed(tree) <= max_bytes else None


def narrow_tree(problem: Problem, max_entries: float, seed: int = 0) -> BucketTree | None:
    """Return the bucket tree of the best order found; None if the tables of its buckets exceed `max_entries` entries.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> from mapmrf.model.problem import Problem
    >>> narrow_tree(Problem.compile(grid(20, 20)), 1000.0) is None
    True
    """
    graph, card = PrimalGraph.of(problem), problem.graph.card
    best: Order | None = None
    for found in fill_orders(graph, card, seed, RESTARTS, max_entries):
        best = found if found.better_than(best) else best
    for found in front_orders(graph, card):
        best = found if found.better_than(best) else best
    if best is None or best.n_known < graph.n or best.entries > max_entries:
        return None if graph.n else BucketTree.build(graph, card, Order(np.arange(0), 0, 0, 0.0))
    return BucketTree.build(graph, card, best)


class BucketMessages:
    """The messages of all buckets to the roots, computed in steps, and the results that follow from them.

    Attributes
    ----------
    tree
        The buckets.
    value
        The maximum of the sum of all functions, once `collected`.
    """

    def __init__(self, tree: BucketTree, given: Functions) -> None:
        n = tree.n
        self.tree = tree
        lengths = np.diff(tree.context_ptr)
        stride, sizes = row_major(tree.card, tree.context_ptr, tree.context)
        self._n_entries, self._largest = int(sizes.sum()), int((sizes * tree.card).max(initial=1))
        widest = int(lengths.max(initial=0)) + 1
        up_at = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        spare: Ints = np.zeros(widest, dtype=np.int64)
        self._tables = FunctionTables(
            card=tree.card,
            ptr=np.concatenate(
                [given.ptr, given.ptr[-1] + np.cumsum(np.concatenate([lengths, lengths, [widest]]))]
            ).astype(np.int64),
            var=np.concatenate([given.var, tree.context, tree.context, spare]).astype(np.int64),
            stride=np.concatenate([given.stride, stride, stride, spare]).astype(np.int64),
            at=np.concatenate([given.at, up_at[:-1], self._n_entries + up_at]).astype(np.int64),
            n_given=given.n,
            theta=given.theta,
            arena=np.empty(self._n_entries),
        )
        self._buckets = gathered(np.concatenate([given.bucket, tree.parent]), n)
        self._inner = np.empty((3 + int(np.diff(self._buckets.ptr).max(initial=0)), BLOCK), dtype=np.int32)
        self._cursor = CollectCursor(n - 1, 0)
        self._marginals = StateMarginals(np.concatenate([[0], np.cumsum(tree.card)]).astype(np.int64), np.zeros(0))
        self._next = 0

    @staticmethod
    def bytes_needed(tree: BucketTree) -> float:
        """Return the memory of the messages both ways and of the largest table of a bucket."""
        _, sizes = row_major(tree.card, tree.context_ptr, tree.context)
        if not np.all(tree.known) or np.any(sizes == 0):
            return math.inf
        return 16 * tree.entries + 8.0 * float((sizes.astype(np.float64) * tree.card).max(initial=1))

    # -- towards the roots --------------------------------------------------------------------------------------------

    @property
    def collected(self) -> bool:
        """Whether all messages to the roots are computed."""
        return self._cursor.position < 0

    def collect(self, additions: int) -> None:
        """Compute messages to the roots, for about this many additions of table entries."""
        self._cursor = collect(self._cursor, additions, self._tables, self._buckets, self._inner)

    @property
    def value(self) -> float:
        """The maximum of the sum of all functions, once `collected`."""
        return float(self._root_values.sum())

    @property
    def _roots(self) -> Ints:
        return np.flatnonzero(self.tree.parent < 0)

    @property
    def _root_values(self) -> Floats:
        return np.asarray(self._tables.arena[self._tables.at[self._tables.n_given + self._roots]])

    # -- labellings by rank -------------------------------------------------------------------------------------------

    def best_labels(self) -> Ints:
        """Return the best labels, by position."""
        labels: Ints = np.zeros(self.tree.n, dtype=np.int64)
        if self.tree.n:
            complete(0, self.tree.n, 0, self._tables, self._buckets, labels)
        return labels

    def deviate(self, labels: Ints, position: int, rank: int) -> Ints:
        """Return the best labels that equal the given ones before a position and have the state of this rank there."""
        changed = labels.copy()
        complete(position, int(self.tree.end[position]), rank, self._tables, self._buckets, changed)
        return changed

    def losses(self, labels: Ints, position: int, rank: int) -> Floats:
        """Return the loss of the next-ranked state at each position from the given one on; inf if there is none.

        The given position has its state of this rank, those after it have their best.
        """
        loss = np.full(self.tree.n, np.inf)
        if self.tree.n:
            losses(position, rank, self._tables, self._buckets, labels, loss)
        return loss

    # -- back from the roots ------------------------------------------------------------------------------------------

    @property
    def distributed(self) -> bool:
        """Whether all max-marginals are computed."""
        return self._next >= self.tree.n

    def distribute(self, additions: int) -> None:
        """Compute messages from the roots and max-marginals, for about this many additions of table entries."""
        if len(self._marginals.value) == 0:
            self._start_down()
        self._next = distribute(self._next, additions, self._tables, self._buckets, self._marginals, self._inner)

    def _start_down(self) -> None:
        """Allocate the messages from the roots: a root receives the value of all other trees."""
        arena = np.empty(2 * self._n_entries + self._largest)
        arena[: self._n_entries] = self._tables.arena
        values = self._root_values
        finite = np.isfinite(values)
        total, n_hard = float(values[finite].sum()), int(np.count_nonzero(~finite))
        others = np.where(finite, total - np.where(finite, values, 0.0), total)
        arena[self._tables.at[self._tables.n_given + self.tree.n + self._roots]] = np.where(
            n_hard - ~finite > 0, -np.inf, others
        )
        self._tables = self._tables._replace(arena=arena)
        self._marginals = self._marginals._replace(value=np.full(int(self.tree.card.sum()), -np.inf))

    def marginals(self) -> Floats:
        """Return the largest value with each state, by variable, a block of states each, once `distributed`."""
        tree = self.tree
        position: Ints = np.empty(tree.n, dtype=np.int64)
        position[tree.var_of] = np.arange(tree.n)
        return np.asarray(self._marginals.value[ranges(self._marginals.at[position], tree.card[position])])


class RankedLabellings:
    """Labellings in decreasing order of value: Lawler's partition, whose parts' optima follow from the messages.

    Every labelling found deviates from an earlier one at one position; the remaining labellings of its part deviate
    from it there, by the next-ranked state, or at a later position.

    Attributes
    ----------
    n_wanted
        Number of labellings that will be requested; candidates that cannot be among them, or be the next, are dropped.
    found
        Labels by position, best first.
    """

    def __init__(self, messages: BucketMessages, n_wanted: int) -> None:
        self.messages, self.n_wanted = messages, n_wanted
        self.found: list[Ints] = []
        self._value = np.array([messages.value])
        self._parent, self._position, self._rank = (np.zeros(1, dtype=np.int64) for _ in range(3))
        self._kind = label_type(messages.tree.card)
        self._drop_impossible()

    @property
    def next_value(self) -> float:
        """Value of the next labelling; -inf if there is none."""
        return float(self._value[0]) if len(self._value) else -math.inf

    def advance(self) -> None:
        """Find the next labelling."""
        messages = self.messages
        value, position, rank = float(self._value[0]), int(self._position[0]), int(self._rank[0])
        if self.found:
            labels = messages.deviate(self.found[self._parent[0]].astype(np.int64), position, rank)
        else:
            labels = messages.best_labels()
        self.found.append(labels.astype(self._kind))
        left = value - messages.losses(labels, position, rank)
        ranks: Ints = np.ones(len(left), dtype=np.int64)
        ranks[position : position + 1] = rank + 1
        self._value = np.concatenate([self._value[1:], left])
        self._parent = np.concatenate([self._parent[1:], np.full(len(left), len(self.found) - 1)])
        self._position = np.concatenate([self._position[1:], np.arange(len(left))])
        self._rank = np.concatenate([self._rank[1:], ranks])
        self._drop_impossible()

    def _drop_impossible(self) -> None:
        """Sort the candidates; drop those of value -inf, and those that will not be requested."""
        order = np.argsort(-self._value, kind="stable")[: self.n_wanted + 1 - len(self.found)]
        order = order[self._value[order] > -np.inf]
        self._value, self._parent = self._value[order], self._parent[order]
        self._position, self._rank = self._position[order], self._rank[order]

    def labels(self, number: int) -> Ints:
        """Return the labels of a found labelling, by variable."""
        return self.messages.tree.by_variable(self.found[number].astype(np.int64))
