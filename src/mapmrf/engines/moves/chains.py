"""Search by chains of flips."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import settled
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.chain_kernels import Chain, ChainCursor, follow_chains
from mapmrf.engines.moves.flip_state import begin_at, enqueue_all, is_empty, new_agenda, new_flip_state
from mapmrf.engines.moves.flip_state_kernels import FlipList, refresh
from mapmrf.model.problem import Problem


class ChainSearch:
    """A labelling that improves by best flips and chains of flips, until no chain helps.

    Attributes
    ----------
    flips, agenda, visits, at_rest
        As in `FlipSearch`.
    """

    def __init__(self, problem: Problem, length: int, breadth: int, seed: int) -> None:
        length = min(length, max(1, problem.n_vars))
        self.problem = problem
        self.flips = new_flip_state(problem, length)
        self.agenda = new_agenda(problem.n_vars)
        self.chain = new_chain(problem.n_vars, length, breadth)
        self.random = np.random.default_rng(seed)
        self.visits = 0
        self.at_rest = True
        self._follow_chains, self._refresh = settled(follow_chains), settled(refresh)

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""
        cursor = self.chain.cursor
        cursor.variable = -1
        cursor.state = cursor.second = cursor.improved = 0
        begin_at(self.problem, self.flips, self.agenda, labels)
        self._refresh(self.flips, self.agenda, 0)
        enqueue_all(self.agenda, self.random)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Read about `entries` table entries, visiting at most `max_visits` variables; return the entries read."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = self._follow_chains(self.flips, self.agenda, self.chain, entries - work, max_visits)
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.chain.cursor.variable < 0 and is_empty(self.agenda):
                work += self._go_round()
        return work

    def _go_round(self) -> int:
        """Start from every variable again, in a new order, unless the last round was in vain; return entries read."""
        work = self._refresh(self.flips, self.agenda, 1)
        self.at_rest = self.chain.cursor.improved == 0 and is_empty(self.agenda)
        self.chain.cursor.improved = 0
        if not self.at_rest:
            enqueue_all(self.agenda, self.random)
        return work

    def labels(self) -> Ints:
        """Return the labelling."""
        return self.flips.labels.copy()


def new_chain(n: int, length: int, breadth: int) -> Chain:
    """Allocate a chain of up to `length` flips of `n` variables."""
    return Chain(
        cand=np.zeros(n, dtype=np.int32),
        kind=np.zeros(n, dtype=np.int8),
        gain=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        flips=FlipList(*(np.zeros(length + extra, dtype=np.int64) for extra in (0, 0, 0, 1))),
        breadth=breadth,
        cursor=blank(ChainCursor),
    )
