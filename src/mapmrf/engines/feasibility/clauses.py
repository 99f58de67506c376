"""The hard constraints of a model as clauses over atoms "variable i has state k"."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import bare, inlined
from mapmrf.model.problem import Batch, Problem

CHUNK_LITERALS = 1 << 19  # room for literals when tables are converted to clauses


@dataclass(frozen=True, eq=False)
class Atoms:
    """Mapping from states of variables to literals."""

    literal_of: Ints  # (n_states,): literal of every state; state 0 of a binary variable is the negation of state 1
    first: Ints  # the first atom of every variable
    n_atoms: int
    block_begin: Int32s  # (n_atoms,): the atoms of the same variable; an empty range if the variable is binary
    block_end: Int32s  # (n_atoms,)

    @classmethod
    def of(cls, problem: Problem) -> Atoms:
        """Create one atom per binary variable, and one per state of any other."""
        card, var_ptr = problem.graph.card, problem.graph.var_ptr
        n_atoms = np.where(card == 2, 1, card)
        first = offsets(n_atoms)
        state = np.arange(problem.n_states) - np.repeat(var_ptr[:-1], card)
        binary = np.repeat(card == 2, card)
        literal_of = 2 * np.repeat(first[:-1], card).astype(np.int64) + np.where(binary, 1 - state, 2 * state)
        begin, end = first[:-1].copy(), first[1:].copy()
        end[card == 2] = begin[card == 2]
        blocks = (np.repeat(ends, n_atoms).astype(np.int32) for ends in (begin, end))
        return cls(literal_of, first, int(first[-1]), *blocks)


@dataclass(frozen=True, eq=False)
class HardClauses:
    literals: Ints  # the literals of all clauses
    ptr: Ints

    @property
    def lengths(self) -> Ints:
        return np.diff(self.ptr)

    def of_length(self, n: int) -> Ints:
        places = self.ptr[:-1][self.lengths == n]
        return np.asarray(self.literals[places[:, None] + np.arange(n)])

    def longer_than(self, n: int) -> HardClauses:
        lengths = self.lengths
        chosen = lengths > n
        return HardClauses(self.literals[ranges(self.ptr[:-1][chosen], lengths[chosen])], offsets(lengths[chosen]))

    @classmethod
    def joined(cls, parts: list[HardClauses]) -> HardClauses:
        if not parts:
            return cls(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
        return cls(
            np.concatenate([part.literals for part in parts]),
            offsets(np.concatenate([part.lengths for part in parts])),
        )


def variable_clauses(problem: Problem, atoms: Atoms) -> HardClauses:
    """Return clauses that every non-binary variable has a state, and that none has a forbidden one."""
    card, var_ptr = problem.graph.card, problem.graph.var_ptr
    several = np.flatnonzero(card != 2)
    some = atoms.literal_of[ranges(var_ptr[several], card[several])]
    out = atoms.literal_of[~problem.feasible_v] ^ 1
    lengths = np.concatenate([card[several], np.ones(len(out), dtype=np.int64)])
    return HardClauses(np.concatenate([some, out]), offsets(lengths))


def factor_clauses(problem: Problem, atoms: Atoms) -> Iterator[HardClauses]:
    """Yield the clauses of all hard factors, in chunks; shared tables are converted once."""
    for batch in problem.batches:
        if batch.hard:
            yield from _batch_clauses(problem, atoms, batch)


def _batch_clauses(problem: Problem, atoms: Atoms, batch: Batch) -> Iterator[HardClauses]:
    theta_t, card = problem.graph.theta_t, np.array(batch.shape, dtype=np.int64)
    stride = np.concatenate([np.cumprod(card[:0:-1])[::-1], [1]]).astype(np.int64)
    chosen, digit = np.zeros((2, batch.arity), dtype=np.int64)
    first, is_free = (np.cumsum(card) - card).astype(np.int64), np.zeros(batch.arity, dtype=bool)
    table_at, table_of = np.unique(batch.table_at, return_inverse=True)
    by_table = np.argsort(table_of, kind="stable")
    begins = offsets(np.bincount(table_of, minlength=len(table_at)))
    position, state = np.repeat(np.arange(batch.arity), card), ranges(np.zeros(batch.arity), card)
    longest = batch.arity + max(batch.shape)
    step = max(1, CHUNK_LITERALS // (batch.n_configs * longest))
    for begin in range(0, len(table_at), step):
        some = np.ascontiguousarray(table_at[begin : begin + step], dtype=np.int64)
        forbidden = int(np.isneginf(theta_t[some[:, None] + np.arange(batch.n_configs)]).sum())
        room = TableCover(
            card, stride, first, chosen, is_free, digit,
            covered=np.zeros(batch.n_configs, dtype=bool),
            literals=np.zeros(forbidden * longest, dtype=np.int32),
            ptr=np.zeros(forbidden + 1, dtype=np.int64),
            table_ptr=np.zeros(len(some) + 1, dtype=np.int64),
        )  # fmt: skip
        cover_tables(theta_t, some, room)
        factors = by_table[begins[begin] : begins[begin + len(some)]]
        for at in range(0, len(factors), CHUNK_LITERALS):
            mine = factors[at : at + CHUNK_LITERALS]
            table = table_of[mine] - begin
            counts = np.diff(room.table_ptr)[table]
            clause = ranges(room.table_ptr[table], counts)
            lengths = np.diff(room.ptr[: room.table_ptr[-1] + 1])[clause]
            found = room.literals[ranges(room.ptr[clause], lengths)]
            factor = np.repeat(np.repeat(mine, counts), lengths)
            states = problem.graph.var_ptr[batch.scope[factor, position[found >> 1]]] + state[found >> 1]
            yield HardClauses(atoms.literal_of[states] ^ (found & 1), offsets(lengths))


# -- Clauses for the forbidden entries of a table ---------------------------------------------------------------------
# A clause rules out a box of configurations: positions that it does not mention are free, the others are fixed to one
# state, except for at most one position, which has all states that the rest of the box forbids.


class TableCover(NamedTuple):
    """The shape of some tables, scratch to walk through their boxes, and their clauses."""

    card: Ints  # (arity,): number of states of each position
    stride: Ints  # (arity,): its stride in the table
    first: Ints  # (arity,): the offset of its states if the states of all positions are numbered
    chosen: Ints  # (arity,): state of each position in the current box
    is_free: Bools  # (arity,): whether it is free
    digit: Ints  # (arity,): the position of the walk
    covered: Bools  # entries of the current table that are already ruled out
    literals: Int32s  # for each clause, twice the number of a position's state, plus one for a negated literal
    ptr: Ints
    table_ptr: Ints  # offsets of the clauses' literals and of the tables' clauses


@inlined
def step_box(shape: TableCover, place: int) -> int:
    """Return the next entry of the current box; -1 after the last."""
    for k in range(len(shape.card) - 1, -1, -1):
        if shape.is_free[k]:
            shape.digit[k] += 1
            if shape.digit[k] < shape.card[k]:
                return int(place + shape.stride[k])
            shape.digit[k] = 0
            place -= (shape.card[k] - 1) * shape.stride[k]
    return -1


@inlined
def base_of(shape: TableCover) -> int:
    """Return the first entry of the current box, where the walk begins."""
    place = 0
    for k in range(len(shape.card)):
        shape.digit[k] = 0
        if not shape.is_free[k]:
            place += shape.chosen[k] * shape.stride[k]
    return place


@inlined
def is_forbidden(theta: Floats, shape: TableCover) -> bool:
    """Return whether all entries of the current box are -inf."""
    place = base_of(shape)
    while place >= 0:
        if theta[place] > -float("inf"):
            return False
        place = step_box(shape, place)
    return True


@inlined
def cover_box(shape: TableCover) -> None:
    place = base_of(shape)
    while place >= 0:
        shape.covered[place] = True
        place = step_box(shape, place)


@inlined
def widest(theta: Floats, shape: TableCover) -> int:
    """Return the position with the fewest allowed states, to be written by these if that is shorter; or -1."""
    best, fewest = -1, 0
    for k in range(len(shape.card)):
        if not shape.is_free[k] and shape.card[k] > 2:
            before, left = shape.chosen[k], shape.card[k]
            for s in range(shape.card[k]):
                shape.chosen[k] = s
                left -= is_forbidden(theta, shape)
            shape.chosen[k] = before
            if 2 * left < shape.card[k] and (best < 0 or left < fewest):
                best, fewest = k, left
    return best


@inlined
def write_box(theta: Floats, shape: TableCover, at: int) -> int:
    """Write the clause of the current box, and mark what it rules out; return its end."""
    wide = widest(theta, shape)
    for k in range(len(shape.card)):
        if not shape.is_free[k] and k != wide:
            shape.literals[at] = 2 * (shape.first[k] + shape.chosen[k]) + 1
            at += 1
    if wide < 0:
        cover_box(shape)
        return at
    for s in range(shape.card[wide]):
        shape.chosen[wide] = s
        if is_forbidden(theta, shape):
            cover_box(shape)
        else:
            shape.literals[at] = 2 * (shape.first[wide] + s)
            at += 1
    return at


@bare
def cover_tables(theta_t: Floats, table_at: Ints, shape: TableCover) -> None:
    """Write clauses that rule out exactly the forbidden entries of tables of one shape."""
    at, n, size, arity = 0, 0, len(shape.covered), len(shape.card)
    shape.ptr[0] = shape.table_ptr[0] = 0
    for t in range(len(table_at)):
        theta = theta_t[table_at[t] : table_at[t] + size]
        shape.covered[:] = False
        for place in range(size):
            if theta[place] > -float("inf") or shape.covered[place]:
                continue
            for k in range(arity):
                shape.chosen[k] = place // shape.stride[k] % shape.card[k]
                shape.is_free[k] = False
            for k in range(arity):
                shape.is_free[k] = True
                shape.is_free[k] = is_forbidden(theta, shape)
            at = write_box(theta, shape, at)
            n += 1
            shape.ptr[n] = at
        shape.table_ptr[t + 1] = n


# -- Clauses: storage, watched literals, and unit propagation ---------------------------------------------------------
# An atom is the proposition "variable i has state k"; literal ``2 * atom`` asserts it, ``2 * atom + 1`` negates it,
# and ``literal ^ 1`` is the negation of a literal. A binary variable has one atom, "has state 1"; any other
# variable has one per state.

Int32s = NDArray[np.int32]
Signs = NDArray[np.int8]
LENGTH, SPREAD, USED, NEXT, LITERALS = 0, 1, 2, 3, 5
"""Offsets in the block of a clause: its length, its LBD (number of decision levels) when it was learnt (0 for input
clauses), whether it was used recently, the next clauses in its two watch lists, and its literals."""
KEPT = 2  # LBD up to which a learnt clause is kept for good
DECIDED = -1
"""Reason of a decision or a given literal. A clause is a reason by its position, a literal `p` as ``-2 - p``."""


class SearchCounts:
    n_trail: int  # literals on the trail
    queue_at: int  # the first not yet propagated
    n_levels: int  # decision levels
    end: int  # where the next clause is stored
    clash: int  # the conflict: a clause, or the literal -2 - `clash` together with `other`
    other: int
    n_heap: int  # atoms in the heap
    step: float  # the activity increment
    stamp: int  # the last stamp that marked levels
    n_open: int  # atoms of the last level still to be resolved in conflict analysis
    n_conflicts: int
    work: int  # clauses visited
    n_learnt: int  # learnt clauses
    reduce_at: int  # conflicts at which they are next reduced
    n_reduced: int  # number of reductions
    restart_at: int  # conflicts at which to restart
    luby: int  # position in the Luby sequence
    switch_at: int  # conflicts at which the mode changes
    stable: int  # the mode
    quick: float  # short-term moving average of the LBD of learnt clauses
    slow: float  # long-term moving average
    most: int  # longest conflict-free trail since the mode changed


class Trail(NamedTuple):
    """The assigned literals, in order of assignment."""

    truth: Signs  # (n_literals,): 1 if the literal is true, -1 if it is false, else 0
    level: Int32s  # (n_atoms,): decision level of an atom
    reason: Ints  # (n_atoms,): the reason for its value
    literals: Int32s  # the true literals
    level_at: Int32s  # their number before each decision


class Clauses(NamedTuple):
    arena: Int32s  # blocks of clauses with at least two literals; the first two are watched
    # (n_literals,): first clause in the watch list of a literal: twice its position, plus which of its watches it is;
    # -1 if none
    head: Ints
    pair_ptr: Ints
    pair_to: Int32s  # binary input clauses: the literals implied by each literal
    block_begin: Int32s  # (n_atoms,): the atoms of the same variable, of which at most one is true; empty if it has one
    block_end: Int32s  # (n_atoms,)


@inlined
def assign(trail: Trail, counts: SearchCounts, literal: int, reason: int) -> None:
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
def propagate_clauses(trail: Trail, arena: Int32s, head: Ints, counts: SearchCounts, false: int) -> bool:
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
        at = -1  # an unwatched literal that is not false
        for place in range(clause + LITERALS + 2, clause + LITERALS + arena[clause]):
            if truth[arena[place]] >= 0:
                at = place
                break
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
        atom = literal >> 1
        if literal & 1 == 0:  # the other states of its variable
            for other in range(clauses.block_begin[atom], clauses.block_end[atom]):
                if other != atom and not imply(trail, counts, literal, 2 * other + 1):
                    return False
        for at in range(clauses.pair_ptr[literal], clauses.pair_ptr[literal + 1]):
            if not imply(trail, counts, literal, clauses.pair_to[at]):
                return False
        counts.work += 1 + ((clauses.pair_ptr[literal + 1] - clauses.pair_ptr[literal]) >> 2)
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
def add_clauses(trail: Trail, clauses: Clauses, counts: SearchCounts, ptr: Ints, literals: Int32s) -> bool:
    """Add the clauses ``literals[ptr[c]:ptr[c + 1]]`` at decision level 0; False on a contradiction."""
    arena, consistent = clauses.arena, True
    for c in range(len(ptr) - 1):
        at, k, satisfied = counts.end, 0, False
        for literal in literals[ptr[c] : ptr[c + 1]]:
            satisfied |= trail.truth[literal] > 0
            if trail.truth[literal] == 0:
                arena[at + LITERALS + k] = literal
                k += 1
        if satisfied:
            continue
        if k == 0:
            consistent = False
        elif k == 1:
            assign(trail, counts, arena[at + LITERALS], DECIDED)
        else:
            arena[at + LENGTH], arena[at + SPREAD], arena[at + USED] = k, 0, 0
            watch(arena, clauses.head, at, 0)
            watch(arena, clauses.head, at, 1)
            counts.end += LITERALS + k
    return consistent


@inlined
def may_go(arena: Int32s, at: int) -> bool:
    """Return whether a clause may be removed: not if its LBD is small, or moderate and it was used recently."""
    spread = arena[at + SPREAD]
    return bool(spread > 6 or (spread > KEPT and arena[at + USED] == 0))


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
    at = 0
    while at < counts.end:  # mark all above this LBD, and as many of those at it as are left to remove
        if may_go(arena, at):
            worse = arena[at + SPREAD] > spread and spread < len(sizes) - 1
            if worse or (arena[at + SPREAD] >= spread and quota > 0):
                quota -= 0 if worse else 1
                arena[at + USED] = -1
        at += LITERALS + arena[at + LENGTH]
    rebuild(trail, clauses, counts)
