"""Separation of odd-cycle inequalities at a point of the compact program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.kernels.heaps_and_forests import pop, push, root_of
from mapmrf.run import pace


class OddCycleSeparation:
    # found, n_found: the cycles of the last search, and their number
    found: OddCycles
    n_found: int

    def __init__(self, n: int, first: Ints, second: Ints, column: Ints | None = None) -> None:
        m = len(first)
        self.n, self.first, self.second = n, first, second
        ends = np.concatenate([first, second])
        order = np.argsort(ends, kind="stable")
        self._graph = PairAdjacency(
            offsets(np.bincount(ends, minlength=n)),
            np.concatenate([second, first])[order],
            np.concatenate([np.arange(m), np.arange(m)])[order],
        )
        came_from, came_by = np.zeros((2, 2 * n), dtype=np.int64)
        heap_key, heap_node = np.zeros(4 * m + 1), np.zeros(4 * m + 1, dtype=np.int64)
        var, edge, odd = np.zeros((3, 4 * n + 1), dtype=np.int64)
        paths = np.zeros(2 * n), np.full(2 * n, -1), came_from, came_by, heap_key, heap_node
        self._walk = OddCycleScratch(*paths, var, edge, odd, place_of=np.full(n, -1))
        # Sums of these identify cycles, which are equal if all their columns are.
        column = np.arange(m) if column is None else column
        self._code = np.random.default_rng(0).random((int(column.max(initial=0)) + 1, 2))[column].ravel()

    def run(self, cut: Floats, effort: SeparationEffort) -> Iterator[None]:
        """Search for the shortest odd cycles through all variables that may have a violated one, in short steps."""
        n = self.n
        parent, parity, is_source = np.zeros((3, n), dtype=np.int64)
        sources_of(self.first, self.second, cut, effort.fraction, parent, parity, is_source)
        sources = np.flatnonzero(is_source)
        var, edge, odd = np.zeros((3, min(32 * n, 8 * n + 2_000_000)), dtype=np.int32)
        found = OddCycles(np.zeros(n + 1, dtype=np.int64), var, edge, odd, np.zeros(n))
        turn = n_found = 0
        self._walk.stamp.fill(-1)
        while turn < len(sources):
            turn, n_found = odd_cycles(
                turn, n_found, pace.SEPARATION, effort, sources, cut, self._graph, self._walk, found
            )
            yield
        self.found, self.n_found = found, n_found

    def best(self, n_most: int) -> OddCycles:
        """Return the distinct cycles found, the most violated ones if there are too many."""
        n, found = self.n_found, self.found
        ptr, violation = found.ptr[: n + 1], found.violation[:n]
        if n == 0:
            return OddCycles(ptr, found.var[:0], found.edge[:0], found.odd[:0], violation)
        _, once = np.unique(self.codes(found._replace(ptr=ptr)), return_index=True)
        order = np.argsort(-np.round(violation[once], 9), kind="stable")[:n_most]
        chosen = np.sort(once[order])
        counts = np.diff(ptr)[chosen]
        places = ranges(ptr[:-1][chosen], counts)
        return OddCycles(offsets(counts), found.var[places], found.edge[places], found.odd[places], violation[chosen])

    def codes(self, cycles: OddCycles) -> Floats:
        """Return a positive number that identifies each cycle."""
        if len(cycles.ptr) == 1:
            return np.zeros(0)
        end = cycles.ptr[-1]
        of_entries = self._code[2 * cycles.edge[:end] + cycles.odd[:end]]
        return np.asarray(np.round(np.add.reduceat(of_entries, cycles.ptr[:-1]), 9))


# Odd cycles of the cut polytope: separation by shortest paths in the double graph, and rounding along a tree.
# A labelling x of binary variables cuts the pair (i, j) if x_i != x_j; ``cut`` holds these values, from 0 to 1, for a
# relaxed solution. Every cycle C contains an even number of cut pairs, so that for every odd subset F of C
#
#     sum_F (1 - cut) + sum_{C without F} cut >= 1.
#
# The double graph has nodes 2 v and 2 v + 1 for every variable v; a pair leads from v to w on the same side at length
# `cut`, and to the other side, for a pair in F, at length 1 - `cut`. A walk from 2 v to 2 v + 1 of length below 1 is a
# violated inequality (Barahona and Mahjoub 1986).


class PairAdjacency(NamedTuple):
    """The pairs of variable v are ``edge_of[ptr[v]:ptr[v + 1]]``, their other variables ``nbr``."""

    ptr: Ints
    nbr: Ints
    edge_of: Ints


class OddCycleScratch(NamedTuple):
    """Scratch for the shortest paths from one source, per node of the double graph; a heap; and a closed walk.

    `stamp` is the last source from which a node was reached, or -1; `came_from` and `came_by` are the node and the pair
    before it. The heap has room for 4 entries per pair plus one, and the walk for 4 per variable plus one: pair
    ``edge[t]`` leads from variable ``var[t]`` to the next and is in F if ``odd[t]``. `place_of` is per variable, all -1
    between calls.
    """

    dist: Floats
    stamp: Ints
    came_from: Ints
    came_by: Ints
    heap_key: Floats
    heap_node: Ints
    var: Ints
    edge: Ints
    odd: Ints
    place_of: Ints


class OddCycles(NamedTuple):
    """Cycle c is ``ptr[c]:ptr[c + 1]`` of var, edge and odd, as in `OddCycleScratch`; violation : per cycle."""

    ptr: Ints
    var: Ints
    edge: Ints
    odd: Ints
    violation: Floats


class SeparationEffort(NamedTuple):
    violation: float  # minimum violation
    hop: float  # surcharge on the length of a pair
    fraction: float = 1e-9  # distance from 0 or 1 beyond which a cut value is fractional: such variables are sources
    reach: int = sys.maxsize  # pairs to visit per source


@inlined
def simple_cycle(n_walk: int, walk: OddCycleScratch) -> int:
    """Reduce a closed odd walk to a simple odd cycle, in place; return its length."""
    # Even loops are removed; the first odd one is the result.
    var, edge, is_odd, place_of = walk.var, walk.edge, walk.odd, walk.place_of
    size, begin = 0, 0
    for t in range(n_walk + 1):
        v = var[t] if t < n_walk else var[0]
        first = place_of[v] if t < n_walk else 0
        if t > 0 and first >= 0:
            odd = 0
            for k in range(first, size):
                odd ^= is_odd[k]
            if odd or t == n_walk:
                begin = first
                break
            for k in range(first, size):
                place_of[var[k]] = -1
            size = first
        place_of[v] = size
        # Kept entries move to the front, never past the reading position.
        var[size], edge[size], is_odd[size] = v, edge[t], is_odd[t]
        size += 1
    for k in range(size):
        place_of[var[k]] = -1
    for k in range(begin, size):
        var[k - begin] = var[k]
        edge[k - begin], is_odd[k - begin] = edge[k], is_odd[k]
    return size - begin


@inlined
def cycle_length(begin: int, end: int, walk: OddCycleScratch, cut: Floats) -> float:
    """Return the left-hand side of the inequality over some pairs of a cycle."""
    edge, odd = walk.edge, walk.odd
    total = 0.0
    for k in range(begin, end):
        total += 1.0 - cut[edge[k]] if odd[k] else cut[edge[k]]
    return total


@inlined
def halve(size: int, graph: PairAdjacency, cut: Floats, walk: OddCycleScratch) -> int:
    """Split an odd cycle at a chord and keep the half with the smaller left-hand side, in place; return its length."""
    # Returns the length unchanged if there is no chord. The left-hand sides of the halves sum to 1 plus that of the
    # whole.
    var, edge, is_odd, place_of = walk.var, walk.edge, walk.odd, walk.place_of
    ptr, nbr, edge_of = graph.ptr, graph.nbr, graph.edge_of
    for k in range(size):
        place_of[var[k]] = k
    first, last, chord = -1, -1, -1
    for k in range(size):
        for q in range(ptr[var[k]], ptr[var[k] + 1]):
            other = place_of[nbr[q]]
            if other > k + 1 and other - k < size - 1:
                first, last, chord = k, other, edge_of[q]
                break
        if chord >= 0:
            break
    for k in range(size):
        place_of[var[k]] = -1
    if chord < 0:
        return size
    odd = 0
    for k in range(first, last):
        odd ^= is_odd[k]
    inner = cycle_length(first, last, walk, cut)
    outer = cycle_length(0, size, walk, cut) - inner
    inner += cut[chord] if odd else 1.0 - cut[chord]
    outer += 1.0 - cut[chord] if odd else cut[chord]
    if inner <= outer:
        for k in range(first, last + 1):
            var[k - first], edge[k - first], is_odd[k - first] = var[k], edge[k], is_odd[k]
        edge[last - first], is_odd[last - first] = chord, 1 - odd
        return last - first + 1
    edge[first], is_odd[first] = chord, odd
    for k in range(last, size):
        at = first + 1 + k - last
        var[at], edge[at], is_odd[at] = var[k], edge[k], is_odd[k]
    return size - (last - first) + 1


@inlined
def find_meeting(
    source: int, limits: SeparationEffort, cut: Floats, graph: PairAdjacency, paths: OddCycleScratch
) -> tuple[int, int, int, int]:
    """Find the shortest walk from ``2 source`` to its mirror, if it is shorter than 1 - violation."""
    # Paths are only followed up to half the length: two that meet at the ends of a pair close the walk. Returns these
    # ends and the pair, -1 if there is none, and the number of pairs visited.
    ptr, nbr, edge_of = graph.ptr, graph.nbr, graph.edge_of
    dist, stamp, came_from, came_by = paths.dist, paths.stamp, paths.came_from, paths.came_by
    heap_key, heap_node = paths.heap_key, paths.heap_node
    hop, best, work = limits.hop, 1.0 - limits.violation, 0
    meet_from, meet_to, meet_by = -1, -1, -1
    size = push(0, 0.0, 2 * source, heap_key, heap_node)
    dist[2 * source], stamp[2 * source], came_from[2 * source] = 0.0, source, -1
    while size > 0 and 2.0 * heap_key[0] < best and work < limits.reach:
        key, here = heap_key[0], heap_node[0]
        size = pop(size, heap_key, heap_node)
        if key > dist[here]:
            continue
        u, side = here >> 1, here & 1
        work += ptr[u + 1] - ptr[u]
        for q in range(ptr[u], ptr[u + 1]):
            price = cut[edge_of[q]]
            for flip in range(2):
                there = 2 * nbr[q] + (side ^ flip)
                way = key + hop + (1.0 - price if flip else price)
                mirror = there ^ 1
                if stamp[mirror] == source and way + dist[mirror] < best:
                    best = way + dist[mirror]
                    meet_from, meet_to, meet_by = here, mirror, edge_of[q]
                if 2.0 * way < best and (stamp[there] != source or way < dist[there]):
                    stamp[there], dist[there] = source, way
                    came_from[there], came_by[there] = here, edge_of[q]
                    size = push(size, way, there, heap_key, heap_node)
    return meet_from, meet_to, meet_by, work


@inlined
def write_walk(from_node: int, to_node: int, by: int, walk: OddCycleScratch) -> int:
    """Write the closed walk of two paths that meet at the ends of the pair `by`; return its length."""
    # It starts at one end of the pair where they meet, goes back to the source, out to the other end and over the pair.
    came_from, came_by = walk.came_from, walk.came_by
    var, edge, odd = walk.var, walk.edge, walk.odd
    size = 0
    here = from_node
    while came_from[here] >= 0:
        var[size], edge[size] = here >> 1, came_by[here]
        odd[size] = (here ^ came_from[here]) & 1
        size += 1
        here = came_from[here]
    here, turned = to_node, size
    while came_from[here] >= 0:
        var[size], edge[size] = came_from[here] >> 1, came_by[here]
        odd[size] = (here ^ came_from[here]) & 1
        size += 1
        here = came_from[here]
    k, end = turned, size - 1
    while k < end:
        var[k], var[end] = var[end], var[k]
        edge[k], edge[end] = edge[end], edge[k]
        odd[k], odd[end] = odd[end], odd[k]
        k, end = k + 1, end - 1
    var[size], edge[size] = to_node >> 1, by
    # The pair leads to the mirror of to_node.
    odd[size] = 1 ^ ((from_node ^ to_node) & 1)
    return size + 1


@compiled
def odd_cycles(
    turn: int, n_found: int, max_work: int, limits: SeparationEffort, sources: Ints, cut: Floats,
    graph: PairAdjacency, walk: OddCycleScratch, found: OddCycles,
) -> tuple[int, int]:  # fmt: skip
    """Find the shortest odd cycle through one source after another, if violated by more than ``limits.violation``."""
    # Processes the variables `sources` from `turn` on until the work or the space is used up, and returns the next turn
    # and the number of cycles found. Every pair is longer by ``limits.hop``, so that among equal cycles the one with
    # fewer pairs is found. Chords are cut off.
    work = 0
    while turn < len(sources) and work < max_work and n_found < len(found.violation):
        from_node, to_node, by, visited = find_meeting(sources[turn], limits, cut, graph, walk)
        work += visited
        turn += 1
        if by < 0:
            continue
        size = simple_cycle(write_walk(from_node, to_node, by, walk), walk)
        before = size + 1
        while size < before:
            before = size
            size = halve(before, graph, cut, walk)
        violated = 1.0 - cycle_length(0, size, walk, cut)
        at = found.ptr[n_found]
        if violated > limits.violation and at + size <= len(found.edge):
            for k in range(size):
                found.var[at + k], found.edge[at + k], found.odd[at + k] = walk.var[k], walk.edge[k], walk.odd[k]
            found.ptr[n_found + 1] = at + size
            found.violation[n_found] = violated
            n_found += 1
    return turn, n_found


@compiled
def sources_of(node1: Ints, node2: Ints, cut: Floats, tol: float, parent: Ints, parity: Ints, is_source: Ints) -> None:
    """Mark the variables that may lie on a violated odd cycle: is_source is 1 there and 0 elsewhere."""
    # These are the ends of pairs that are neither cut nor uncut, and all variables of a component, connected by the
    # other pairs, in which these are inconsistent. A cycle without either has an even number of cut pairs. parent,
    # parity : scratch per variable.
    for u in range(len(parent)):
        parent[u], parity[u], is_source[u] = u, 0, 0
    for e in range(len(cut)):
        if tol < cut[e] < 1.0 - tol:
            is_source[node1[e]], is_source[node2[e]] = 1, 1
            continue
        u, odd1 = root_of(node1[e], parent, parity)
        v, odd2 = root_of(node2[e], parent, parity)
        if u != v:
            parent[u], parity[u] = v, odd1 ^ odd2 ^ (1 if cut[e] > 0.5 else 0)
    for u in range(len(parent)):
        root, odd = root_of(u, parent, parity)
        parent[u], parity[u] = root, odd
    for e in range(len(cut)):
        if not tol < cut[e] < 1.0 - tol:
            odd = parity[node1[e]] ^ parity[node2[e]] ^ (1 if cut[e] > 0.5 else 0)
            if odd:
                is_source[parent[node1[e]]] = 2
    for u in range(len(parent)):
        if is_source[parent[u]] == 2 and parent[u] != u:
            is_source[u] = 1
    for u in range(len(parent)):
        is_source[u] = min(is_source[u], 1)


def rounded(cut: Floats, first: Ints, second: Ints, n: int) -> Ints:
    """Round the `cut` values of n variables and of pairs to labels, along a tree of those closest to 0 or 1."""
    node1, node2 = np.concatenate([np.arange(n), first]), np.concatenate([np.full(n, n), second])
    # Rounded first, so that the solver's last digits do not decide.
    order = np.argsort(-np.round(np.abs(cut - 0.5), 9), kind="stable")
    labels, nodes = np.zeros(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
    round_by_tree(order, node1, node2, cut, nodes, nodes.copy(), labels)
    return labels


@compiled
def round_by_tree(order: Ints, node1: Ints, node2: Ints, cut: Floats, parent: Ints, parity: Ints, labels: Ints) -> None:
    """Label along a spanning tree of the pairs with the clearest cut values: `order` lists the clearest first."""
    # The last node represents the label 0: a pair with it is a variable, and its `cut` is that variable's x. parent,
    # parity : scratch per node.
    for u in range(len(parent)):
        parent[u], parity[u] = u, 0
    for e in order:
        u, odd1 = root_of(node1[e], parent, parity)
        v, odd2 = root_of(node2[e], parent, parity)
        if u != v:
            parent[u], parity[u] = v, odd1 ^ odd2 ^ (1 if cut[e] > 0.5 else 0)
    _, ground = root_of(len(labels), parent, parity)
    for i in range(len(labels)):
        _, odd = root_of(i, parent, parity)
        labels[i] = odd ^ ground
