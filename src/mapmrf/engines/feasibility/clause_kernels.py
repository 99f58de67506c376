"""Clauses: storage, watched literals, and unit propagation.

An atom is the proposition "variable i has state k"; literal ``2 * atom`` asserts it, ``2 * atom + 1`` negates it, and
``literal ^ 1`` is the negation of a literal. A binary variable has one atom, "has state 1"; any other variable has one
per state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare, inlined

Int32s = NDArray[np.int32]
Signs = NDArray[np.int8]

LENGTH, SPREAD, USED, NEXT, LITERALS = 0, 1, 2, 3, 5
"""Offsets in the block of a clause: its length, its LBD (number of decision levels) when it was learnt (0 for input
clauses), whether it was used recently, the next clauses in its two watch lists, and its literals."""

KEPT, KEPT_IF_USED = 2, 6
"""LBD up to which a learnt clause is kept for good, and up to which it is kept if it was used recently."""

DECIDED = -1
"""Reason of a decision or a given literal. A clause is a reason by its position, a literal `p` as ``-2 - p``."""


class SearchCounts:
    """State of a search.

    Attributes
    ----------
    n_trail, queue_at, n_levels
        Literals on the trail, the first not yet propagated, and decision levels.
    end
        Where the next clause is stored.
    clash, other
        The conflict: a clause, or the literal -2 - `clash` together with `other`.
    n_heap, step, stamp, n_open
        Atoms in the heap, the activity increment, the last stamp that marked levels, and atoms of the last level still
        to be resolved in conflict analysis.
    n_conflicts, work
        Conflicts so far, and clauses visited.
    n_learnt, reduce_at, n_reduced
        Learnt clauses, conflicts at which they are next reduced, and number of reductions.
    restart_at, luby, switch_at, stable
        Conflicts at which to restart, position in the Luby sequence, conflicts at which the mode changes, and the mode.
    quick, slow
        Short-term and long-term moving averages of the LBD of learnt clauses.
    most
        Longest conflict-free trail since the mode changed.
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
    """The assigned literals, in order of assignment.

    Attributes
    ----------
    truth : (n_literals,)
        1 if the literal is true, -1 if it is false, else 0.
    level, reason : (n_atoms,)
        Decision level of an atom, and the reason for its value.
    literals, level_at
        The true literals, and their number before each decision.
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
        Blocks of clauses with at least two literals; the first two are watched.
    head : (n_literals,)
        First clause in the watch list of a literal: twice its position, plus which of its watches it is; -1 if none.
    pair_ptr, pair_to
        Binary input clauses: the literals implied by each literal.
    block_begin, block_end : (n_atoms,)
        The atoms of the same variable, of which at most one is true; empty if it has one atom.
    """

    arena: Int32s
    head: Ints
    pair_ptr: Ints
    pair_to: Int32s
    block_begin: Int32s
    block_end: Int32s


@inlined
def assign(trail: Trail, counts: SearchCounts, literal: int, reason: int) -> None:
    """Assign a literal as true."""
    atom = literal >> 1
    trail.truth[literal] = 1
    trail.truth[literal ^ 1] = -1
    trail.level[atom] = counts.n_levels
    trail.reason[atom] = reason
    trail.literals[counts.n_trail] = literal
    counts.n_trail += 1


@inlined
def imply(trail: Trail, counts: SearchCounts, because: int, literal: int) -> bool:
    """Imply one literal by another; False on a conflict."""
    truth = trail.truth[literal]
    if truth < 0:
        counts.clash, counts.other = -2 - because, literal
        return False
    if truth == 0:
        assign(trail, counts, literal, -2 - because)
    return True


@inlined
def watch(arena: Int32s, head: Ints, clause: int, which: int) -> None:
    """Add a clause to the watch list of its first or second literal."""
    literal = arena[clause + LITERALS + which]
    arena[clause + NEXT + which] = head[literal]
    head[literal] = 2 * clause + which


@inlined
def propagate_pairs(trail: Trail, clauses: Clauses, counts: SearchCounts, literal: int) -> bool:
    """Propagate a literal through binary clauses and to the other states of its variable."""
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
    """Return the position of an unwatched literal of a clause that is not false; -1 if there is none."""
    for at in range(clause + LITERALS + 2, clause + LITERALS + arena[clause]):
        if truth[arena[at]] >= 0:
            return int(at)
    return -1


@inlined
def propagate_clauses(trail: Trail, arena: Int32s, head: Ints, counts: SearchCounts, false: int) -> bool:
    """Propagate a false literal through the clauses that watch it."""
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
    """Propagate to a fixed point; False on a conflict."""
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
    """List the literals implied by every literal through binary clauses; the offsets `pair_ptr` are restored."""
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
    """Add a clause at decision level 0; False if it contradicts the trail."""
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
    """Add the clauses ``literals[ptr[c]:ptr[c + 1]]`` at decision level 0; False on a contradiction."""
    consistent = True
    for c in range(len(ptr) - 1):
        consistent &= add_clause(trail, clauses, counts, literals[ptr[c] :], ptr[c + 1] - ptr[c])
    return consistent


@inlined
def may_go(arena: Int32s, at: int) -> bool:
    """Return whether a clause may be removed: not if its LBD is small, or moderate and it was used recently."""
    spread = arena[at + SPREAD]
    return bool(spread > KEPT_IF_USED or (spread > KEPT and arena[at + USED] == 0))


@bare
def mark_worst(arena: Int32s, end: int, spread: int, most: int, quota: int) -> None:
    """Mark learnt clauses for removal: all above an LBD, and `quota` clauses at it; LBDs are capped at `most`."""
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
    """Remove marked and satisfied clauses, compact the arena, and rebuild the watch lists, at decision level 0."""
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
    """Remove most of the less useful learnt clauses; `sizes` is scratch to count them by LBD."""
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
