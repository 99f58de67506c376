"""The dual minimised by MPLP and MPLP-C, and a run on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.sweeps import TiledPass, tiles_of, tiles_of_variables
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.kernels.max_marginals import FactorScratch, max_marginals, pair_max_marginals, table_top, weight_of
from mapmrf.kernels.pair_transforms import StructuredPairs, form_max_marginals, form_of, form_top
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM
from mapmrf.run import pace
from mapmrf.run.method import DualState, Progress
from mapmrf.run.pool import Workers

FactorOrder = Literal["variables", "model", "random"]
PassDirection = Literal["alternate", "forward"]
LAYOUT = "mplp"  # layout of the messages, that of `Regions.lam`, for `DualState`
ROUND_OFF = 1e-13  # relative decrease of the bound that counts as none
PARALLEL_FROM = 100_000  # number of factors from which several threads are worth their synchronisation
BOUND_CHUNK = 1 << 16  # factors per chunk in which the bound is summed, independent of the number of threads


@dataclass
class Dual:
    """A reparametrisation: factors with their tables and the messages from them to their variables."""

    # regions, neighbours: the arrays of the kernels; factors share tables as in the model
    regions: Regions
    neighbours: Neighbours
    visit: Ints  # the factors of the cyclic part in the order of a pass
    # decide, n_core: the variables in the order of decoding; the first `n_core` are those of the cyclic part
    decide: Ints
    n_core: int
    constant: float
    quick: bool  # whether all factors are 2x2 tables without -inf
    order: FactorOrder
    alternate: bool
    max_card: int  # number of states of the widest variable
    # pairs, scratch: the forms of pairs, and scratch; `helpers` has the same for every further thread
    pairs: StructuredPairs
    scratch: FactorScratch
    workers: Workers
    helpers: list[tuple[StructuredPairs, FactorScratch]] = field(default_factory=list)
    # tiles, decode_tiles: the factors of a pass, and the variables of the cyclic part, divided among several threads;
    # None for a single thread
    tiles: TiledPass | None = None
    decode_tiles: TiledPass | None = None

    @classmethod
    def build(cls, problem: Problem, order: FactorOrder, schedule: PassDirection, seed: int, threads: int = 1) -> Dual:
        """Start with zero messages, except those of pendant trees, which are passed to the roots once and for all."""
        graph = problem.graph
        peeled, toward, core = _peel(problem)
        decide, n_core = _decide(problem, core, peeled, toward)
        visit = core[np.argsort(problem.order[core])]
        if order == "random":
            visit = np.random.default_rng(seed).permutation(core)
        elif order == "variables" and len(core):
            visit = core[_by_variables(problem.scope, problem.scope_ptr, core)]
        max_card, arity = int(graph.card.max(initial=1)), int(np.diff(problem.scope_ptr).max(initial=2))
        widest = max(max_card, int(np.diff(problem.edge_ptr[problem.scope_ptr]).max(initial=1)))
        binary = all(batch.shape == (2, 2) and not batch.hard for batch in problem.batches)
        dual = cls(
            regions=Regions(
                var_ptr=short(graph.var_ptr).copy(),
                theta=graph.theta_t.copy(),
                table_at=short(problem.table_at).copy(),
                weight=problem.weight.copy(),
                scope_ptr=short(problem.scope_ptr).copy(),
                scope=short(problem.scope).copy(),
                state_at=short(graph.var_ptr[problem.scope]),
                card_e=short(graph.card[problem.scope]),
                edge_ptr=short(problem.edge_ptr).copy(),
                lam=np.zeros(problem.n_edge_states),
                belief=graph.theta_v.copy(),
            ),
            neighbours=Neighbours(short(problem.nbr_ptr).copy(), short(problem.nbr).copy(), short(problem.edge_factor)),
            visit=short(visit),
            decide=short(decide),
            n_core=n_core,
            constant=graph.constant,
            quick=binary and bool(problem.feasible_v.all()),
            order=order,
            alternate=schedule == "alternate",
            max_card=max_card,
            pairs=StructuredPairs.allocate(problem.quick_forms, max_card),
            scratch=FactorScratch.allocate(widest, arity),
            workers=Workers(threads if problem.n_factors >= PARALLEL_FROM else 1),
        )
        if len(peeled):
            passes = PassOrder(short(peeled), 0, 1, False)
            passes_factors(dual.regions, passes, short(toward), dual.pairs, dual.scratch)
        if dual.workers.n > 1:
            entries, n = dual.work_per_pass() / max(1, len(dual.visit)), dual.workers.n
            scope_ptr, scope = dual.regions.scope_ptr, dual.regions.scope
            dual.tiles = tiles_of(dual.visit, scope_ptr, scope, n, entries)
            dual.decode_tiles = tiles_of_variables(dual.decide[:n_core], dual.neighbours, scope_ptr, scope, n)
        for _ in range(dual.workers.n - 1):
            pairs = StructuredPairs.allocate(problem.quick_forms, max_card)
            dual.helpers.append((pairs, FactorScratch.allocate(widest, arity)))
        return dual

    def resume(self, problem: Problem, given: DualState) -> None:
        """Start from the messages of an earlier run in the cyclic part; those of pendant trees are already optimal."""
        lam = given.values_for(problem, LAYOUT, problem.n_edge_states)
        if lam is None:
            return
        edges = ranges(problem.scope_ptr[self.visit], np.diff(problem.scope_ptr)[self.visit])
        states = ranges(problem.edge_ptr[edges], np.diff(problem.edge_ptr)[edges])
        self.regions.lam[states] = lam[states]
        self.regions.belief[:] += np.bincount(problem.edge_state_at[states], lam[states], problem.n_states)

    def state(self, problem: Problem) -> DualState | None:
        return DualState.of(problem, LAYOUT, self.regions.lam)

    def forget_forms(self, factors: Ints) -> None:
        """Treat factors, possibly new ones, as plain tables from now on."""
        forms = self.pairs.forms
        if len(forms.of):
            of = np.full(max(len(forms.of), int(factors.max(initial=-1)) + 1), NO_FORM, dtype=forms.of.dtype)
            of[: len(forms.of)] = forms.of
            of[factors] = NO_FORM
            self.pairs = self.pairs._replace(forms=forms._replace(of=of))

    @property
    def n_factors(self) -> int:
        return len(self.regions.table_at)

    @property
    def n_vars(self) -> int:
        return len(self.regions.var_ptr) - 1

    def passes(self, begin: int, end: int) -> None:
        """Run the iterations from `begin` to `end`, each a pass over the cyclic part."""
        # On several threads, the result is the same as in sequential order.
        if self.tiles is None:
            self._visit(self.sweeps(begin, end), self.pairs, self.scratch)
            return
        tools = [(self.pairs, self.scratch), *self.helpers]
        for iteration in range(begin, end):

            def visit(factors: Ints, thread: int, iteration: int = iteration) -> None:
                self._visit(PassOrder(factors, iteration, iteration + 1, self.alternate), *tools[thread])

            self.tiles.run(self.workers, visit, self.alternate and iteration % 2 == 1)

    def _visit(self, passes: PassOrder, pairs: StructuredPairs, scratch: FactorScratch) -> None:
        if self.quick:
            passes_pairs2(self.regions, passes)
        else:
            passes_factors(self.regions, passes, passes.visit[:0], pairs, scratch)

    def close(self) -> None:
        self.workers.close()

    def sweeps(self, begin: int, end: int) -> PassOrder:
        return PassOrder(self.visit, begin, end, self.alternate)

    def bound(self) -> float:
        """Evaluate the dual from scratch: an upper bound for any messages."""
        n, tools = self.n_factors, [(self.pairs, self.scratch), *self.helpers]
        if n <= BOUND_CHUNK:
            return self.constant + bound_of(self.regions, 0, n, self.pairs, self.scratch)
        chunks = [(at, min(at + BOUND_CHUNK, n)) for at in range(0, n, BOUND_CHUNK)]
        shares: list[float] = []
        for at in range(0, len(chunks), self.workers.n):
            some = zip(chunks[at : at + self.workers.n], tools, strict=False)
            shares += self.workers.run(bound_of, [(self.regions, *chunk, *mine) for chunk, mine in some])
        return self.constant + sum(shares[1:], shares[0])

    def work_per_pass(self) -> int:
        return int(self.sizes(self.visit).sum())

    def decode(self, backward: bool) -> Ints:
        """Decode the variables one after another, each given those before it; pendant trees last."""
        labels = np.full(self.n_vars, -1, dtype=np.int64)
        scratch = [self.scratch, *(scratch for _, scratch in self.helpers)]

        def decide(variables: Ints, thread: int) -> None:
            ordered = variables[::-1].copy() if backward else variables
            decode(ordered, self.regions, self.neighbours, labels, scratch[thread])

        if self.decode_tiles is None:
            decide(self.decide[: self.n_core], 0)
        else:
            self.decode_tiles.run(self.workers, decide, backward)
        if self.n_core < self.n_vars:
            decode(self.decide[self.n_core :], self.regions, self.neighbours, labels, self.scratch)
        return labels

    def sizes(self, factors: Ints) -> Ints:
        if self.n_factors == 0:
            return np.zeros(0, dtype=np.int64)
        return np.multiply.reduceat(self.regions.card_e, self.regions.scope_ptr[:-1], dtype=np.int64)[factors]

    def ends(self, pairs: Ints) -> Ints:
        """Return the two variables of some pairs, (n, 2)."""
        return np.asarray(self.regions.scope[self.regions.scope_ptr[pairs][:, None] + np.arange(2)], dtype=np.int64)

    def add_visits(self, added: Ints) -> None:
        """Add factors to the passes, at the end or in their position by the order."""
        visit = np.concatenate([self.visit, added])
        if self.order == "variables":
            visit = visit[_by_variables(self.regions.scope, self.regions.scope_ptr, visit)]
        self.visit = short(visit)


def _peel(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return the factors of pendant trees from the leaves inwards, the root's scope position in each, and the rest."""
    live, peeled, toward = np.zeros((3, problem.n_factors), dtype=np.int64)
    count = peel_factors(problem.scope_ptr, problem.scope, Neighbours.of(problem), live, peeled, toward)
    return peeled[:count], toward[:count], np.flatnonzero(live >= 0)


def _decide(problem: Problem, core: Ints, peeled: Ints, toward: Ints) -> tuple[Ints, int]:
    """Return the decoding order, and the number of variables of the cyclic part, which come first."""
    # Variables of pendant trees come last, from the roots outwards: each factor's root precedes its other variables.
    scope_ptr = problem.scope_ptr
    arity = np.diff(scope_ptr)
    inner = np.zeros(problem.n_vars, dtype=bool)
    inner[problem.scope[ranges(scope_ptr[core], arity[core])]] = True
    inner[problem.degree == 0] = True
    front = np.flatnonzero(inner)
    outward, root = peeled[::-1], toward[::-1]
    edges = ranges(scope_ptr[outward], arity[outward])
    is_root = edges == np.repeat(scope_ptr[outward] + root, arity[outward])
    owner = np.repeat(np.arange(len(outward)), arity[outward])
    behind = problem.scope[edges[np.lexsort((~is_root, owner))]]
    order = np.concatenate([front, behind]).astype(np.int64)
    _, first = np.unique(order, return_index=True)
    return order[np.sort(first)], len(front)


def _by_variables(scope: Ints, scope_ptr: Ints, factors: Ints) -> Ints:
    """Return the permutation that sorts factors by the last, then the first variable of their scopes."""
    last = np.maximum.reduceat(scope, scope_ptr[:-1])[factors]
    first = np.minimum.reduceat(scope, scope_ptr[:-1])[factors]
    return np.lexsort((first, last))


def edges_by_variable(scope: Ints, n_vars: int) -> tuple[Ints, Ints]:
    return offsets(np.bincount(scope, minlength=n_vars)), short(np.argsort(scope, kind="stable"))


class DualFunction(Protocol):
    """The function that messages minimise: the dual of the local polytope, or of a tighter relaxation."""

    def passes(self, begin: int, end: int) -> None:
        """Run the iterations from `begin` to `end`."""

    def bound(self) -> float:
        """Return the value of the dual."""

    def work_per_pass(self) -> int:
        """Return the number of table entries processed per iteration."""


class DualDescent:
    """Messages and labels of a run, and the schedule of its measurements."""

    def __init__(self, dual: Dual, labelling: ClimbingIncumbent) -> None:
        self.dual = dual
        self.function: DualFunction = dual  # what the messages minimise: `dual` itself, or clusters on top of it
        self.labelling = labelling  # the best labelling decoded so far
        self.bound = math.inf  # the best bound so far
        self.iterations = 0
        # number of measurements of bound and labels, and the iterations of the last and the next one
        self.measurements, self.measured_at, self.measure_at = 0, 0, 1
        self.work = 0  # table entries processed per iteration, 0 until counted

    @property
    def gap(self) -> float:
        return self.bound - self.labelling.value

    @property
    def trivial(self) -> bool:
        """Whether there is nothing to iterate on: no cycle, or nothing feasible."""
        return (len(self.dual.visit) == 0 and self.function is self.dual) or self.bound == -math.inf

    def advance(self, max_iterations: int) -> bool:
        """Pass messages for some milliseconds; return whether a measurement is due."""
        if self.work == 0:
            self.work = max(1, self.function.work_per_pass())
        until = min(self.measure_at, max_iterations)
        end = min(until, self.iterations + max(1, pace.MESSAGES // self.work))
        self.function.passes(self.iterations, end)
        self.iterations = end
        return end == until

    def measure(self, every: int) -> float:
        """Evaluate the bound and decode; return the decrease of the bound per iteration, inf at first."""
        before, passed = self.bound, self.iterations - self.measured_at
        self.bound = min(before, self.function.bound())
        self.labelling.offer(self.dual.decode(backward=self.measurements % 2 == 1))
        self.measurements += 1
        self.measured_at = self.iterations
        self.measure_at = self.iterations + min(every, 4 * self.iterations)
        return (before - self.bound) / passed if self.measurements > 1 else math.inf

    def has_converged(self, decrease: float, tol: float) -> bool:
        """Return whether an iteration closes less than `tol` of the gap, or only changes round-off."""
        if self.gap == math.inf:
            return decrease == 0.0
        return decrease <= max(tol * self.gap, ROUND_OFF * abs(self.bound))

    def progress(self, phase: str = "") -> Progress:
        best = self.labelling
        return Progress(self.iterations, labels=best.labels, value=best.value, bound=self.bound, phase=phase)


# -- Block coordinate descent on the dual of the local polytope, factor by factor, and decoding from it ---------------
# A factor's reparametrised table is its weight times its table, minus its messages `lam`; `belief` holds theta_i
# plus all messages to i. A state that is proven impossible has the belief -inf for good; messages are always
# finite.


class Regions(NamedTuple):
    var_ptr: Ints  # (n_vars + 1,): offsets of the variables' blocks in `belief`
    # theta, table_at: the tables, and where each factor's starts; factors may share a table
    theta: Floats
    table_at: Ints
    weight: Floats  # what the factors' tables are multiplied by; empty if all weights are 1
    # scope_ptr, scope: edges of every factor, and the variable of every edge
    scope_ptr: Ints
    scope: Ints
    # state_at, card_e, edge_ptr: per edge: where its variable's block starts in `belief`, the number of its states, and
    # where its own block starts in `lam`
    state_at: Ints
    card_e: Ints
    edge_ptr: Ints
    # lam, belief: the messages, and theta_i plus all messages to i
    lam: Floats
    belief: Floats


class PassOrder(NamedTuple):
    """Iterations `begin` to `end`: passes over the factors `visit`, every other one backward if they alternate."""

    visit: Ints
    begin: int
    end: int
    alternate: bool


@inlined
def pair_entry(regions: Regions, weight: float, at: int, e: int, s1: int, s2: int) -> float:
    """Entry of a pair's reparametrised table, by its weight and its place in `theta`; `e` is the pair's first edge."""
    belief, state_at, lam, edge_ptr = regions.belief, regions.state_at, regions.lam, regions.edge_ptr
    if belief[state_at[e] + s1] == -np.inf or belief[state_at[e + 1] + s2] == -np.inf:
        return -np.inf  # messages of impossible states are stale
    entry: float = weight * regions.theta[at] - (lam[edge_ptr[e] + s1] + lam[edge_ptr[e + 1] + s2])
    return entry


@inlined
def give_pair2(
    at: int, i_at: int, j_at: int, base: int, weight: float, theta: Floats, lam: Floats, belief: Floats
) -> None:
    """Take the messages of a 2x2 table without -inf back and share its max-marginals out equally."""
    # Arrays are passed individually: a tuple of ten in such a small loop costs more than the arithmetic.
    g0 = belief[i_at] - lam[base]
    g1 = belief[i_at + 1] - lam[base + 1]
    h0 = belief[j_at] - lam[base + 2]
    h1 = belief[j_at + 1] - lam[base + 3]
    t00 = weight * theta[at] + (g0 + h0)
    t01 = weight * theta[at + 1] + (g0 + h1)
    t10 = weight * theta[at + 2] + (g1 + h0)
    t11 = weight * theta[at + 3] + (g1 + h1)
    p0, p1 = 0.5 * max(t00, t01), 0.5 * max(t10, t11)
    q0, q1 = 0.5 * max(t00, t10), 0.5 * max(t01, t11)
    belief[i_at], belief[i_at + 1], belief[j_at], belief[j_at + 1] = p0, p1, q0, q1
    lam[base], lam[base + 1], lam[base + 2], lam[base + 3] = p0 - g0, p1 - g1, q0 - h0, q1 - h1


@inlined
def pass_pairs2(regions: Regions, visit: Ints, backward: bool) -> None:
    """One pass over pairs of binary variables without -inf; factor `a` has the edges 2a and 2a + 1."""
    table_at, state_at, weight = regions.table_at, regions.state_at, regions.weight
    theta, lam, belief = regions.theta, regions.lam, regions.belief
    n = len(visit)
    if len(weight) == 0:  # a separate loop: even this test costs several percent per pair
        for q in range(n):
            a = visit[n - 1 - q] if backward else visit[q]
            i_at, j_at = state_at[2 * a], state_at[2 * a + 1]
            give_pair2(table_at[a], i_at, j_at, 4 * a, 1.0, theta, lam, belief)
        return
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        i_at, j_at = state_at[2 * a], state_at[2 * a + 1]
        give_pair2(table_at[a], i_at, j_at, 4 * a, weight[a], theta, lam, belief)


@inlined
def take_back(states: int, held: int, place: int, n: int, belief: Floats, lam: Floats, given: Floats) -> None:
    """Fill `given` from `place` on with the beliefs of one variable, without what a factor has sent it."""
    for s in range(n):
        given[place + s] = belief[states + s] - lam[held + s]


@inlined
def give_out(
    share: float, states: int, held: int, place: int, n: int, belief: Floats, lam: Floats, scratch: FactorScratch
) -> None:
    """Send a variable its share of the max-marginals in `out` from `place` on."""
    given, out = scratch.given, scratch.out
    for s in range(n):
        if out[place + s] == -np.inf:
            belief[states + s] = -np.inf
        else:
            mine = share * out[place + s]
            belief[states + s] = mine
            lam[held + s] = mine - given[place + s]


@inlined
def give_pair(a: int, plain: bool, regions: Regions, pairs: StructuredPairs, scratch: FactorScratch) -> None:
    """Take the messages of a pair of any variables back and share its max-marginals out equally."""
    # `plain` says that there are no weights and no forms at all.
    state_at, card_e, lam, belief = regions.state_at, regions.card_e, regions.lam, regions.belief
    first = regions.scope_ptr[a]
    base, at = regions.edge_ptr[first], regions.table_at[a]
    i_at, j_at, k1, k2 = state_at[first], state_at[first + 1], card_e[first], card_e[first + 1]
    take_back(i_at, base, 0, k1, belief, lam, scratch.given)
    take_back(j_at, base + k1, k1, k2, belief, lam, scratch.given)
    weight, form = 1.0, NO_FORM
    if not plain:
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
    if form >= 0:
        form_max_marginals(pairs, form, weight, k1, scratch)
    elif weight == 1.0:
        pair_max_marginals(regions.theta, at, k1, k2, 1.0, scratch)
    else:
        pair_max_marginals(regions.theta, at, k1, k2, weight, scratch)
    give_out(0.5, i_at, base, 0, k1, belief, lam, scratch)
    give_out(0.5, j_at, base + k1, k1, k2, belief, lam, scratch)


@inlined
def pass_factors(
    regions: Regions, visit: Ints, toward: Ints, backward: bool, pairs: StructuredPairs, scratch: FactorScratch
) -> None:
    """One pass over factors of any shape: each takes its messages back and shares its max-marginals out."""
    # All go `toward` one place of its scope (from hanging trees to their roots), or in equal shares if `toward` is
    # empty.
    scope_ptr, state_at, card_e = regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given = regions.lam, regions.belief, scratch.given
    plain = len(regions.weight) == 0 and len(pairs.forms.of) == 0
    n = len(visit)
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        first = scope_ptr[a]
        base = regions.edge_ptr[first]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and len(toward) == 0:
            give_pair(a, plain, regions, pairs, scratch)
            continue
        place = 0
        for e in range(first, scope_ptr[a + 1]):
            take_back(state_at[e], base + place, place, card_e[e], belief, lam, given)
            place += card_e[e]
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
        if form >= 0:
            form_max_marginals(pairs, form, weight, card_e[first], scratch)
        else:
            max_marginals(regions.theta, regions.table_at[a], card_e, first, arity, weight, scratch)
        place = 0
        for e in range(first, scope_ptr[a + 1]):
            share = 1.0 / arity
            if len(toward) > 0:
                share = 1.0 if e - first == toward[q] else 0.0
            give_out(share, state_at[e], base + place, place, card_e[e], belief, lam, scratch)
            place += card_e[e]


@bare
def passes_pairs2(regions: Regions, sweeps: PassOrder) -> None:
    for iteration in range(sweeps.begin, sweeps.end):
        pass_pairs2(regions, sweeps.visit, sweeps.alternate and iteration % 2 == 1)


@bare
def passes_factors(
    regions: Regions, sweeps: PassOrder, toward: Ints, pairs: StructuredPairs, scratch: FactorScratch
) -> None:
    """Iterations on factors of any shape; see `pass_factors`."""
    for iteration in range(sweeps.begin, sweeps.end):
        pass_factors(regions, sweeps.visit, toward, sweeps.alternate and iteration % 2 == 1, pairs, scratch)


@bare
def bound_of(regions: Regions, begin: int, end: int, pairs: StructuredPairs, scratch: FactorScratch) -> float:
    """Sum the maxima of the reparametrised tables of some factors, and those of all beliefs with the first ones."""
    var_ptr, scope_ptr, state_at, card_e = regions.var_ptr, regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given = regions.lam, regions.belief, scratch.given
    total = 0.0
    for i in range(len(var_ptr) - 1 if begin == 0 else 0):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, belief[s])
        total += top
    for a in range(begin, end):
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and card_e[first] == 2 and card_e[first + 1] == 2:
            i_at, j_at, base = state_at[first], state_at[first + 1], regions.edge_ptr[first]
            g0 = -lam[base] if belief[i_at] > -np.inf else -np.inf
            g1 = -lam[base + 1] if belief[i_at + 1] > -np.inf else -np.inf
            h0 = -lam[base + 2] if belief[j_at] > -np.inf else -np.inf
            h1 = -lam[base + 3] if belief[j_at + 1] > -np.inf else -np.inf
            theta, at, weight = regions.theta, regions.table_at[a], weight_of(regions.weight, a)
            top0 = max(weight * theta[at] + (g0 + h0), weight * theta[at + 1] + (g0 + h1))
            top1 = max(weight * theta[at + 2] + (g1 + h0), weight * theta[at + 3] + (g1 + h1))
            total += max(top0, top1)
            continue
        place = 0
        for e in range(first, first + arity):
            for s in range(card_e[e]):
                gone = belief[state_at[e] + s] == -np.inf
                given[place] = -np.inf if gone else -lam[regions.edge_ptr[e] + s]
                place += 1
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
        if form >= 0:
            total += form_top(pairs, form, weight, card_e[first], scratch)
        else:
            total += table_top(regions.theta, regions.table_at[a], card_e, first, arity, weight, scratch)
    return total


@compiled
def peel_factors(scope_ptr: Ints, scope: Ints, neighbours: Neighbours, live: Ints, peeled: Ints, toward: Ints) -> int:
    """Strip factors that share at most one variable with the rest, again and again; return how many."""
    # `peeled` gets them in this order, and `toward` the place of the shared variable in the scope of each. `live`
    # counts the variables of a factor that others still share; a stripped factor has live -1.
    ptr, edge, factor_of = neighbours
    degree = np.empty(len(ptr) - 1, dtype=np.int64)
    tail = 0
    for i in range(len(degree)):
        degree[i] = ptr[i + 1] - ptr[i]
    for a in range(len(live)):
        live[a] = 0
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            live[a] += 1 if degree[scope[e]] > 1 else 0
        if live[a] <= 1:
            peeled[tail] = a
            tail += 1
    head = 0
    while head < tail:
        a = peeled[head]
        toward[head] = 0
        live[a] = -1
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            i = scope[e]
            if degree[i] > 1:
                toward[head] = e - scope_ptr[a]
            degree[i] -= 1
            if degree[i] == 1:
                # the one factor left at the variable shares it with no other any more
                for at in range(ptr[i], ptr[i + 1]):
                    b = factor_of[edge[at]]
                    if live[b] > 0:
                        live[b] -= 1
                        if live[b] == 1:
                            peeled[tail] = b
                            tail += 1
        head += 1
    return tail


@bare
def decode(decide: Ints, regions: Regions, neighbours: Neighbours, labels: Ints, scratch: FactorScratch) -> None:
    """Decide variables one by one: belief plus the best of every factor that has a decided variable."""
    # `labels` are -1 where a variable is not decided yet.
    var_ptr, scope_ptr, scope, score = regions.var_ptr, regions.scope_ptr, regions.scope, scratch.given
    for q in range(len(decide)):
        i = decide[q]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            score[s] = regions.belief[var_ptr[i] + s]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            a = neighbours.factor_of[neighbours.edge[at]]
            first = scope_ptr[a]
            if scope_ptr[a + 1] - first == 2:
                is_first = scope[first] == i
                label = labels[scope[first + 1 if is_first else first]]
                if label >= 0:
                    add_row(a, is_first, label, n_states, regions, score)
                continue
            known = 0
            for e in range(first, scope_ptr[a + 1]):
                known += 1 if labels[scope[e]] >= 0 else 0
            if known > 0:
                add_best(i, a, n_states, regions, labels, scratch)
        best = 0
        for s in range(1, n_states):
            if score[s] > score[best]:
                best = s
        labels[i] = best


@inlined
def add_row(a: int, is_first: bool, label: int, n_states: int, regions: Regions, score: Floats) -> None:
    """Add a pair's reparametrised table to the states of one variable, given the label of the other one."""
    lam, edge_ptr, weight = regions.lam, regions.edge_ptr, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    mine, other = edge_ptr[first], edge_ptr[first + 1] + label
    at, step = regions.table_at[a] + label, regions.card_e[first + 1]
    if not is_first:
        mine, other = edge_ptr[first + 1], edge_ptr[first] + label
        at, step = regions.table_at[a] + label * regions.card_e[first + 1], 1
    for s in range(n_states):
        score[s] += weight * regions.theta[at + s * step] - (lam[mine + s] + lam[other])


@inlined
def add_best(i: int, a: int, n_states: int, regions: Regions, labels: Ints, scratch: FactorScratch) -> None:
    """Add to every state of `i` the best entry of factor `a`'s reparametrised table that agrees with the labels."""
    scope, card_e, lam, edge_ptr = regions.scope, regions.card_e, regions.lam, regions.edge_ptr
    score, state, most, weight = scratch.given, scratch.state, scratch.start, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    arity = regions.scope_ptr[a + 1] - first
    for s in range(n_states):
        n_configs = 1
        for k in range(arity):
            j = scope[first + k]
            state[k] = 0
            most[k] = 1
            if j == i:
                state[k] = s
            elif labels[j] >= 0:
                state[k] = labels[j]
            else:
                most[k] = card_e[first + k]
                n_configs *= most[k]
        top = -np.inf
        for _ in range(n_configs):
            place = 0
            taken = 0.0
            for k in range(arity):
                place = place * card_e[first + k] + state[k]
                taken += lam[edge_ptr[first + k] + state[k]]
                if most[k] > 1 and regions.belief[regions.state_at[first + k] + state[k]] == -np.inf:
                    taken = np.inf  # messages of impossible states are stale
            top = max(top, weight * regions.theta[regions.table_at[a] + place] - taken)
            k = arity - 1
            while k >= 0:
                if most[k] > 1:
                    state[k] += 1
                    if state[k] < most[k]:
                        break
                    state[k] = 0
                k -= 1
        score[s] += top
