"""Iterated local search: the first labelling of an exact method, and improvements during its run."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.ascent import new_climber
from mapmrf.engines.moves.local_search_kernels import (
    UndoLog,
    Waiting,
    WaitingEnds,
    climb_from_queue,
    perturb_and_climb,
)
from mapmrf.engines.moves.move_model import lay_out, table_places
from mapmrf.engines.moves.random_kernels import seeded
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent

LARGEST = 12
"""Maximum number of variables in a perturbation."""


class LocalSearch:
    """Single-variable ascent with random perturbations of small neighbourhoods.

    Attributes
    ----------
    incumbent
        The best labelling found or offered.
    trials
        Perturbations tried.
    """

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        n = problem.n_vars
        room = 16 * LARGEST + n
        self.problem, self.trials = problem, 0
        self.incumbent = Incumbent(problem.graph, labels)
        self._model = lay_out(problem)
        self._climber = new_climber(problem)
        self._random = seeded(seed)
        self._waiting = Waiting(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), blank(WaitingEnds))
        self._log = UndoLog(np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64))
        self.restart(labels)

    @property
    def labels(self) -> Ints:
        """The best labelling so far."""
        return self.incumbent.labels

    @property
    def value(self) -> float:
        """Its value."""
        return self.incumbent.value

    @property
    def descending(self) -> bool:
        """Whether the ascent from the last restart is unfinished."""
        return self._waiting.ends.length > 0

    def restart(self, labels: Ints) -> None:
        """Continue from another labelling."""
        climber, waiting = self._climber, self._waiting
        climber.labels[:] = labels
        climber.place[:] = table_places(self.problem, climber.labels)
        waiting.ring[:] = np.arange(len(labels))
        waiting.queued[:] = True
        waiting.ends.begin, waiting.ends.length = 0, len(labels)

    def run(self, entries: int, max_trials: int) -> bool:
        """Read about `entries` table entries; return whether that gave a new best labelling."""
        if self.problem.n_vars == 0:
            return False
        if self.descending:
            entries -= climb_from_queue(self._model, self._climber, self._waiting, entries)
        self.trials += perturb_and_climb(
            self._model, self._climber, self._waiting, self._log, self._random, LARGEST, entries, max_trials
        )
        return self.offer(self._climber.labels)

    def offer(self, labels: Ints) -> bool:
        """Keep a labelling if it is the best so far."""
        before = self.incumbent.value
        self.incumbent.offer(labels)
        return self.incumbent.value > before
