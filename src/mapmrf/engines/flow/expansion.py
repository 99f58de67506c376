"""Expansions and swaps of labels, repeated until none helps."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.flow.cut_model import packed
from mapmrf.engines.flow.fusion_move import NO_MARK, FusionMove, find_marks, propose_expansion, propose_swap
from mapmrf.model.problem import Problem
from mapmrf.run.workers import Workers

GOLDEN = (math.sqrt(5) - 1) / 2
WORK_PER_PAIR = 8  # cost of setting up a move per pair, in arcs visited by a flow


class MoveTrial:
    """One move, set up and computed in pieces; its changes are applied when it is accepted."""

    def __init__(self, problem: Problem, marks: Ints) -> None:
        self.fusion, self.marks = FusionMove(problem), marks
        self._new = np.empty(problem.n_vars, dtype=np.int64)
        self._feasible = False
        self._set_up = problem.n_vars + WORK_PER_PAIR * problem.n_factors
        self.reset()

    def reset(self) -> None:
        self.work: list[int] = []
        self.ended = self._moves = False

    def advance(self, labels: Ints, move: tuple[int, int], max_work: int) -> None:
        """Set up the move if it is new, and compute a piece of it; the labels must not change until it ends."""
        if self.ended:
            return
        if not self.work:
            alpha, beta = move
            if alpha == beta:
                n = propose_expansion(self.fusion.model, labels, alpha, self.marks, self._new)
            else:
                n = propose_swap(self.fusion.model, labels, alpha, beta, self._new)
            self._moves, self.ended = n > 0, n == 0  # a move without variables ends at once
            self.work.append(self._set_up if n > 0 else len(labels))
            if n > 0:
                self._feasible = self._feasible or self.fusion.is_feasible(labels)  # moves keep them feasible
                self.fusion.begin(labels, self._new, self._feasible)
        if self._moves:
            before = self.fusion.work
            self.ended = self.fusion.run(max_work)
            self.work.append(self.fusion.work - before)

    def accept(self, labels: Ints) -> float:
        """Apply the changes if they are a gain; return the gain."""
        return self.fusion.end(labels) if self._moves else 0.0


class LabelMoves:
    """A labelling that is improved by expansions or swaps.

    With several threads, the next moves are computed alongside the current one. If it brings no gain, their results
    stand as if they had been computed one after another; otherwise they are discarded. Late in a run, few moves bring a
    gain.
    """

    def __init__(self, problem: Problem, labels: Ints, swap: bool = False) -> None:
        every = range(int(problem.graph.card.max(initial=0)))
        order = scattered(len(every)) if has_distances(problem) else every
        self.moves = list(itertools.combinations(every, 2)) if swap else [(alpha, alpha) for alpha in order]
        self.problem = problem
        self.labels = np.array(labels, dtype=np.int64)
        self.marks = label_marks(problem)
        if len(self.marks):  # exactly the labels in use are marked
            marking = self.marks != NO_MARK
            self.labels[marking] = np.isin(self.marks[marking], self.labels[~marking])
        self._trials = [MoveTrial(problem, self.marks)]  # of the current move and of those that follow
        self._read = 0  # pieces of the current move already counted
        self._workers: Workers | None = None
        self._calm = 0  # moves since the last gain
        self.tried = self.helped = 0
        self.gain = 0.0

    @property
    def at_rest(self) -> bool:
        return self._calm >= len(self.moves)

    def run(self, max_work: int, max_moves: int = 2**62) -> None:
        """Make moves for about this much work, in arcs visited, and at most `max_moves`.

        Work is counted as if moves ran one after another, regardless of threads.
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
        """Compute a piece of the current move, and alongside it of those that may follow."""
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
        self.tried += 1
        self._calm = 0 if gain > 0.0 else self._calm + 1
        self.helped += gain > 0.0
        self.gain += gain
        for trial in self._trials if gain > 0.0 else self._trials[:1]:
            trial.reset()
        self._trials.append(self._trials.pop(0))
        self._read = 0

    def close(self) -> None:
        if self._workers is not None:
            self._workers.close()


def label_marks(problem: Problem) -> Ints:
    """Return the label that every variable marks as used, NO_MARK for others, (n_vars,); empty if no variable does.

    Label costs are modelled by such variables: state 1 has a cost, and in state 0 no other variable may have the label.
    Expansions that kept them fixed could neither introduce a label nor remove one (Delong et al., 2012).
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


def has_distances(problem: Problem) -> bool:
    """Guess whether losses grow with the distance of labels, from the first pair: label 0 against 1 and the last."""
    if problem.n_factors == 0:
        return False
    first = problem.graph.table(0)[0]
    return len(first) > 2 and bool(first[1] != first[-1])


def scattered(n: int) -> list[int]:
    """Return the labels in an order in which any few consecutive ones lie far apart in the range.

    Where losses grow with the distance of labels, ascending order takes more moves and ends in worse optima.
    """
    return sorted(range(n), key=lambda k: k * GOLDEN % 1.0)
