"""Clusters for MPLP-C: cycles of pairs that pass messages to their pairs, and larger factors lifted on to pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.engines.messages.clusters_kernels import passes_clusters, passes_clusters2, project_links, top_of_clusters
from mapmrf.engines.messages.cycles_kernels import triangulate
from mapmrf.engines.messages.mplp import Dual, edges_by_variable

Cycle = tuple[Ints, Ints]
"""A cycle of pairs: their numbers in walking order, and 1 where one is walked from its second variable to its first."""


@dataclass
class Clusters:
    """The clusters of a run, on top of its messages.

    Attributes
    ----------
    dual
        The factors; pairs that clusters need are added to it.
    n_given
        Factors that the model has itself.
    pairs
        Numbers of the factors that serve as pairs, one for every two variables.
    private
        Whether a factor's table is its own, so that clusters may write on it.
    active
        Whether a factor takes part in the passes.
    cyc_ptr, cyc_pair, cyc_flip, share, own_at, own
        The cycles, what they give to each pair, and their tables; see `kernels.clusters`.
    link_factor, link_pair, link_axis
        Larger factors with all pairs of their variables, and which places of the scope these are.
    lift_ptr, lift_factor, lift_pair, lift_axis
        The links to active pairs, factor by factor.
    keys, number
        The pairs of every cluster, sorted; and the pair of every two variables, once that is needed.
    n_model_pairs
        Pairs of variables that the model's factors hold.
    """

    dual: Dual
    n_given: int
    pairs: Ints
    private: Bools
    active: Bools
    cyc_ptr: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    cyc_pair: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cyc_flip: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    share: Floats = field(default_factory=lambda: np.zeros(0))
    own_at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    own: Floats = field(default_factory=lambda: np.zeros(0))
    link_factor: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    link_pair: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    link_axis: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    lift_ptr: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    lift_factor: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lift_pair: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lift_axis: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    lift_work: Floats = field(default_factory=lambda: np.zeros((2, 1)))
    keys: set[tuple[int, ...]] = field(default_factory=set)
    number: dict[tuple[int, int], int] = field(default_factory=dict)
    n_model_pairs: int = 0

    @classmethod
    def build(cls, dual: Dual, max_entries: int) -> Clusters:
        """No cycles yet; core factors other than the first one of every two variables are lifted on to pairs."""
        core = np.sort(dual.visit)
        is_pair = np.diff(dual.scope_ptr)[core] == 2
        pairs = core[is_pair]
        _, first = np.unique(_pair_keys(dual, pairs), return_index=True)
        none = np.zeros(dual.n_factors, dtype=bool)
        clusters = cls(dual, dual.n_factors, np.sort(pairs[first]), none, ~none)
        clusters.n_model_pairs = len(clusters.pairs)
        rest = np.setdiff1d(core, clusters.pairs)
        if len(rest):
            clusters.link(rest, max_entries)
            clusters.n_model_pairs = len(clusters.pairs)
        return clusters

    @property
    def n_cycles(self) -> int:
        """Number of clusters."""
        return len(self.cyc_ptr) - 1

    @property
    def n_lifts(self) -> int:
        """Number of factors that are lifted on to pairs."""
        return len(self.lift_factor)

    @property
    def n_added(self) -> int:
        """Number of pairs that the model does not have."""
        return self.dual.n_factors - self.n_given

    @property
    def entries(self) -> int:
        """Table entries of all clusters and added pairs."""
        return len(self.own) + int(self.dual.sizes(np.arange(self.n_given, self.dual.n_factors)).sum())

    # -- growing ------------------------------------------------------------------------------------------------------

    def add_pairs(self, first: Ints, second: Ints) -> Ints:
        """Add idle pairs with tables of zeros; return their numbers."""
        dual = self.dual
        begin, n = dual.n_factors, len(first)
        scope = np.stack([first, second], axis=1).ravel()
        card = np.diff(dual.var_ptr)[scope]
        sizes = card[::2].astype(np.int64) * card[1::2]
        dual.table_at = short(np.concatenate([dual.table_at, len(dual.theta) + offsets(sizes)[:-1].astype(np.int64)]))
        dual.theta = np.concatenate([dual.theta, np.zeros(int(sizes.sum()))])
        dual.scope_ptr = short(np.concatenate([dual.scope_ptr, dual.scope_ptr[-1] + 2 * np.arange(1, n + 1)]))
        dual.scope = short(np.concatenate([dual.scope, scope]))
        dual.state_at = short(np.concatenate([dual.state_at, dual.var_ptr[scope]]))
        dual.card_e = short(np.concatenate([dual.card_e, card]))
        dual.edge_ptr = short(np.concatenate([dual.edge_ptr, dual.edge_ptr[-1] + np.cumsum(card)]))
        dual.lam = np.concatenate([dual.lam, np.zeros(int(card.sum()))])
        dual.factor_of = short(np.concatenate([dual.factor_of, np.repeat(np.arange(begin, begin + n), 2)]))
        dual.nbr_ptr, dual.nbr = edges_by_variable(dual.scope, dual.n_vars)
        added = np.arange(begin, begin + n)
        widest = int(card.reshape(-1, 2).sum(axis=1).max(initial=0))
        if widest > dual.work.shape[1]:
            dual.work = np.zeros((2, widest))
        self.private = np.concatenate([self.private, np.ones(n, dtype=bool)])
        self.active = np.concatenate([self.active, np.zeros(n, dtype=bool)])
        self.pairs = np.concatenate([self.pairs, added])
        if self.number:
            self.number.update(self.numbers(added))
        return added

    def make_private(self, factors: Ints) -> None:
        """Give factors copies of their tables that clusters may write on."""
        factors = np.unique(factors)
        factors = factors[~self.private[factors]]
        dual = self.dual
        sizes = dual.sizes(factors)
        copies = dual.theta[ranges(dual.table_at[factors], sizes)]
        table_at = dual.table_at.astype(np.int64)
        table_at[factors] = len(dual.theta) + offsets(sizes)[:-1].astype(np.int64)
        dual.table_at = short(table_at)
        dual.theta = np.concatenate([dual.theta, copies])
        self.private[factors] = True

    def link(self, factors: Ints, max_entries: int) -> None:
        """Find the pairs of all variables that factors hold, small factors first, as far as the entries allow.

        Pairs that several factors share are lifted on to at once. The others are idle until a cluster needs them.
        """
        dual = self.dual
        owner, axis = _links(dual, factors)
        ends = np.sort(dual.scope[dual.scope_ptr[owner][:, None] + axis].astype(np.int64), axis=1)
        card = np.diff(dual.var_ptr).astype(np.int64)
        fits = np.cumsum(card[ends].prod(axis=1)) <= max_entries
        whole = ~np.isin(owner, owner[~fits])
        owner, axis, ends = owner[whole], axis[whole], ends[whole]
        keys, of, count = np.unique(ends[:, 0] * dual.n_vars + ends[:, 1], return_inverse=True, return_counts=True)
        have = _pair_keys(dual, self.pairs)
        order = np.argsort(have)
        number = _lookup(keys, have[order], self.pairs[order])
        fresh = number < 0
        count += ~fresh
        number[fresh] = self.add_pairs(keys[fresh] // dual.n_vars, keys[fresh] % dual.n_vars)
        self.link_factor, self.link_pair = owner, number[of]
        # A pair's own order of its variables decides which axis of the factor is its first.
        flipped = dual.scope[dual.scope_ptr[self.link_pair]] != dual.scope[dual.scope_ptr[owner] + axis[:, 0]]
        self.link_axis = np.where(flipped[:, None], axis[:, ::-1], axis)
        self.activate(number[count > 1])

    def activate(self, pairs: Ints) -> None:
        """Put idle pairs into the passes, and lift the factors that hold them."""
        woken = np.unique(pairs[~self.active[pairs]])
        self.active[woken] = True
        self.dual.add_visits(woken)
        used = self.active[self.link_pair] if len(self.link_pair) else np.zeros(0, dtype=bool)
        owner = self.link_factor[used]
        begins = np.flatnonzero(np.diff(owner, prepend=-1))
        self.lift_factor, self.lift_pair, self.lift_axis = owner[begins], self.link_pair[used], self.link_axis[used]
        self.lift_ptr = np.append(begins, len(owner))
        self.make_private(np.concatenate([self.lift_factor, self.lift_pair]))
        if self.n_lifts:
            held = np.add.reduceat(self.dual.sizes(self.lift_pair), begins)
            self.lift_work = np.zeros((2, int(held.max())))

    def show_idle(self) -> None:
        """Fill the tables of idle pairs with what the factors that hold them say; for a search only."""
        dual = self.dual
        idle = np.flatnonzero(~self.active[self.link_pair])
        if len(idle):
            project_links(
                self.link_factor[idle], self.link_pair[idle], self.link_axis[idle], dual.theta, dual.table_at,
                dual.scope_ptr, dual.state_at, dual.card_e, dual.edge_ptr, dual.lam, dual.belief, dual.iwork,
            )  # fmt: skip

    def hide_idle(self) -> None:
        """Clear the tables of idle pairs."""
        idle = self.link_pair[~self.active[self.link_pair]]
        self.dual.theta[ranges(self.dual.table_at[idle], self.dual.sizes(idle))] = 0.0

    def fitting(self, cycles: list[Cycle], max_entries: int) -> list[Cycle]:
        """As many of the cycles, from the first on, as the entries allow; one that is cut has up to four times as many.

        n pairs become n - 2 triangles of three pairs, and n - 3 pairs more.
        """
        if not cycles:
            return []
        sizes = self.dual.sizes(np.concatenate([cycle[0] for cycle in cycles]))
        ends = np.cumsum([len(cycle[0]) for cycle in cycles])
        needed = 4 * np.cumsum(sizes)[ends - 1]
        return cycles[: int(np.searchsorted(needed, max_entries - self.entries, side="right"))]

    def add(self, cycles: list[Cycle]) -> int:
        """Make clusters of cycles; return how many of them are no clusters yet."""
        fresh = []
        for pairs, flips in cycles:
            key = tuple(sorted(pairs.tolist()))
            if key not in self.keys:
                self.keys.add(key)
                fresh.append((pairs, flips))
        if not fresh:
            return 0
        pairs = np.concatenate([cycle[0] for cycle in fresh])
        self.make_private(pairs)
        self.activate(pairs)
        sizes = self.dual.sizes(pairs)
        self.own_at = np.concatenate([self.own_at, len(self.own) + offsets(sizes)[:-1].astype(np.int64)])
        self.own = np.concatenate([self.own, np.zeros(int(sizes.sum()))])
        self.cyc_pair = np.concatenate([self.cyc_pair, pairs])
        self.cyc_flip = np.concatenate([self.cyc_flip, *(cycle[1] for cycle in fresh)])
        ends = self.cyc_ptr[-1] + np.cumsum([len(cycle[0]) for cycle in fresh])
        self.cyc_ptr = np.concatenate([self.cyc_ptr, ends])
        self.share_equally()
        return len(fresh)

    def triangles(self, cycles: list[Cycle]) -> list[Cycle]:
        """Cut cycles into triangles, with chords that are added as pairs where there are none."""
        dual = self.dual
        if not self.number:
            self.number = self.numbers(self.pairs)
        number = self.number
        walks = [self.variables(cycle) for cycle in cycles]
        cut = [_cut(walk, number) for walk in walks]
        wanted: dict[tuple[int, int], None] = {}
        for walk, places in zip(walks, cut, strict=True):
            for corner in walk[places].tolist():
                for i, j in combinations(sorted(corner), 2):
                    if (i, j) not in number:
                        wanted[(i, j)] = None
                        number[(i, j)] = -1
        if wanted:
            ends = np.array(list(wanted), dtype=np.int64)
            self.add_pairs(ends[:, 0], ends[:, 1])
        found: list[Cycle] = []
        for walk, places in zip(walks, cut, strict=True):
            for corner in walk[places].tolist():
                steps = list(zip(corner, corner[1:] + corner[:1], strict=True))
                pairs = np.array([number[min(step), max(step)] for step in steps], dtype=np.int64)
                flips = (dual.scope[dual.scope_ptr[pairs]] != np.array(corner)).astype(np.int64)
                found.append((pairs, flips))
        return found

    def numbers(self, pairs: Ints) -> dict[tuple[int, int], int]:
        """The variables of some pairs, the smaller one first, with the pairs' numbers."""
        dual = self.dual
        ends = np.sort(dual.scope[dual.scope_ptr[pairs][:, None] + np.arange(2)], axis=1)
        return {(i, j): p for (i, j), p in zip(ends.tolist(), pairs.tolist(), strict=True)}

    def variables(self, cycle: Cycle) -> Ints:
        """The variables of a cycle in walking order."""
        return np.asarray(self.dual.scope[self.dual.scope_ptr[cycle[0]] + cycle[1]], dtype=np.int64)

    def share_equally(self) -> None:
        """Let every cluster give its pairs equal shares."""
        length = np.diff(self.cyc_ptr)
        self.share = np.repeat(1 / length, length)

    def share_unequally(self, random: np.random.Generator) -> None:
        """Let every cluster give its pairs random shares. The bound cannot rise, but the point of rest is another."""
        length = np.diff(self.cyc_ptr)
        drawn = random.exponential(size=len(self.cyc_pair))
        self.share = drawn / np.repeat(np.add.reduceat(drawn, self.cyc_ptr[:-1]), length)

    # -- message passing ----------------------------------------------------------------------------------------------

    def passes(self, begin: int, end: int) -> None:
        """Do the iterations from `begin` to `end`: all lifts and clusters, then all factors."""
        dual = self.dual
        if self.n_cycles == 0 and self.n_lifts == 0:
            dual.passes(begin, end)
            return
        longest = int(np.diff(self.cyc_ptr).max(initial=3)) + 1
        if dual.quick and self.n_lifts == 0:
            walk, ahead, back = np.zeros((3, 4 * longest))
            passes_clusters2(
                begin, end, dual.alternate, dual.visit, dual.theta, dual.table_at, dual.state_at, dual.lam,
                dual.belief, self.cyc_ptr, self.cyc_pair, self.cyc_flip, self.share, self.own, walk, ahead, back,
            )  # fmt: skip
            return
        width = int(np.diff(dual.var_ptr).max())
        walk, ahead, back = np.zeros((3, longest * width * width))
        passes_clusters(
            begin, end, dual.alternate, dual.visit, dual.theta, dual.table_at, dual.scope_ptr, dual.state_at,
            dual.card_e, dual.edge_ptr, dual.lam, dual.belief, dual.work, dual.iwork, self.cyc_ptr, self.cyc_pair,
            self.cyc_flip, self.share, self.own_at, self.own, walk, ahead, back, width, self.lift_ptr, self.lift_factor,
            self.lift_pair, self.lift_axis, self.lift_work,
        )  # fmt: skip

    def bound(self) -> float:
        """The value of the dual with clusters, evaluated from scratch."""
        dual = self.dual
        bound = dual.bound()
        if self.n_cycles:
            bound += top_of_clusters(
                self.cyc_ptr, self.cyc_pair, self.cyc_flip, self.own_at, self.own, dual.theta, dual.table_at,
                dual.scope_ptr, dual.card_e, np.zeros((2, int(np.diff(dual.var_ptr).max()))),
            )  # fmt: skip
        return bound

    def work_per_pass(self) -> int:
        """Table entries that one iteration goes through, roughly; those of cycles count more."""
        dual = self.dual
        width = int(np.diff(dual.var_ptr).max(initial=1))
        lifted = 8 * int(dual.sizes(self.lift_factor).sum())
        return int(dual.sizes(dual.visit).sum()) + 2 * width * len(self.own) + lifted


def _pair_keys(dual: Dual, pairs: Ints) -> Ints:
    """One number for every pair of variables, whatever their order."""
    ends = np.sort(dual.scope[dual.scope_ptr[pairs][:, None] + np.arange(2)].astype(np.int64), axis=1)
    return np.asarray(ends[:, 0] * dual.n_vars + ends[:, 1])


def _lookup(keys: Ints, have: Ints, numbers: Ints) -> Ints:
    """The number of every key among sorted ones, -1 where there is none."""
    at = np.searchsorted(have, keys)
    found = np.zeros(len(keys), dtype=bool)
    inside = at < len(have)
    found[inside] = have[at[inside]] == keys[inside]
    number = np.full(len(keys), -1, dtype=np.int64)
    number[found] = numbers[at[found]]
    return number


def _links(dual: Dual, factors: Ints) -> tuple[Ints, Ints]:
    """Every two places of the scope of every factor, (n,) factors and (n, 2) places; small factors first."""
    arity = np.diff(dual.scope_ptr)[factors]
    owner, axis = [np.zeros(0, dtype=np.int64)], [np.zeros((0, 2), dtype=np.int64)]
    for k in np.unique(arity).tolist():
        places = np.array(list(combinations(range(k), 2)), dtype=np.int64)
        mine = factors[arity == k].astype(np.int64)
        owner.append(np.repeat(mine, len(places)))
        axis.append(np.tile(places, (len(mine), 1)))
    return np.concatenate(owner), np.concatenate(axis)


def _cut(walk: Ints, number: dict[tuple[int, int], int]) -> Ints:
    """The triangles of a cycle, as places in its walk, with few chords that are no pairs yet."""
    n = len(walk)
    variables = walk.tolist()
    known = np.full((n, n), -1, dtype=np.int64)
    for a, b in combinations(range(n), 2):
        i, j = variables[a], variables[b]
        known[a, b] = number.get((i, j) if i < j else (j, i), -1)
    places = np.zeros((n - 2, 3), dtype=np.int64)
    triangulate(known, np.zeros((n, n)), np.zeros((n, n), dtype=np.int64), places)
    return places
