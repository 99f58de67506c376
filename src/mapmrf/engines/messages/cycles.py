"""The search for clusters: short cycles by their gain, and frustrated cycles of the projected graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.engines.messages.clusters import Clusters
from mapmrf.engines.messages.clusters_kernels import Cycle, CycleList
from mapmrf.engines.messages.cycles_kernels import (
    CycleLimits,
    Frontier,
    OrientedPairs,
    Projection,
    frustrated_cycles,
    gains,
    inconsistent_pairs,
    short_cycles,
    weigh_projections,
)
from mapmrf.engines.messages.mplp import Dual, edges_by_variable

MAX_SHORT = 200_000
"""Maximum number of triangles and 4-cycles kept as candidates."""
FEW = 2
"""Number of short cycles per pair up to which all of them become clusters in the first round."""
SLICE = 500_000
"""Elementary steps between points at which the loop may stop the search: some 10 ms."""
MIN_SLICES = 20
"""Minimum number of slices of a search for frustrated cycles, on any model."""
FIRST, DECAY, LEVELS = 0.5, 0.25, 4
"""First threshold relative to the bottleneck, ratio of consecutive thresholds, and their number."""
FIRST_LENGTH = 8
"""Initial maximum length of cycles; it doubles while too few are found."""
BATCH = 4096
"""Maximum number of frustrated cycles found per kernel call."""


@dataclass
class ClusterSearch:
    """A search for clusters, and what stays the same from one search to the next.

    Attributes
    ----------
    clusters
        The current clusters.
    triplets, cycles
        Whether to search for short cycles, and for frustrated cycles.
    projections
        Number of states of a variable that become nodes of the projected graph.
    max_length
        Maximum length of a cycle.
    short
        Triangles and chordless 4-cycles of the model itself, once they are listed.
    found
        The results of the last search, the best first.
    """

    clusters: Clusters
    triplets: bool
    cycles: bool
    projections: int
    max_length: int
    short: CycleList | None = None
    found: list[Cycle] = field(default_factory=list)

    def run(self, wanted: int, floor: float, max_work: int) -> Iterator[None]:
        """Search for up to `wanted` cycles of gain above the floor, in slices; `found` lists the best first.

        `max_work` limits the elementary steps of the search for frustrated cycles.
        """
        self.found = []
        self.clusters.show_idle()
        try:
            yield from self.collect(wanted, floor, max_work)
        finally:
            self.clusters.hide_idle()

    def collect(self, wanted: int, floor: float, max_work: int) -> Iterator[None]:
        """Collect cycles and rank them."""
        ranked: list[tuple[float, Cycle]] = []
        if self.triplets:
            if self.short is None:
                self.short = list_short(self.clusters)
                if 0 < self.short.n <= FEW * len(self.clusters.pairs):
                    self.found = self.short.take(np.arange(self.short.n))  # in a sparse graph, all are of use
                    return
            yield from self.rank(self.short, wanted, floor, ranked)
        if self.cycles and len(ranked) < wanted:
            candidates: list[Cycle] = []
            slices = max(MIN_SLICES, max_work // SLICE)
            yield from islice(self.frustrated(wanted, floor, candidates), slices)
            yield from self.rank(CycleList.of(candidates), wanted, floor, ranked)
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
        length = min(FIRST_LENGTH, self.max_length)
        while top > 0:
            for level in range(LEVELS):
                if len(candidates) >= wanted or top * DECAY**level <= floor / 10:
                    break
                for cycles in graph.cycles(top * DECAY**level, length, 4 * wanted):
                    candidates.extend(_unknown(cycles, keys))
                    yield
            if length == self.max_length or len(candidates) >= wanted // 4:
                return
            length = min(2 * length, self.max_length)


def _unknown(cycles: list[Cycle], keys: set[tuple[int, ...]]) -> Iterator[Cycle]:
    """Yield the cycles that are not among the keys, and add them to the keys."""
    for cycle in cycles:
        key = tuple(sorted(cycle[0].tolist()))
        if key not in keys:
            keys.add(key)
            yield cycle


def list_short(clusters: Clusters) -> CycleList:
    """Return the triangles and chordless 4-cycles of the model's own pairs."""
    adjacent = adjacency(clusters.dual, clusters.pairs)
    adjacent = adjacent._replace(pair=clusters.pairs[adjacent.pair])
    room = min(MAX_SHORT, 8 * len(clusters.pairs))
    found = _empty_cycles(room, 4 * room)
    mark = np.full(clusters.dual.n_vars, -1, dtype=np.int64)
    count = short_cycles(adjacent, mark, found, 10 * SLICE)
    size = int(found.ptr[count])
    return CycleList(found.ptr[: count + 1], found.pair[:size], found.flip[:size])


def _empty_cycles(n: int, n_pairs: int) -> CycleList:
    """Allocate room for `n` cycles with `n_pairs` pairs."""
    pair, flip = np.zeros((2, n_pairs), dtype=np.int64)
    return CycleList(np.zeros(n + 1, dtype=np.int64), pair, flip)


def adjacency(dual: Dual, pairs: Ints) -> OrientedPairs:
    """Return the pairs of every variable, by their position in a list of pairs."""
    ends = dual.ends(pairs)
    ptr, order = edges_by_variable(ends.ravel(), dual.n_vars)
    place, flip = order // 2, order % 2
    return OrientedPairs(ptr.astype(np.int64), ends[place, 1 - flip], place.astype(np.int64), flip.astype(np.int64))


class ProjectedGraph:
    """The projected graph of a dual with clusters, and its frustrated cycles.

    Attributes
    ----------
    pairs, adjacent, projection
        The pairs, those of every variable by their position in `pairs`, and the nodes and weights.
    rank
        The projected pairs by decreasing absolute weight.
    """

    def __init__(self, clusters: Clusters, projections: int) -> None:
        self.dual, self.pairs = clusters.dual, clusters.pairs
        self.adjacent = adjacency(self.dual, self.pairs)
        self.projection = _project(self.dual, self.pairs, projections)
        self.rank: Ints = np.zeros(0, dtype=np.int64)

    def weigh(self) -> None:
        """Compute the weights and rank the projected pairs by absolute weight."""
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
        limits, frontier = CycleLimits(threshold, max_length, SLICE), self.frontier()
        begin, total = 0, 0
        while begin < len(starts) and total < most:
            room = min(most - total, BATCH)
            found = _empty_cycles(room, (room + 1) * (max_length + 1))
            begin, count = frustrated_cycles(begin, starts, limits, self.projection, self.adjacent, frontier, found)
            total += count
            yield [(self.pairs[places], flips) for places, flips in found.take(np.arange(count))]

    def frontier(self) -> Frontier:
        """Allocate scratch for a breadth-first search."""
        n = 2 * len(self.projection.node_var)
        came_from, came_by, queue = np.zeros((3, n + 1), dtype=np.int64)
        stamp, place_of = np.full(n, -1, dtype=np.int64), np.full(self.dual.n_vars, -1, dtype=np.int64)
        return Frontier(stamp, came_from, came_by, queue, place_of)


def _project(dual: Dual, pairs: Ints, projections: int) -> Projection:
    """Use the states of highest belief as nodes; one is enough for binary variables. The weights are still 0."""
    var_ptr = dual.regions.var_ptr
    card = np.diff(var_ptr).astype(np.int64)
    count = np.where(card <= 2, 1, np.minimum(card, projections))
    owner = np.repeat(np.arange(dual.n_vars), card)
    by_belief = np.lexsort((-dual.regions.belief, owner))
    node_ptr = offsets(count).astype(np.int64)
    node_state = by_belief[ranges(var_ptr[:-1], count)] - np.repeat(var_ptr[:-1], count)
    ends = dual.ends(pairs)
    blocks = count[ends].prod(axis=1)
    weight_ptr = offsets(blocks).astype(np.int64)
    pair_of = np.repeat(np.arange(len(pairs)), blocks)
    within = np.arange(weight_ptr[-1]) - weight_ptr[pair_of]
    width = count[ends[pair_of, 1]]
    return Projection(
        node_ptr=node_ptr,
        node_state=node_state.astype(np.int64),
        node_var=np.repeat(np.arange(dual.n_vars), count),
        weight_ptr=weight_ptr,
        weight=np.zeros(int(weight_ptr[-1])),
        pair_of=pair_of,
        node1=node_ptr[ends[pair_of, 0]] + within // width,
        node2=node_ptr[ends[pair_of, 1]] + within % width,
    )
