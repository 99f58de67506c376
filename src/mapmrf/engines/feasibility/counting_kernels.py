"""Groups of literals of which at most one holds, and clauses without a literal in common."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Ints
from mapmrf.engines.feasibility.clause_kernels import Int32s
from mapmrf.kernels.jit import bare, inlined


class Exclusions(NamedTuple):
    """Which literals exclude each other, as implications between pairs: see `Clauses`."""

    pair_ptr: Ints
    pair_to: Int32s


class MatchingRoom(NamedTuple):
    """Room to match clauses with groups.

    Attributes
    ----------
    clause_of, source : (n_groups,)
        The clause that has each group, or -1, and the clause that a search came to the group from.
    seen : (n_groups,)
        One more than the clause whose search met each group last.
    queue : (n_clauses,)
        Clauses that a search looks at.
    """

    clause_of: Ints
    source: Ints
    seen: Ints
    queue: Ints


class GroupRoom(NamedTuple):
    """Room to grow a group.

    Attributes
    ----------
    common : (n_literals,)
        How many members of the group, or neighbours of its first member, each literal excludes.
    order, members : (n_literals,)
        Candidates in the order in which they are tried, and the members.
    free : (n_literals,)
        Which literals may join.
    """

    common: Ints
    order: Ints
    members: Ints
    free: Bools


@inlined
def count_neighbours(pairs: Exclusions, common: Ints, literal: int, change: int) -> None:
    """Add to the counts of all literals that exclude this one."""
    for at in range(pairs.pair_ptr[literal], pairs.pair_ptr[literal + 1]):
        common[pairs.pair_to[at] ^ 1] += change


@inlined
def list_candidates(pairs: Exclusions, room: GroupRoom, first: int) -> int:
    """List the free literals that exclude the first one, those with most common neighbours in front."""
    common, order = room.common, room.order
    begin, end = pairs.pair_ptr[first], pairs.pair_ptr[first + 1]
    for at in range(begin, end):
        count_neighbours(pairs, common, pairs.pair_to[at] ^ 1, 1)
    n = 0
    for at in range(begin, end):
        literal = pairs.pair_to[at] ^ 1
        if not room.free[literal]:
            continue
        to = n
        while to > 0 and common[order[to - 1]] < common[literal]:
            order[to] = order[to - 1]
            to -= 1
        order[to] = literal
        n += 1
    for at in range(begin, end):
        count_neighbours(pairs, common, pairs.pair_to[at] ^ 1, -1)
    return n


@bare
def grow(pairs: Exclusions, room: GroupRoom, first: int) -> int:
    """Write a maximal group of free literals around the first one; returns its size."""
    n_candidates = list_candidates(pairs, room, first)
    members, common = room.members, room.common
    members[0], n = first, 1
    count_neighbours(pairs, common, first, 1)
    for k in range(n_candidates):
        literal = room.order[k]
        if common[literal] >= n and (k == 0 or literal != room.order[k - 1]):
            members[n] = literal
            n += 1
            count_neighbours(pairs, common, literal, 1)
    for k in range(n):
        count_neighbours(pairs, common, members[k], -1)
    return n


@bare
def group_sizes(pairs: Exclusions, room: GroupRoom, sizes: Ints) -> None:
    """The size of the group around every literal."""
    for literal in range(len(sizes)):
        sizes[literal] = grow(pairs, room, literal)


@bare
def partition(pairs: Exclusions, room: GroupRoom, order: Ints, group: Ints) -> int:
    """Give every literal a group, those of the first ones in the order first; returns the number of groups."""
    n_groups = 0
    for first in order:
        if not room.free[first]:
            continue
        n = grow(pairs, room, first)
        for k in range(n):
            group[room.members[k]] = n_groups
            room.free[room.members[k]] = False
        n_groups += 1
    return n_groups


@bare
def choose_disjoint(ptr: Ints, literals: Ints, taken: Bools, chosen: Bools) -> None:
    """Choose clauses that have no literal in common, the first ones first."""
    for c in range(len(ptr) - 1):
        chosen[c] = True
        for at in range(ptr[c], ptr[c + 1]):
            if taken[literals[at]]:
                chosen[c] = False
        if chosen[c]:
            for at in range(ptr[c], ptr[c + 1]):
                taken[literals[at]] = True


@bare
def all_matched(ptr: Ints, group: Ints, room: MatchingRoom) -> bool:
    """Whether every clause can have a group of its own, one of those of its literals."""
    for clause in range(len(ptr) - 1):
        found = open_group(ptr, group, room, clause)
        if found < 0:
            return False
        while found >= 0:
            giver = room.source[found]
            before = -1
            for at in range(ptr[giver], ptr[giver + 1]):
                if room.clause_of[group[at]] == giver:
                    before = group[at]
            room.clause_of[found] = giver
            found = before
    return True


@bare
def open_group(ptr: Ints, group: Ints, room: MatchingRoom, clause: int) -> int:
    """A group without a clause that an alternating path leads to, or -1."""
    room.queue[0], n = clause, 1
    k = 0
    while k < n:
        now = room.queue[k]
        k += 1
        for at in range(ptr[now], ptr[now + 1]):
            g = group[at]
            if room.seen[g] != clause + 1:
                room.seen[g] = clause + 1
                room.source[g] = now
                if room.clause_of[g] < 0:
                    return int(g)
                room.queue[n] = room.clause_of[g]
                n += 1
    return -1
