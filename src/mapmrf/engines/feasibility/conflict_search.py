"""Conflict-driven search for a feasible labelling, or a proof that there is none."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, offsets
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clauses import (
    DECIDED,
    LENGTH,
    LITERALS,
    SPREAD,
    USED,
    Atoms,
    Clauses,
    HardClauses,
    Int32s,
    SearchCounts,
    Signs,
    Trail,
    add_clauses,
    assign,
    factor_clauses,
    list_pairs,
    propagate,
    reduce,
    variable_clauses,
    watch,
)
from mapmrf.engines.feasibility.pigeonhole import Groups, clique_clauses, interchangeable, is_overfull, renamed_away
from mapmrf.kernels.heaps_and_forests import sift
from mapmrf.model.problem import Problem

ROOM = 1 << 16  # initial room for learnt clauses in the arena


class ConflictSearch:
    """A search over the hard constraints of a model."""

    def __init__(self, problem: Problem, labels: Ints, atoms: Atoms, given: HardClauses) -> None:
        self.problem, self.atoms, self.given = problem, atoms, given
        self.outcome = OPEN
        self.has_renamed = False  # states excluded since symmetry was broken are excluded only up to renaming
        self._groups: Groups | None = None
        self._counted = self._tried = False
        self._labels = labels
        self.state = self._new_state()
        self.prefer(labels)
        consistent = self.add(given.of_length(1)) and self._add(given.longer_than(2))
        if not consistent or np.any(given.lengths == 0):
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
        counts.n_heap, counts.step = n, 1.0
        counts.reduce_at, counts.switch_at, counts.restart_at = REDUCE, MODE, LEAST
        heap, (phase, best) = np.arange(n, dtype=np.int32), np.zeros((2, n), dtype=np.int8)
        ranking = Ranking(np.zeros(n), heap, heap.copy(), phase, best)
        (level, order), level_at = np.zeros((2, n), dtype=np.int32), np.zeros(n + 1, dtype=np.int32)
        trail = Trail(np.zeros(2 * n, dtype=np.int8), level, np.zeros(n, dtype=np.int64), order, level_at)
        literals, met, stack = np.zeros((3, n + 1), dtype=np.int32)
        lesson = Lesson(np.zeros(n, dtype=np.int8), literals, met, stack, np.zeros(n + 2, dtype=np.int64))
        sizes: Ints = np.zeros(64, dtype=np.int64)  # number of LBD values that are distinguished
        pairs = self.given.of_length(2)
        pair_ptr = offsets(np.bincount(pairs.ravel() ^ 1, minlength=2 * n)).astype(np.int64)
        pair_to = np.zeros(pairs.size, dtype=np.int32)
        list_pairs(pairs, pair_ptr, pair_to)
        clauses = Clauses(  # the binary ones; the arena is still empty
            arena=np.zeros(size, dtype=np.int32),
            head=np.full(2 * n, -1, dtype=np.int64),
            pair_ptr=pair_ptr,
            pair_to=pair_to,
            block_begin=self.atoms.block_begin,
            block_end=self.atoms.block_end,
        )
        return Conflicts(trail, clauses, ranking, lesson, sizes, counts)

    def _add(self, more: HardClauses) -> bool:
        ptr, literals = more.ptr.astype(np.int64), more.literals.astype(np.int32)
        return add_clauses(self.state.trail, self.state.clauses, self.state.counts, ptr, literals)

    def add(self, units: Ints) -> bool:
        """Add unit clauses before the search; False if they contradict it."""
        return self._add(HardClauses(units.ravel(), np.arange(units.size + 1)))

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
        # Conflicts after which symmetry between states is broken: easy models keep the preferred states
        if self.outcome == OPEN and not self._tried and self.state.counts.n_conflicts >= 1000:
            self._rename()
        if self.outcome == OPEN:
            self.outcome = search(self.state, work)
        if self.outcome == FULL:
            self.outcome = OPEN
            trail, clauses, ranking, _, sizes, counts = self.state
            backtrack(trail, ranking, counts, 0)
            if propagate(trail, clauses, counts):
                reduce(trail, clauses, counts, sizes)
            if 2 * counts.end > len(clauses.arena):
                clauses = clauses._replace(arena=np.concatenate([clauses.arena, np.zeros_like(clauses.arena)]))
                self.state = self.state._replace(clauses=clauses)
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
        backtrack(self.state.trail, self.state.ranking, self.state.counts, 0)
        self.has_renamed = True
        if not self.add(self.atoms.literal_of[out] ^ 1):
            self.outcome = INFEASIBLE

    @property
    def n_conflicts(self) -> int:
        return int(self.state.counts.n_conflicts)

    @property
    def work(self) -> int:
        return int(self.state.counts.work)

    def labels(self) -> Ints:
        assert self.outcome == FEASIBLE
        holds = self.state.trail.truth[self.atoms.literal_of] > 0
        return np.flatnonzero(holds) - self.problem.graph.var_ptr[:-1]

    def excluded(self) -> Bools:
        """Return the states that are known to be in no feasible labelling, (n_states,)."""
        trail, literal = self.state.trail, self.atoms.literal_of
        if self.has_renamed:
            return np.zeros(len(literal), dtype=bool)
        return np.asarray((trail.truth[literal] < 0) & (trail.level[literal >> 1] == 0))


# -- Conflict-driven clause learning: decide, propagate, learn from conflicts, and restart ----------------------------

OPEN, FEASIBLE, INFEASIBLE, FULL = 0, 1, 2, 3
"""Outcomes of a call: the work limit is reached, a feasible labelling is found, none exists, or the arena is too small
for another clause."""
LEAST = 4  # minimum number of conflicts between restarts
MODE, REDUCE = 1000, 2000  # conflicts in the very first mode, and before the first reduction of learnt clauses


class Conflicts(NamedTuple):
    """A conflict-driven search: trail, clauses, decision heuristic, scratch for conflict analysis, and counters."""

    trail: Trail
    clauses: Clauses
    ranking: Ranking
    lesson: Lesson
    sizes: Ints
    counts: SearchCounts


@inlined
def luby(n: int) -> int:
    """Return the n-th term, from 1, of Luby's sequence 1 1 2 1 1 2 4 ..."""
    while True:
        power = 1
        while 2 * power - 1 < n:
            power *= 2
        if 2 * power - 1 == n:
            return power
        n -= power - 1


@inlined
def pick(trail: Trail, clauses: Clauses, ranking: Ranking, counts: SearchCounts) -> int:
    """Return the decision literal, or -1: the most active atom in its saved phase, or a state of its variable."""
    while counts.n_heap > 0:
        atom = leave(ranking, counts)
        if trail.truth[2 * atom] != 0:
            continue
        begin, end = clauses.block_begin[atom], clauses.block_end[atom]
        if begin == end:
            return int(2 * atom + 1 - ranking.phase[atom])
        for other in range(begin, end):
            if ranking.phase[other] == 1 and trail.truth[2 * other] == 0:
                return 2 * other
        return 2 * atom
    return -1


@inlined
def restart(trail: Trail, ranking: Ranking, counts: SearchCounts) -> None:
    """Restart, keeping learnt clauses; when the mode changes, saved phases are set to those of the longest trail."""
    backtrack(trail, ranking, counts, 0)
    if counts.n_conflicts >= counts.switch_at:
        counts.stable = 1 - counts.stable
        counts.switch_at = 2 * counts.n_conflicts + MODE
        for atom in range(len(ranking.phase)):
            ranking.phase[atom] = ranking.best[atom]
        counts.most = 0
    counts.luby += 1
    counts.restart_at = counts.n_conflicts + (200 * luby(counts.luby) if counts.stable == 1 else LEAST)


@bare
def search(state: Conflicts, work: int) -> int:
    """Search until about this many clauses have been visited."""
    trail, clauses, ranking, lesson, sizes, counts = state
    end, room = counts.work + work, len(clauses.arena) - len(lesson.literals) - LITERALS - 1
    while True:
        if counts.end >= room:
            return FULL
        if not propagate(trail, clauses, counts):
            if counts.n_levels == 0:
                return INFEASIBLE
            spread = learn(state)
            counts.n_conflicts += 1
            counts.step /= 0.95  # the decay of activities per conflict
            counts.quick += 1.0 / 32.0 * (spread - counts.quick)
            share = max(1.0 / 4096.0, 1.0 / counts.n_conflicts)
            counts.slow += share * (spread - counts.slow)
            continue
        if counts.work >= end:
            return OPEN
        is_due = counts.stable == 1 or counts.quick > 1.1 * counts.slow
        if is_due and counts.n_conflicts >= counts.restart_at:
            restart(trail, ranking, counts)
            continue
        if counts.n_conflicts >= counts.reduce_at and counts.n_levels == 0:
            counts.n_reduced += 1
            counts.reduce_at = counts.n_conflicts + REDUCE + 300 * counts.n_reduced
            reduce(trail, clauses, counts, sizes)
        literal = pick(trail, clauses, ranking, counts)
        if literal < 0:
            return FEASIBLE
        counts.work += 1
        trail.level_at[counts.n_levels] = counts.n_trail
        counts.n_levels += 1
        assign(trail, counts, literal, DECIDED)


# -- Conflict analysis: learn the clause of the first unique implication point (1-UIP), minimised ---------------------


class Lesson(NamedTuple):
    seen: Signs  # (n_atoms,): atoms seen so far
    literals: Int32s  # (n_atoms + 1,): the learnt clause
    met: Int32s  # (n_atoms + 1,): the atoms to reset afterwards
    stack: Int32s  # (n_atoms + 1,): the atoms whose reasons are to be examined
    stamp: Ints  # (n_atoms + 1,): the last stamp of each level


@inlined
def backtrack(trail: Trail, ranking: Ranking, counts: SearchCounts, level: int) -> None:
    """Backtrack to a decision level, saving phases."""
    if counts.n_levels <= level:
        return
    if trail.level_at[counts.n_levels - 1] > counts.most:  # all before the last decision is conflict-free
        counts.most = trail.level_at[counts.n_levels - 1]
        for at in range(counts.most):
            literal = trail.literals[at]
            ranking.best[literal >> 1] = 1 - (literal & 1)
    begin = trail.level_at[level]
    for at in range(counts.n_trail - 1, begin - 1, -1):
        literal = trail.literals[at]
        trail.truth[literal] = 0
        trail.truth[literal ^ 1] = 0
        ranking.phase[literal >> 1] = 1 - (literal & 1)
        enter(ranking, counts, literal >> 1)
    counts.n_trail = counts.queue_at = begin
    counts.n_levels = level


@inlined
def meet(trail: Trail, lesson: Lesson, ranking: Ranking, counts: SearchCounts, literal: int, n: int) -> int:
    """Process a false literal of a conflict or reason; those of earlier levels join the clause of `n` literals."""
    atom = literal >> 1
    level = trail.level[atom]
    if lesson.seen[atom] == 0 and level > 0:
        lesson.seen[atom] = 1
        rank = ranking.rank
        rank[atom] -= counts.step
        if rank[atom] < -TOO_LARGE:
            for other in range(len(rank)):
                rank[other] /= TOO_LARGE
            counts.step /= TOO_LARGE
        if ranking.where[atom] >= 0:
            place(ranking, counts, atom, ranking.where[atom])
        if level < counts.n_levels:
            lesson.literals[n] = literal
            return n + 1
        counts.n_open += 1
    return n


@bare
def first_implication_point(state: Conflicts) -> int:
    """Write the 1-UIP clause of a conflict, its only literal of the last level first; return its length."""
    trail, clauses, ranking, lesson, _, counts = state
    arena, seen = clauses.arena, lesson.seen
    n, at, reason = 1, counts.n_trail - 1, counts.clash
    counts.n_open = 0
    if reason < 0:
        n = meet(trail, lesson, ranking, counts, counts.other, n)
    while True:
        if reason < 0:
            n = meet(trail, lesson, ranking, counts, (-2 - reason) ^ 1, n)
        else:
            arena[reason + USED] = 1
            for place in range(reason + LITERALS, reason + LITERALS + arena[reason + LENGTH]):
                if trail.truth[arena[place]] < 0:
                    n = meet(trail, lesson, ranking, counts, arena[place], n)
        while seen[trail.literals[at] >> 1] == 0:
            at -= 1
        literal = trail.literals[at]
        at -= 1
        seen[literal >> 1] = 0
        counts.n_open -= 1
        if counts.n_open == 0:
            break
        reason = trail.reason[literal >> 1]
    lesson.literals[0] = literal ^ 1
    return n


@inlined
def is_implied(trail: Trail, arena: Int32s, lesson: Lesson, stamp: int, literal: int, n_met: int) -> int:
    """Check whether a literal is implied by others of the clause; return the number of atoms met, or -1 if not."""
    seen, stack, met = lesson.seen, lesson.stack, lesson.met
    stack[0] = literal >> 1
    n_stack, n_before = 1, n_met
    while n_stack > 0:
        n_stack -= 1
        atom = stack[n_stack]
        reason = trail.reason[atom]
        begin, end = (0, 1) if reason < 0 else (reason + LITERALS, reason + LITERALS + arena[reason + LENGTH])
        for at in range(begin, end):
            other = (-2 - reason if reason < 0 else arena[at]) >> 1
            if other == atom or seen[other] != 0 or trail.level[other] == 0:
                continue
            if trail.reason[other] == DECIDED or lesson.stamp[trail.level[other]] != stamp:
                for back in range(n_before, n_met):
                    seen[met[back]] = 0
                return -1
            seen[other] = 1
            stack[n_stack] = met[n_met] = other
            n_stack += 1
            n_met += 1
    return n_met


@inlined
def minimise(trail: Trail, arena: Int32s, lesson: Lesson, counts: SearchCounts, n: int) -> int:
    """Remove implied literals from the clause and reset the marks; return its length."""
    literals, met = lesson.literals, lesson.met
    counts.stamp += 1
    for k in range(n):
        lesson.stamp[trail.level[literals[k] >> 1]] = counts.stamp
        met[k] = literals[k] >> 1
    n_met, kept = n, 1
    for k in range(1, n):
        literal = literals[k]
        more = -1
        if trail.reason[literal >> 1] != DECIDED:
            more = is_implied(trail, arena, lesson, counts.stamp, literal, n_met)
        if more >= 0:
            n_met = more
        else:
            literals[kept] = literal
            kept += 1
    for at in range(n_met):
        lesson.seen[met[at]] = 0
    return kept


@bare
def learn(state: Conflicts) -> int:
    """Learn from a conflict, backjump, and assert the learnt clause's first literal; return the clause's LBD."""
    trail, clauses, ranking, lesson, _, counts = state
    arena, literals, at = clauses.arena, lesson.literals, counts.end
    n = minimise(trail, arena, lesson, counts, first_implication_point(state))
    counts.stamp += 1
    spread, second = 0, 1  # the literal of the second-highest level is moved to position 1
    for k in range(n):
        level = trail.level[literals[k] >> 1]
        if lesson.stamp[level] != counts.stamp:
            lesson.stamp[level] = counts.stamp
            spread += 1
        if k > 1 and level > trail.level[literals[second] >> 1]:
            second = k
    if n > 1:
        literals[1], literals[second] = literals[second], literals[1]
    if n == 1:
        backtrack(trail, ranking, counts, 0)
        assign(trail, counts, literals[0], DECIDED)
        return spread
    backtrack(trail, ranking, counts, trail.level[literals[1] >> 1])
    arena[at + LENGTH], arena[at + SPREAD], arena[at + USED] = n, spread, 1
    for k in range(n):
        arena[at + LITERALS + k] = literals[k]
    watch(arena, clauses.head, at, 0)
    watch(arena, clauses.head, at, 1)
    counts.end += LITERALS + n
    counts.n_learnt += 1
    assign(trail, counts, literals[0], at)
    return spread


# -- Decision heuristic: the atom most involved in recent conflicts (VSIDS) -------------------------------------------

TOO_LARGE = 1e100  # activity at which all are rescaled


class Ranking(NamedTuple):
    rank: Floats  # (n_atoms,): minus the activity of each atom
    heap: Int32s  # heap of possibly undecided atoms, most active first
    where: Int32s  # the position of each atom in it; -1 if it is not there
    phase: Signs  # (n_atoms,): saved phase of each atom
    best: Signs  # (n_atoms,): its value on the longest conflict-free trail


@inlined
def place(ranking: Ranking, counts: SearchCounts, atom: int, at: int) -> None:
    """Move an atom from a free position of the heap to where its activity belongs; ties stay as they are."""
    sift(atom, at, ranking.heap, ranking.where, counts.n_heap, ranking.rank, ranking.rank)


@inlined
def enter(ranking: Ranking, counts: SearchCounts, atom: int) -> None:
    """Insert an atom into the heap, unless it is there."""
    if ranking.where[atom] < 0:
        counts.n_heap += 1
        place(ranking, counts, atom, counts.n_heap - 1)


@inlined
def leave(ranking: Ranking, counts: SearchCounts) -> int:
    atom = ranking.heap[0]
    ranking.where[atom] = -1
    counts.n_heap -= 1
    if counts.n_heap > 0:
        place(ranking, counts, ranking.heap[counts.n_heap], 0)
    return int(atom)
