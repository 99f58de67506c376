"""Clusters for MPLP-C: cycles that pass messages to their pairs, and larger factors lifted to pairs."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.factor_messages import FactorMessages, edges_by_variable
from mapmrf.engines.messages.mplp import Dual, pair_entry, pass_factors, pass_pairs2
from mapmrf.kernels.max_marginals import FactorScratch, next_configuration, weight_of


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
        self.lifts, self.lift_ptr = self.links, np.zeros(1, dtype=np.int64)
        self.lift_scratch = self.scratch_for(1)
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

    def scratch_for(self, n: int) -> FactorScratch:
        """Return the scratch of the dual with room for `n` numbers in a factor."""
        given, out = np.zeros((2, n))
        return self.dual.scratch[0]._replace(given=given, out=out)

    def add_pairs(self, first: Ints, second: Ints) -> Ints:
        """Add inactive pairs with zero tables; return their indices."""
        dual, regions, n = self.dual, self.dual.regions, len(first)
        added, scope = np.arange(dual.n_factors, dual.n_factors + n), np.stack([first, second], axis=1).ravel()
        card = np.diff(regions.var_ptr)[scope]
        sizes = card[::2].astype(np.int64) * card[1::2]
        table_at = len(regions.theta_t) + offsets(sizes)[:-1].astype(np.int64)
        dual.regions = regions._replace(
            table_at=short(np.concatenate([regions.table_at, table_at])),
            theta_t=np.concatenate([regions.theta_t, np.zeros(int(sizes.sum()))]),
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
        if widest > len(dual.scratch[0].given):
            dual.scratch[0] = self.scratch_for(widest)
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
        copies = regions.theta_t[ranges(regions.table_at[factors], sizes)]
        if len(regions.weight):
            copies *= np.repeat(regions.weight[factors], sizes)
            regions.weight[factors] = 1.0
        table_at = regions.table_at.astype(np.int64)
        table_at[factors] = len(regions.theta_t) + offsets(sizes)[:-1].astype(np.int64)
        theta_t = np.concatenate([regions.theta_t, copies])
        self.dual.regions = regions._replace(table_at=short(table_at), theta_t=theta_t)
        self.private[factors] = True
        self.dual.forget_forms(factors)

    def link(self, factors: Ints, max_entries: int) -> None:
        """Find the pairs of all variables of factors, small factors first, as far as the entries allow."""
        # Factors are lifted at once to pairs that several of them share. Other pairs stay inactive until a cluster
        # needs them.
        dual, arity = self.dual, np.diff(self.dual.regions.scope_ptr)[factors]
        owners, axes = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 2), dtype=np.int64)]
        for k in np.unique(arity).tolist():  # all pairs of positions in the scopes of the factors
            places = np.array(list(combinations(range(k), 2)), dtype=np.int64)
            mine = factors[arity == k].astype(np.int64)
            owners.append(np.repeat(mine, len(places)))
            axes.append(np.tile(places, (len(mine), 1)))
        owner, axis = np.concatenate(owners), np.concatenate(axes)
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
        self.lifts, self.lift_ptr = Links(owner[begins], self.links.pair[used], self.links.axis[used]), ptr
        self.make_private(np.concatenate([self.lifts.factor, self.lifts.pair]))
        if self.n_lifts:
            held = np.add.reduceat(self.dual.sizes(self.lifts.pair), begins)
            self.lift_scratch = self.scratch_for(int(held.max()))

    def show_idle(self) -> None:
        """Fill the tables of inactive pairs with max-marginals of the factors that contain them, for a search only."""
        idle = np.flatnonzero(~self.active[self.links.pair])
        if len(idle):
            links = Links(self.links.factor[idle], self.links.pair[idle], self.links.axis[idle])
            project_links(links, self.dual.regions, self.dual.scratch[0].state)

    def hide_idle(self) -> None:
        idle, regions = self.links.pair[~self.active[self.links.pair]], self.dual.regions
        regions.theta_t[ranges(regions.table_at[idle], self.dual.sizes(idle))] = 0.0

    def fitting(self, cycles: list[Cycle], max_entries: int) -> list[Cycle]:
        """Return as many of the cycles, in order, as the entries allow; triangulation takes up to four times more."""
        # n pairs become n - 2 triangles of three pairs, and n - 3 additional pairs.
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
        found: list[Cycle] = []
        for corner in corners:
            steps = zip(corner, corner[1:] + corner[:1], strict=True)
            pairs = np.array([self.number[min(step), max(step)] for step in steps], dtype=np.int64)
            found.append((pairs, (self.dual.ends(pairs)[:, 0] != np.array(corner)).astype(np.int64)))
        return found

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
        how = (dual.visit, begin, end, dual.alternate)
        paths = np.zeros((3, longest * dual.max_card**2))
        more = None
        if not dual.quick or self.n_lifts:
            more = (dual.max_card, self.lifts, self.lift_ptr, self.lift_scratch, dual.scratch[0])
        passes_clusters(dual.regions, *how, self.cycles, self.tables, paths, more)

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
    ends = np.sort(dual.ends(pairs), axis=1)
    return np.asarray(ends[:, 0] * dual.n_vars + ends[:, 1])


# -- Message passing with cycle clusters on top of pairs, and with lifts of larger factors on to pairs ----------------
# A pair is a factor of two variables in the `FactorMessages` of MPLP. A cluster is a cycle of pairs; its reparametrised
# potential is a sum of tables on its pairs. What a cluster gives to a pair is added to the pair's table in `theta`,
# which therefore must not be shared and has weight 1.

# A cycle of pairs: their numbers in walking order, and 1 where one is walked from its second variable to its first.
Cycle = tuple[Ints, Ints]


class CycleList(NamedTuple):
    ptr: Ints  # (n_cycles + 1,): cycle `c` has the places ``ptr[c]`` to ``ptr[c + 1]``
    # pair, flip: the pairs in walking order, and 1 where one is walked from its second variable to its first
    pair: Ints
    flip: Ints

    @classmethod
    def of(cls, cycles: list[Cycle]) -> CycleList:
        none = np.zeros(0, dtype=np.int64)
        pairs = np.concatenate([none, *(cycle[0] for cycle in cycles)])
        flips = np.concatenate([none, *(cycle[1] for cycle in cycles)])
        return cls(offsets([len(cycle[0]) for cycle in cycles]).astype(np.int64), pairs, flips)

    @property
    def n(self) -> int:
        return len(self.ptr) - 1

    @property
    def length(self) -> Ints:
        """Number of pairs of every cycle, (n,)."""
        return np.diff(self.ptr)

    def take(self, which: Ints) -> list[Cycle]:
        bounds = zip(self.ptr[which].tolist(), self.ptr[which + 1].tolist(), strict=True)
        return [(self.pair[begin:end], self.flip[begin:end]) for begin, end in bounds]


class CycleTables(NamedTuple):
    """The tables of clusters, per position in their cycles."""

    share: Floats  # share of the max-marginals that the pair gets; those of a cluster sum to 1
    # own_at, own: the clusters' tables, each laid out like its pair's from `own_at` on; all entries of `own` are finite
    own_at: Ints
    own: Floats


# Working memory for one cycle, (3, n): blocks of ``width * width`` numbers per pair, with the number of states of the
# widest variable: the pairs' tables in walking direction, and the best paths ahead from the first variable to each
# (first variable's state first), and back from each to the first.
Paths = Floats


class Links(NamedTuple):
    """Larger factors and pairs of their variables; axis : (n, 2), places in the scope of the pair's two variables.

    Of those that send messages to pairs, by factor, factor ``factor[q]`` has the links ``lift_ptr[q]`` on.
    """

    factor: Ints
    pair: Ints
    axis: Ints


@inlined
def best_paths2(n: int, walk: Floats, ahead: Floats, back: Floats) -> None:
    """Best paths ahead and back along a cycle of binary variables whose tables are in `walk`."""
    for k in range(4):
        ahead[k] = back[4 * n + k] = 0.0 if k == 0 or k == 3 else -np.inf  # paths without a step
        ahead[4 + k] = walk[k]
        back[4 * (n - 1) + k] = walk[4 * (n - 1) + k]
    for w in range(4, 4 * (n - 1), 4):
        w00, w01, w10, w11 = walk[w], walk[w + 1], walk[w + 2], walk[w + 3]
        for z in range(w, w + 4, 2):
            ahead[z + 4] = max(ahead[z] + w00, ahead[z + 1] + w10)
            ahead[z + 5] = max(ahead[z] + w01, ahead[z + 1] + w11)
    for w in range(4 * (n - 2), 0, -4):
        w00, w01, w10, w11 = walk[w], walk[w + 1], walk[w + 2], walk[w + 3]
        for y in range(2):
            back[w + y] = max(w00 + back[w + 4 + y], w01 + back[w + 6 + y])
            back[w + 2 + y] = max(w10 + back[w + 4 + y], w11 + back[w + 6 + y])


@inlined
def give_cycle2(c: int, regions: FactorMessages, cycles: CycleList, tables: CycleTables, paths: Paths) -> None:
    """Take a cluster's tables back from its pairs and share its max-marginals out; binary variables, no -inf."""
    theta, lam, table_at = regions.theta_t, regions.lam, regions.table_at
    walk, ahead, back, own = paths[0], paths[1], paths[2], tables.own
    lo = cycles.ptr[c]
    n = cycles.ptr[c + 1] - lo
    for t in range(n):  # the reparametrised tables move into the cluster; `theta` keeps the messages alone
        a, flip = cycles.pair[lo + t], cycles.flip[lo + t]
        at, base, o, w = table_at[a], 4 * a, 4 * (lo + t), 4 * t
        l0, l1, r0, r1 = lam[base], lam[base + 1], lam[base + 2], lam[base + 3]
        own[o] += theta[at] - (l0 + r0)
        own[o + 1] += theta[at + 1] - (l0 + r1)
        own[o + 2] += theta[at + 2] - (l1 + r0)
        own[o + 3] += theta[at + 3] - (l1 + r1)
        theta[at], theta[at + 1], theta[at + 2], theta[at + 3] = l0 + r0, l0 + r1, l1 + r0, l1 + r1
        walk[w], walk[w + 1], walk[w + 2], walk[w + 3] = own[o], own[o + 1 + flip], own[o + 2 - flip], own[o + 3]
    best_paths2(n, walk, ahead, back)
    for t in range(n):
        at, o, w, flip = table_at[cycles.pair[lo + t]], 4 * (lo + t), 4 * t, cycles.flip[lo + t]
        share = tables.share[lo + t]
        a00, a01, a10, a11 = ahead[w], ahead[w + 1], ahead[w + 2], ahead[w + 3]
        b00, b01, b10, b11 = back[w + 4], back[w + 5], back[w + 6], back[w + 7]
        mine00 = share * (walk[w] + max(a00 + b00, a10 + b01))
        mine01 = share * (walk[w + 1] + max(a00 + b10, a10 + b11))
        mine10 = share * (walk[w + 2] + max(a01 + b00, a11 + b01))
        mine11 = share * (walk[w + 3] + max(a01 + b10, a11 + b11))
        own[o] -= mine00
        own[o + 1 + flip] -= mine01
        own[o + 2 - flip] -= mine10
        own[o + 3] -= mine11
        theta[at] += mine00
        theta[at + 1 + flip] += mine01
        theta[at + 2 - flip] += mine10
        theta[at + 3] += mine11


@inlined
def best_paths(c: int, regions: FactorMessages, cycles: CycleList, paths: Paths, width: int) -> int:
    """Best paths ahead and back along a cycle whose tables are in `walk`; return the first variable's states."""
    walk, ahead, back = paths[0], paths[1], paths[2]
    scope_ptr, card_e, block = regions.scope_ptr, regions.card_e, width * width
    lo = cycles.ptr[c]
    n = cycles.ptr[c + 1] - lo
    k0 = card_e[scope_ptr[cycles.pair[lo]] + cycles.flip[lo]]
    for x in range(k0):
        for y in range(k0):
            ahead[x * width + y] = 0.0 if x == y else -np.inf
            back[n * block + x * width + y] = 0.0 if x == y else -np.inf
    for t in range(n):
        first, flip = scope_ptr[cycles.pair[lo + t]], cycles.flip[lo + t]
        kx, ky = card_e[first + flip], card_e[first + 1 - flip]
        for z in range(k0):
            for y in range(ky):
                best = -np.inf
                for x in range(kx):
                    best = max(best, ahead[t * block + z * width + x] + walk[t * block + x * width + y])
                ahead[(t + 1) * block + z * width + y] = best
    for t in range(n - 1, -1, -1):
        first, flip = scope_ptr[cycles.pair[lo + t]], cycles.flip[lo + t]
        kx, ky = card_e[first + flip], card_e[first + 1 - flip]
        for x in range(kx):
            for z in range(k0):
                best = -np.inf
                for y in range(ky):
                    best = max(best, walk[t * block + x * width + y] + back[(t + 1) * block + y * width + z])
                back[t * block + x * width + z] = best
    return int(k0)


@inlined
def give_cycle(
    c: int, regions: FactorMessages, cycles: CycleList, tables: CycleTables, paths: Paths, width: int
) -> None:
    """`give_cycle2` for any number of states, and with -inf: what proves impossible in a pair stays so."""
    walk, ahead, back = paths[0], paths[1], paths[2]
    theta, lam, edge_ptr, block = regions.theta_t, regions.lam, regions.edge_ptr, width * width
    lo = cycles.ptr[c]
    for t in range(cycles.ptr[c + 1] - lo):
        a, o = cycles.pair[lo + t], tables.own_at[lo + t]
        first, flip = regions.scope_ptr[a], cycles.flip[lo + t]
        k2 = regions.card_e[first + 1]
        for s1 in range(regions.card_e[first]):
            for s2 in range(k2):
                at = s1 * k2 + s2
                value = pair_entry(regions, 1.0, regions.table_at[a] + at, first, s1, s2)
                place = s2 * width + s1 if flip else s1 * width + s2
                walk[t * block + place] = value + tables.own[o + at]
    k0 = best_paths(c, regions, cycles, paths, width)
    for t in range(cycles.ptr[c + 1] - lo):
        a, o = cycles.pair[lo + t], tables.own_at[lo + t]
        first, flip = regions.scope_ptr[a], cycles.flip[lo + t]
        k2 = regions.card_e[first + 1]
        for s1 in range(regions.card_e[first]):
            for s2 in range(k2):
                x, y = (s2, s1) if flip else (s1, s2)
                rest = -np.inf
                for z in range(k0):
                    rest = max(rest, ahead[t * block + z * width + x] + back[(t + 1) * block + y * width + z])
                mine = walk[t * block + x * width + y] + rest
                at = s1 * k2 + s2
                held = lam[edge_ptr[first] + s1] + lam[edge_ptr[first + 1] + s2]
                if mine == -np.inf:
                    theta[regions.table_at[a] + at] = -np.inf
                else:
                    mine *= tables.share[lo + t]
                    tables.own[o + at] += (theta[regions.table_at[a] + at] - held) - mine
                    theta[regions.table_at[a] + at] = held + mine


@inlined
def factor_entry(regions: FactorMessages, a: int, at: int, state: Ints) -> float:
    """Entry of a factor's reparametrised table at a configuration, whose place in `theta` is `at`."""
    first = regions.scope_ptr[a]
    value = weight_of(regions.weight, a) * regions.theta_t[at]
    for k in range(regions.scope_ptr[a + 1] - first):
        value -= regions.lam[regions.edge_ptr[first + k] + state[k]]
        if regions.belief[regions.state_at[first + k] + state[k]] == -np.inf:
            value = -np.inf
    return float(value)


@inlined
def clear_state(regions: FactorMessages, a: int, state: Ints) -> int:
    """Go to the first configuration of a factor; return how many it has."""
    first = regions.scope_ptr[a]
    size = 1
    for k in range(regions.scope_ptr[a + 1] - first):
        state[k] = 0
        size *= regions.card_e[first + k]
    return size


@inlined
def give_lift(q: int, regions: FactorMessages, lifts: Links, lift_ptr: Ints, scratch: FactorScratch) -> None:
    """Share a larger factor's max-marginals out among pairs of its variables; its table must not be shared."""
    # `given` and `out` of the scratch have room for all pairs of the factor, one after another: for their
    # reparametrised tables, and for the max-marginals of the factor and its pairs together.
    held, out, state, axis = scratch.given, scratch.out, scratch.state, lifts.axis
    theta, card_e, begin, end = regions.theta_t, regions.card_e, lift_ptr[q], lift_ptr[q + 1]
    a, share, place = lifts.factor[q], 1.0 / (end - begin), 0
    first = regions.scope_ptr[a]
    table_at, arity = regions.table_at[a], regions.scope_ptr[a + 1] - first
    for t in range(begin, end):
        p = lifts.pair[t]
        e = regions.scope_ptr[p]
        for s1 in range(card_e[e]):
            for s2 in range(card_e[e + 1]):
                at = regions.table_at[p] + s1 * card_e[e + 1] + s2
                held[place] = pair_entry(regions, 1.0, at, e, s1, s2)
                out[place] = -np.inf
                place += 1
    for at in range(table_at, table_at + clear_state(regions, a, state)):
        value = factor_entry(regions, a, at, state)
        place = 0
        for t in range(begin, end):
            k2 = card_e[first + axis[t, 1]]
            value += held[place + state[axis[t, 0]] * k2 + state[axis[t, 1]]]
            place += card_e[first + axis[t, 0]] * k2
        place = 0
        for t in range(begin, end):
            k2 = card_e[first + axis[t, 1]]
            here = place + state[axis[t, 0]] * k2 + state[axis[t, 1]]
            out[here] = max(out[here], value)
            place += card_e[first + axis[t, 0]] * k2
        next_configuration(state, card_e, first, arity)
    # The factor's table loses what it gives to its pairs, and gets what they had.
    for at in range(table_at, table_at + clear_state(regions, a, state)):
        value = theta[at]
        place = 0
        for t in range(begin, end):
            k2 = card_e[first + axis[t, 1]]
            here = place + state[axis[t, 0]] * k2 + state[axis[t, 1]]
            if out[here] == -np.inf:
                value = -np.inf
            else:
                value += held[here] - share * out[here]
            place += card_e[first + axis[t, 0]] * k2
        theta[at] = value
        next_configuration(state, card_e, first, arity)
    place = 0
    for t in range(begin, end):
        e, pair_at = regions.scope_ptr[lifts.pair[t]], regions.table_at[lifts.pair[t]]
        for at in range(pair_at, pair_at + card_e[e] * card_e[e + 1]):
            if out[place] == -np.inf:
                theta[at] = -np.inf
            else:
                theta[at] += share * out[place] - held[place]
            place += 1


@bare
def passes_clusters(
    regions: FactorMessages, visit: Ints, begin: int, end: int, alternate: bool, cycles: CycleList,
    tables: CycleTables, paths: Paths, more: tuple[int, Links, Ints, FactorScratch, FactorScratch] | None,
) -> None:  # fmt: skip
    """Iterations over all lifts, all clusters and then all factors, of any shape."""
    # `more` is None if all variables are binary, without -inf and without lifts: known when the kernel is compiled.
    n = len(cycles.ptr) - 1
    for iteration in range(begin, end):
        backward = alternate and iteration % 2 == 1
        if more is None:
            for q in range(n):
                give_cycle2(n - 1 - q if backward else q, regions, cycles, tables, paths)
            pass_pairs2(regions, visit, backward)
        else:
            width, lifts, lift_ptr, lift, factor = more
            n_lifts = len(lifts.factor)
            for q in range(n_lifts):
                give_lift(n_lifts - 1 - q if backward else q, regions, lifts, lift_ptr, lift)
            for q in range(n):
                give_cycle(n - 1 - q if backward else q, regions, cycles, tables, paths, width)
            pass_factors(regions, visit, visit[:0], backward, factor)


@inlined
def best_walk(
    c: int, regions: FactorMessages, cycles: CycleList, tables: CycleTables | None, path: Floats
) -> tuple[float, float]:
    """Return the best closed walk along a cycle, by the cluster's tables, or by those of the pairs if None."""
    # Of the pairs, also returns the sum of their maxima. Entries that are impossible in a pair are impossible in its
    # clusters. path : (2, states of the widest variable), scratch.
    card_e, scope_ptr, lo, hi = regions.card_e, regions.scope_ptr, cycles.ptr[c], cycles.ptr[c + 1]
    k0 = card_e[scope_ptr[cycles.pair[lo]] + cycles.flip[lo]]
    top, total = -np.inf, 0.0
    for z in range(k0):
        here = 0
        for x in range(k0):
            path[0, x] = 0.0 if x == z else -np.inf
        for t in range(lo, hi):  # from the best values of paths that end before `t` to those that end after it
            a, flip = cycles.pair[t], cycles.flip[t]
            first, table_at, most = scope_ptr[a], regions.table_at[a], -np.inf
            kx, ky, k2 = card_e[first + flip], card_e[first + 1 - flip], card_e[first + 1]
            for y in range(ky):
                best = -np.inf
                for x in range(kx):
                    s1, s2 = (y, x) if flip else (x, y)
                    at = s1 * k2 + s2
                    if tables is None:
                        value = pair_entry(regions, weight_of(regions.weight, a), table_at + at, first, s1, s2)
                        most = max(most, value)
                        best = max(best, path[here, x] + value)
                    elif regions.theta_t[table_at + at] > -np.inf:
                        best = max(best, path[here, x] + tables.own[tables.own_at[t] + at])
                path[1 - here, y] = best
            here = 1 - here
            total += most if z == 0 else 0.0
        top = max(top, path[here, z])
    return top, total


@bare
def top_of_clusters(regions: FactorMessages, cycles: CycleList, tables: CycleTables, path: Floats) -> float:
    """Sum of the maxima of all clusters' potentials."""
    total = 0.0
    for c in range(len(cycles.ptr) - 1):
        total += best_walk(c, regions, cycles, tables, path)[0]
    return total


@bare
def project_links(links: Links, regions: FactorMessages, state: Ints) -> None:
    """Write the max-marginals of larger factors into the tables of pairs that they hold, one pair per link."""
    theta, table_at, card_e = regions.theta_t, regions.table_at, regions.card_e
    for t in range(len(links.factor)):
        a, p = links.factor[t], links.pair[t]
        first = regions.scope_ptr[a]
        arity = regions.scope_ptr[a + 1] - first
        u, v = links.axis[t, 0], links.axis[t, 1]
        k2 = card_e[first + v]
        for at in range(table_at[p], table_at[p] + card_e[first + u] * k2):
            theta[at] = -np.inf
        begin = table_at[a]
        for at in range(begin, begin + clear_state(regions, a, state)):
            here = table_at[p] + state[u] * k2 + state[v]
            theta[here] = max(theta[here], factor_entry(regions, a, at, state))
            next_configuration(state, card_e, first, arity)


@compiled
def triangulate(known: Ints, cost: Floats, cut: Ints, triangles: Ints) -> None:
    """Cut a cycle into triangles with as few chords as possible that are no pairs yet, short ones first."""
    # known : (n, n), the pair of two variables of the cycle or -1. cost, cut : (n, n), scratch. triangles : (n - 2, 3).
    n = len(known)
    for span in range(1, n):
        for i in range(n - span):
            j = i + span
            if span == 1:
                cost[i, j] = 0.0
                continue
            best = np.inf
            for k in range(i + 1, j):
                if cost[i, k] + cost[k, j] < best:
                    best = cost[i, k] + cost[k, j]
                    cut[i, j] = k
            fresh = known[i, j] < 0 and span < n - 1
            cost[i, j] = best + (1.0 + 1e-3 * min(span, n - span) if fresh else 0.0)
    # The triangles are also the list of what is left to cut: (i, k, j) leaves (i, k) and (k, j).
    count = 1
    triangles[0, 0], triangles[0, 1], triangles[0, 2] = 0, cut[0, n - 1], n - 1
    for t in range(n - 2):
        i, k, j = triangles[t, 0], triangles[t, 1], triangles[t, 2]
        if k - i > 1:
            triangles[count, 0], triangles[count, 1], triangles[count, 2] = i, cut[i, k], k
            count += 1
        if j - k > 1:
            triangles[count, 0], triangles[count, 1], triangles[count, 2] = k, cut[k, j], j
            count += 1
