"""The search for clusters: short cycles by their gain, and frustrated cycles of the projected graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.engines.messages.clusters import Clusters, Cycle
from mapmrf.engines.messages.cycles_kernels import (
    bottleneck,
    frustrated_cycles,
    gains,
    inconsistent_pairs,
    project,
    short_cycles,
)
from mapmrf.engines.messages.mplp import Dual, edges_by_variable

MAX_SHORT = 200_000
"""Triangles and cycles of four that are kept as candidates, at most."""
FEW = 2
"""Short cycles per pair up to which all of them become clusters in the first round."""
SLICE = 500_000
"""Elementary steps between two moments at which the loop may stop the search: some 10 ms."""
MIN_SLICES = 20
"""Slices that a search for frustrated cycles may have, however small the model."""
FIRST, FALL, LEVELS = 0.5, 0.25, 4
"""The first threshold as a part of the bottleneck, the part of a threshold that is the next, and how many there are."""
FIRST_LENGTH = 8
"""Length of cycles up to which the search goes first; it doubles while too few are found."""


@dataclass
class Search:
    """What is asked of a search for clusters, and what does not change from one to the next.

    Attributes
    ----------
    clusters
        The clusters so far.
    triplets, cycles
        Whether short cycles, and frustrated cycles, are looked for.
    projections
        States of a variable that stand for nodes of the projected graph.
    max_length
        Longest cycle.
    short
        Triangles and chordless cycles of four of the model itself, once they were looked for.
    found
        What the last search found, the best first.
    """

    clusters: Clusters
    triplets: bool
    cycles: bool
    projections: int
    max_length: int
    short: Cycles | None = None
    found: list[Cycle] = field(default_factory=list)

    def run(self, wanted: int, floor: float, max_work: int) -> Iterator[None]:
        """Look for up to `wanted` cycles of gain above the floor, in slices; the best come first in `found`.

        `max_work` limits the elementary steps of the search for frustrated cycles.
        """
        self.found = []
        self.clusters.show_idle()
        yield from self.look(wanted, floor, max_work)
        self.clusters.hide_idle()

    def look(self, wanted: int, floor: float, max_work: int) -> Iterator[None]:
        """Collect cycles and rank them."""
        ranked: list[tuple[float, Cycle]] = []
        if self.triplets:
            if self.short is None:
                self.short = _short(self.clusters)
                if 0 < self.short.n <= FEW * len(self.clusters.pairs):
                    self.found = self.short.take(np.arange(self.short.n))  # in a sparse graph all serve sooner or later
                    return
            yield from self.rank(self.short, wanted, floor, ranked)
        if self.cycles and len(ranked) < wanted:
            candidates: list[Cycle] = []
            slices = max(MIN_SLICES, max_work // SLICE)
            yield from islice(self.frustrated(wanted, floor, candidates), slices)
            yield from self.rank(Cycles.of(candidates), wanted, floor, ranked)
        ranked.sort(key=lambda item: -item[0])  # a stable sort: equals stay in the order of their discovery
        self.found = [cycle for _, cycle in ranked[:wanted]]

    def rank(self, cycles: Cycles, wanted: int, floor: float, ranked: list[tuple[float, Cycle]]) -> Iterator[None]:
        """Add the best cycles of gain above the floor that are no clusters."""
        dual = self.clusters.dual
        width = int(np.diff(dual.var_ptr).max())
        gain, way = np.zeros(cycles.n), np.zeros((2, width))
        size = max(1, SLICE // (4 * width**3))
        for begin in range(0, cycles.n, size):
            gains(
                begin, min(begin + size, cycles.n), cycles.ptr, cycles.pairs, cycles.flips, dual.theta, dual.table_at,
                dual.scope_ptr, dual.state_at, dual.card_e, dual.edge_ptr, dual.lam, dual.belief, way, gain,
            )  # fmt: skip
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
        """Collect shortest frustrated cycles of the projected graph, from a high threshold down."""
        graph = _Projection.build(self.clusters, self.projections)
        yield
        graph.weigh(self.clusters)
        yield
        top = FIRST * graph.bottleneck()
        keys = set(self.clusters.keys)
        length = min(FIRST_LENGTH, self.max_length)
        while top > 0:
            for level in range(LEVELS):
                if len(candidates) >= wanted or top * FALL**level <= floor / 10:
                    break
                for cycles in graph.cycles(top * FALL**level, length, 4 * wanted):
                    candidates.extend(_unknown(cycles, keys))
                    yield
            if length == self.max_length or len(candidates) >= wanted // 4:
                return
            length = min(2 * length, self.max_length)


def _unknown(cycles: list[Cycle], keys: set[tuple[int, ...]]) -> Iterator[Cycle]:
    """The cycles that are not among the keys yet; they are from then on."""
    for cycle in cycles:
        key = tuple(sorted(cycle[0].tolist()))
        if key not in keys:
            keys.add(key)
            yield cycle


@dataclass(frozen=True)
class Cycles:
    """Many cycles in flat arrays: those of cycle c are the places ptr[c]:ptr[c + 1]."""

    ptr: Ints
    pairs: Ints
    flips: Ints

    @classmethod
    def of(cls, cycles: list[Cycle]) -> Cycles:
        """Flatten a list of cycles."""
        none = np.zeros(0, dtype=np.int64)
        pairs = np.concatenate([none, *(cycle[0] for cycle in cycles)])
        flips = np.concatenate([none, *(cycle[1] for cycle in cycles)])
        return cls(offsets([len(cycle[0]) for cycle in cycles]).astype(np.int64), pairs, flips)

    @property
    def n(self) -> int:
        """Number of cycles."""
        return len(self.ptr) - 1

    def take(self, which: Ints) -> list[Cycle]:
        """Some of the cycles."""
        bounds = zip(self.ptr[which].tolist(), self.ptr[which + 1].tolist(), strict=True)
        return [(self.pairs[begin:end], self.flips[begin:end]) for begin, end in bounds]


def _short(clusters: Clusters) -> Cycles:
    """Triangles and chordless cycles of four of the model's own pairs."""
    adjacent = _Adjacency.build(clusters.dual, clusters.pairs)
    room = min(MAX_SHORT, 8 * len(clusters.pairs))
    pairs, flips = np.zeros((room, 4), dtype=np.int64), np.zeros((room, 4), dtype=np.int64)
    sizes = np.zeros(room, dtype=np.int64)
    mark = np.full(clusters.dual.n_vars, -1, dtype=np.int64)
    count = short_cycles(
        adjacent.ptr, adjacent.var, clusters.pairs[adjacent.place], adjacent.flip, mark, pairs, flips, sizes, 10 * SLICE
    )
    ptr = offsets(sizes[:count]).astype(np.int64)
    places = ranges(4 * np.arange(count), sizes[:count])
    return Cycles(ptr, pairs.ravel()[places], flips.ravel()[places])


@dataclass(frozen=True)
class _Adjacency:
    """The pairs of every variable: the other variable, the pair's place in a list, and whether it is the second one."""

    ptr: Ints
    var: Ints
    place: Ints
    flip: Ints

    @classmethod
    def build(cls, dual: Dual, pairs: Ints) -> _Adjacency:
        ends = dual.scope[dual.scope_ptr[pairs][:, None] + np.arange(2)].astype(np.int64)
        ptr, order = edges_by_variable(ends.ravel(), dual.n_vars)
        place, flip = order // 2, order % 2
        return cls(ptr.astype(np.int64), ends[place, 1 - flip], place.astype(np.int64), flip.astype(np.int64))


@dataclass
class _Projection:
    """The projected graph: a node is a state of a variable against all its others.

    Attributes
    ----------
    node_ptr, node_state, node_var
        Nodes of every variable, and the state and the variable of every node.
    weight_ptr, weight
        Weights of the projected pairs, a block per pair.
    pair_of, node1, node2
        Place of the pair, and the two nodes, of every projected pair.
    """

    pairs: Ints
    adjacent: _Adjacency
    node_ptr: Ints
    node_state: Ints
    node_var: Ints
    weight_ptr: Ints
    weight: Floats
    pair_of: Ints
    node1: Ints
    node2: Ints
    rank: Ints

    @classmethod
    def build(cls, clusters: Clusters, projections: int) -> _Projection:
        """Take the states of highest belief for nodes; one is enough where there are two."""
        dual, pairs = clusters.dual, clusters.pairs
        card = np.diff(dual.var_ptr).astype(np.int64)
        count = np.where(card <= 2, 1, np.minimum(card, projections))
        owner = np.repeat(np.arange(dual.n_vars), card)
        by_belief = np.lexsort((-dual.belief, owner))
        node_ptr = offsets(count).astype(np.int64)
        node_state = by_belief[ranges(dual.var_ptr[:-1], count)] - np.repeat(dual.var_ptr[:-1], count)
        ends = dual.scope[dual.scope_ptr[pairs][:, None] + np.arange(2)]
        blocks = count[ends].prod(axis=1)
        weight_ptr = offsets(blocks).astype(np.int64)
        pair_of = np.repeat(np.arange(len(pairs)), blocks)
        within = np.arange(weight_ptr[-1]) - weight_ptr[pair_of]
        width = count[ends[pair_of, 1]]
        return cls(
            pairs=pairs,
            adjacent=_Adjacency.build(dual, pairs),
            node_ptr=node_ptr,
            node_state=node_state.astype(np.int64),
            node_var=np.repeat(np.arange(dual.n_vars), count),
            weight_ptr=weight_ptr,
            weight=np.zeros(int(weight_ptr[-1])),
            pair_of=pair_of,
            node1=node_ptr[ends[pair_of, 0]] + within // width,
            node2=node_ptr[ends[pair_of, 1]] + within % width,
            rank=np.zeros(0, dtype=np.int64),
        )

    def weigh(self, clusters: Clusters) -> None:
        """Compute the weights and rank the projected pairs by their size."""
        dual = clusters.dual
        project(
            self.pairs, self.weight_ptr, self.node_ptr, self.node_state, dual.theta, dual.table_at, dual.scope_ptr,
            dual.scope, dual.state_at, dual.card_e, dual.edge_ptr, dual.lam, dual.belief, self.weight,
        )  # fmt: skip
        self.rank = np.argsort(-np.abs(self.weight), kind="stable")

    def bottleneck(self) -> float:
        """The largest threshold at which there is a frustrated cycle, 0 if there is none at all."""
        n = len(self.node_var)
        forest = np.zeros((2, n), dtype=np.int64)
        return bottleneck(self.rank, self.weight, self.node1, self.node2, forest[0], forest[1])

    def inconsistent(self, threshold: float) -> Ints:
        """Pairs of weight at least the threshold, one of which is in every frustrated cycle."""
        forest, found = np.zeros((2, len(self.node_var)), dtype=np.int64), np.zeros(len(self.rank), dtype=np.int64)
        count = inconsistent_pairs(
            threshold, self.rank, self.weight, self.node1, self.node2, forest[0], forest[1], found
        )  # fmt: skip
        return found[:count]

    def cycles(self, threshold: float, max_length: int, most: int) -> Iterator[list[Cycle]]:
        """Shortest frustrated cycles of weights at least the threshold, in slices, `most` in all."""
        n, adjacent = len(self.node_var), self.adjacent
        stamp, scratch = np.full(2 * n, -1, dtype=np.int64), np.zeros((3, 2 * n + 1), dtype=np.int64)
        place_of = np.full(len(adjacent.ptr) - 1, -1, dtype=np.int64)
        starts = self.inconsistent(threshold)
        begin, total = 0, 0
        while begin < len(starts) and total < most:
            room = min(most - total, 4096)
            out_ptr = np.zeros(room + 1, dtype=np.int64)
            out = np.zeros((2, (room + 1) * (max_length + 1)), dtype=np.int64)
            count = np.zeros(1, dtype=np.int64)
            begin = frustrated_cycles(
                begin, threshold, max_length, SLICE, starts, self.weight, self.weight_ptr, self.pair_of, self.node1,
                self.node2, self.node_ptr, self.node_var, adjacent.ptr, adjacent.var, adjacent.place, adjacent.flip,
                stamp, scratch[0], scratch[1], scratch[2], place_of, out_ptr, out[0], out[1], count,
            )  # fmt: skip
            found = int(count[0])
            total += found
            yield [
                (self.pairs[out[0, out_ptr[c] : out_ptr[c + 1]]], out[1, out_ptr[c] : out_ptr[c + 1]])
                for c in range(found)
            ]
