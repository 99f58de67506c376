"""Maximum flow by two search trees, one from the source and one from the sink (Boykov and Kolmogorov, 2004).

The trees grow until they touch, flow is sent along the path through them, nodes that have lost the arc to their parent
look for a new one or become free, and the trees grow on. Time stamps and distances keep the paths short.

An arc is saturated when its residual capacity is exactly 0: every path empties one to the last bit, so no tolerance is
needed to terminate. Infinite capacities stay infinite.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.jit import bare, inlined

TERMINAL, ORPHAN, FREE = -1, -2, -3
"""In the place of an arc to the parent: a root, a node whose parent was lost, and one in neither tree."""
NOBODY = -1
FAR = 1 << 60
MAXIMAL, PAUSED, UNBOUNDED = 0, 1, 2
"""Why `send_flow` returns: the flow is maximal, the budget is spent, or a path of infinite capacity was found."""


class Network(NamedTuple):
    """A directed graph, every arc with its reverse.

    Attributes
    ----------
    ptr : (n + 1,)
        The arcs that leave node `i` are those from ``ptr[i]`` to ``ptr[i + 1]``.
    head, sister : (n_arcs,)
        Where an arc leads to, and its reverse.
    residual : (n_arcs,)
        How much more flow it can take.
    """

    ptr: Ints
    head: Ints
    sister: Ints
    residual: Floats


class FlowCursor:
    """How far a flow has come: ends of the two queues, the node under way, and the figures."""

    first_active: int
    last_active: int
    first_orphan: int
    last_orphan: int
    current: int
    time: int
    work: int
    paths: int
    sent: float
    lost: float


class SearchTrees(NamedTuple):
    """The two trees and the flow between them.

    Attributes
    ----------
    excess : (n,)
        Residual capacity from the source if positive, to the sink if negative.
    parent : (n,)
        The arc to the parent, or TERMINAL, ORPHAN or FREE.
    in_sink : (n,)
        Whether the node is in the sink's tree; means nothing for a free node.
    stamp, dist : (n,)
        When the distance to the root was last known, and what it was.
    next_active, next_orphan : (n,)
        Queues. An active node's entry is NOBODY if it is in no queue, and the node itself if it is the last.
    cursor
        How far the flow has come.
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
    """Let the tree grow from a node, when its turn comes."""
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
    """Take the next node that is in a tree from the queue; NOBODY if there is none."""
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
    """Make a node an orphan, to be looked after before all others."""
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = cursor.first_orphan
    cursor.first_orphan = i
    if cursor.last_orphan == NOBODY:
        cursor.last_orphan = i


@inlined
def orphan_last(trees: SearchTrees, i: int) -> None:
    """Make a node an orphan, to be looked after when all others have been."""
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = NOBODY
    if cursor.last_orphan == NOBODY:
        cursor.first_orphan = i
    else:
        trees.next_orphan[cursor.last_orphan] = i
    cursor.last_orphan = i


# -- grow -------------------------------------------------------------------------------------------------------------


@inlined
def grow(network: Network, trees: SearchTrees, i: int) -> int:
    """Add the free neighbours of a node to its tree; return an arc from the source's tree to the sink's, or NOBODY."""
    head, sister, residual = network.head, network.sister, network.residual
    parent, in_sink, stamp, dist = trees.parent, trees.in_sink, trees.stamp, trees.dist
    sink = in_sink[i]
    for a in range(network.ptr[i], network.ptr[i + 1]):
        back = sister[a]
        along = back if sink else a  # flow goes from the source's tree to the sink's
        if residual[along] <= 0.0:
            continue
        j = head[a]
        if parent[j] == FREE:
            in_sink[j] = sink
            parent[j] = back
            stamp[j] = stamp[i]
            dist[j] = dist[i] + 1
            activate(trees, j)
        elif in_sink[j] != sink:
            return along
        elif stamp[j] <= stamp[i] and dist[j] > dist[i]:  # nearer to the root through i
            parent[j] = back
            stamp[j] = stamp[i]
            dist[j] = dist[i] + 1
    return NOBODY


# -- augment ----------------------------------------------------------------------------------------------------------


@inlined
def bottleneck(network: Network, trees: SearchTrees, middle: int) -> float:
    """Residual capacity of the path from root to root through an arc between the trees."""
    head, sister, residual = network.head, network.sister, network.residual
    parent = trees.parent
    least: float = residual[middle]
    i = head[sister[middle]]
    while parent[i] >= 0:
        least = min(least, residual[sister[parent[i]]])
        i = head[parent[i]]
    least = min(least, trees.excess[i])
    i = head[middle]
    while parent[i] >= 0:
        least = min(least, residual[parent[i]])
        i = head[parent[i]]
    least = min(least, -trees.excess[i])
    return least


@inlined
def push(network: Network, trees: SearchTrees, middle: int, amount: float) -> int:
    """Send flow along the path through an arc; below a saturated arc nodes become orphans. Returns its length."""
    head, sister, residual, parent = network.head, network.sister, network.residual, trees.parent
    residual[middle] -= amount
    residual[sister[middle]] += amount
    length = 1
    i = head[sister[middle]]
    while parent[i] >= 0:
        a = parent[i]
        residual[a] += amount
        residual[sister[a]] -= amount
        if residual[sister[a]] <= 0.0:
            orphan_first(trees, i)
        i = head[a]
        length += 1
    trees.excess[i] -= amount
    if trees.excess[i] <= 0.0:
        orphan_first(trees, i)
    i = head[middle]
    while parent[i] >= 0:
        a = parent[i]
        residual[sister[a]] += amount
        residual[a] -= amount
        if residual[a] <= 0.0:
            orphan_first(trees, i)
        i = head[a]
        length += 1
    trees.excess[i] += amount
    if trees.excess[i] >= 0.0:
        orphan_first(trees, i)
    return length


@inlined
def count_flow(cursor: FlowCursor, amount: float) -> None:
    """Add to the flow sent; what is lost in rounding is kept (Neumaier's sum)."""
    total = cursor.sent + amount
    if abs(cursor.sent) >= abs(amount):
        cursor.lost += (cursor.sent - total) + amount
    else:
        cursor.lost += (amount - total) + cursor.sent
    cursor.sent = total


# -- adopt ------------------------------------------------------------------------------------------------------------


@inlined
def distance(head: Ints, trees: SearchTrees, j: int, time: int) -> int:
    """Arcs from a node to the root of its tree, FAR if it hangs on an orphan."""
    parent, stamp = trees.parent, trees.stamp
    d = 0
    while stamp[j] != time:
        a = parent[j]
        d += 1
        if a < 0:
            trees.cursor.work += d
            if a == ORPHAN:
                return FAR
            stamp[j] = time
            trees.dist[j] = 1
            return d
        j = head[a]
    trees.cursor.work += d
    rest: int = trees.dist[j]
    return d + rest


@inlined
def find_parent(network: Network, trees: SearchTrees, i: int) -> int:
    """The arc to the neighbour nearest to the root that can be a node's new parent, or FREE."""
    head, parent, stamp, dist = network.head, trees.parent, trees.stamp, trees.dist
    sink, time = trees.in_sink[i], trees.cursor.time
    nearest, best = FAR, FREE
    for a in range(network.ptr[i], network.ptr[i + 1]):
        j = head[a]
        if parent[j] == FREE or trees.in_sink[j] != sink:
            continue
        if network.residual[a if sink else network.sister[a]] <= 0.0:
            continue
        d = distance(head, trees, j, time)
        if d == FAR:
            continue
        if d < nearest:
            nearest, best = d, a
        while stamp[j] != time:
            stamp[j] = time
            dist[j] = d
            d -= 1
            j = head[parent[j]]
    if best != FREE:
        stamp[i] = time
        dist[i] = nearest + 1
    return best


@inlined
def let_go(network: Network, trees: SearchTrees, i: int) -> None:
    """A node without a parent becomes free: its children are orphans, and neighbours may grow to it again."""
    parent, sink = trees.parent, trees.in_sink[i]
    for a in range(network.ptr[i], network.ptr[i + 1]):
        j = network.head[a]
        up = parent[j]
        if up == FREE or trees.in_sink[j] != sink:
            continue
        if network.residual[a if sink else network.sister[a]] > 0.0:
            activate(trees, j)
        if up >= 0 and network.head[up] == i:
            orphan_last(trees, j)


@inlined
def adopt(network: Network, trees: SearchTrees) -> None:
    """Find a parent for every orphan or let it go, one after another with all that hangs on it."""
    cursor = trees.cursor
    while cursor.first_orphan != NOBODY:
        oldest = cursor.first_orphan
        others, last = trees.next_orphan[oldest], cursor.last_orphan
        trees.next_orphan[oldest] = NOBODY
        cursor.last_orphan = oldest
        while cursor.first_orphan != NOBODY:
            i = cursor.first_orphan
            cursor.first_orphan = trees.next_orphan[i]
            if cursor.first_orphan == NOBODY:
                cursor.last_orphan = NOBODY
            found = find_parent(network, trees, i)
            trees.parent[i] = found
            if found == FREE:
                let_go(network, trees, i)
            cursor.work += 2 + 2 * (network.ptr[i + 1] - network.ptr[i])
        cursor.first_orphan = others
        cursor.last_orphan = last if others != NOBODY else NOBODY


# -- the whole --------------------------------------------------------------------------------------------------------


@bare
def plant(trees: SearchTrees) -> None:
    """Begin both trees: every node with capacity from the source or to the sink is a root."""
    trees.cursor.first_active = trees.cursor.last_active = NOBODY
    trees.cursor.first_orphan = trees.cursor.last_orphan = NOBODY
    trees.cursor.current = NOBODY
    for i in range(len(trees.excess)):
        trees.next_active[i] = NOBODY
        trees.parent[i] = FREE
        trees.stamp[i] = 0
        if trees.excess[i] != 0.0:
            trees.in_sink[i] = trees.excess[i] < 0.0
            trees.parent[i] = TERMINAL
            trees.dist[i] = 1
            activate(trees, i)


@bare
def send_flow(network: Network, trees: SearchTrees, max_work: int, max_paths: int) -> int:
    """Send flow until it is maximal, or so many arcs were looked at or paths found; the next call goes on."""
    cursor = trees.cursor
    end, paths = cursor.work + max_work, 0
    why = MAXIMAL
    while True:
        if cursor.work >= end or paths >= max_paths:
            why = PAUSED
            break
        i = cursor.current
        if i != NOBODY:
            trees.next_active[i] = NOBODY
            cursor.current = NOBODY
        if i == NOBODY or trees.parent[i] == FREE:
            i = next_to_grow(trees)
        if i == NOBODY:
            break
        middle = grow(network, trees, i)
        cursor.work += 2 + network.ptr[i + 1] - network.ptr[i]
        cursor.time += 1
        if middle == NOBODY:
            continue
        trees.next_active[i] = i  # active, but in no queue: it is the next to grow
        cursor.current = i
        amount = bottleneck(network, trees, middle)
        if amount == np.inf:
            why = UNBOUNDED
            break
        count_flow(cursor, amount)
        cursor.work += 4 * push(network, trees, middle, amount)
        adopt(network, trees)
        paths += 1
    cursor.paths += paths
    return why


@bare
def change_terminals(network: Network, trees: SearchTrees, nodes: Ints, source: Floats, sink: Floats) -> None:
    """Add to the capacities from the source and to the sink of some nodes, each named once, and mend the trees.

    Capacities may also be lowered: what is lowered below 0 at one end is added at the other, and the flow counts it.
    """
    cursor, stamp, excess = trees.cursor, trees.stamp, trees.excess
    for k in range(len(nodes)):
        i = nodes[k]
        from_source = source[k] + max(excess[i], 0.0)
        to_sink = sink[k] + max(-excess[i], 0.0)
        count_flow(cursor, min(from_source, to_sink))
        excess[i] = from_source - to_sink
        stamp[i] = -1  # not looked at yet
    cursor.time += 1
    for k in range(len(nodes)):
        replant(network, trees, nodes[k])
    adopt(network, trees)


@inlined
def replant(network: Network, trees: SearchTrees, i: int) -> None:
    """Make a node with changed capacities a root, or an orphan if it has none any more."""
    parent, in_sink = trees.parent, trees.in_sink
    activate(trees, i)
    if trees.excess[i] == 0.0:
        trees.stamp[i] = 0
        if parent[i] != FREE:
            orphan_last(trees, i)
        return
    sink = trees.excess[i] < 0.0
    if parent[i] == FREE or in_sink[i] != sink:
        in_sink[i] = sink
        for a in range(network.ptr[i], network.ptr[i + 1]):
            j, back = network.head[a], network.sister[a]
            if trees.stamp[j] == -1:
                continue
            if parent[j] == back:
                orphan_last(trees, j)
            if parent[j] != FREE and in_sink[j] != sink and network.residual[back if sink else a] > 0.0:
                activate(trees, j)
    parent[i] = TERMINAL
    trees.stamp[i] = trees.cursor.time
    trees.dist[i] = 1


@bare
def link_pairs(first: Ints, second: Ints, forward: Floats, backward: Floats, network: Network) -> None:
    """Sort arcs between pairs of nodes by the node that they leave, in both directions."""
    ptr, head, sister, residual = network.ptr, network.head, network.sister, network.residual
    n = len(ptr) - 1
    for e in range(len(first)):
        ptr[first[e] + 1] += 1
        ptr[second[e] + 1] += 1
    for i in range(n):
        ptr[i + 1] += ptr[i]
    for e in range(len(first)):
        i, j = first[e], second[e]
        a, b = ptr[i], ptr[j]  # for now where the next arc goes
        ptr[i] += 1
        ptr[j] += 1
        head[a], sister[a], residual[a] = j, b, forward[e]
        head[b], sister[b], residual[b] = i, a, backward[e]
    for i in range(n, 0, -1):
        ptr[i] = ptr[i - 1]
    ptr[0] = 0
