"""Single-variable ascent in the order of the variables."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import settled
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.ascent_kernels import Climber, Round, RoundCursor, ascend
from mapmrf.engines.moves.move_model import lay_out, table_places
from mapmrf.model.problem import Problem

STEP_ENTRIES = 3_000_000
"""Maximum number of table entries read per run: some 40 ms."""


class Ascent:
    """A labelling that ascends by changes of single variables.

    Attributes
    ----------
    labels : (n_vars,)
        The current labelling.
    visits
        Variables visited so far, over all restarts.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.visits = 0
        self._model = lay_out(problem)
        self._climber = new_climber(problem)
        stretch = 1 + math.isqrt(problem.n_vars)
        marked, marks_in = np.zeros(problem.n_vars, dtype=bool), np.zeros(stretch, dtype=np.int64)
        self._marks = Round(marked, marks_in, stretch, blank(RoundCursor))
        self._ascend = settled(ascend)

    @property
    def labels(self) -> Ints:
        """The current labelling."""
        return self._climber.labels

    @property
    def at_optimum(self) -> bool:
        """Whether no single change helps."""
        return self._marks.cursor.n_marked == 0

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling, with every variable marked."""
        n, marks = self.problem.n_vars, self._marks
        self._climber.labels[:] = labels
        self._climber.place[:] = table_places(self.problem, self._climber.labels)
        marks.marked[:] = True
        marks.marks_in[:] = np.bincount(np.arange(n) // marks.stretch, minlength=len(marks.marks_in))
        marks.cursor.n_marked, marks.cursor.variable = n, 0

    def run(self, max_visits: int, entries: int = STEP_ENTRIES) -> None:
        """Visit marked variables until none is left, or a limit on visits or table entries is reached."""
        self.visits += self._ascend(self._model, self._climber, self._marks, max_visits, entries)


def new_climber(problem: Problem) -> Climber:
    """Return a climber with all labels zero."""
    widest = int(problem.graph.card.max(initial=1))
    return Climber(
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        broken=np.zeros(widest, dtype=np.int64),
        score=np.zeros(widest),
    )
