"""Two kinds of networks behind one interface: sparse graphs with arc lists, and lattices without.

A node's *links* are numbers by which it finds its neighbours. In a sparse network, a link is the index of an arc; in a
lattice it is a direction, the same for all nodes, and everything else follows by arithmetic. Kernels iterate over links
in either case: the kind of a network is part of its type, so that the compiler resolves it.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined

SPARSE: tuple[()] = ()
LATTICE: tuple[int] = (1,)
"""Kinds of networks, distinguished at compile time by the length of the tuple."""
MAX_DIRECTIONS = 26
NOT_A_LATTICE = -1


class Network(NamedTuple):
    """A directed graph, every arc with its reverse.

    Attributes
    ----------
    kind
        SPARSE or LATTICE.
    ptr : (n + 1,)
        Sparse: the links of node `i` are those from ``ptr[i]`` to ``ptr[i + 1]``. Empty in a lattice.
    head, sister : (n_arcs,)
        Sparse: head of an arc, and its reverse. Empty in a lattice.
    offset : (n_directions,)
        Lattice: from a node to its neighbours, ascending, with opposite directions at opposite ends. Empty in a sparse
        network.
    residual : (n_arcs,)
        Residual capacity of every arc. In a lattice the arcs of a node are contiguous; those that lead out of it have
        no capacity.
    """

    kind: tuple[()] | tuple[int]
    ptr: Ints
    head: Ints
    sister: Ints
    offset: Ints
    residual: Floats


@inlined
def first_link(network: Network, i: int) -> int:
    """The first link of a node."""
    return 0 if len(network.kind) else network.ptr[i]


@inlined
def end_link(network: Network, i: int) -> int:
    """One more than the last link of a node."""
    return len(network.offset) if len(network.kind) else network.ptr[i + 1]


@inlined
def neighbour(network: Network, i: int, link: int) -> int:
    """Return the node to which a link of node `i` leads."""
    j: int = i + network.offset[link] if len(network.kind) else network.head[link]
    return j


@inlined
def link_back(network: Network, link: int) -> int:
    """Return the neighbour's link back."""
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


# -- building ---------------------------------------------------------------------------------------------------------


@bare
def link_pairs(scope: Ints, network: Network, place: Ints) -> None:
    """Sort the arcs between pairs of nodes, in both directions, by their tail.

    `place` receives the arc from the first to the second node of every pair. No capacity is set.
    """
    ptr, head, sister = network.ptr, network.head, network.sister
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


class Wiring(NamedTuple):
    """Positions of the pairs of a model in a network.

    Attributes
    ----------
    network
        The network.
    scope : (2 n_pairs,)
        The two variables of every pair; variable `i` is node ``i + margin``.
    place : (n_pairs,)
        Sparse: the arc from the first to the second node. Empty in a lattice.
    margin
        Padding nodes without arcs at either end of a lattice, so that neighbours of its first and last nodes exist.
    """

    network: Network
    scope: Ints
    place: Ints
    margin: int


@inlined
def direction(offset: Ints, apart: int, guess: int) -> int:
    """Return the direction of an offset; `guess` is tried first, as consecutive pairs mostly share their direction."""
    if offset[guess] == apart:
        return guess
    k = 0
    while offset[k] != apart:
        k += 1
    return k


@inlined
def add_capacity(wiring: Wiring, a: int, guess: int, forward: float, backward: float) -> int:
    """Add to the capacities of the arcs of pair `a`, forward and backward; return the next guess."""
    residual, offset = wiring.network.residual, wiring.network.offset
    if len(wiring.network.kind):
        i, j = wiring.scope[2 * a] + wiring.margin, wiring.scope[2 * a + 1] + wiring.margin
        n = len(offset)
        k = direction(offset, j - i, guess)
        residual[i * n + k] += forward
        residual[j * n + n - 1 - k] += backward
        return k
    residual[wiring.place[a]] += forward
    residual[wiring.network.sister[wiring.place[a]]] += backward
    return 0


@bare
def add_capacities(wiring: Wiring, forward: Floats, backward: Floats) -> None:
    """Add to the capacities of all pairs."""
    guess = 0
    for a in range(len(forward)):
        guess = add_capacity(wiring, a, guess, forward[a], backward[a])
