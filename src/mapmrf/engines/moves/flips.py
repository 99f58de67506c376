"""Search by flips of small connected sets of variables."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import settled
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.flip_kernels import SetCursor, SetSearch, flip_sets
from mapmrf.engines.moves.flip_state import begin_at, enqueue_all, is_empty, new_agenda, new_flip_state
from mapmrf.engines.moves.flip_state_kernels import refresh
from mapmrf.model.problem import Problem


class FlipSearch:
    """A labelling that improves by flips of connected sets until none of up to `depth` variables helps.

    Attributes
    ----------
    flips, agenda
        The table of gains, and the agenda.
    visits
        Flips made and variables visited since the start.
    at_rest
        Whether no change of a connected set helps.
    """

    def __init__(self, problem: Problem, depth: int) -> None:
        self.problem, self.depth = problem, min(depth, max(1, problem.n_vars))
        self.flips = new_flip_state(problem, self.depth)
        self.agenda = new_agenda(problem.n_vars)
        self.sets = new_set_search(problem.n_vars, self.depth)
        self.visits = 0
        self.at_rest = True
        self._flip_sets, self._refresh = settled(flip_sets), settled(refresh)

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""
        self.sets.listed[:] = False
        self.sets.cursor.level, self.sets.cursor.reach, self.sets.cursor.n_best = -1, 1, 0
        begin_at(self.problem, self.flips, self.agenda, labels)
        self._refresh(self.flips, self.agenda, 0)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Read about `entries` table entries, visiting at most `max_visits` variables; return the entries read."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = self._flip_sets(self.flips, self.agenda, self.sets, entries - work, max_visits)
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.sets.cursor.level < 0 and is_empty(self.agenda):
                work += self._go_deeper()
        return work

    def _go_deeper(self) -> int:
        """Continue with larger sets, up to `depth` variables; return the entries read."""
        work = self._refresh(self.flips, self.agenda, 1)
        if is_empty(self.agenda) and self.sets.cursor.reach < self.depth:
            self.sets.cursor.reach += 1
            enqueue_all(self.agenda)
        else:
            self.at_rest = is_empty(self.agenda)
        return work

    def labels(self) -> Ints:
        """Return the labelling, without the trial flips of an unfinished search."""
        found = self.flips.labels.copy()
        for level in range(self.sets.cursor.level):
            found[self.sets.cand[self.sets.spot[level]]] = self.sets.old[level]
        return found


def new_set_search(n: int, depth: int) -> SetSearch:
    """Allocate a search over sets of up to `depth` of `n` variables."""
    levels = [np.zeros(depth + 1, dtype=np.int64) for _ in range(7)]
    return SetSearch(
        cand=np.zeros(max(n, 1), dtype=np.int32),
        listed=np.zeros(n, dtype=bool),
        spot=levels[0],
        end=levels[1],
        state=levels[2],
        old=levels[3],
        top=levels[4],
        total=np.zeros(depth + 1),
        size=np.zeros(depth + 1),
        best_var=levels[5],
        best_state=levels[6],
        cursor=blank(SetCursor),
    )
