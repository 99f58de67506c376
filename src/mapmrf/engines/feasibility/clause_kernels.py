"""Clauses: how they are stored and watched, and what they imply.

An atom is a yes-or-no question, "has variable i state k?"; literal ``2 * atom`` is its yes, ``2 * atom + 1`` its no,
and ``literal ^ 1`` the opposite of a literal. A variable of two states has one atom, "has it state 1?"; another one has
an atom for each state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Ints
from mapmrf.kernels.jit import bare, inlined

Int32s = NDArray[np.int32]
Signs = NDArray[np.int8]

LENGTH, SPREAD, USED, NEXT, LITERALS = 0, 1, 2, 3, 5
"""Places in the block of a clause: its length, how many levels its literals had when it was learnt (0 if it is given),
whether it was used lately, the next clauses in the two lists of watches it is in, and its literals."""

KEPT, KEPT_IF_USED = 2, 6
"""Spread up to which a clause that is learnt is kept for good, and up to which it is kept if it was used lately."""

DECIDED = -1
"""Reason of a literal that was chosen, or given. A clause is a reason as its place; a literal `p` as ``-2 - p``."""


class SearchCounts:
    """Where a search stands.

    Attributes
    ----------
    n_trail, queue_at, n_levels
        Literals that hold, the first whose consequences are not drawn yet, and decisions that they rest on.
    end
        Where the next clause is stored.
    clash, other
        What cannot be satisfied: a clause, or the literal -2 - `clash` together with `other`.
    n_heap, step, stamp, n_open
        Atoms in the heap, what an atom's activity rises by, the last number that marked levels, and atoms of the last
        level that wait to be resolved in the analysis of a conflict.
    n_conflicts, work
        Conflicts so far, and clauses looked at.
    n_learnt, reduce_at, n_reduced
        Clauses learnt and kept, conflicts at which some of them go, and how often that happened.
    restart_at, luby, switch_at, stable
        Conflicts at which the search begins anew, how often it has, conflicts at which its mode changes, and the mode.
    quick, slow
        Running means of the spread of learnt clauses.
    most
        Literals of the longest trail without conflict since the mode changed.
    """

    n_trail: int
    queue_at: int
    n_levels: int
    end: int
    clash: int
    other: int
    n_heap: int
    step: float
    stamp: int
    n_open: int
    n_conflicts: int
    work: int
    n_learnt: int
    reduce_at: int
    n_reduced: int
    restart_at: int
    luby: int
    switch_at: int
    stable: int
    quick: float
    slow: float
    most: int


class Trail(NamedTuple):
    """What holds, in the order in which it was found.

    Attributes
    ----------
    truth : (n_literals,)
        1 if the literal holds, -1 if its opposite does, else 0.
    level, reason : (n_atoms,)
        On how many decisions an atom's value rests, and what implied it.
    literals, level_at
        The literals that hold, and how many there were before each decision.
    """

    truth: Signs
    level: Int32s
    reason: Ints
    literals: Int32s
    level_at: Int32s


class Clauses(NamedTuple):
    """The clauses of a search.

    Attributes
    ----------
    arena
        Blocks of clauses of at least two literals; the first two literals are watched.
    head : (n_literals,)
        The first clause that watches a literal: twice its place, plus which of the two watches it is; -1 if none.
    pair_ptr, pair_to
        Clauses of two literals that were given: the literals that each one implies.
    block_begin, block_end : (n_atoms,)
        The atoms of the same variable, of which at most one holds; empty if it has one atom.
    """

    arena: Int32s
    head: Ints
    pair_ptr: Ints
    pair_to: Int32s
    block_begin: Int32s
    block_end: Int32s


@inlined
def assign(trail: Trail, counts: SearchCounts, literal: int, reason: int) -> None:
    """Let a literal hold."""
    atom = literal >> 1
    trail.truth[literal] = 1
    trail.truth[literal ^ 1] = -1
    trail.level[atom] = counts.n_levels
    trail.reason[atom] = reason
    trail.literals[counts.n_trail] = literal
    counts.n_trail += 1


@inlined
def imply(trail: Trail, counts: SearchCounts, because: int, literal: int) -> bool:
    """Let one literal hold because of another one; False if that is a conflict."""
    truth = trail.truth[literal]
    if truth < 0:
        counts.clash, counts.other = -2 - because, literal
        return False
    if truth == 0:
        assign(trail, counts, literal, -2 - because)
    return True


@inlined
def watch(arena: Int32s, head: Ints, clause: int, which: int) -> None:
    """Let a clause watch its first or second literal."""
    literal = arena[clause + LITERALS + which]
    arena[clause + NEXT + which] = head[literal]
    head[literal] = 2 * clause + which


@inlined
def propagate_pairs(trail: Trail, clauses: Clauses, counts: SearchCounts, literal: int) -> bool:
    """Draw the consequences of a literal in clauses of two, and for the other states of its variable."""
    atom = literal >> 1
    if literal & 1 == 0:
        for other in range(clauses.block_begin[atom], clauses.block_end[atom]):
            if other != atom and not imply(trail, counts, literal, 2 * other + 1):
                return False
    for at in range(clauses.pair_ptr[literal], clauses.pair_ptr[literal + 1]):
        if not imply(trail, counts, literal, clauses.pair_to[at]):
            return False
    counts.work += 1 + ((clauses.pair_ptr[literal + 1] - clauses.pair_ptr[literal]) >> 2)
    return True


@inlined
def replacement(arena: Int32s, truth: Signs, clause: int) -> int:
    """Where in a clause, beside what it watches, there is a literal that is not false; -1 if nowhere."""
    for at in range(clause + LITERALS + 2, clause + LITERALS + arena[clause]):
        if truth[arena[at]] >= 0:
            return int(at)
    return -1


@inlined
def propagate_clauses(trail: Trail, arena: Int32s, head: Ints, counts: SearchCounts, false: int) -> bool:
    """Draw the consequences of a literal that does not hold, in the clauses that watch it."""
    truth = trail.truth
    node, before = head[false], -1
    while node >= 0:
        clause, which = node >> 1, node & 1
        after = arena[clause + NEXT + which]
        other = arena[clause + LITERALS + 1 - which]
        counts.work += 1
        if truth[other] > 0:
            before, node = node, after
            continue
        at = replacement(arena, truth, clause)
        if at >= 0:
            arena[clause + LITERALS + which] = arena[at]
            arena[at] = false
            if before < 0:
                head[false] = after
            else:
                arena[(before >> 1) + NEXT + (before & 1)] = after
            watch(arena, head, clause, which)
        elif truth[other] < 0:
            counts.clash = clause
            return False
        else:
            assign(trail, counts, other, clause)
            before = node
        node = after
    return True


@bare
def propagate(trail: Trail, clauses: Clauses, counts: SearchCounts) -> bool:
    """Draw all consequences of what holds; False after a conflict."""
    while counts.queue_at < counts.n_trail:
        literal = trail.literals[counts.queue_at]
        counts.queue_at += 1
        if not propagate_pairs(trail, clauses, counts, literal):
            return False
        if not propagate_clauses(trail, clauses.arena, clauses.head, counts, literal ^ 1):
            return False
    return True


@bare
def list_pairs(pairs: Ints, pair_ptr: Ints, pair_to: Int32s) -> None:
    """List what every literal implies by clauses of two; `pair_ptr` holds the offsets, and is used up and restored."""
    for c in range(len(pairs)):
        for k in range(2):
            cause = pairs[c, k] ^ 1
            pair_to[pair_ptr[cause]] = pairs[c, 1 - k]
            pair_ptr[cause] += 1
    for literal in range(len(pair_ptr) - 1, 0, -1):
        pair_ptr[literal] = pair_ptr[literal - 1]
    pair_ptr[0] = 0


@bare
def add_clause(trail: Trail, clauses: Clauses, counts: SearchCounts, literals: Int32s, n: int) -> bool:
    """Add a clause where nothing has been decided; False if it contradicts what is known."""
    arena, at = clauses.arena, counts.end
    k = 0
    for literal in literals[:n]:
        if trail.truth[literal] > 0:
            return True
        if trail.truth[literal] == 0:
            arena[at + LITERALS + k] = literal
            k += 1
    if k == 0:
        return False
    if k == 1:
        assign(trail, counts, arena[at + LITERALS], DECIDED)
        return True
    arena[at + LENGTH], arena[at + SPREAD], arena[at + USED] = k, 0, 0
    watch(arena, clauses.head, at, 0)
    watch(arena, clauses.head, at, 1)
    counts.end += LITERALS + k
    return True


@bare
def add_clauses(trail: Trail, clauses: Clauses, counts: SearchCounts, ptr: Ints, literals: Int32s) -> bool:
    """Add the clauses ``literals[ptr[c]:ptr[c + 1]]`` where nothing has been decided; False on a contradiction."""
    consistent = True
    for c in range(len(ptr) - 1):
        consistent &= add_clause(trail, clauses, counts, literals[ptr[c] :], ptr[c + 1] - ptr[c])
    return consistent


@inlined
def may_go(arena: Int32s, at: int) -> bool:
    """Whether a clause is learnt and worth little: those of a small spread stay if they were used lately, or always."""
    spread = arena[at + SPREAD]
    return bool(spread > KEPT_IF_USED or (spread > KEPT and arena[at + USED] == 0))


@bare
def mark_worst(arena: Int32s, end: int, spread: int, most: int, quota: int) -> None:
    """Mark learnt clauses for removal: all above a spread, and so many that have it; `most` stands for all above."""
    at = 0
    while at < end:
        length = arena[at + LENGTH]
        if may_go(arena, at):
            worse = arena[at + SPREAD] > spread and spread < most
            if worse or (arena[at + SPREAD] >= spread and quota > 0):
                quota -= 0 if worse else 1
                arena[at + USED] = -1
        at += LITERALS + length


@bare
def rebuild(trail: Trail, clauses: Clauses, counts: SearchCounts) -> None:
    """Drop marked clauses and those that hold for good, close the gaps, and watch anew; nothing is decided."""
    arena, truth = clauses.arena, trail.truth
    clauses.head[:] = -1
    at, to, n_learnt = 0, 0, 0
    while at < counts.end:
        length, spread, marked = arena[at + LENGTH], arena[at + SPREAD], arena[at + USED] < 0
        keep, k = not marked, 0
        for place in range(at + LITERALS, at + LITERALS + length):
            literal = arena[place]
            if truth[literal] > 0:
                keep = False
            if keep and truth[literal] == 0:
                arena[to + LITERALS + k] = literal
                k += 1
        at += LITERALS + length
        if keep:
            arena[to + LENGTH], arena[to + SPREAD], arena[to + USED] = k, spread, 0
            n_learnt += spread > 0
            watch(arena, clauses.head, to, 0)
            watch(arena, clauses.head, to, 1)
            to += LITERALS + k
    counts.end, counts.n_learnt = to, n_learnt


@bare
def reduce(trail: Trail, clauses: Clauses, counts: SearchCounts, sizes: Ints) -> None:
    """Drop most of the learnt clauses that are worth little; `sizes` is room to count them by spread."""
    arena, at, n = clauses.arena, 0, 0
    sizes[:] = 0
    while at < counts.end:
        if may_go(arena, at):
            sizes[min(arena[at + SPREAD], len(sizes) - 1)] += 1
            n += 1
        at += LITERALS + arena[at + LENGTH]
    quota, spread = (3 * n) // 5, len(sizes) - 1
    while spread > KEPT + 1 and sizes[spread] < quota:
        quota -= sizes[spread]
        spread -= 1
    mark_worst(arena, counts.end, spread, len(sizes) - 1, quota)
    rebuild(trail, clauses, counts)
