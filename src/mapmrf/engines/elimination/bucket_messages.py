"""Bucket elimination that keeps its messages: exact m best labellings and max-marginals."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.compilation.jit import compiled
from mapmrf.engines.elimination.elimination import (
    BLOCK,
    MARGINAL,
    NOWHERE,
    PLAIN,
    Buckets,
    BucketTree,
    Elimination,
    FoldedSum,
    Functions,
    FunctionTables,
    fold,
    gathered,
    inverse,
    label_type,
    row_major,
    score_bucket,
)
from mapmrf.engines.elimination.orders import PrimalGraph, find_order
from mapmrf.model.problem import Problem
from mapmrf.run import pace


def fitting_tree(problem: Problem, max_bytes: float, seed: int = 0) -> BucketTree | None:
    """Return the bucket tree of the best order found; None if its messages, both ways, exceed `max_bytes`."""
    tree = narrow_tree(problem, max_bytes, seed)
    return tree if tree is not None and BucketMessages.bytes_needed(tree) <= max_bytes else None


def narrow_tree(problem: Problem, max_entries: float, seed: int = 0) -> BucketTree | None:
    """Return the bucket tree of the best order found; None if the tables of its buckets exceed `max_entries`."""
    graph, card = PrimalGraph.of(problem), problem.graph.card
    # number of elimination orders of each kind to try
    best = find_order(graph, card, seed, 5, max_entries)
    fits = best.n_known == graph.n and best.entries <= max_entries
    return BucketTree.build(graph, card, best) if fits else None


class BucketMessages:
    """The messages of all buckets to the roots, computed in steps, and the results that follow from them."""

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
        self._position, self._block = n - 1, 0  # the bucket to collect from next, and the block of its message
        self._marginals_at = np.concatenate([[0], np.cumsum(tree.card)]).astype(np.int64)  # by position
        self._marginals = np.zeros(0)
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
        return self._position < 0

    def collect(self, additions: int) -> None:
        """Compute messages to the roots, for about this many additions of table entries."""
        self._position, self._block = collect(
            self._position, self._block, additions, self._tables, self._buckets, self._inner
        )

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
        """Return the loss of the next-ranked state at each position from the given one on; see the kernel."""
        loss = np.full(self.tree.n, np.inf)
        if self.tree.n:
            losses(position, rank, self._tables, self._buckets, labels, loss)
        return loss

    # -- back from the roots ------------------------------------------------------------------------------------------

    @property
    def distributed(self) -> bool:
        return self._next >= self.tree.n

    def distribute(self, additions: int) -> None:
        """Compute messages from the roots and max-marginals, for about this many additions of table entries."""
        if len(self._marginals) == 0:  # a root receives the value of all other trees
            arena = np.empty(2 * self._n_entries + self._largest)
            arena[: self._n_entries] = self._tables.arena
            values = self._root_values
            finite = np.isfinite(values)
            total, n_hard = float(values[finite].sum()), int(np.count_nonzero(~finite))
            others = np.where(finite, total - np.where(finite, values, 0.0), total)
            down = self._tables.at[self._tables.n_given + self.tree.n + self._roots]
            arena[down] = np.where(n_hard - ~finite > 0, -np.inf, others)
            self._tables = self._tables._replace(arena=arena)
            self._marginals = np.full(int(self.tree.card.sum()), -np.inf)
        self._next = distribute(
            self._next, additions, self._tables, self._buckets, self._marginals_at, self._marginals, self._inner
        )

    def marginals(self) -> Floats:
        """Return the largest value with each state, by variable, a block of states each, once `distributed`."""
        position = inverse(self.tree.var_of)
        return self._marginals[ranges(self._marginals_at[position], self.tree.card[position])]


class RankedLabellings:
    """Labellings in decreasing order of value: Lawler's partition, whose parts' optima follow from the messages.

    Every labelling found deviates from an earlier one at one position; the remaining labellings of its part deviate
    from it there, by the next-ranked state, or at a later position.
    """

    def __init__(self, messages: BucketMessages, n_wanted: int) -> None:
        self.messages, self.n_wanted = messages, n_wanted
        self.found: list[Ints] = []  # labels by position, best first
        self._value = np.array([messages.value])
        self._parent, self._position, self._rank = (np.zeros(1, dtype=np.int64) for _ in range(3))
        self._kind = label_type(messages.tree.card)
        self._drop_impossible()

    @property
    def next_value(self) -> float:
        """Value of the next labelling; -inf if there is none."""
        return float(self._value[0]) if len(self._value) else -math.inf

    def advance(self) -> None:
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
        return self.messages.tree.by_variable(self.found[number].astype(np.int64))


# -- Messages of all buckets: up to the roots, down again to max-marginals, and labellings by rank --------------------


@compiled
def collect(p: int, block: int, budget: int, fns: FunctionTables, buckets: Buckets, inner: Ints) -> tuple[int, int]:
    """Compute the messages to the roots from a block of position `p` down, until some `budget` of additions is spent.

    Returns the next position and block.
    """
    no_scope, no_table, no_choice = np.zeros(0, np.int64), np.zeros(1), np.zeros(1, np.uint8)
    while p >= 0 and budget > 0:
        mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
        message = fns.n_given + p
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        cost = BLOCK * fns.card[p] * len(mine)
        n_blocks = 1 + budget // cost
        terms = FoldedSum(mine, dims, p, no_scope, no_table, NOWHERE, fns.at[message], no_choice, NOWHERE)
        block = fold(PLAIN, fns, terms, block, n_blocks, inner)
        size = fns.at[message + 1] - fns.at[message]
        budget -= min(n_blocks * cost, size * fns.card[p] * len(mine) + 100)
        if block < 0:
            p, block = p - 1, 0
    return p, block


@compiled
def add_up_clique(p: int, fns: FunctionTables, buckets: Buckets, inner: Ints) -> int:
    """Tabulate the sum of a bucket's functions and the message from above as the last function; return its size."""
    n, last = len(fns.card), len(fns.ptr) - 2
    first, end = fns.ptr[fns.n_given + p], fns.ptr[fns.n_given + p + 1]
    at = fns.ptr[last]
    for d in range(first, end):
        fns.var[at + d - first] = fns.var[d]
    fns.var[at + end - first] = p
    fns.ptr[last + 1] = at + end - first + 1
    size = 1
    for d in range(fns.ptr[last + 1] - 1, at - 1, -1):
        fns.stride[d] = size
        size *= fns.card[fns.var[d]]
    mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
    members = np.empty(len(mine) + 1, np.int64)
    members[:-1] = mine
    members[-1] = fns.n_given + n + p
    project(members, fns.var[at : fns.ptr[last + 1]], fns.arena, fns.at[last], fns, inner)
    return size


@compiled
def project(members: Ints, scope: Ints, table: Floats, at: int, fns: FunctionTables, inner: Ints) -> None:
    """Write the max-marginals of a sum over the clique of the last function on some variables, its own the last."""
    last = len(fns.ptr) - 2
    clique = fns.var[fns.ptr[last] : fns.ptr[last + 1]]
    size = 1
    for d in range(len(scope)):
        size *= fns.card[scope[d]]
    table[at : at + size] = -np.inf
    terms = FoldedSum(members, clique[:-1], clique[-1], scope, table, at, NOWHERE, np.zeros(1, np.uint8), NOWHERE)
    fold(MARGINAL, fns, terms, NOWHERE, 2**62, inner)


@compiled
def distribute(
    p: int, budget: int, fns: FunctionTables, buckets: Buckets, marginals_at: Ints, marginals: Floats, inner: Ints
) -> int:
    """Compute the messages from the roots and the max-marginals, position by position; return the next position.

    What is taken off a message that is -inf does not matter: nothing below it is possible. The max-marginals of
    position `p` start at ``marginals[marginals_at[p]]``.
    """
    n, last = len(fns.card), len(fns.ptr) - 2
    summed = np.array([last])
    while p < n and budget > 0:
        size = add_up_clique(p, fns, buckets, inner)
        mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
        budget -= (2 * len(mine) + 1) * size + 100
        own = fns.var[fns.ptr[last + 1] - 1 : fns.ptr[last + 1]]
        project(summed, own, marginals, marginals_at[p], fns, inner)
        for m in range(len(mine)):
            up = mine[m]
            if up < fns.n_given:
                continue
            down = up + n
            project(summed, fns.var[fns.ptr[down] : fns.ptr[down + 1]], fns.arena, fns.at[down], fns, inner)
            for j in range(fns.at[up + 1] - fns.at[up]):
                message = fns.arena[fns.at[up] + j]
                if message > -np.inf:
                    fns.arena[fns.at[down] + j] -= message
                else:
                    fns.arena[fns.at[down] + j] = -np.inf
        p += 1
    return p


@compiled
def complete(first: int, end: int, rank: int, fns: FunctionTables, buckets: Buckets, labels: Ints) -> None:
    """Give position `first` its state of this rank (0: the best), and those after it, up to `end`, the best."""
    score = np.empty(fns.card.max())
    for p in range(first, end):
        score_bucket(p, fns, buckets, labels, score)
        if p == first and rank > 0:
            labels[p] = np.argsort(-score[: fns.card[p]], kind="mergesort")[rank]
        else:
            labels[p] = np.argmax(score[: fns.card[p]])


@compiled
def losses(first: int, rank: int, fns: FunctionTables, buckets: Buckets, labels: Ints, loss: Floats) -> None:
    """Compute the loss of the next-ranked state at every position from `first` on, given those before; inf if none.

    Position `first` has its state of the given rank, all after it have their best.
    """
    score = np.empty(fns.card.max())
    for p in range(first, len(labels)):
        n = fns.card[p]
        loss[p] = np.inf
        if n < 2:
            continue
        score_bucket(p, fns, buckets, labels, score)
        if p == first and rank > 0:
            if rank + 1 < n:
                falling = np.sort(-score[:n])
                best, other = -falling[rank], -falling[rank + 1]
            else:
                best, other = 0.0, -np.inf
        else:
            k = np.argmax(score[:n])
            best, score[k] = score[k], -np.inf
            other = score[:n].max()
        if other > -np.inf:
            loss[p] = best - other


# -- The m best labellings if only one elimination at a time fits into memory: its passes are repeated ----------------
# The first pass keeps the maximising state for every entry of every message: an eighth of the size of the messages.
# From these, a labelling that deviates from another at one position is completed at once. The losses of its own
# deviations are computed in another pass, while the messages of each bucket are available; a pass handles many
# labellings.

BATCH = 64  # maximum number of labellings per pass


@dataclass(eq=False)
class Deviation:
    """The best labelling of a part: equal to an earlier one before a position, without the excluded states there."""

    value: float
    labels: Ints  # (n,): its labels, by position
    position: int  # where it deviates
    excluded: tuple[int, ...]  # the states there that belong to other parts
    score: Floats | None = None  # after a pass: for every position, the sum of its bucket's functions for each state


class RepeatedPasses:
    """Labellings in decreasing order of value, by repeated elimination."""

    def __init__(self, tree: BucketTree, given: Functions, n_wanted: int, stop: Callable[[], bool]) -> None:
        self.tree, self.given, self.n_wanted, self._stop = tree, given, n_wanted, stop
        self.found: list[Ints] = []  # labels by position, best first
        self.n_passes = 0  # eliminations started
        self._at = np.concatenate([[0], np.cumsum(tree.card)]).astype(np.int64)
        self._kind = label_type(tree.card)
        self._number = 0
        self._undivided = -math.inf
        self._heap: list[tuple[float, int, Deviation]] = []
        self._choices: Elimination | None = None

    @staticmethod
    def bytes_needed(tree: BucketTree) -> float:
        """Return the memory of an elimination with its choices, and of the messages of another one alongside."""
        return Elimination.bytes_needed(tree) + 8 * tree.peak + label_type(tree.card).itemsize * tree.entries

    @property
    def next_value(self) -> float:
        """Value of the next labelling, or an upper limit of it; -inf if there is none."""
        return max(-self._heap[0][0] if self._heap else -math.inf, self._undivided)

    @property
    def started(self) -> bool:
        return self._choices is not None

    def start(self) -> bool:
        """Run the first pass; False if it was stopped."""
        self.n_passes += 1
        first = Elimination(self.tree, self.given)
        while not first.finished:
            if self._stop():
                return False
            first.advance(pace.ADDITIONS, self.tree.n)
        self._choices = first
        if first.value > -math.inf:
            self._push(Deviation(first.value, first.labels()[self.tree.var_of], 0, ()))
        return True

    def advance(self) -> bool:
        """Find the next labelling; False if it is the last, because the pass that divides the rest was stopped."""
        best = self._heap[0][2]
        known = best.score is not None or self._look()
        heapq.heappop(self._heap)
        self.found.append(best.labels.astype(self._kind))
        if known:
            self._divide(best)
        else:
            self._undivided = best.value
        return known

    def labels(self, number: int) -> Ints:
        return self.tree.by_variable(self.found[number].astype(np.int64))

    def _push(self, one: Deviation) -> None:
        heapq.heappush(self._heap, (-one.value, self._number, one))
        self._number += 1

    def _divide(self, found: Deviation) -> None:
        """Queue the best deviations from a labelling that may be requested."""
        assert found.score is not None and self._choices is not None
        tree, at, labels = self.tree, self._at, found.labels
        other = found.score.copy()
        other[at[:-1] + labels] = -np.inf
        other[at[found.position] + np.array(found.excluded, dtype=np.int64)] = -np.inf
        other[: at[found.position]] = -np.inf
        if tree.n == 0:
            return
        loss = found.score[at[:-1] + labels] - np.maximum.reduceat(other, at[:-1])
        left = self.n_wanted + 1 - len(self.found)
        for p in np.argsort(loss, kind="stable")[:left].tolist():
            if loss[p] == math.inf:
                break
            k = int(np.argmax(other[at[p] : at[p + 1]]))
            excluded = (*(found.excluded if p == found.position else ()), int(labels[p]))
            completed = labels.copy()
            completed[p] = k
            self._choices.complete(p + 1, int(tree.end[p]), completed)
            self._push(Deviation(found.value - float(loss[p]), completed, p, excluded))
        self._heap = heapq.nsmallest(left, self._heap, key=lambda entry: entry[:2])  # a sorted list is a heap

    def _look(self) -> bool:
        """Score the most promising labellings in a pass; False if it was stopped."""
        self.n_passes += 1
        some = [one for _, _, one in self._heap[:BATCH] if one.score is None]
        labels = np.array([one.labels for one in some])
        scores = np.empty((len(some), int(self._at[-1])))
        elimination = Elimination(self.tree, self.given)
        for p in range(self.tree.n - 1, -1, -1):
            while elimination.n_done < self.tree.n - 1 - p:
                if self._stop():
                    return False
                elimination.advance(pace.ADDITIONS, self.tree.n - 1 - p)
            elimination.score(labels, int(self._at[p]), scores)
        for one, score in zip(some, scores, strict=True):
            one.score = score
        return True
