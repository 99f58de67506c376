"""Choosing clusters: short cycles, frustrated cycles of the projected graph, gains, and triangulation.

Pairs are given by their place in a list of pairs where it says so, and otherwise by their number among the factors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.clusters import Clusters, Cycle, CycleList, best_walk
from mapmrf.engines.messages.factor_messages import FactorMessages, edges_by_variable
from mapmrf.engines.messages.mplp import Dual, pair_entry
from mapmrf.kernels.heaps_and_forests import root_of
from mapmrf.kernels.max_marginals import weight_of

SLICE = 500_000  # elementary steps between points at which the loop may stop the search: some 10 ms
FIRST, DECAY, LEVELS = 0.5, 0.25, 4  # first threshold over the bottleneck, ratio of consecutive ones, and their number


@dataclass
class ClusterSearch:
    """A search for clusters, and what stays the same from one search to the next."""

    clusters: Clusters  # the current clusters
    # triplets, cycles: whether to search for short cycles, and for frustrated cycles
    triplets: bool
    cycles: bool
    projections: int  # number of states of a variable that become nodes of the projected graph
    max_length: int  # maximum length of a cycle
    short: CycleList | None = None  # triangles and chordless 4-cycles of the model itself, once they are listed
    found: list[Cycle] = field(default_factory=list)  # the results of the last search, the best first

    def run(self, wanted: int, floor: float, max_work: int) -> Iterator[None]:
        """Search for up to `wanted` cycles of gain above the floor, in slices; `found` lists the best first."""
        # `max_work` limits the elementary steps of the search for frustrated cycles.
        self.found = []
        ranked: list[tuple[float, Cycle]] = []
        self.clusters.show_idle()
        try:
            if self.triplets:
                if self.short is None:
                    self.short = list_short(self.clusters)
                    # Number of short cycles per pair up to which all of them become clusters in the first round
                    if 0 < self.short.n <= 2 * len(self.clusters.pairs):
                        self.found = self.short.take(np.arange(self.short.n))  # in a sparse graph, all are of use
                        return
                yield from self.rank(self.short, wanted, floor, ranked)
            if self.cycles and len(ranked) < wanted:
                candidates: list[Cycle] = []
                # Minimum number of slices of a search for frustrated cycles, on any model
                slices = max(20, max_work // SLICE)
                yield from islice(self.frustrated(wanted, floor, candidates), slices)
                yield from self.rank(CycleList.of(candidates), wanted, floor, ranked)
        finally:
            self.clusters.hide_idle()
        ranked.sort(key=lambda item: -item[0])  # a stable sort: ties stay in the order of discovery
        self.found = [cycle for _, cycle in ranked[:wanted]]

    def rank(self, cycles: CycleList, wanted: int, floor: float, ranked: list[tuple[float, Cycle]]) -> Iterator[None]:
        """Add the best cycles of gain above the floor that are not clusters yet."""
        dual = self.clusters.dual
        gain, path = np.zeros(cycles.n), np.zeros((2, dual.max_card))
        size = max(1, SLICE // (4 * dual.max_card**3))
        for begin in range(0, cycles.n, size):
            gains(begin, min(begin + size, cycles.n), dual.regions, cycles, path, gain)
            yield
        room = wanted
        for c in np.argsort(-gain, kind="stable").tolist():
            if room == 0 or not gain[c] > floor:
                return
            cycle = cycles.take(np.array([c]))[0]
            if tuple(sorted(cycle[0].tolist())) not in self.clusters.keys:
                ranked.append((float(gain[c]), cycle))
                room -= 1

    def frustrated(self, wanted: int, floor: float, candidates: list[Cycle]) -> Iterator[None]:
        """Collect shortest frustrated cycles of the projected graph, with decreasing thresholds."""
        graph = ProjectedGraph(self.clusters, self.projections)
        yield
        graph.weigh()
        yield
        top = FIRST * graph.bottleneck()
        keys = set(self.clusters.keys)
        length = min(8, self.max_length)  # initial maximum length of cycles; it doubles while too few are found
        while top > 0:
            for level in range(LEVELS):
                if len(candidates) >= wanted or top * DECAY**level <= floor / 10:
                    break
                for cycles in graph.cycles(top * DECAY**level, length, 4 * wanted):
                    for cycle in cycles:
                        key = tuple(sorted(cycle[0].tolist()))
                        if key not in keys:
                            keys.add(key)
                            candidates.append(cycle)
                    yield
            if length == self.max_length or len(candidates) >= wanted // 4:
                return
            length = min(2 * length, self.max_length)


def list_short(clusters: Clusters) -> CycleList:
    """Return the triangles and chordless 4-cycles of the model's own pairs."""
    adjacent = adjacency(clusters.dual, clusters.pairs)
    adjacent = adjacent._replace(pair=clusters.pairs[adjacent.pair])
    room = min(200_000, 8 * len(clusters.pairs))  # maximum number of triangles and 4-cycles kept as candidates
    found = _empty_cycles(room, 4 * room)
    mark = np.full(clusters.dual.n_vars, -1, dtype=np.int64)
    count = short_cycles(adjacent, mark, found, 10 * SLICE)
    size = int(found.ptr[count])
    return CycleList(found.ptr[: count + 1], found.pair[:size], found.flip[:size])


def _empty_cycles(n: int, n_pairs: int) -> CycleList:
    pair, flip = np.zeros((2, n_pairs), dtype=np.int64)
    return CycleList(np.zeros(n + 1, dtype=np.int64), pair, flip)


def adjacency(dual: Dual, pairs: Ints) -> OrientedPairs:
    """Return the pairs of every variable, by their position in a list of pairs."""
    ends = dual.ends(pairs)
    ptr, order = edges_by_variable(ends.ravel(), dual.n_vars)
    place, flip = order // 2, order % 2
    return OrientedPairs(ptr.astype(np.int64), ends[place, 1 - flip], place.astype(np.int64), flip.astype(np.int64))


class ProjectedGraph:
    def __init__(self, clusters: Clusters, projections: int) -> None:
        self.dual, self.pairs = clusters.dual, clusters.pairs
        self.adjacent = adjacency(self.dual, self.pairs)  # the pairs of every variable by their position in `pairs`
        # The nodes are the states of highest belief; one is enough for binary variables.
        var_ptr, ends, n_vars = self.dual.regions.var_ptr, self.dual.ends(self.pairs), self.dual.n_vars
        card = np.diff(var_ptr).astype(np.int64)
        count = np.where(card <= 2, 1, np.minimum(card, projections))
        by_belief = np.lexsort((-self.dual.regions.belief, np.repeat(np.arange(n_vars), card)))
        node_ptr = offsets(count).astype(np.int64)
        node_state = by_belief[ranges(var_ptr[:-1], count)] - np.repeat(var_ptr[:-1], count)
        blocks = count[ends].prod(axis=1)
        weight_ptr = offsets(blocks).astype(np.int64)
        pair_of = np.repeat(np.arange(len(self.pairs)), blocks)
        within = np.arange(weight_ptr[-1]) - weight_ptr[pair_of]
        width = count[ends[pair_of, 1]]
        self.projection = Projection(
            node_ptr=node_ptr,
            node_state=node_state.astype(np.int64),
            node_var=np.repeat(np.arange(n_vars), count),
            weight_ptr=weight_ptr,
            weight=np.zeros(int(weight_ptr[-1])),
            pair_of=pair_of,
            node1=node_ptr[ends[pair_of, 0]] + within // width,
            node2=node_ptr[ends[pair_of, 1]] + within % width,
        )
        self.rank: Ints = np.zeros(0, dtype=np.int64)  # the projected pairs by decreasing absolute weight

    def weigh(self) -> None:
        weigh_projections(self.pairs, self.dual.regions, self.projection)
        self.rank = np.argsort(-np.abs(self.projection.weight), kind="stable")

    def bottleneck(self) -> float:
        """Return the largest threshold at which there is a frustrated cycle, 0 if there is none."""
        strongest = self.inconsistent(0.0, 1)
        return float(np.abs(self.projection.weight[strongest]).max(initial=0.0))

    def inconsistent(self, threshold: float, most: int) -> Ints:
        """Return the strongest pairs above the threshold, one of which is in every frustrated cycle."""
        found = np.zeros(most, dtype=np.int64)
        return found[: inconsistent_pairs(threshold, self.rank, self.projection, found)]

    def cycles(self, threshold: float, max_length: int, most: int) -> Iterator[list[Cycle]]:
        """Yield shortest frustrated cycles with weights above the threshold, in slices, at most `most` in total."""
        starts = self.inconsistent(threshold, len(self.rank))
        n = 2 * len(self.projection.node_var)
        frontier, place_of = np.full((4, n + 1), -1, dtype=np.int64), np.full(self.dual.n_vars, -1, dtype=np.int64)
        begin, total = 0, 0
        while begin < len(starts) and total < most:
            room = min(most - total, 4096)  # maximum number of frustrated cycles found per kernel call
            found = _empty_cycles(room, (room + 1) * (max_length + 1))
            begin, count = frustrated_cycles(
                begin, starts, threshold, max_length, self.projection, self.adjacent, frontier, place_of, found
            )
            total += count
            yield [(self.pairs[places], flips) for places, flips in found.take(np.arange(count))]


class OrientedPairs(NamedTuple):
    ptr: Ints  # (n_vars + 1,): variable `i` has the entries ``ptr[i]`` to ``ptr[i + 1]``
    # var, pair, flip: the other variable, the pair, and whether this variable is the second of the pair
    var: Ints
    pair: Ints
    flip: Ints


class Projection(NamedTuple):
    """The projected graph: a node is a state of a variable against all its others."""

    # node_ptr, node_state, node_var: nodes of every variable, and the state and the variable of every node
    node_ptr: Ints
    node_state: Ints
    node_var: Ints
    # weight_ptr, weight: weights of the projected pairs, a block per pair
    weight_ptr: Ints
    weight: Floats
    # pair_of, node1, node2: place of the pair, and the two nodes, of every projected pair
    pair_of: Ints
    node1: Ints
    node2: Ints


# Working memory of a breadth-first search in the double cover of the projected graph, (4, 2 * n_nodes + 1): the search
# that reached a node last, initially -1, from where, by which pair, and the nodes to go on from.
Frontier = Ints


@compiled
def gains(begin: int, end: int, regions: FactorMessages, cycles: CycleList, path: Floats, gain: Floats) -> None:
    """Compute the immediate decrease of the bound if a cycle became a cluster: its pairs' maxima minus its own."""
    for c in range(begin, end):
        top, total = best_walk(c, regions, cycles, None, path)
        gain[c] = total - top if total > -np.inf else 0.0


@compiled
def short_cycles(adjacent: OrientedPairs, mark: Ints, found: CycleList, max_work: int) -> int:
    """List triangles and cycles of four without a chord, as far as they fit; `mark` is -1 per variable."""
    ptr, var = adjacent.ptr, adjacent.var
    most = len(found.ptr) - 1
    count, work = 0, 0
    for i in range(len(ptr) - 1):
        for q in range(ptr[i], ptr[i + 1]):
            mark[var[q]] = q
        for q in range(ptr[i], ptr[i + 1]):
            a = var[q]
            if a < i:
                continue
            for r in range(ptr[a], ptr[a + 1]):
                k = var[r]
                if k <= i:
                    continue
                if mark[k] >= 0:
                    if k > a and count < most:
                        count = add_short(adjacent, q, r, -1, mark[k], found, count)
                    continue
                for s in range(ptr[k], ptr[k + 1]):
                    b = var[s]
                    work += 1
                    if b > a and mark[b] >= 0 and count < most:
                        chord = False
                        for u in range(ptr[a], ptr[a + 1]):
                            chord = chord or var[u] == b
                        if not chord:
                            count = add_short(adjacent, q, r, s, mark[b], found, count)
        for q in range(ptr[i], ptr[i + 1]):
            mark[var[q]] = -1
        if count == most or work > max_work:
            break
    return count


@inlined
def add_short(adjacent: OrientedPairs, q: int, r: int, s: int, back: int, found: CycleList, count: int) -> int:
    """Add a cycle of the steps `q`, `r`, `s` (-1 in a triangle) and `back`, which is walked back; return the count."""
    size = found.ptr[count]
    found.pair[size], found.flip[size] = adjacent.pair[q], adjacent.flip[q]
    found.pair[size + 1], found.flip[size + 1] = adjacent.pair[r], adjacent.flip[r]
    size += 2
    if s >= 0:
        found.pair[size], found.flip[size] = adjacent.pair[s], adjacent.flip[s]
        size += 1
    found.pair[size], found.flip[size] = adjacent.pair[back], 1 - adjacent.flip[back]
    found.ptr[count + 1] = size + 1
    return count + 1


@compiled
def weigh_projections(pairs: Ints, regions: FactorMessages, projection: Projection) -> None:
    """Weights of the projected pairs: how much better it is if both variables are, or both are not, in their states."""
    # The weight of two nodes is the best entry of the pair's reparametrised table where both agree in being in or out
    # of their states, minus the best where they do not.
    node_ptr, card_e = projection.node_ptr, regions.card_e
    for q in range(len(pairs)):
        p = pairs[q]
        first = regions.scope_ptr[p]
        i, j = regions.scope[first], regions.scope[first + 1]
        n1, n2 = node_ptr[i + 1] - node_ptr[i], node_ptr[j + 1] - node_ptr[j]
        k2, at, weight = card_e[first + 1], regions.table_at[p], weight_of(regions.weight, p)
        for c in range(n1 * n2):
            same, apart = -np.inf, -np.inf
            in1, in2 = projection.node_state[node_ptr[i] + c // n2], projection.node_state[node_ptr[j] + c % n2]
            for s1 in range(card_e[first]):
                for s2 in range(k2):
                    value = pair_entry(regions, weight, at + s1 * k2 + s2, first, s1, s2)
                    if (s1 == in1) == (s2 == in2):
                        same = max(same, value)
                    else:
                        apart = max(apart, value)
            projection.weight[projection.weight_ptr[q] + c] = 0.0 if same == apart else same - apart


@compiled
def inconsistent_pairs(threshold: float, rank: Ints, projection: Projection, out: Ints) -> int:
    """Projected pairs of weight at least the threshold that disagree with a spanning forest of the strongest ones."""
    # rank : projected pairs by falling size of the weight. A negative weight wants its nodes to differ, and a cycle
    # with an odd number of these cannot have them all: a frustrated cycle, which holds an odd number of inconsistent
    # pairs. Returns how many there are, in `out` by falling weight, at most as many as fit.
    weight = projection.weight
    n_nodes = len(projection.node_var)
    parent, parity = np.arange(n_nodes), np.zeros(n_nodes, dtype=np.int64)
    count = 0
    for q in range(len(rank)):
        w = weight[rank[q]]
        if w == 0.0 or abs(w) < threshold or count == len(out):
            break
        u, odd1 = root_of(projection.node1[rank[q]], parent, parity)
        v, odd2 = root_of(projection.node2[rank[q]], parent, parity)
        odd = odd1 ^ odd2 ^ (1 if w < 0 else 0)
        if u != v:
            parent[u], parity[u] = v, odd
        elif odd:
            out[count] = rank[q]
            count += 1
    return count


@compiled
def frustrated_cycles(
    begin: int, starts: Ints, threshold: float, max_length: int, projection: Projection, adjacent: OrientedPairs,
    frontier: Frontier, place_of: Ints, found: CycleList,
) -> tuple[int, int]:  # fmt: skip
    """Shortest frustrated cycles through one projected pair after another, of weights at least the threshold."""
    # Goes through `starts` from `begin` on until the work or the space is used up; returns where it stopped, and how
    # many cycles it found. Pairs are given by their place in the list of pairs. `place_of` is -1 before and after: the
    # place of a variable in the cycle being written.
    count, work, q = 0, 0, begin
    while q < len(starts) and work < SLICE and count < len(found.ptr) - 1:
        start = starts[q]
        goal = 2 * projection.node2[start] + (0 if projection.weight[start] < 0 else 1)
        work += reach(q, start, goal, threshold, max_length, projection, adjacent, frontier)
        if frontier[0, goal] == q:
            base = found.ptr[count]
            size = walk_back(goal, projection.pair_of[start], projection.node_var, frontier, place_of, base, found)
            if size >= 3:
                found.ptr[count + 1] = base + size
                count += 1
        q += 1
    return q, count


@inlined
def reach(
    q: int, start: int, goal: int, threshold: float, max_length: int, projection: Projection, adjacent: OrientedPairs,
    frontier: Frontier,
) -> int:  # fmt: skip
    """Search breadth first from a projected pair's first node to its goal without the pair itself; return the work."""
    # In the double cover a node is reached with an even or an odd number of disagreements. What search `q` reaches has
    # the stamp `q`.
    stamp, came_from, came_by, queue = frontier[0], frontier[1], frontier[2], frontier[3]
    node_ptr, weight = projection.node_ptr, projection.weight
    queue[0] = 2 * projection.node1[start]
    stamp[queue[0]] = q
    came_from[queue[0]] = -1
    head, tail, level_end, depth, work = 0, 1, 1, 0, 0
    while head < tail and stamp[goal] != q:
        if head == level_end:
            depth += 1
            level_end = tail
            if depth >= max_length - 1:
                break
        here = queue[head]
        head += 1
        u = here >> 1
        i = projection.node_var[u]
        c1, n1 = u - node_ptr[i], node_ptr[i + 1] - node_ptr[i]
        for at in range(adjacent.ptr[i], adjacent.ptr[i + 1]):
            place, j = adjacent.pair[at], adjacent.var[at]
            n2 = node_ptr[j + 1] - node_ptr[j]
            for c2 in range(n2):
                e = projection.weight_ptr[place] + (c2 * n1 + c1 if adjacent.flip[at] else c1 * n2 + c2)
                work += 1
                if e == start or abs(weight[e]) < threshold:
                    continue
                there = 2 * (node_ptr[j] + c2) + ((here & 1) ^ (1 if weight[e] < 0 else 0))
                if stamp[there] != q:
                    stamp[there] = q
                    came_from[there] = here
                    came_by[there] = 2 * place + 1 - adjacent.flip[at]
                    queue[tail] = there
                    tail += 1
    return work


@inlined
def walk_back(
    goal: int, closing: int, node_var: Ints, frontier: Frontier, place_of: Ints, base: int, found: CycleList
) -> int:
    """Write the cycle that ends at `goal` and is closed by a pair from place `base` on; return its length."""
    # A path that comes to a variable twice is cut down to the part between.
    came_from, came_by, queue = frontier[1], frontier[2], frontier[3]
    size = 0
    here = goal
    first = 0
    while True:
        i = node_var[here >> 1]
        queue[size] = i
        if place_of[i] >= 0:
            first = place_of[i]
            break
        place_of[i] = size
        if came_from[here] < 0:
            found.pair[base + size], found.flip[base + size] = closing, 0
            size += 1
            break
        found.pair[base + size], found.flip[base + size] = came_by[here] >> 1, came_by[here] & 1
        size += 1
        here = came_from[here]
    for t in range(size):
        place_of[queue[t]] = -1
    for t in range(first, size):
        found.pair[base + t - first], found.flip[base + t - first] = found.pair[base + t], found.flip[base + t]
    return size - first
