"""Clusters for MPLP-C: cycles that pass messages to their pairs, and larger factors lifted to pairs."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets, ranges, short
from mapmrf.engines.messages.clusters_kernels import (
    Cycle,
    CycleList,
    CycleScratch,
    CycleTables,
    Lifts,
    Links,
    passes_clusters,
    passes_clusters2,
    project_links,
    top_of_clusters,
    triangulate,
)
from mapmrf.engines.messages.mplp import Dual, edges_by_variable
from mapmrf.kernels.max_marginals import FactorScratch


class Clusters:
    def __init__(self, dual: Dual, max_entries: int) -> None:
        """Start without cycles; core factors other than the first on any two variables are lifted to pairs."""
        core = np.sort(dual.visit)
        pairs = core[np.diff(dual.regions.scope_ptr)[core] == 2]
        _, first = np.unique(_pair_keys(dual, pairs), return_index=True)
        self.dual = dual  # the factors; pairs that clusters need are added to it
        self.n_given = dual.n_factors  # number of factors of the model
        # factors that serve as pairs, one for every two variables
        self.pairs: Ints = np.sort(pairs[first]).astype(np.int64)
        # whether a factor has its own table, so that clusters may write to it
        self.private: Bools = np.zeros(dual.n_factors, dtype=bool)
        self.active: Bools = np.ones(dual.n_factors, dtype=bool)  # whether a factor takes part in the passes
        # cycles, tables: the clusters, and their tables
        self.cycles = CycleList.of([])
        self.tables = CycleTables(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0))
        # links, lifts: larger factors with all pairs of their variables, and those of them to active pairs, by factor
        none: Ints = np.zeros(0, dtype=np.int64)
        self.links = Links(none, none, np.zeros((0, 2), dtype=np.int64))
        self.lifts = Lifts(np.zeros(1, dtype=np.int64), *self.links)
        self.lift_scratch = FactorScratch.allocate(1, 1)
        # keys, number: the pairs of every cluster, sorted; and the pair of every two variables, once that is needed
        self.keys: set[tuple[int, ...]] = set()
        self.number: dict[tuple[int, int], int] = {}
        rest = np.setdiff1d(core, self.pairs)
        if len(rest):
            self.link(rest, max_entries)
        self.n_model_pairs = len(self.pairs)  # number of pairs of variables covered by the model's factors

    @property
    def n_lifts(self) -> int:
        return len(self.lifts.factor)

    @property
    def n_added(self) -> int:
        return self.dual.n_factors - self.n_given

    @property
    def entries(self) -> int:
        """Table entries of all clusters and added pairs."""
        return len(self.tables.own) + int(self.dual.sizes(np.arange(self.n_given, self.dual.n_factors)).sum())

    def add_pairs(self, first: Ints, second: Ints) -> Ints:
        """Add inactive pairs with zero tables; return their indices."""
        dual, regions, n = self.dual, self.dual.regions, len(first)
        added, scope = np.arange(dual.n_factors, dual.n_factors + n), np.stack([first, second], axis=1).ravel()
        card = np.diff(regions.var_ptr)[scope]
        sizes = card[::2].astype(np.int64) * card[1::2]
        table_at = len(regions.theta) + offsets(sizes)[:-1].astype(np.int64)
        dual.regions = regions._replace(
            table_at=short(np.concatenate([regions.table_at, table_at])),
            theta=np.concatenate([regions.theta, np.zeros(int(sizes.sum()))]),
            weight=np.concatenate([regions.weight, np.ones(n if len(regions.weight) else 0)]),
            scope_ptr=short(np.concatenate([regions.scope_ptr, regions.scope_ptr[-1] + 2 * np.arange(1, n + 1)])),
            scope=short(np.concatenate([regions.scope, scope])),
            state_at=short(np.concatenate([regions.state_at, regions.var_ptr[scope]])),
            card_e=short(np.concatenate([regions.card_e, card])),
            edge_ptr=short(np.concatenate([regions.edge_ptr, regions.edge_ptr[-1] + np.cumsum(card)])),
            lam=np.concatenate([regions.lam, np.zeros(int(card.sum()))]),
        )
        dual.forget_forms(added)
        ptr, edges = edges_by_variable(dual.regions.scope, dual.n_vars)
        factor_of = short(np.concatenate([dual.neighbours.factor_of, np.repeat(added, 2)]))
        dual.neighbours = dual.neighbours._replace(ptr=ptr, edge=edges, factor_of=factor_of)
        widest = int(card.reshape(-1, 2).sum(axis=1).max(initial=0))
        if widest > len(dual.scratch.given):
            dual.scratch = FactorScratch.allocate(widest, len(dual.scratch.state))
        self.private = np.concatenate([self.private, np.ones(n, dtype=bool)])
        self.active = np.concatenate([self.active, np.zeros(n, dtype=bool)])
        self.pairs = np.concatenate([self.pairs, added]).astype(np.int64)
        if self.number:
            self.number.update(self.numbers(added))
        return added

    def make_private(self, factors: Ints) -> None:
        """Give factors their own copies of shared tables, so that clusters may write to them."""
        factors = np.unique(factors)
        factors = factors[~self.private[factors]]
        regions = self.dual.regions
        sizes = self.dual.sizes(factors)
        copies = regions.theta[ranges(regions.table_at[factors], sizes)]
        if len(regions.weight):
            copies *= np.repeat(regions.weight[factors], sizes)
            regions.weight[factors] = 1.0
        table_at = regions.table_at.astype(np.int64)
        table_at[factors] = len(regions.theta) + offsets(sizes)[:-1].astype(np.int64)
        self.dual.regions = regions._replace(table_at=short(table_at), theta=np.concatenate([regions.theta, copies]))
        self.private[factors] = True
        self.dual.forget_forms(factors)

    def link(self, factors: Ints, max_entries: int) -> None:
        """Find the pairs of all variables of factors, small factors first, as far as the entries allow."""
        # Factors are lifted at once to pairs that several of them share. Other pairs stay inactive until a cluster
        # needs them.
        dual = self.dual
        owner, axis = _places(dual, factors)
        ends = np.sort(_variables_at(dual, owner, axis), axis=1)
        card = np.diff(dual.regions.var_ptr).astype(np.int64)
        fits = np.cumsum(card[ends].prod(axis=1)) <= max_entries
        complete = ~np.isin(owner, owner[~fits])
        owner, axis, ends = owner[complete], axis[complete], ends[complete]
        keys, of, count = np.unique(ends[:, 0] * dual.n_vars + ends[:, 1], return_inverse=True, return_counts=True)
        have = _pair_keys(dual, self.pairs)
        order = np.argsort(have)
        at = np.asarray(np.searchsorted(have[order], keys))
        fresh = np.ones(len(keys), dtype=bool)
        inside = at < len(have)
        fresh[inside] = have[order][at[inside]] != keys[inside]
        number = np.full(len(keys), -1, dtype=np.int64)
        number[~fresh] = self.pairs[order][at[~fresh]]
        count += ~fresh
        number[fresh] = self.add_pairs(keys[fresh] // dual.n_vars, keys[fresh] % dual.n_vars)
        pair = number[of]
        # The order of a pair's variables decides which axis of the factor comes first.
        flipped = dual.ends(pair)[:, 0] != _variables_at(dual, owner, axis)[:, 0]
        self.links = Links(owner, pair, np.where(flipped[:, None], axis[:, ::-1], axis))
        self.activate(number[count > 1])

    def activate(self, pairs: Ints) -> None:
        """Activate pairs, and lift the factors that contain them."""
        woken = np.unique(pairs[~self.active[pairs]])
        self.active[woken] = True
        self.dual.add_visits(woken)
        used = self.active[self.links.pair] if len(self.links.pair) else np.zeros(0, dtype=bool)
        owner = self.links.factor[used]
        begins = np.flatnonzero(np.diff(owner, prepend=-1))
        ptr = np.append(begins, len(owner))
        self.lifts = Lifts(ptr, owner[begins], self.links.pair[used], self.links.axis[used])
        self.make_private(np.concatenate([self.lifts.factor, self.lifts.pair]))
        if self.n_lifts:
            held = np.add.reduceat(self.dual.sizes(self.lifts.pair), begins)
            self.lift_scratch = FactorScratch.allocate(int(held.max()), len(self.dual.scratch.state))

    def show_idle(self) -> None:
        """Fill the tables of inactive pairs with max-marginals of the factors that contain them, for a search only."""
        idle = np.flatnonzero(~self.active[self.links.pair])
        if len(idle):
            links = Links(self.links.factor[idle], self.links.pair[idle], self.links.axis[idle])
            project_links(links, self.dual.regions, self.dual.scratch.state)

    def hide_idle(self) -> None:
        idle, regions = self.links.pair[~self.active[self.links.pair]], self.dual.regions
        regions.theta[ranges(regions.table_at[idle], self.dual.sizes(idle))] = 0.0

    def fitting(self, cycles: list[Cycle], max_entries: int) -> list[Cycle]:
        """Return as many of the cycles, in order, as the entries allow; triangulation takes up to four times as many.

        n pairs become n - 2 triangles of three pairs, and n - 3 additional pairs.
        """
        if not cycles:
            return []
        sizes = self.dual.sizes(np.concatenate([cycle[0] for cycle in cycles]))
        ends = np.cumsum([len(cycle[0]) for cycle in cycles])
        needed = 4 * np.cumsum(sizes)[ends - 1]
        return cycles[: int(np.searchsorted(needed, max_entries - self.entries, side="right"))]

    def add(self, cycles: list[Cycle]) -> int:
        """Turn cycles into clusters; return how many of them are new."""
        fresh = []
        for pairs, flips in cycles:
            key = tuple(sorted(pairs.tolist()))
            if key not in self.keys:
                self.keys.add(key)
                fresh.append((pairs, flips))
        if not fresh:
            return 0
        added = CycleList.of(fresh)
        self.make_private(added.pair)
        self.activate(added.pair)
        sizes = self.dual.sizes(added.pair)
        old, tables = self.cycles, self.tables
        self.cycles = CycleList(
            np.concatenate([old.ptr, old.ptr[-1] + added.ptr[1:]]),
            np.concatenate([old.pair, added.pair]),
            np.concatenate([old.flip, added.flip]),
        )
        own_at = np.concatenate([tables.own_at, len(tables.own) + offsets(sizes)[:-1].astype(np.int64)])
        own = np.concatenate([tables.own, np.zeros(int(sizes.sum()))])
        self.tables = CycleTables(np.repeat(1 / self.cycles.length, self.cycles.length), own_at, own)
        return len(fresh)

    def share_unequally(self, random: np.random.Generator) -> None:
        """Give the pairs of every cluster random shares. The bound cannot rise, but converges to another point."""
        drawn = random.exponential(size=len(self.cycles.pair))
        total = np.repeat(np.add.reduceat(drawn, self.cycles.ptr[:-1]), self.cycles.length)
        self.tables = self.tables._replace(share=drawn / total)

    def triangles(self, cycles: list[Cycle]) -> list[Cycle]:
        """Triangulate cycles, adding chords as pairs where there are none."""
        if not self.number:
            self.number = self.numbers(self.pairs)
        corners: list[list[int]] = []
        for cycle in cycles:
            walk = self.variables(cycle)
            variables, n = walk.tolist(), len(walk)
            known = np.full((n, n), -1, dtype=np.int64)
            for a, b in combinations(range(n), 2):
                i, j = variables[a], variables[b]
                known[a, b] = self.number.get((i, j) if i < j else (j, i), -1)
            places = np.zeros((n - 2, 3), dtype=np.int64)
            triangulate(known, np.zeros((n, n)), np.zeros((n, n), dtype=np.int64), places)
            corners += walk[places].tolist()
        wanted: dict[tuple[int, int], None] = {}
        for corner in corners:
            for i, j in combinations(sorted(corner), 2):
                if (i, j) not in self.number:
                    wanted[(i, j)] = None
        if wanted:
            ends = np.array(list(wanted), dtype=np.int64)
            self.add_pairs(ends[:, 0], ends[:, 1])
        return [self.cycle_of(corner) for corner in corners]

    def cycle_of(self, walk: list[int]) -> Cycle:
        """Return the cycle through some variables, consecutive ones of which are pairs."""
        steps = zip(walk, walk[1:] + walk[:1], strict=True)
        pairs = np.array([self.number[min(step), max(step)] for step in steps], dtype=np.int64)
        return pairs, (self.dual.ends(pairs)[:, 0] != np.array(walk)).astype(np.int64)

    def numbers(self, pairs: Ints) -> dict[tuple[int, int], int]:
        """Map the variables of some pairs, the smaller one first, to the pairs' indices."""
        ends = np.sort(self.dual.ends(pairs), axis=1)
        return {(i, j): p for (i, j), p in zip(ends.tolist(), pairs.tolist(), strict=True)}

    def variables(self, cycle: Cycle) -> Ints:
        regions = self.dual.regions
        return np.asarray(regions.scope[regions.scope_ptr[cycle[0]] + cycle[1]], dtype=np.int64)

    def passes(self, begin: int, end: int) -> None:
        """Run the iterations from `begin` to `end`: all lifts and clusters, then all factors."""
        dual = self.dual
        if self.cycles.n == 0 and self.n_lifts == 0:
            dual.passes(begin, end)
            return
        longest = int(self.cycles.length.max(initial=3)) + 1
        walk, ahead, back = np.zeros((3, longest * dual.max_card**2))
        scratch = CycleScratch(walk, ahead, back, dual.max_card)
        sweeps = dual.sweeps(begin, end)
        if dual.quick and self.n_lifts == 0:
            passes_clusters2(dual.regions, sweeps, self.cycles, self.tables, scratch)
        else:
            tools = (scratch, self.lift_scratch, dual.scratch, dual.pairs)
            passes_clusters(dual.regions, sweeps, self.cycles, self.tables, self.lifts, *tools)

    def bound(self) -> float:
        bound = self.dual.bound()
        if self.cycles.n:
            path = np.zeros((2, self.dual.max_card))
            bound += top_of_clusters(self.dual.regions, self.cycles, self.tables, path)
        return bound

    def work_per_pass(self) -> int:
        """Return the approximate number of table entries processed per iteration; those of cycles count more."""
        lifted = 8 * int(self.dual.sizes(self.lifts.factor).sum())
        return self.dual.work_per_pass() + 2 * self.dual.max_card * len(self.tables.own) + lifted


def _variables_at(dual: Dual, factors: Ints, axis: Ints) -> Ints:
    """Return the variables at some positions of factors' scopes, (n, 2)."""
    return np.asarray(dual.regions.scope[dual.regions.scope_ptr[factors][:, None] + axis], dtype=np.int64)


def _pair_keys(dual: Dual, pairs: Ints) -> Ints:
    """Return a unique key per unordered pair of variables."""
    ends = np.sort(dual.ends(pairs), axis=1)
    return np.asarray(ends[:, 0] * dual.n_vars + ends[:, 1])


def _places(dual: Dual, factors: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of scope positions of every factor, (n,) factors and (n, 2) positions; small factors first."""
    arity = np.diff(dual.regions.scope_ptr)[factors]
    owner, axis = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 2), dtype=np.int64)]
    for k in np.unique(arity).tolist():
        places = np.array(list(combinations(range(k), 2)), dtype=np.int64)
        mine = factors[arity == k].astype(np.int64)
        owner.append(np.repeat(mine, len(places)))
        axis.append(np.tile(places, (len(mine), 1)))
    return np.concatenate(owner), np.concatenate(axis)
