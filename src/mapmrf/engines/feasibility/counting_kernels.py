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
