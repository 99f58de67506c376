"""Clauses for the forbidden entries of a table.

A clause rules out a box of configurations: positions that it does not mention are free, the others are fixed to one
state, except for at most one position, which has all states that the rest of the box forbids.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clause_kernels import Int32s


class TableShape(NamedTuple):
    """The shape of a table, and scratch to walk through its boxes.

    Attributes
    ----------
    card, stride, first : (arity,)
        Number of states of each position, its stride in the table, and the offset of its states if the states of all
        positions are numbered.
    chosen, is_free, digit : (arity,)
        State of each position in the current box, whether it is free, and the position of the walk.
    """

    card: Ints
    stride: Ints
    first: Ints
    chosen: Ints
    is_free: Bools
    digit: Ints


class CoverRoom(NamedTuple):
    """Output buffers for the clauses.

    Attributes
    ----------
    covered
        Entries of the current table that are already ruled out.
    literals
        For each clause, twice the number of a position's state, plus one for a negated literal.
    ptr, table_ptr
        Offsets of the clauses' literals and of the tables' clauses.
    """

    covered: Bools
    literals: Int32s
    ptr: Ints
    table_ptr: Ints


@inlined
def step_box(shape: TableShape, place: int) -> int:
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
def base_of(shape: TableShape) -> int:
    """Return the first entry of the current box, where the walk begins."""
    place = 0
    for k in range(len(shape.card)):
        shape.digit[k] = 0
        if not shape.is_free[k]:
            place += shape.chosen[k] * shape.stride[k]
    return place


@inlined
def is_forbidden(theta: Floats, shape: TableShape) -> bool:
    """Return whether all entries of the current box are -inf."""
    place = base_of(shape)
    while place >= 0:
        if theta[place] > -float("inf"):
            return False
        place = step_box(shape, place)
    return True


@inlined
def cover_box(shape: TableShape, covered: Bools) -> None:
    """Mark the entries of the current box as covered."""
    place = base_of(shape)
    while place >= 0:
        covered[place] = True
        place = step_box(shape, place)


@inlined
def count_forbidden_states(theta: Floats, shape: TableShape, k: int) -> int:
    """Count the states of a position that the rest of the current box forbids."""
    before, n = shape.chosen[k], 0
    for s in range(shape.card[k]):
        shape.chosen[k] = s
        n += is_forbidden(theta, shape)
    shape.chosen[k] = before
    return n


@inlined
def widest(theta: Floats, shape: TableShape) -> int:
    """Return the position with the fewest allowed states, to be written by these if that is shorter; or -1."""
    best, fewest = -1, 0
    for k in range(len(shape.card)):
        if not shape.is_free[k] and shape.card[k] > 2:
            left = shape.card[k] - count_forbidden_states(theta, shape, k)
            if 2 * left < shape.card[k] and (best < 0 or left < fewest):
                best, fewest = k, left
    return best


@inlined
def write_box(theta: Floats, shape: TableShape, room: CoverRoom, at: int) -> int:
    """Write the clause of the current box, and mark what it rules out; return its end."""
    wide = widest(theta, shape)
    for k in range(len(shape.card)):
        if not shape.is_free[k] and k != wide:
            room.literals[at] = 2 * (shape.first[k] + shape.chosen[k]) + 1
            at += 1
    if wide < 0:
        cover_box(shape, room.covered)
        return at
    for s in range(shape.card[wide]):
        shape.chosen[wide] = s
        if is_forbidden(theta, shape):
            cover_box(shape, room.covered)
        else:
            room.literals[at] = 2 * (shape.first[wide] + s)
            at += 1
    return at


@bare
def cover_tables(theta_t: Floats, table_at: Ints, shape: TableShape, room: CoverRoom) -> None:
    """Write clauses that rule out exactly the forbidden entries of tables of one shape."""
    at, n, size, arity = 0, 0, len(room.covered), len(shape.card)
    room.ptr[0] = room.table_ptr[0] = 0
    for t in range(len(table_at)):
        theta = theta_t[table_at[t] : table_at[t] + size]
        room.covered[:] = False
        for place in range(size):
            if theta[place] > -float("inf") or room.covered[place]:
                continue
            for k in range(arity):
                shape.chosen[k] = place // shape.stride[k] % shape.card[k]
                shape.is_free[k] = False
            for k in range(arity):
                shape.is_free[k] = True
                shape.is_free[k] = is_forbidden(theta, shape)
            at = write_box(theta, shape, room, at)
            n += 1
            room.ptr[n] = at
        room.table_ptr[t + 1] = n
