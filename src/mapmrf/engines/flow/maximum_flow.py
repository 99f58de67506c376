"""The maximum flow through a network and its minimum cut."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, frozen
from mapmrf.compilation.jit import bare, inlined

NO_LIMIT = 1 << 62


class MaximumFlow:
    """A flow that is augmented until it is maximal, over any number of calls of `run`.

    Capacities are floating-point numbers from 0 to inf. An arc counts as saturated when its residual capacity is
    exactly 0; the value of the flow and the capacity of the cut agree up to the round-off of sums. The capacities of
    `network` become residual capacities; `excess` is the capacity from the source to a node if positive, or from the
    node to the sink if negative.
    """

    def __init__(self, network: Network, excess: Floats) -> None:
        n = len(excess) + 2 * network.margin
        self.network = network
        parent: Ints = np.zeros(n, dtype=np.int8 if len(network.kind) else np.int32)  # a lattice: few directions
        stamp, dist, active, orphan = (np.zeros(n, dtype=np.int32) for _ in range(4))
        in_sink = np.zeros(n, dtype=bool)
        self.trees = SearchTrees(np.zeros(n), parent, in_sink, stamp, dist, active, orphan, blank(FlowCursor))
        self._inner = slice(network.margin, n - network.margin)
        self.excess = self.trees.excess[self._inner]
        self.excess[:] = excess
        self.begin()

    def begin(self) -> None:
        """Restart with zero flow from the capacities now in the network and in `excess`."""
        self.state = PAUSED
        send_to_neighbours(self.network, self.trees)
        plant(self.trees)

    def run(self, max_work: int = NO_LIMIT, max_paths: int = NO_LIMIT) -> bool:
        """Continue until the flow is maximal, or a number of arcs visited or paths; return whether it has ended."""
        if self.state == PAUSED:
            self.state = send_flow(self.network, self.trees, max_work, max_paths)
        return self.state != PAUSED

    @property
    def value(self) -> float:
        """The flow so far, never more than the minimum cut."""
        cursor = self.trees.cursor
        return math.inf if self.state == UNBOUNDED else float(cursor.lost + cursor.sent)

    @property
    def paths(self) -> int:
        return int(self.trees.cursor.paths)

    @property
    def on_sink_side(self) -> Bools:
        """The nodes on the sink's side of the cut, which is a minimum cut if the flow is maximal."""
        trees = self.trees
        return np.asarray(trees.in_sink[self._inner] & (trees.parent[self._inner] != FREE))


# -- Maximum flow by two search trees, one from the source and one from the sink (Boykov and Kolmogorov, 2004) --------
# The trees grow until they touch, flow is pushed along the path between their roots, nodes that have lost the arc to
# their parent are adopted by another or become free, and the trees grow on. Time stamps and distances keep the paths
# short.
#
# An arc is saturated when its residual capacity is exactly 0: every path empties one to the last bit, so no
# tolerance is needed to terminate. Infinite capacities stay infinite.

HUB = 1000
"""Nodes with more links, such as the variable of a label cost, are hubs: their links are not all visited each time."""
FAR = 1 << 60
LAST_TIME = 2_000_000_000  # time at which stamps, which have 32 bits, are reset
MAXIMAL, PAUSED, UNBOUNDED = 0, 1, 2
"""Reasons for `send_flow` to return: the flow is maximal, the budget is spent, or a path has infinite capacity."""
Touch = tuple[int, int]  # contact of the trees: a node of the source tree and its link to one of the sink tree


@inlined
def grow(network: Network, trees: SearchTrees, i: int, again: bool) -> Touch:
    """Add the free neighbours of a node to its tree; return where it touches the other tree, or NOBODY.

    A hub that grows again resumes at the link where it stopped: most of its links lead nowhere.
    """
    cursor, first, end = trees.cursor, first_link(network, i), end_link(network, i)
    cursor.work += 2
    if end - first <= HUB:
        cursor.work += end - first
        return grow_along(network, trees, i, first, end)
    place = cursor.place if again else first
    tail, link = grow_along(network, trees, i, place, end)
    if tail == NOBODY:
        tail, link = grow_along(network, trees, i, first, place)
    if tail != NOBODY:
        cursor.place = link if tail == i else link_back(network, link)
    cursor.work += (cursor.place - place) % (end - first) if tail != NOBODY else end - first
    return tail, link


@inlined
def grow_along(network: Network, trees: SearchTrees, i: int, begin: int, end: int) -> Touch:
    """Grow along some links of a node, up to the first at which it touches the other tree."""
    residual, parent, in_sink = network.residual, trees.parent, trees.in_sink
    stamp, dist = trees.stamp, trees.dist
    sink = in_sink[i]
    for link in range(begin, end):
        # flow goes from the source tree to the sink tree
        if residual[arc_in(network, i, link) if sink else arc_out(network, i, link)] <= 0.0:
            continue
        j = neighbour(network, i, link)
        if parent[j] == FREE:
            in_sink[j] = sink
            parent[j] = link_back(network, link)
            stamp[j] = stamp[i]
            dist[j] = dist[i] + 1
            activate(trees, j)
        elif in_sink[j] != sink:
            return (j, link_back(network, link)) if sink else (i, link)
        elif stamp[j] <= stamp[i] and dist[j] > dist[i]:  # closer to the root through i
            parent[j] = link_back(network, link)
            stamp[j] = stamp[i]
            dist[j] = dist[i] + 1
    return NOBODY, NOBODY


@inlined
def bottleneck(network: Network, trees: SearchTrees, touch: Touch) -> float:
    """Return the residual capacity of the path from root to root through the arc where the trees touch."""
    residual, parent, (i, link) = network.residual, trees.parent, touch
    least: float = residual[arc_out(network, i, link)]
    while parent[i] >= 0:
        least = min(least, residual[arc_in(network, i, parent[i])])
        i = neighbour(network, i, parent[i])
    least = min(least, trees.excess[i])
    i = neighbour(network, touch[0], link)
    while parent[i] >= 0:
        least = min(least, residual[arc_out(network, i, parent[i])])
        i = neighbour(network, i, parent[i])
    return min(least, float(-trees.excess[i]))


@inlined
def push(network: Network, trees: SearchTrees, touch: Touch, amount: float) -> int:
    """Push flow along the path through an arc; nodes below saturated arcs become orphans. Return the path length."""
    residual, parent, (i, link), length = network.residual, trees.parent, touch, 1
    residual[arc_out(network, i, link)] -= amount
    residual[arc_in(network, i, link)] += amount
    while parent[i] >= 0:
        link = parent[i]
        down = arc_in(network, i, link)
        residual[arc_out(network, i, link)] += amount
        residual[down] -= amount
        if residual[down] <= 0.0:
            orphan_first(trees, i)
        i = neighbour(network, i, link)
        length += 1
    trees.excess[i] -= amount
    if trees.excess[i] <= 0.0:
        orphan_first(trees, i)
    i = neighbour(network, touch[0], touch[1])
    while parent[i] >= 0:
        link = parent[i]
        up = arc_out(network, i, link)
        residual[arc_in(network, i, link)] += amount
        residual[up] -= amount
        if residual[up] <= 0.0:
            orphan_first(trees, i)
        i = neighbour(network, i, link)
        length += 1
    trees.excess[i] += amount
    if trees.excess[i] >= 0.0:
        orphan_first(trees, i)
    return length


@inlined
def add_compensated(total: float, lost: float, term: float) -> tuple[float, float]:
    """Neumaier's summation: return the new total, and what all additions have lost to round-off."""
    more = total + term
    lost += (total - more) + term if abs(total) >= abs(term) else (term - more) + total
    return more, lost


@inlined
def distance(network: Network, trees: SearchTrees, j: int, time: int) -> int:
    """Return the number of arcs from a node to the root of its tree, FAR if it descends from an orphan."""
    parent, stamp, d = trees.parent, trees.stamp, 0
    while stamp[j] != time:
        link = parent[j]
        d += 1
        if link < 0:
            trees.cursor.work += d
            if link == ORPHAN:
                return FAR
            stamp[j] = time
            trees.dist[j] = 1
            return d
        j = neighbour(network, j, link)
    trees.cursor.work += d
    rest: int = trees.dist[j]
    return d + rest


@inlined
def find_parent(network: Network, trees: SearchTrees, i: int) -> int:
    """Return the link to the eligible parent closest to the root, or FREE; for hubs, to any."""
    cursor, first, end = trees.cursor, first_link(network, i), end_link(network, i)
    if end - first <= HUB:
        cursor.work += 2 * (end - first)
        return nearest_parent(network, trees, i, first, end)
    place = first + cursor.work % (end - first)  # a pseudo-random start, not always the same links
    found = nearest_parent(network, trees, i, place, end)
    if found == FREE:
        found = nearest_parent(network, trees, i, first, place)
    cursor.work += 2 * (end - first) if found == FREE else (found - place) % (end - first)
    return found


@inlined
def nearest_parent(network: Network, trees: SearchTrees, i: int, begin: int, end: int) -> int:
    """Find a new parent among some neighbours: the closest to the root, or the first found for a hub."""
    residual, parent, stamp, dist = network.residual, trees.parent, trees.stamp, trees.dist
    sink, time = trees.in_sink[i], trees.cursor.time
    hub = end_link(network, i) - first_link(network, i) > HUB
    best, nearest = FREE, FAR
    for link in range(begin, end):
        if residual[arc_out(network, i, link) if sink else arc_in(network, i, link)] <= 0.0:
            continue
        j = neighbour(network, i, link)
        if parent[j] == FREE or trees.in_sink[j] != sink:
            continue
        d = distance(network, trees, j, time)
        if d == FAR:
            continue
        if d < nearest:
            nearest, best = d, link
        while stamp[j] != time:
            stamp[j] = time
            dist[j] = d
            d -= 1
            j = neighbour(network, j, parent[j])
        if hub:
            break
    if best != FREE:
        stamp[i] = time
        dist[i] = nearest + 1
    return best


@inlined
def let_go(network: Network, trees: SearchTrees, i: int) -> None:
    """Free a node without a parent: its children become orphans, and neighbours may grow to it again."""
    residual, parent, sink = network.residual, trees.parent, trees.in_sink[i]
    for link in range(first_link(network, i), end_link(network, i)):
        j = neighbour(network, i, link)
        up = parent[j]
        if up == FREE or trees.in_sink[j] != sink:
            continue
        if residual[arc_out(network, i, link) if sink else arc_in(network, i, link)] > 0.0:
            activate(trees, j)
        if up == link_back(network, link):
            orphan_last(trees, j)


@inlined
def adopt(network: Network, trees: SearchTrees) -> None:
    """Find a parent for every orphan or free it, one after another with all its descendants."""
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
            cursor.work += 2
            if found == FREE:
                let_go(network, trees, i)
        cursor.first_orphan = others
        cursor.last_orphan = last if others != NOBODY else NOBODY


@bare
def send_to_neighbours(network: Network, trees: SearchTrees) -> None:
    """Start from zero flow, and push along all single arcs from nodes with excess to nodes with deficit."""
    cursor, excess, residual = trees.cursor, trees.excess, network.residual
    cursor.sent = cursor.lost = 0.0
    cursor.paths = 0
    for i in range(len(excess)):
        if excess[i] <= 0.0:
            continue
        for link in range(first_link(network, i), end_link(network, i)):
            out = arc_out(network, i, link)
            if residual[out] <= 0.0:
                continue
            j = neighbour(network, i, link)
            if excess[j] >= 0.0:
                continue
            amount = min(excess[i], residual[out], -excess[j])
            if amount == np.inf:  # left to `send_flow`
                continue
            residual[out] -= amount
            residual[arc_in(network, i, link)] += amount
            excess[j] += amount
            excess[i] -= amount
            cursor.sent, cursor.lost = add_compensated(cursor.sent, cursor.lost, amount)
            if excess[i] <= 0.0:
                break


@bare
def plant(trees: SearchTrees) -> None:
    """Initialise both trees: every node with residual terminal capacity is a root."""
    cursor = trees.cursor
    cursor.first_active = cursor.last_active = cursor.first_orphan = cursor.last_orphan = cursor.current = NOBODY
    cursor.time = 0
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
    """Augment until the flow is maximal, or a number of arcs visited or paths; the next call resumes."""
    cursor, paths, why = trees.cursor, 0, MAXIMAL
    end = cursor.work + max_work
    while True:
        if cursor.work >= end or paths >= max_paths:
            why = PAUSED
            break
        i = cursor.current
        if i != NOBODY:
            trees.next_active[i] = NOBODY
            cursor.current = NOBODY
        again = i != NOBODY and trees.parent[i] != FREE
        if not again:
            i = next_to_grow(trees)
        if i == NOBODY:
            break
        touch = grow(network, trees, i, again)
        if touch[0] == NOBODY:
            continue
        if cursor.time >= LAST_TIME:
            trees.stamp[:] = 0
            cursor.time = 0
        cursor.time += 1
        trees.next_active[i] = i  # active, but in no queue: it is the next to grow
        cursor.current = i
        amount = bottleneck(network, trees, touch)
        if amount == np.inf:
            why = UNBOUNDED
            break
        cursor.sent, cursor.lost = add_compensated(cursor.sent, cursor.lost, amount)
        cursor.work += 4 * push(network, trees, touch, amount)
        adopt(network, trees)
        paths += 1
    cursor.paths += paths
    return why


@bare
def change_terminals(network: Network, trees: SearchTrees, nodes: Ints, source: Floats, sink: Floats) -> None:
    """Add to the terminal capacities of some distinct nodes, and repair the trees.

    Capacities may be lowered: an amount below 0 at one terminal is added at the other, and counted in the flow, so that
    the value of the flow still equals that of the cut.
    """
    cursor, stamp, excess = trees.cursor, trees.stamp, trees.excess
    for k in range(len(nodes)):
        i = nodes[k]
        from_source = source[k] + max(excess[i], 0.0)
        to_sink = sink[k] + max(-excess[i], 0.0)
        cursor.sent, cursor.lost = add_compensated(cursor.sent, cursor.lost, min(from_source, to_sink))
        excess[i] = from_source - to_sink
        stamp[i] = -1  # not visited yet
    cursor.time += 1  # `send_flow` keeps it far below the maximum
    for k in range(len(nodes)):
        replant(network, trees, nodes[k])
    adopt(network, trees)


@inlined
def replant(network: Network, trees: SearchTrees, i: int) -> None:
    """Make a node with changed capacities a root, or an orphan if it has none left."""
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
        for link in range(first_link(network, i), end_link(network, i)):
            j = neighbour(network, i, link)
            if trees.stamp[j] == -1:
                continue
            if parent[j] == link_back(network, link):
                orphan_last(trees, j)
            if parent[j] == FREE or in_sink[j] == sink:
                continue
            if network.residual[arc_in(network, i, link) if sink else arc_out(network, i, link)] > 0.0:
                activate(trees, j)
    parent[i] = TERMINAL
    trees.stamp[i] = trees.cursor.time
    trees.dist[i] = 1


# -- The two search trees of a maximum flow, and the queues of their active nodes and orphans -------------------------

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
    excess: Floats  # (n,): residual capacity from the source if positive, to the sink if negative
    parent: Ints  # (n,): the link to the parent, or TERMINAL, ORPHAN or FREE
    in_sink: Bools  # (n,): whether the node is in the sink tree; meaningless for a free node
    stamp: Ints  # (n,): when the distance to the root was last computed
    dist: Ints  # (n,): its value
    # (n,): Queues. An active node's entry is NOBODY if it is in no queue, and the node itself if it is the last.
    next_active: Ints
    next_orphan: Ints
    cursor: FlowCursor


@inlined
def activate(trees: SearchTrees, i: int) -> None:
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
            cursor.first_active = cursor.last_active = NOBODY
        else:
            cursor.first_active = next_active[i]
        next_active[i] = NOBODY
        if trees.parent[i] != FREE:
            return i
    return NOBODY


@inlined
def orphan_first(trees: SearchTrees, i: int) -> None:
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = cursor.first_orphan
    cursor.first_orphan = i
    if cursor.last_orphan == NOBODY:
        cursor.last_orphan = i


@inlined
def orphan_last(trees: SearchTrees, i: int) -> None:
    cursor = trees.cursor
    trees.parent[i] = ORPHAN
    trees.next_orphan[i] = NOBODY
    if cursor.last_orphan == NOBODY:
        cursor.first_orphan = i
    else:
        trees.next_orphan[cursor.last_orphan] = i
    cursor.last_orphan = i


# -- Networks for the pairs of a model: a lattice if the pairs are regular, a sparse network otherwise ----------------


MAX_ARCS = 2**31 - 1  # maximum number of arcs of a sparse network, which are numbered in 32 bits


def wire(n: int, scope: Ints) -> Network:
    """Build the network of `n` nodes and pairs of them, (2 n_pairs,), without capacities.

    If the pairs lie in a few directions, like those of the pixels of an image, it is a lattice: there are no arc lists,
    and neighbours are found by arithmetic. The order of the pairs does not matter, and pairs may be missing or
    repeated.
    """
    scope, apart = _readable(scope), np.zeros(13, dtype=np.int64)  # half of the 26 neighbours in a volume
    n_apart = int(find_offsets(scope, apart))
    # Minimum share of a lattice's arcs that must exist; others waste memory
    if n_apart in (NOT_A_LATTICE, 0) or len(scope) // 2 < 0.5 * n_apart * n:
        return sparse_network(n, scope)
    apart = np.sort(apart[:n_apart])
    margin, none = int(apart[-1]), np.zeros(0, dtype=np.int32)
    if margin > 0.25 * n:  # maximum length of a lattice's margin, as a share of its nodes
        return sparse_network(n, scope)
    offset, residual = np.concatenate([-apart[::-1], apart]), np.zeros((n + 2 * margin) * 2 * n_apart)
    return Network(LATTICE, none, none, none, offset, residual, scope, none, margin)


def sparse_network(n: int, scope: Ints) -> Network:
    scope, m = _readable(scope), len(scope)
    head, sister = np.empty((2, m), dtype=np.int32)
    place, offset = np.empty(m // 2, dtype=np.int32), np.zeros(0, dtype=np.int64)
    network = Network(SPARSE, np.zeros(n + 1, dtype=np.int32), head, sister, offset, np.zeros(m), scope, place, 0)
    link_pairs(network)
    return network


def _readable(scope: Ints) -> Ints:
    # read-only and in 32 bits, so that kernels need only one specialisation
    return frozen(np.ascontiguousarray(scope, dtype=np.int32).view())


# A node's *links* are numbers by which it finds its neighbours. In a sparse network, a link is the index of an arc;
# in a lattice it is a direction, the same for all nodes, and everything else follows by arithmetic. Kernels iterate
# over links in either case: the kind of a network is part of its type, so that the compiler resolves it.

SPARSE: tuple[()] = ()
LATTICE: tuple[int] = (1,)  # kinds of networks, distinguished at compile time by the length of the tuple
NOT_A_LATTICE = -1


class Network(NamedTuple):
    """A directed graph, every arc with its reverse; the arrays of the other kind are empty."""

    kind: tuple[()] | tuple[int]  # SPARSE or LATTICE
    ptr: Ints  # (n + 1,): sparse: the links of node `i` are those from ``ptr[i]`` to ``ptr[i + 1]``
    head: Ints  # (n_arcs,): sparse: head of an arc
    sister: Ints  # (n_arcs,): sparse: its reverse
    offset: Ints  # (n_directions,): lattice: to the neighbours, ascending; opposite directions at opposite ends
    residual: Floats  # (n_arcs,): residual capacities; in a lattice by node, and 0 for arcs that lead out of it
    scope: Ints  # (2 n_pairs,): the two variables of every pair; variable `i` is node ``i + margin``
    place: Ints  # (n_pairs,): sparse: the arc from the first to the second node of every pair
    margin: int  # padding nodes without arcs at either end of a lattice, so that its first nodes have neighbours


@inlined
def first_link(network: Network, i: int) -> int:
    return 0 if len(network.kind) else network.ptr[i]


@inlined
def end_link(network: Network, i: int) -> int:
    return len(network.offset) if len(network.kind) else network.ptr[i + 1]


@inlined
def neighbour(network: Network, i: int, link: int) -> int:
    j: int = i + network.offset[link] if len(network.kind) else network.head[link]
    return j


@inlined
def link_back(network: Network, link: int) -> int:
    back: int = len(network.offset) - 1 - link if len(network.kind) else network.sister[link]
    return back


@inlined
def arc_out(network: Network, i: int, link: int) -> int:
    """Return the index in `residual` of the arc along a link of node `i`."""
    return i * len(network.offset) + link if len(network.kind) else link


@inlined
def arc_in(network: Network, i: int, link: int) -> int:
    """Return the index in `residual` of the reverse arc."""
    n = len(network.offset)
    a: int = (i + network.offset[link]) * n + n - 1 - link if len(network.kind) else network.sister[link]
    return a


@bare
def link_pairs(network: Network) -> None:
    """Sort the arcs between pairs, in both directions, by tail."""
    ptr, head, sister, scope, place = network.ptr, network.head, network.sister, network.scope, network.place
    n = len(ptr) - 1
    for e in range(len(scope)):
        ptr[scope[e] + 1] += 1
    for i in range(n):
        ptr[i + 1] += ptr[i]
    for e in range(len(place)):
        i, j = scope[2 * e], scope[2 * e + 1]
        a, b = ptr[i], ptr[j]  # used as insertion points for now
        ptr[i] += 1
        ptr[j] += 1
        head[a], sister[a] = j, b
        head[b], sister[b] = i, a
        place[e] = a
    for i in range(n, 0, -1):
        ptr[i] = ptr[i - 1]
    ptr[0] = 0


@bare
def find_offsets(scope: Ints, offset: Ints) -> int:
    """List the distinct offsets between the nodes of all pairs; NOT_A_LATTICE if `offset` is too short for them."""
    n, last = 0, 0
    for e in range(len(scope) // 2):
        apart = abs(scope[2 * e + 1] - scope[2 * e])
        if apart == last:
            continue
        k = 0
        while k < n and offset[k] != apart:
            k += 1
        if k == n:
            if n == len(offset):
                return NOT_A_LATTICE
            offset[n] = apart
            n += 1
        last = apart
    return n


@inlined
def add_capacity(network: Network, a: int, guess: int, forward: float, backward: float) -> int:
    """Add to the capacities of the arcs of pair `a`, forward and backward; return the next guess.

    The direction `guess` is tried first, as consecutive pairs mostly share their direction.
    """
    residual, offset = network.residual, network.offset
    if len(network.kind):
        i, j = network.scope[2 * a] + network.margin, network.scope[2 * a + 1] + network.margin
        n, k = len(offset), guess
        if offset[k] != j - i:
            k = 0
            while offset[k] != j - i:
                k += 1
        residual[i * n + k] += forward
        residual[j * n + n - 1 - k] += backward
        return k
    residual[network.place[a]] += forward
    residual[network.sister[network.place[a]]] += backward
    return 0
