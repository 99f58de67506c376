"""Expansions and swaps of labels, one after another until none helps."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.flow.fusion_move import FusionMove
from mapmrf.engines.flow.fusion_move_kernels import propose_expansion, propose_swap
from mapmrf.problem import Problem

GOLDEN = (math.sqrt(5) - 1) / 2
WORK_PER_PAIR = 8
"""Work that the set-up of a move takes for every pair, in arcs that a flow looks at."""


class LabelMoves:
    """A labelling, improved by moves of its labels.

    Attributes
    ----------
    labels : (n_vars,)
        The labelling.
    moves
        The labels that expand, (alpha, alpha), or the pairs of labels that are swapped.
    tried, helped
        Moves so far, and those of them that were a gain.
    gain
        What they gained together.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.datasets import potts_image
    >>> from mapmrf.engines.flow.expansion import LabelMoves
    >>> from mapmrf.problem import Problem
    >>> image = potts_image(20, 20, labels=3, noise=0.5, seed=0)
    >>> search = LabelMoves(Problem.compile(image.graph), np.zeros(400, dtype=np.int64))
    >>> while not search.at_rest:
    ...     search.run(100_000)
    >>> image.graph.value(search.labels) >= image.graph.value(image.truth.ravel())
    True
    """

    def __init__(self, problem: Problem, labels: Ints, swap: bool = False) -> None:
        every = range(int(problem.graph.card.max(initial=0)))
        order = spread(len(every)) if has_distances(problem) else every
        self.moves = list(itertools.combinations(every, 2)) if swap else [(alpha, alpha) for alpha in order]
        self.fusion = FusionMove(problem)
        self.labels = np.array(labels, dtype=np.int64)
        self._new = np.empty_like(self.labels)
        self._set_up = problem.n_vars + WORK_PER_PAIR * problem.n_factors
        self._under_way = False
        self._calm = 0  # moves without a gain since the last one that was one
        self.tried = self.helped = 0
        self.gain = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether no move helps any more."""
        return self._calm >= len(self.moves)

    def run(self, max_work: int, max_moves: int = 2**62) -> None:
        """Make moves for about so much work, in arcs that are looked at, and at most so many."""
        last = self.tried + max_moves
        while max_work > 0 and self.tried < last and not self.at_rest:
            if not self._under_way:
                max_work -= self._begin()
            if self._under_way:
                max_work -= self._go_on(max_work)

    def _begin(self) -> int:
        """Set up the next move, unless no variable takes part; returns the work."""
        alpha, beta = self.moves[self.tried % len(self.moves)]
        model = self.fusion.model
        if alpha == beta:
            n = propose_expansion(model, self.labels, alpha, self._new)
        else:
            n = propose_swap(model, self.labels, alpha, beta, self._new)
        if n == 0:
            self._end(0.0)
            return len(self.labels)
        self.fusion.begin(self.labels, self._new)
        self._under_way = True
        return self._set_up

    def _go_on(self, max_work: int) -> int:
        """Send flow; at the end of the move take over what it found. Returns the work."""
        before = self.fusion.work
        if self.fusion.run(max(1, max_work)):
            self._under_way = False
            self._end(self.fusion.end(self.labels))
        return self.fusion.work - before

    def _end(self, gain: float) -> None:
        """Count a move."""
        self.tried += 1
        self._calm = 0 if gain > 0.0 else self._calm + 1
        self.helped += gain > 0.0
        self.gain += gain


def has_distances(problem: Problem) -> bool:
    """Whether losses seem to grow with the distance of two labels, by the first pair: label 0 with 1 and the last."""
    if problem.n_factors == 0:
        return False
    first = problem.graph.table(0)[0]
    return len(first) > 2 and bool(first[1] != first[-1])


def spread(n: int) -> list[int]:
    """The labels in an order in which any few that follow each other are spread over all of them.

    Where losses grow with the distance of two labels, ascending order ends in worse optima after more moves.

    Examples
    --------
    >>> from mapmrf.engines.flow.expansion import spread
    >>> spread(8)
    [0, 5, 2, 7, 4, 1, 6, 3]
    """
    return sorted(range(n), key=lambda k: k * GOLDEN % 1.0)
