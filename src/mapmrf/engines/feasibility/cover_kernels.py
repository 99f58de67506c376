"""Clauses for the forbidden entries of a table.

A clause rules out a box of configurations: positions that it does not mention are free, the others have one state, but
for one position at most, which has all states that the rest of the box forbids.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.feasibility.clause_kernels import Int32s
from mapmrf.kernels.jit import bare, inlined


class TableShape(NamedTuple):
    """The shape of a table, and room to walk through boxes of it.

    Attributes
    ----------
    card, stride, first : (arity,)
        States of each position, what one more of it adds to a place in the table, and where its states begin if the
        states of all positions are numbered.
    chosen, is_free, digit : (arity,)
        State of each position in the present box, whether it is free, and where the walk stands.
    """

    card: Ints
    stride: Ints
    first: Ints
    chosen: Ints
    is_free: Bools
    digit: Ints


class CoverRoom(NamedTuple):
    """Where the clauses are written.

    Attributes
    ----------
    covered
        Which entries of the present table are ruled out already.
    literals
        For each clause, number of a position's state, times two, plus one for "has not".
    ptr, table_ptr
        Offsets of the clauses' literals and of the tables' clauses.
    """

    covered: Bools
    literals: Int32s
    ptr: Ints
    table_ptr: Ints


@inlined
def step_box(shape: TableShape, place: int) -> int:
    """The next place of the present box; -1 after the last."""
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
    """The first place of the present box; the walk begins there."""
    place = 0
    for k in range(len(shape.card)):
        shape.digit[k] = 0
        if not shape.is_free[k]:
            place += shape.chosen[k] * shape.stride[k]
    return place


@inlined
def is_forbidden(theta: Floats, shape: TableShape) -> bool:
    """Whether all entries of the present box are -inf."""
    place = base_of(shape)
    while place >= 0:
        if theta[place] > -float("inf"):
            return False
        place = step_box(shape, place)
    return True


@inlined
def cover_box(shape: TableShape, covered: Bools) -> None:
    """Mark the entries of the present box."""
    place = base_of(shape)
    while place >= 0:
        covered[place] = True
        place = step_box(shape, place)


@inlined
def count_forbidden_states(theta: Floats, shape: TableShape, k: int) -> int:
    """How many states of a position the rest of the present box forbids."""
    before, n = shape.chosen[k], 0
    for s in range(shape.card[k]):
        shape.chosen[k] = s
        n += is_forbidden(theta, shape)
    shape.chosen[k] = before
    return n


@inlined
def widest(theta: Floats, shape: TableShape) -> int:
    """The position to mention by the states that it may have: where these are fewest, and fewer than others; or -1."""
    best, fewest = -1, 0
    for k in range(len(shape.card)):
        if not shape.is_free[k] and shape.card[k] > 2:
            left = shape.card[k] - count_forbidden_states(theta, shape, k)
            if 2 * left < shape.card[k] and (best < 0 or left < fewest):
                best, fewest = k, left
    return best


@inlined
def write_box(theta: Floats, shape: TableShape, room: CoverRoom, at: int) -> int:
    """Write the clause of the present box, and mark what it rules out; returns where it ends."""
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
    """Write clauses for tables of one shape that rule out their forbidden entries, and no others."""
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
