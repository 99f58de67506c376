"""Expansions and swaps of labels, one after another until none helps."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.flow.cut_model import packed
from mapmrf.engines.flow.fusion_move import FusionMove
from mapmrf.engines.flow.fusion_move_kernels import NO_MARK, find_marks, propose_expansion, propose_swap
from mapmrf.problem import Problem
from mapmrf.workers import Workers

GOLDEN = (math.sqrt(5) - 1) / 2
WORK_PER_PAIR = 8
"""Work that the set-up of a move takes for every pair, in arcs that a flow looks at."""


class MoveTrial:
    """One move of labels, set up and made in pieces; what it would change waits until it is accepted.

    Attributes
    ----------
    fusion
        Its network.
    work
        Work of its pieces so far, in arcs that are looked at.
    ended
        Whether it knows what it gains.
    """

    def __init__(self, problem: Problem, marks: Ints) -> None:
        self.fusion, self.marks = FusionMove(problem), marks
        self._new = np.empty(problem.n_vars, dtype=np.int64)
        self._feasible = False
        self._set_up = problem.n_vars + WORK_PER_PAIR * problem.n_factors
        self.reset()

    def reset(self) -> None:
        """Forget the move."""
        self.work: list[int] = []
        self.ended = self._moves = False

    def advance(self, labels: Ints, move: tuple[int, int], max_work: int) -> None:
        """Set the move up if it is new, and do one piece of it; the labels are those that it began with."""
        if self.ended:
            return
        if not self.work:
            self.work.append(self._begin(labels, *move))
        if self._moves:
            before = self.fusion.work
            self.ended = self.fusion.run(max_work)
            self.work.append(self.fusion.work - before)

    def _begin(self, labels: Ints, alpha: int, beta: int) -> int:
        """Set up the network, unless no variable takes part; returns the work."""
        model = self.fusion.model
        if alpha == beta:
            n = propose_expansion(model, labels, alpha, self.marks, self._new)
        else:
            n = propose_swap(model, labels, alpha, beta, self._new)
        self._moves, self.ended = n > 0, n == 0
        if n == 0:
            return len(labels)
        self._feasible = self._feasible or self.fusion.is_feasible(labels)  # moves never make them infeasible again
        self.fusion.begin(labels, self._new, self._feasible)
        return self._set_up

    def accept(self, labels: Ints) -> float:
        """Make the changes, if they are a gain; returns the gain."""
        return self.fusion.end(labels) if self._moves else 0.0


class LabelMoves:
    """A labelling, improved by moves of its labels.

    With several threads the next moves are tried beside the present one. If that is no gain they stand, as if they had
    been made one after another; if it is, they are forgotten. Once most labels are where they should be, few moves are
    a gain.

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
    >>> search.close()
    >>> image.graph.value(search.labels) >= image.graph.value(image.truth.ravel())
    True
    """

    def __init__(self, problem: Problem, labels: Ints, swap: bool = False) -> None:
        every = range(int(problem.graph.card.max(initial=0)))
        order = spread(len(every)) if has_distances(problem) else every
        self.moves = list(itertools.combinations(every, 2)) if swap else [(alpha, alpha) for alpha in order]
        self.problem = problem
        self.labels = np.array(labels, dtype=np.int64)
        self.marks = label_marks(problem)
        if len(self.marks):
            set_marks(self.labels, self.marks)
        self._trials = [MoveTrial(problem, self.marks)]  # of the present move and of those that follow
        self._read = 0  # pieces of the present move that count already
        self._workers: Workers | None = None
        self._calm = 0  # moves without a gain since the last one that was one
        self.tried = self.helped = 0
        self.gain = 0.0

    @property
    def at_rest(self) -> bool:
        """Whether no move helps any more."""
        return self._calm >= len(self.moves)

    def run(self, max_work: int, max_moves: int = 2**62) -> None:
        """Make moves for about so much work, in arcs that are looked at, and at most so many.

        What counts is the work of the moves one after another, whoever does it and when.
        """
        last, spent = self.tried + max_moves, 0
        while spent < max_work and self.tried < last and not self.at_rest:
            trial = self._trials[0]
            if self._read == len(trial.work):
                self._advance(max_work)
            spent += sum(trial.work[self._read : self._read + 1])
            self._read += 1
            if trial.ended and self._read == len(trial.work):
                self._end(trial.accept(self.labels))

    def _advance(self, max_work: int) -> None:
        """Do a piece of the present move, and beside it of those that may follow."""
        n = min(self.problem.threads, len(self.moves) - self._calm) if self._calm > 0 else 1
        if n > 1 and self._workers is None:
            self._workers = Workers(self.problem.threads)
        while len(self._trials) < n:
            self._trials.append(MoveTrial(self.problem, self.marks))
        moves = [self.moves[(self.tried + k) % len(self.moves)] for k in range(n)]
        if self._workers is None or n == 1:
            self._trials[0].advance(self.labels, moves[0], max_work)
            return
        calls = [(trial, self.labels, move, max_work) for trial, move in zip(self._trials, moves, strict=False)]
        self._workers.run(MoveTrial.advance, calls)

    def _end(self, gain: float) -> None:
        """Count the present move, and go on to the next one."""
        self.tried += 1
        self._calm = 0 if gain > 0.0 else self._calm + 1
        self.helped += gain > 0.0
        self.gain += gain
        for trial in self._trials if gain > 0.0 else self._trials[:1]:
            trial.reset()
        self._trials.append(self._trials.pop(0))
        self._read = 0

    def close(self) -> None:
        """End the threads."""
        if self._workers is not None:
            self._workers.close()


def label_marks(problem: Problem) -> Ints:
    """The label that every variable marks as used, NO_MARK for others, (n_vars,); empty if no variable does.

    Costs of labels are such variables: in state 1 they cost something, in state 0 no other variable may have the label.
    An expansion that left them alone could neither bring a label into use nor give one up (Delong et al., 2012).
    """
    graph, none = problem.graph, np.zeros(0, dtype=np.int32)
    of_table = np.full(graph.n_tables, NO_MARK, dtype=np.int32)
    for batch in problem.batches:
        if batch.hard and batch.arity == 2 and batch.shape[1] == 2:
            for at in np.unique(batch.table_at).tolist():
                table = graph.theta_t[at : at + batch.n_configs].reshape(batch.shape)
                out = np.flatnonzero(np.isneginf(table[:, 0]))
                if len(out) == 1 and np.isneginf(table).sum() == 1:
                    of_table[np.searchsorted(graph.table_ptr, at)] = out[0]
    if np.all(of_table == NO_MARK):
        return none
    marked, marks = of_table[graph.table_of[problem.order]], np.zeros(problem.n_vars, dtype=np.int32)
    return marks if find_marks(packed(problem.scope), marked, marks) else none


def set_marks(labels: Ints, marks: Ints) -> None:
    """Mark the labels that are in use, and no others."""
    marking = marks != NO_MARK
    labels[marking] = np.isin(marks[marking], labels[~marking])


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
