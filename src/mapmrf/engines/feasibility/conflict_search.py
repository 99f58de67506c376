"""Conflict-driven search for a feasible labelling, or a proof that there is none."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets
from mapmrf.compilation.records import blank
from mapmrf.engines.feasibility.clause_kernels import (
    LITERALS,
    Clauses,
    SearchCounts,
    Trail,
    add_clauses,
    list_pairs,
    propagate,
)
from mapmrf.engines.feasibility.clauses import Atoms, HardClauses, factor_clauses, variable_clauses
from mapmrf.engines.feasibility.cliques import clique_clauses
from mapmrf.engines.feasibility.conflict_kernels import (
    FEASIBLE,
    FULL,
    INFEASIBLE,
    LEAST,
    MODE,
    OPEN,
    REDUCE,
    Conflicts,
    make_room,
    rewind,
    search,
)
from mapmrf.engines.feasibility.counting import Groups, is_overfull
from mapmrf.engines.feasibility.learning_kernels import Lesson
from mapmrf.engines.feasibility.ranking_kernels import Ranking, fill
from mapmrf.engines.feasibility.symmetry import interchangeable, renamed_away
from mapmrf.model.problem import Problem

ROOM = 1 << 16
"""Initial room for learnt clauses in the arena."""

STUBBORN = 1000
"""Conflicts after which symmetry between states is broken: easy models keep the preferred states."""

SPREADS = 64
"""Number of LBD values that are distinguished."""


class ConflictSearch:
    """A search over the hard constraints of a model.

    Attributes
    ----------
    problem, atoms, given
        The model, its atoms, and its clauses.
    outcome
        `OPEN`, `FEASIBLE` or `INFEASIBLE`.
    has_renamed
        Whether symmetry between states was broken: states excluded since then are excluded only up to renaming.
    """

    def __init__(self, problem: Problem, labels: Ints, atoms: Atoms, given: HardClauses) -> None:
        self.problem, self.atoms, self.given = problem, atoms, given
        self.outcome = OPEN
        self.has_renamed = False
        self._groups: Groups | None = None
        self._counted = self._tried = False
        self._labels = labels
        self.state = self._new_state()
        self.prefer(labels)
        if not self.add(self.given.of_length(1)) or not self._add_long() or np.any(self.given.lengths == 0):
            self.outcome = INFEASIBLE

    @classmethod
    def of(cls, problem: Problem, labels: Ints) -> ConflictSearch:
        """Create a search over all clauses of a model that tries the states of `labels` first."""
        atoms = Atoms.of(problem)
        parts = [variable_clauses(problem, atoms), *factor_clauses(problem, atoms), clique_clauses(problem, atoms)]
        return cls(problem, labels, atoms, HardClauses.joined(parts))

    def _new_state(self) -> Conflicts:
        n = self.atoms.n_atoms
        long = self.given.longer_than(2)
        size = len(long.literals) + LITERALS * len(long.lengths) + n + ROOM
        counts = blank(SearchCounts)
        counts.step, counts.reduce_at, counts.switch_at, counts.restart_at = 1.0, REDUCE, MODE, LEAST
        ranking = Ranking(
            activity=np.zeros(n),
            heap=np.zeros(n, dtype=np.int32),
            where=np.full(n, -1, dtype=np.int32),
            phase=np.zeros(n, dtype=np.int8),
            best=np.zeros(n, dtype=np.int8),
        )
        fill(ranking, counts)
        return Conflicts(
            _new_trail(n), self._new_clauses(size), ranking, _new_lesson(n), np.zeros(SPREADS, dtype=np.int64), counts
        )

    def _new_clauses(self, size: int) -> Clauses:
        """Return an arena without clauses, but with the binary ones."""
        pairs = self.given.of_length(2)
        n_literals = 2 * self.atoms.n_atoms
        pair_ptr = offsets(np.bincount(pairs.ravel() ^ 1, minlength=n_literals)).astype(np.int64)
        pair_to = np.zeros(pairs.size, dtype=np.int32)
        list_pairs(pairs, pair_ptr, pair_to)
        return Clauses(
            arena=np.zeros(size, dtype=np.int32),
            head=np.full(n_literals, -1, dtype=np.int64),
            pair_ptr=pair_ptr,
            pair_to=pair_to,
            block_begin=self.atoms.block_begin,
            block_end=self.atoms.block_end,
        )

    def _add_long(self) -> bool:
        long, state = self.given.longer_than(2), self.state
        return add_clauses(
            state.trail, state.clauses, state.counts, long.ptr.astype(np.int64), long.literals.astype(np.int32)
        )

    def add(self, units: Ints) -> bool:
        """Add unit clauses before the search; False if they contradict it."""
        literals = units.ravel().astype(np.int32)
        ptr = np.arange(len(literals) + 1, dtype=np.int64)
        return add_clauses(self.state.trail, self.state.clauses, self.state.counts, ptr, literals)

    def prefer(self, labels: Ints) -> None:
        """Save these states as phases, so that they are tried first."""
        literals = self.atoms.literal_of[self.problem.graph.var_ptr[:-1] + labels]
        for phase in (self.state.ranking.phase, self.state.ranking.best):
            phase[:] = 0
            phase[literals >> 1] = 1 - (literals & 1)

    def run(self, work: int) -> int:
        """Visit about this many clauses; return the outcome."""
        if not self._counted and self.outcome == OPEN:
            self._count()
        if self.outcome == OPEN and not self._tried and self.state.counts.n_conflicts >= STUBBORN:
            self._rename()
        if self.outcome == OPEN:
            self.outcome = search(self.state, work)
        if self.outcome == FULL:
            self.outcome = OPEN
            self._enlarge()
        return self.outcome

    def _count(self) -> None:
        """Propagate the given clauses, and apply the counting argument to the rest."""
        state, self._counted = self.state, True
        if not propagate(state.trail, state.clauses, state.counts):
            self.outcome = INFEASIBLE
        elif Groups.worthwhile(state.clauses):
            self._groups = Groups(state.clauses)
            if is_overfull(self._groups, self.given.longer_than(2), state.trail.truth):
                self.outcome = INFEASIBLE

    def _rename(self) -> None:
        """Break the symmetry of interchangeable states along a clique of variables that differ, and its neighbours."""
        self._tried = True
        states = interchangeable(self.problem)
        if self._groups is None or len(states) < 2:
            return
        variable = np.repeat(np.arange(self.problem.n_vars), np.diff(self.atoms.first))
        found = variable[self._groups.largest() >> 1]
        out = renamed_away(self.problem, states, found, self._labels)
        rewind(self.state)
        self.has_renamed = True
        if not self.add(self.atoms.literal_of[out] ^ 1):
            self.outcome = INFEASIBLE

    def _enlarge(self) -> None:
        """Enlarge the arena."""
        make_room(self.state)
        arena = self.state.clauses.arena
        if 2 * self.state.counts.end > len(arena):
            clauses = self.state.clauses._replace(arena=np.concatenate([arena, np.zeros_like(arena)]))
            self.state = self.state._replace(clauses=clauses)

    @property
    def n_conflicts(self) -> int:
        """Conflicts so far."""
        return int(self.state.counts.n_conflicts)

    @property
    def work(self) -> int:
        """Clauses visited so far."""
        return int(self.state.counts.work)

    def labels(self) -> Ints:
        """Return the labelling found."""
        assert self.outcome == FEASIBLE
        holds = self.state.trail.truth[self.atoms.literal_of] > 0
        return np.flatnonzero(holds) - self.problem.graph.var_ptr[:-1]

    def excluded(self) -> Bools:
        """Return the states that are known to be in no feasible labelling, (n_states,)."""
        trail, literal = self.state.trail, self.atoms.literal_of
        if self.has_renamed:
            return np.zeros(len(literal), dtype=bool)
        return np.asarray((trail.truth[literal] < 0) & (trail.level[literal >> 1] == 0))


def _new_trail(n: int) -> Trail:
    return Trail(
        truth=np.zeros(2 * n, dtype=np.int8),
        level=np.zeros(n, dtype=np.int32),
        reason=np.zeros(n, dtype=np.int64),
        literals=np.zeros(n, dtype=np.int32),
        level_at=np.zeros(n + 1, dtype=np.int32),
    )


def _new_lesson(n: int) -> Lesson:
    literals, met, stack = np.zeros((3, n + 1), dtype=np.int32)
    return Lesson(np.zeros(n, dtype=np.int8), literals, met, stack, np.zeros(n + 2, dtype=np.int64))
