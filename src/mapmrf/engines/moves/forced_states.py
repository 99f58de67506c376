"""The best labelling found with each state: force the state in a good labelling, and let its surroundings ascend."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.local_search import UndoLog, Waiting, WaitingEnds, force, force_states, new_climber
from mapmrf.engines.moves.move_model import lay_out, table_places
from mapmrf.model.problem import Problem

STEP_ENTRIES = 3_000_000
"""Maximum number of table entries read per call: some 40 ms."""

ROOM = 256
"""Maximum number of changes around one forced state."""


class ForcedStates:
    """The best gain found for every state, starting from a labelling of finite value."""

    def __init__(self, problem: Problem, labels: Ints) -> None:
        n = problem.n_vars
        self.problem = problem
        self._model, self._climber = lay_out(problem), new_climber(problem)
        self._climber.labels[:] = labels
        self._climber.place[:] = table_places(problem, labels)
        self._waiting = Waiting(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), blank(WaitingEnds))
        self._log = UndoLog(np.zeros(ROOM, dtype=np.int64), np.zeros(ROOM, dtype=np.int64))
        self._next = 0
        # (n_states,): gain of the best labelling found with each state over the given one; -inf if none was found
        self.gain: Floats = np.full(problem.n_states, -np.inf)
        self.gain[problem.graph.var_ptr[:-1] + labels] = 0.0

    @property
    def finished(self) -> bool:
        """Whether all states have been tried."""
        return self._next >= self.problem.n_vars

    def advance(self, entries: int = STEP_ENTRIES) -> None:
        """Try the states of some variables."""
        self._next = force_states(self._next, entries, self._model, self._climber, self._waiting, self._log, self.gain)

    def labels_with(self, i: int, k: int) -> Ints:
        """Return the labelling that results from forcing variable `i` into state `k`."""
        before: Ints = self._climber.labels.copy()
        force(self._model, self._climber, self._waiting, self._log, i, k)
        found: Ints = self._climber.labels.copy()
        self._climber.labels[:] = before
        self._climber.place[:] = table_places(self.problem, before)
        return found
