"""Bucket elimination that keeps its messages: exact m best labellings and max-marginals."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.compilation.jit import compiled
from mapmrf.engines.elimination.elimination import (
    BLOCK,
    MARGINAL,
    NOWHERE,
    BucketTree,
    Elimination,
    FoldedSum,
    Functions,
    FunctionTables,
    complete,
    eliminate,
    fold,
    function_tables,
    inverse,
    label_type,
    row_major,
    score_labellings,
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
        self._tables = function_tables(  # the messages to the roots, those back, and a clique
            tree.card,
            given,
            lengths=np.concatenate([lengths, lengths, [widest]]),
            var=np.concatenate([tree.context, tree.context, spare]),
            stride=np.concatenate([stride, stride, spare]),
            at=np.concatenate([up_at[:-1], self._n_entries + up_at]),
            bucket=tree.parent,
            arena=np.empty(self._n_entries),
        )
        self._inner = np.empty((3 + int(np.diff(self._tables.bucket_ptr).max(initial=0)), BLOCK), dtype=np.int32)
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
        self._position, self._block, _, _ = eliminate(
            self._position, self._block, 0, additions, 0, self._tables, None, None, self._inner
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

    def best_labels(self) -> Ints:
        labels: Ints = np.zeros(self.tree.n, dtype=np.int64)
        self.complete(0, self.tree.n, labels)
        return labels

    def complete(self, begin: int, end: int, labels: Ints) -> None:
        """Set the labels (n,) of positions `begin` to `end` to the best given those before, once `collected`."""
        complete(begin, end, self._tables, None, labels)

    def scores(self, labels: Ints) -> Floats:
        """Return the sums of all buckets for labellings, (n_labellings, n): for each state, the others as labelled."""
        found = np.empty((len(labels), int(self._marginals_at[-1])))
        score_labellings(0, self.tree.n, self._tables, labels, self._marginals_at, found)
        return found

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
        self._next = distribute(self._next, additions, self._tables, self._marginals_at, self._marginals, self._inner)

    def marginals(self) -> Floats:
        """Return the largest value with each state, by variable, a block of states each, once `distributed`."""
        position = inverse(self.tree.var_of)
        return self._marginals[ranges(self._marginals_at[position], self.tree.card[position])]


@dataclass(eq=False)
class Deviation:
    """The best labelling of a part: equal to an earlier one before a position, without the excluded states there."""

    value: float
    labels: Ints  # (n,): its labels, by position; those of the earlier labelling until it is asked for
    position: int  # where it deviates
    excluded: tuple[int, ...]  # the states there that belong to other parts
    state: int = -1  # its state there; -1 for the first labelling of all
    score: Floats | None = None  # for every position, the sum of its bucket's functions for each state, once known


class RankedLabellings:
    """Labellings in decreasing order of value: Lawler's partition, whose parts' optima follow from an elimination.

    Every labelling found deviates from an earlier one at one position; the remaining labellings of its part deviate
    from it there, by another state, or at a later position. What these lose is known from the scores of the labelling:
    for every position, the sum of its bucket's functions for each state. `look` returns the scores of several
    labellings, at most `batch`, or None if it was stopped.
    """

    def __init__(
        self, best: Elimination | BucketMessages, n_wanted: int, look: Callable[[Ints], Floats | None], batch: int = 1
    ) -> None:
        self.tree, self.n_wanted, self._best, self._look, self._batch = best.tree, n_wanted, best, look, batch
        self.found: list[Ints] = []  # labels by position, best first
        self._at = np.concatenate([[0], np.cumsum(self.tree.card)]).astype(np.int64)
        self._undivided = -math.inf
        self._queue: list[Deviation] = []  # best first
        if best.value > -math.inf:
            labels: Ints = np.zeros(self.tree.n, dtype=np.int64)
            best.complete(0, self.tree.n, labels)
            self._queue.append(Deviation(best.value, labels, 0, ()))

    @property
    def next_value(self) -> float:
        """Value of the next labelling, or an upper limit of it; -inf if there is none."""
        return max(self._queue[0].value if self._queue else -math.inf, self._undivided)

    def advance(self) -> bool:
        """Find the next labelling; False if it is the last, because what divides the rest was stopped."""
        best = self._queue[0]
        if best.score is None:
            some = [one for one in self._queue[: self._batch] if one.score is None]
            for one in some:
                self._complete(one)
            scores = self._look(np.array([one.labels for one in some]))
            if scores is not None:
                for one, score in zip(some, scores, strict=True):
                    one.score = score
        del self._queue[0]
        self.found.append(best.labels.astype(label_type(self.tree.card)))
        if best.score is None:
            self._undivided = best.value
        else:
            self._divide(best, best.score)
        return best.score is not None

    def labels(self, number: int) -> Ints:
        return self.tree.by_variable(self.found[number].astype(np.int64))

    def _complete(self, one: Deviation) -> None:
        """Set the labels below the position of a deviation, which are still those of the labelling it deviates from."""
        if one.state >= 0:
            one.labels = one.labels.astype(np.int64)  # a copy
            one.labels[one.position] = one.state
            self._best.complete(one.position + 1, int(self.tree.end[one.position]), one.labels)

    def _divide(self, found: Deviation, score: Floats) -> None:
        """Queue the best deviations from a labelling that may be requested."""
        if self.tree.n == 0:
            return
        at, labels, first = self._at, found.labels, found.position
        other = score.copy()
        other[at[:-1] + labels] = -np.inf
        other[at[first] + np.array(found.excluded, dtype=np.int64)] = -np.inf
        other[: at[first]] = -np.inf
        loss = score[at[:-1] + labels] - np.maximum.reduceat(other, at[:-1])
        left = self.n_wanted + 1 - len(self.found)
        least = self._queue[-1].value if len(self._queue) >= left else -math.inf
        for p in np.argsort(loss, kind="stable")[:left].tolist():
            value = found.value - float(loss[p])
            if value <= least:
                break
            excluded = (*(found.excluded if p == first else ()), int(labels[p]))
            state = int(np.argmax(other[at[p] : at[p + 1]]))
            insort(self._queue, Deviation(value, self.found[-1], p, excluded, state), key=lambda one: -one.value)
        del self._queue[left:]


# -- The m best labellings if only one elimination at a time fits into memory: its passes are repeated ----------------
# The first pass keeps the maximising state for every entry of every message: an eighth of the size of the messages.
# From these, a labelling that deviates from another at one position is completed at once. The losses of its own
# deviations are computed in another pass, while the messages of each bucket are available; a pass handles many
# labellings.

BATCH = 64  # maximum number of labellings per pass


def bytes_of_passes(tree: BucketTree) -> float:
    """Return the memory of an elimination with its choices, and of the messages of another one alongside."""
    return Elimination.bytes_needed(tree) + 8 * tree.peak + label_type(tree.card).itemsize * tree.entries


def repeated_passes(
    tree: BucketTree, given: Functions, n_wanted: int, stop: Callable[[], bool]
) -> RankedLabellings | None:
    """Rank labellings by repeated elimination; None if the first pass was stopped."""
    first = Elimination(tree, given)
    while not first.finished:
        if stop():
            return None
        first.advance(pace.ADDITIONS, tree.n)
    at = np.concatenate([[0], np.cumsum(tree.card)]).astype(np.int64)

    def look(labels: Ints) -> Floats | None:
        scores, elimination = np.empty((len(labels), int(at[-1]))), Elimination(tree, given)
        for p in range(tree.n - 1, -1, -1):
            while elimination.n_done < tree.n - 1 - p:
                if stop():
                    return None
                elimination.advance(pace.ADDITIONS, tree.n - 1 - p)
            elimination.score(labels, at, scores)
        return scores

    return RankedLabellings(first, n_wanted, look, BATCH)


# -- Messages back from the roots, and max-marginals ------------------------------------------------------------------


@compiled
def add_up_clique(p: int, fns: FunctionTables, inner: Ints) -> int:
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
    mine = fns.member[fns.bucket_ptr[p] : fns.bucket_ptr[p + 1]]
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
def distribute(p: int, budget: int, fns: FunctionTables, marginals_at: Ints, marginals: Floats, inner: Ints) -> int:
    """Compute the messages from the roots and the max-marginals, position by position; return the next position.

    What is taken off a message that is -inf does not matter: nothing below it is possible. The max-marginals of
    position `p` start at ``marginals[marginals_at[p]]``.
    """
    n, last = len(fns.card), len(fns.ptr) - 2
    summed = np.array([last])
    while p < n and budget > 0:
        size = add_up_clique(p, fns, inner)
        mine = fns.member[fns.bucket_ptr[p] : fns.bucket_ptr[p + 1]]
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
