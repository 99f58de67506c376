"""Conflict analysis: learn the clause of the first unique implication point (1-UIP), minimised."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clause_kernels import (
    DECIDED,
    LENGTH,
    LITERALS,
    SPREAD,
    USED,
    Clauses,
    Int32s,
    SearchCounts,
    Signs,
    Trail,
    assign,
    watch,
)
from mapmrf.engines.feasibility.ranking_kernels import Ranking, bump, enter


class Lesson(NamedTuple):
    """Scratch for conflict analysis.

    Attributes
    ----------
    seen : (n_atoms,)
        Atoms seen so far.
    literals, met, stack : (n_atoms + 1,)
        The learnt clause, the atoms to reset afterwards, and those whose reasons are to be examined.
    stamp : (n_atoms + 1,)
        The last stamp of each level.
    """

    seen: Signs
    literals: Int32s
    met: Int32s
    stack: Int32s
    stamp: Ints


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
        bump(ranking, counts, atom)
        if level < counts.n_levels:
            lesson.literals[n] = literal
            return n + 1
        counts.n_open += 1
    return n


@inlined
def meet_all(
    trail: Trail, arena: Int32s, lesson: Lesson, ranking: Ranking, counts: SearchCounts, reason: int, n: int
) -> int:  # fmt: skip
    """Process the false literals of a reason, a clause or a literal; return the length of the learnt clause."""
    if reason < 0:
        return meet(trail, lesson, ranking, counts, (-2 - reason) ^ 1, n)
    arena[reason + USED] = 1
    for at in range(reason + LITERALS, reason + LITERALS + arena[reason + LENGTH]):
        if trail.truth[arena[at]] < 0:
            n = meet(trail, lesson, ranking, counts, arena[at], n)
    return n


@bare
def first_implication_point(
    trail: Trail, clauses: Clauses, lesson: Lesson, ranking: Ranking, counts: SearchCounts
) -> int:  # fmt: skip
    """Write the 1-UIP clause of a conflict, its only literal of the last level first; return its length."""
    arena, seen = clauses.arena, lesson.seen
    n, at, reason = 1, counts.n_trail - 1, counts.clash
    counts.n_open = 0
    if reason < 0:
        n = meet(trail, lesson, ranking, counts, counts.other, n)
    while True:
        n = meet_all(trail, arena, lesson, ranking, counts, reason, n)
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


@inlined
def spread_of(trail: Trail, lesson: Lesson, counts: SearchCounts, n: int) -> int:
    """Return the LBD of a clause; its literal of the second-highest level is moved to position 1."""
    literals, level = lesson.literals, trail.level
    counts.stamp += 1
    spread, second = 0, 1
    for k in range(n):
        at = level[literals[k] >> 1]
        if lesson.stamp[at] != counts.stamp:
            lesson.stamp[at] = counts.stamp
            spread += 1
        if k > 1 and at > level[literals[second] >> 1]:
            second = k
    if n > 1:
        literals[1], literals[second] = literals[second], literals[1]
    return spread


@bare
def learn(trail: Trail, clauses: Clauses, lesson: Lesson, ranking: Ranking, counts: SearchCounts) -> int:
    """Learn from a conflict, backjump, and assert the learnt clause's first literal; return the clause's LBD."""
    arena, literals, at = clauses.arena, lesson.literals, counts.end
    n = first_implication_point(trail, clauses, lesson, ranking, counts)
    n = minimise(trail, arena, lesson, counts, n)
    spread = spread_of(trail, lesson, counts, n)
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
