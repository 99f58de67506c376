"""The m best labellings if only one elimination at a time fits into memory: its passes are repeated.

The first pass keeps the maximising state for every entry of every message: an eighth of the size of the messages. From
these, a labelling that deviates from another at one position is completed at once. The losses of its own deviations are
computed in another pass, while the messages of each bucket are available; a pass handles many labellings.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.elimination.bucket_tree import BucketTree
from mapmrf.engines.elimination.elimination import Elimination, label_type
from mapmrf.engines.elimination.functions import Functions

STEP_ADDITIONS = 20_000_000
"""Additions of table entries between checks of the clock: some 30 ms."""

BATCH = 64
"""Maximum number of labellings per pass."""


@dataclass(eq=False)
class Deviation:
    """The best labelling of a part: equal to an earlier one before a position, without the excluded states there.

    Attributes
    ----------
    value
        Its value.
    labels : (n,)
        Its labels, by position.
    position, excluded
        The position of the deviation, and the states there that belong to other parts.
    score
        After a pass: for every position, the sum of its bucket's functions for each state, a block per position.
    """

    value: float
    labels: Ints
    position: int
    excluded: tuple[int, ...]
    score: Floats | None = None


class RepeatedPasses:
    """Labellings in decreasing order of value, by repeated elimination.

    Attributes
    ----------
    n_wanted
        Number of labellings that will be requested.
    found
        Labels by position, best first.
    n_passes
        Number of eliminations started.
    """

    def __init__(self, tree: BucketTree, given: Functions, n_wanted: int, stop: Callable[[], bool]) -> None:
        self.tree, self.given, self.n_wanted, self._stop = tree, given, n_wanted, stop
        self.found: list[Ints] = []
        self.n_passes = 0
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
        """Whether the first pass is done."""
        return self._choices is not None

    def start(self) -> bool:
        """Run the first pass; False if it was stopped."""
        self.n_passes += 1
        first = Elimination(self.tree, self.given)
        while not first.finished:
            if self._stop():
                return False
            first.advance(STEP_ADDITIONS, self.tree.n)
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
        """Return the labels of a found labelling, by variable."""
        return self.tree.by_variable(self.found[number].astype(np.int64))

    def _push(self, one: Deviation) -> None:
        heapq.heappush(self._heap, (-one.value, self._number, one))
        self._number += 1

    def _divide(self, found: Deviation) -> None:
        """Queue the best deviations from a labelling that may be requested."""
        assert found.score is not None
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
            self._push(Deviation(found.value - float(loss[p]), self._completed(labels, p, k), p, excluded))
        self._heap = heapq.nsmallest(left, self._heap, key=lambda entry: entry[:2])  # a sorted list is a heap

    def _completed(self, labels: Ints, position: int, state: int) -> Ints:
        """Return the best labels that equal the given ones before a position, and have a state there."""
        assert self._choices is not None
        changed = labels.copy()
        changed[position] = state
        self._choices.complete(position + 1, int(self.tree.end[position]), changed)
        return changed

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
                elimination.advance(STEP_ADDITIONS, self.tree.n - 1 - p)
            elimination.score(labels, int(self._at[p]), scores)
        for one, score in zip(some, scores, strict=True):
            one.score = score
        return True
