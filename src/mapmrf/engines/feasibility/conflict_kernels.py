"""Conflict-driven clause learning: decide, propagate, learn from conflicts, and restart."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clause_kernels import (
    DECIDED,
    LITERALS,
    Clauses,
    SearchCounts,
    Trail,
    assign,
    propagate,
    reduce,
)
from mapmrf.engines.feasibility.learning_kernels import Lesson, backtrack, learn
from mapmrf.engines.feasibility.ranking_kernels import DECAY, Ranking, leave

OPEN, FEASIBLE, INFEASIBLE, FULL = 0, 1, 2, 3
"""Outcomes of a call: the work limit is reached, a feasible labelling is found, none exists, or the arena is too small
for another clause."""

QUICK, SLOW, MARGIN, LEAST = 1.0 / 32.0, 1.0 / 4096.0, 1.1, 4
"""Weights of the last conflict in the moving averages, the ratio of the short-term to the long-term average at which to
restart, and the minimum number of conflicts between restarts."""

CALM, MODE = 200, 1000
"""Conflicts between restarts in the stable mode, times a term of Luby's sequence, and in the very first mode."""

REDUCE, REDUCE_MORE = 2000, 300
"""Conflicts before the first reduction of learnt clauses, and the increment before each further one."""


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
def note_conflict(counts: SearchCounts, spread: int) -> None:
    """Count a conflict whose learnt clause has this LBD."""
    counts.n_conflicts += 1
    counts.step /= DECAY
    counts.quick += QUICK * (spread - counts.quick)
    share = max(SLOW, 1.0 / counts.n_conflicts)
    counts.slow += share * (spread - counts.slow)


@inlined
def is_restart_due(counts: SearchCounts) -> bool:
    """Return whether a restart is due."""
    if counts.n_conflicts < counts.restart_at:
        return False
    return counts.stable == 1 or counts.quick > MARGIN * counts.slow


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
    counts.restart_at = counts.n_conflicts + (CALM * luby(counts.luby) if counts.stable == 1 else LEAST)


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
            note_conflict(counts, learn(trail, clauses, lesson, ranking, counts))
            continue
        if counts.work >= end:
            return OPEN
        if is_restart_due(counts):
            restart(trail, ranking, counts)
            continue
        if counts.n_conflicts >= counts.reduce_at and counts.n_levels == 0:
            counts.n_reduced += 1
            counts.reduce_at = counts.n_conflicts + REDUCE + REDUCE_MORE * counts.n_reduced
            reduce(trail, clauses, counts, sizes)
        literal = pick(trail, clauses, ranking, counts)
        if literal < 0:
            return FEASIBLE
        counts.work += 1
        trail.level_at[counts.n_levels] = counts.n_trail
        counts.n_levels += 1
        assign(trail, counts, literal, DECIDED)


@bare
def rewind(state: Conflicts) -> None:
    """Backtrack to decision level 0."""
    backtrack(state.trail, state.ranking, state.counts, 0)


@bare
def make_room(state: Conflicts) -> None:
    """Restart and remove less useful clauses; requires that propagation is complete."""
    trail, clauses, ranking, _, sizes, counts = state
    backtrack(trail, ranking, counts, 0)
    if propagate(trail, clauses, counts):
        reduce(trail, clauses, counts, sizes)
