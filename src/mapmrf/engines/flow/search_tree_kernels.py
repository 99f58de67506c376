"""The two search trees of a maximum flow, and the queues of their active nodes and orphans."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import inlined

TERMINAL, ORPHAN, FREE = -1, -2, -3
"""Special values of the link to the parent: a root, a node that lost its parent, and one in neither tree."""
NOBODY = -1


class FlowCursor:
    """Progress of a flow: ends of the two queues, the current node and its link, and counters."""

    first_active: int
    last_active: int
    first_orphan: int
    last_orphan: int
    current: int
    place: int
    time: int
    work: int
    paths: int
    sent: float
    lost: float


class SearchTrees(NamedTuple):
    """The two search trees and the flow between them.

    Attributes
    ----------
    excess : (n,)
        Residual capacity from the source if positive, to the sink if negative.
    parent : (n,)
        The link to the parent, or TERMINAL, ORPHAN or FREE.
    in_sink : (n,)
        Whether the node is in the sink tree; meaningless for a free node.
    stamp, dist : (n,)
        When the distance to the root was last computed, and its value.
    next_active, next_orphan : (n,)
        Queues. An active node's entry is NOBODY if it is in no queue, and the node itself if it is the last.
    cursor
        Progress of the flow.
    """

    excess: Floats
    parent: Ints
    in_sink: Bools
    stamp: Ints
    dist: Ints
    next_active: Ints
    next_orphan: Ints
    cursor: FlowCursor


# -- queues -----------------------------------------------------------------------------------------------------------


@inlined
def activate(trees: SearchTrees, i: int) -> None:
    """Add a node to the queue of active nodes."""
    next_active, cursor = trees.next_active, trees.cursor
    if next_active[i] == NOBODY:
        if cursor.last_active == NOBODY:
            cursor.first_active = i
        else:
            next_active[cursor.last_active] = i
        cursor.last_active = i
        next_active[i] = i


@inlined
def next_to_grow(trees: SearchTrees) -> int:
    """Remove and return the next active node that is in a tree; NOBODY if there is none."""
    next_active, cursor = trees.next_active, trees.cursor
    while cursor.first_active != NOBODY:
        i = cursor.first_active
        if next_active[i] == i:
            cursor.first_active = NOBODY
            cursor.last_active = NOBODY
        else:
            cursor.first_active = next_active[i]
        next_active[i] = NOBODY
        if trees.parent[i] != FREE:
            return i
    return NOBODY


@inlined
def orphan_first(trees: SearchTrees, i: int) -> None:
    """Make a node an orphan and put it at the front of the queue."""
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = cursor.first_orphan
    cursor.first_orphan = i
    if cursor.last_orphan == NOBODY:
        cursor.last_orphan = i


@inlined
def orphan_last(trees: SearchTrees, i: int) -> None:
    """Make a node an orphan and put it at the end of the queue."""
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = NOBODY
    if cursor.last_orphan == NOBODY:
        cursor.first_orphan = i
    else:
        trees.next_orphan[cursor.last_orphan] = i
    cursor.last_orphan = i
