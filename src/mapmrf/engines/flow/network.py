"""Networks for the pairs of a model: a lattice if the pairs are regular, a sparse network otherwise."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen
from mapmrf.compilation.jit import bare, inlined

MAX_ARCS = 2**31 - 1  # maximum number of arcs of a sparse network, which are numbered in 32 bits
LEAST_FILL = 0.5  # minimum share of a lattice's arcs that must exist; others waste memory
LARGEST_MARGIN = 0.25  # maximum length of a lattice's margin, as a share of its nodes


def wire(n: int, scope: Ints) -> Wiring:
    """Build the network of `n` nodes and pairs of them, (2 n_pairs,), without capacities.

    If the pairs lie in a few directions, like those of the pixels of an image, it is a lattice: there are no arc lists,
    and neighbours are found by arithmetic. The order of the pairs does not matter, and pairs may be missing or
    repeated.
    """
    scope, apart = _readable(scope), np.zeros(MAX_DIRECTIONS // 2, dtype=np.int64)
    n_apart = int(find_offsets(scope, apart))
    if n_apart in (NOT_A_LATTICE, 0) or len(scope) // 2 < LEAST_FILL * n_apart * n:
        return sparse_wiring(n, scope)
    apart = np.sort(apart[:n_apart])
    margin, none = int(apart[-1]), np.zeros(0, dtype=np.int32)
    if margin > LARGEST_MARGIN * n:
        return sparse_wiring(n, scope)
    offset, residual = np.concatenate([-apart[::-1], apart]), np.zeros((n + 2 * margin) * 2 * n_apart)
    return Wiring(Network(LATTICE, none, none, none, offset, residual), scope, none, margin)


def sparse_wiring(n: int, scope: Ints) -> Wiring:
    scope, m = _readable(scope), len(scope)
    head, sister = np.empty((2, m), dtype=np.int32)
    place, offset = np.empty(m // 2, dtype=np.int32), np.zeros(0, dtype=np.int64)
    network = Network(SPARSE, np.zeros(n + 1, dtype=np.int32), head, sister, offset, np.zeros(m))
    link_pairs(scope, network, place)
    return Wiring(network, scope, place, 0)


def _readable(scope: Ints) -> Ints:
    # read-only and in 32 bits, so that kernels need only one specialisation
    return frozen(np.ascontiguousarray(scope, dtype=np.int32).view())


# -- Two kinds of networks behind one interface: sparse graphs with arc lists, and lattices without -------------------
# A node's *links* are numbers by which it finds its neighbours. In a sparse network, a link is the index of an arc;
# in a lattice it is a direction, the same for all nodes, and everything else follows by arithmetic. Kernels iterate
# over links in either case: the kind of a network is part of its type, so that the compiler resolves it.

SPARSE: tuple[()] = ()
LATTICE: tuple[int] = (1,)  # kinds of networks, distinguished at compile time by the length of the tuple
MAX_DIRECTIONS = 26
NOT_A_LATTICE = -1


class Network(NamedTuple):
    """A directed graph, every arc with its reverse; the arrays of the other kind are empty."""

    kind: tuple[()] | tuple[int]  # SPARSE or LATTICE
    ptr: Ints  # (n + 1,): sparse: the links of node `i` are those from ``ptr[i]`` to ``ptr[i + 1]``
    head: Ints  # (n_arcs,): sparse: head of an arc
    sister: Ints  # (n_arcs,): sparse: its reverse
    offset: Ints  # (n_directions,): lattice: to the neighbours, ascending; opposite directions at opposite ends
    residual: Floats  # (n_arcs,): residual capacities; in a lattice by node, and 0 for arcs that lead out of it


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
def link_pairs(scope: Ints, network: Network, place: Ints) -> None:
    """Sort the arcs between pairs, in both directions, by tail; `place` receives the forward arc of every pair."""
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
    """Positions of the pairs of a model in a network."""

    network: Network
    scope: Ints  # (2 n_pairs,): the two variables of every pair; variable `i` is node ``i + margin``
    place: Ints  # (n_pairs,): sparse: the arc from the first to the second node. Empty in a lattice.
    margin: int  # padding nodes without arcs at either end of a lattice, so that its first nodes have neighbours


@inlined
def add_capacity(wiring: Wiring, a: int, guess: int, forward: float, backward: float) -> int:
    """Add to the capacities of the arcs of pair `a`, forward and backward; return the next guess.

    The direction `guess` is tried first, as consecutive pairs mostly share their direction.
    """
    residual, offset = wiring.network.residual, wiring.network.offset
    if len(wiring.network.kind):
        i, j = wiring.scope[2 * a] + wiring.margin, wiring.scope[2 * a + 1] + wiring.margin
        n, k = len(offset), guess
        if offset[k] != j - i:
            k = 0
            while offset[k] != j - i:
                k += 1
        residual[i * n + k] += forward
        residual[j * n + n - 1 - k] += backward
        return k
    residual[wiring.place[a]] += forward
    residual[wiring.network.sister[wiring.place[a]]] += backward
    return 0


@bare
def add_capacities(wiring: Wiring, forward: Floats, backward: Floats) -> None:
    guess = 0
    for a in range(len(forward)):
        guess = add_capacity(wiring, a, guess, forward[a], backward[a])
