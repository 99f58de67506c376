"""At-most-one groups of literals, and their matching with disjoint clauses."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clause_kernels import Int32s


class Exclusions(NamedTuple):
    """Mutually exclusive literals, as binary implications: see `Clauses`."""

    pair_ptr: Ints
    pair_to: Int32s


class MatchingRoom(NamedTuple):
    """Scratch to match clauses with groups.

    Attributes
    ----------
    clause_of, source : (n_groups,)
        The clause matched with each group, or -1, and the clause from which a search reached it.
    seen : (n_groups,)
        One more than the clause whose search reached each group last.
    queue : (n_clauses,)
        Queue of the search.
    """

    clause_of: Ints
    source: Ints
    seen: Ints
    queue: Ints


class GroupRoom(NamedTuple):
    """Scratch to grow a group.

    Attributes
    ----------
    common : (n_literals,)
        Number of group members, or of neighbours of its first member, that each literal excludes.
    order, members : (n_literals,)
        Candidates in the order in which they are tried, and the members.
    free : (n_literals,)
        Literals that may join.
    """

    common: Ints
    order: Ints
    members: Ints
    free: Bools


@inlined
def count_neighbours(pairs: Exclusions, common: Ints, literal: int, change: int) -> None:
    """Add `change` to the counts of all literals that exclude this one."""
    for at in range(pairs.pair_ptr[literal], pairs.pair_ptr[literal + 1]):
        common[pairs.pair_to[at] ^ 1] += change


@inlined
def list_candidates(pairs: Exclusions, room: GroupRoom, first: int) -> int:
    """List the free literals that exclude the first one, those with most common neighbours first."""
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
    """Grow a maximal group of free literals around the first one; return its size."""
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
    """Compute the size of the group around every literal."""
    for literal in range(len(sizes)):
        sizes[literal] = grow(pairs, room, literal)


@bare
def partition(pairs: Exclusions, room: GroupRoom, order: Ints, group: Ints) -> int:
    """Assign a group to every literal, in the given order; return the number of groups."""
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
    """Greedily choose clauses without common literals."""
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
    """Return whether all clauses can be matched with distinct groups of their literals."""
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
    """Return an unmatched group at the end of an alternating path from a clause, or -1."""
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
