"""The dual minimised by MPLP and MPLP-C, and a run on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.factor_messages import FactorMessages, factor_top
from mapmrf.engines.messages.sweeps import Chunks, begin_pass, divide_sweep, run_worker, share_sweep
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.kernels.max_marginals import FactorScratch, form_max_marginals, max_marginals, pair_max_marginals, weight_of
from mapmrf.kernels.pair_transforms import form_of
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM
from mapmrf.run import pace
from mapmrf.run.method import DualState, Progress
from mapmrf.run.pool import Workers

if TYPE_CHECKING:
    from mapmrf.engines.messages.clusters import Clusters

FactorOrder = Literal["variables", "model", "random"]
PassDirection = Literal["alternate", "forward"]
LAYOUT = "mplp"  # layout of the messages, that of `FactorMessages.lam`, for `DualState`
ROUND_OFF = 1e-13  # relative decrease of the bound that counts as none
PARALLEL_FROM = 100_000  # number of factors from which several threads are worth their synchronisation
BOUND_CHUNK = 1 << 16  # factors per chunk in which the bound is summed, independent of the number of threads


@dataclass
class Dual:
    """A reparametrisation: factors with their tables and the messages from them to their variables."""

    # regions, neighbours: the arrays of the kernels; factors share tables as in the model
    regions: FactorMessages
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
    workers: Workers
    scratch: list[FactorScratch]  # of every worker
    # pass_chunks, decode_chunks: how several threads share the factors of a pass, and the variables of the cyclic part;
    # None for a single thread
    pass_chunks: Chunks | None = None
    decode_chunks: Chunks | None = None

    @classmethod
    def build(cls, problem: Problem, order: FactorOrder, schedule: PassDirection, seed: int, threads: int = 1) -> Dual:
        """Start with zero messages, except those of pendant trees, which are passed to the roots once and for all."""
        graph = problem.graph
        # the factors of pendant trees from the leaves inwards, the root's scope position in each, and the rest
        live, peeled, toward = np.zeros((3, problem.n_factors), dtype=np.int64)
        n = peel_factors(problem.scope_ptr, problem.scope, Neighbours.of(problem), live, peeled, toward)
        peeled, toward, core = peeled[:n], toward[:n], np.flatnonzero(live >= 0)
        decide, n_core = _decide(problem, core, peeled, toward)
        visit = core[np.argsort(problem.order[core])]
        if order == "random":
            visit = np.random.default_rng(seed).permutation(core)
        elif order == "variables" and len(core):
            visit = core[_by_variables(problem.scope, problem.scope_ptr, core)]
        max_card, arity = int(graph.card.max(initial=1)), int(np.diff(problem.scope_ptr).max(initial=2))
        widest = max(max_card, int(np.diff(problem.edge_ptr[problem.scope_ptr]).max(initial=1)))
        binary = all(batch.shape == (2, 2) and not batch.hard for batch in problem.batches)
        workers = Workers(threads if problem.n_factors >= PARALLEL_FROM else 1)
        dual = cls(
            # copies, as the arrays of clusters can be written to, and kernels are compiled for one kind alone
            regions=FactorMessages._make(map(np.copy, FactorMessages.of(problem))),
            neighbours=Neighbours(*(np.copy(short(array)) for array in Neighbours.of(problem))),
            visit=short(visit),
            decide=short(decide),
            n_core=n_core,
            constant=graph.constant,
            quick=binary and bool(problem.feasible_v.all()),
            order=order,
            alternate=schedule == "alternate",
            max_card=max_card,
            workers=workers,
            scratch=[FactorScratch.allocate(widest, arity, problem.quick_forms, max_card) for _ in range(workers.n)],
        )
        if len(peeled):
            passes(dual.regions, short(peeled), 0, 1, False, short(toward), dual.scratch[0])
        if workers.n > 1:
            dual.share(workers.n)
        return dual

    def share(self, n: int) -> None:
        """Divide passes and decoding among threads, where that is worth it; all messages and labels are unchanged."""
        regions, neighbours = self.regions, self.neighbours
        chunks, place = divide_sweep((self.visit, regions.scope_ptr, regions.scope, self.n_vars), n)
        if len(chunks.ptr) > 2:
            self.pass_chunks, self.visit = chunks, self.visit if place is None else self.visit[place]
        core, factors = self.decide[: self.n_core], neighbours.factor_of[neighbours.edge]
        chunks, place = divide_sweep((core, neighbours.ptr, factors, self.n_factors), n)
        if len(chunks.ptr) > 2:
            self.decode_chunks, core[:] = chunks, core if place is None else core[place]

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
        pairs = self.scratch[0].pairs
        forms = pairs.forms
        if len(forms.of):
            of = np.full(max(len(forms.of), int(factors.max(initial=-1)) + 1), NO_FORM, dtype=forms.of.dtype)
            of[: len(forms.of)] = forms.of
            of[factors] = NO_FORM
            self.scratch[0] = self.scratch[0]._replace(pairs=pairs._replace(forms=forms._replace(of=of)))

    @property
    def n_factors(self) -> int:
        return len(self.regions.table_at)

    @property
    def n_vars(self) -> int:
        return len(self.regions.var_ptr) - 1

    def passes(self, begin: int, end: int) -> None:
        """Run the iterations from `begin` to `end`, each a pass over the cyclic part."""
        # On several threads, the result is the same as in sequential order.
        scratch = [None for _ in self.scratch] if self.quick else self.scratch
        if self.pass_chunks is None:
            passes(self.regions, self.visit, begin, end, self.alternate, self.visit[:0], scratch[0])
            return
        for iteration in range(begin, end):
            forward = not (self.alternate and iteration % 2 == 1)
            self.sweep(forward, self.visit, None, scratch, self.pass_chunks)

    def sweep(self, forward: bool, visits: Ints, labels: Ints | None, scratch: Sequence[Any], chunks: Chunks) -> None:
        """Let the threads share visits to factors, or to variables, which receive labels."""
        model = (self.regions, self.neighbours, visits)

        def work(w: int) -> bool:
            return dual_worker(w, forward, False, model, labels, scratch[w], chunks)

        begin_pass(forward, chunks, 0.0)
        share_sweep(self.workers, work, len(chunks.ptr) - 1)

    def close(self) -> None:
        self.workers.close()

    def bound(self) -> float:
        """Evaluate the dual from scratch: an upper bound for any messages."""
        n = self.n_factors
        if n <= BOUND_CHUNK:
            return self.constant + bound_of(self.regions, 0, n, self.scratch[0])
        chunks = [(at, min(at + BOUND_CHUNK, n)) for at in range(0, n, BOUND_CHUNK)]
        shares: list[float] = []
        for at in range(0, len(chunks), self.workers.n):
            some = zip(chunks[at : at + self.workers.n], self.scratch, strict=False)
            shares += self.workers.run(bound_of, [(self.regions, *chunk, mine) for chunk, mine in some])
        return self.constant + sum(shares[1:], shares[0])

    def work_per_pass(self) -> int:
        return int(self.sizes(self.visit).sum())

    def decode(self, backward: bool) -> Ints:
        """Decode the variables one after another, each given those before it; pendant trees last."""
        labels = np.full(self.n_vars, -1, dtype=np.int64)
        core, rest = self.decide[: self.n_core], self.decide[self.n_core :]
        if self.decode_chunks is None:
            decode_all(core, backward, self.regions, self.neighbours, labels, self.scratch[0])
        else:
            self.sweep(not backward, core, labels, self.scratch, self.decode_chunks)
        if len(rest):
            decode_all(rest, False, self.regions, self.neighbours, labels, self.scratch[0])
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


class DualDescent:
    """Messages and labels of a run, and the schedule of its measurements."""

    def __init__(self, dual: Dual, labelling: ClimbingIncumbent) -> None:
        self.dual = dual
        self.function: Dual | Clusters = dual  # what the messages minimise: `dual` itself, or clusters on top of it
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


@inlined
def pair_entry(regions: FactorMessages, weight: float, at: int, e: int, s1: int, s2: int) -> float:
    """Entry of a pair's reparametrised table, by its weight and its place in `theta`; `e` is the pair's first edge."""
    belief, state_at, lam, edge_ptr = regions.belief, regions.state_at, regions.lam, regions.edge_ptr
    if belief[state_at[e] + s1] == -np.inf or belief[state_at[e + 1] + s2] == -np.inf:
        return -np.inf  # messages of impossible states are stale
    entry: float = weight * regions.theta_t[at] - (lam[edge_ptr[e] + s1] + lam[edge_ptr[e + 1] + s2])
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
def pass_pairs2(regions: FactorMessages, visit: Ints, backward: bool) -> None:
    """One pass over pairs of binary variables without -inf; factor `a` has the edges 2a and 2a + 1."""
    table_at, state_at, weight = regions.table_at, regions.state_at, regions.weight
    theta, lam, belief = regions.theta_t, regions.lam, regions.belief
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
def give_pair(a: int, plain: bool, regions: FactorMessages, scratch: FactorScratch) -> None:
    """Take the messages of a pair of any variables back and share its max-marginals out equally."""
    # The loops over edges of `pass_factors`, written out: 1.1 to 1.4 times as fast. `plain` says that there are no
    # weights and no forms at all.
    state_at, card_e, lam, belief = regions.state_at, regions.card_e, regions.lam, regions.belief
    first = regions.scope_ptr[a]
    base, at = regions.edge_ptr[first], regions.table_at[a]
    i_at, j_at, k1, k2 = state_at[first], state_at[first + 1], card_e[first], card_e[first + 1]
    take_back(i_at, base, 0, k1, belief, lam, scratch.given)
    take_back(j_at, base + k1, k1, k2, belief, lam, scratch.given)
    weight, form = 1.0, NO_FORM
    if not plain:
        weight, form = weight_of(regions.weight, a), form_of(scratch.pairs.forms, a)
    if form >= 0:
        form_max_marginals(form, weight, k1, scratch)
    elif weight == 1.0:
        pair_max_marginals(regions.theta_t, at, k1, k2, 1.0, scratch)
    else:
        pair_max_marginals(regions.theta_t, at, k1, k2, weight, scratch)
    give_out(0.5, i_at, base, 0, k1, belief, lam, scratch)
    give_out(0.5, j_at, base + k1, k1, k2, belief, lam, scratch)


@inlined
def pass_factors(regions: FactorMessages, visit: Ints, toward: Ints, backward: bool, scratch: FactorScratch) -> None:
    """One pass over factors of any shape: each takes its messages back and shares its max-marginals out."""
    # All go `toward` one place of its scope (from hanging trees to their roots), or in equal shares if `toward` is
    # empty.
    scope_ptr, state_at, card_e = regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given = regions.lam, regions.belief, scratch.given
    plain = len(regions.weight) == 0 and len(scratch.pairs.forms.of) == 0
    n = len(visit)
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and len(toward) == 0:
            give_pair(a, plain, regions, scratch)
            continue
        base, place = regions.edge_ptr[first], 0
        for e in range(first, scope_ptr[a + 1]):
            take_back(state_at[e], base + place, place, card_e[e], belief, lam, given)
            place += card_e[e]
        weight, form = weight_of(regions.weight, a), form_of(scratch.pairs.forms, a)
        if form >= 0:
            form_max_marginals(form, weight, card_e[first], scratch)
        else:
            max_marginals(regions.theta_t, regions.table_at[a], card_e, first, arity, weight, scratch)
        place = 0
        for e in range(first, scope_ptr[a + 1]):
            share = 1.0 / arity
            if len(toward) > 0:
                share = 1.0 if e - first == toward[q] else 0.0
            give_out(share, state_at[e], base + place, place, card_e[e], belief, lam, scratch)
            place += card_e[e]


@bare
def passes(
    regions: FactorMessages, visit: Ints, begin: int, end: int, alternate: bool, toward: Ints,
    scratch: FactorScratch | None,
) -> None:  # fmt: skip
    """Iterations `begin` to `end`, every other one backward if they alternate; `scratch` is None for `pass_pairs2`."""
    for iteration in range(begin, end):
        if scratch is None:
            pass_pairs2(regions, visit, alternate and iteration % 2 == 1)
        else:
            pass_factors(regions, visit, toward, alternate and iteration % 2 == 1, scratch)


@inlined
def visit_dual(
    forward: bool, decode: bool, c: int, model: tuple[FactorMessages, Neighbours, Ints], labels: Ints | None,
    scratch: FactorScratch | None, chunks: Chunks,
) -> None:  # fmt: skip
    """Visit a chunk of variables to decode their labels, or of factors; what is None is known to the compiler."""
    regions, neighbours, visits = model
    visit = visits[chunks.begin[c] : chunks.end[c]]
    if scratch is None:
        pass_pairs2(regions, visit, not forward)
    elif labels is None:
        pass_factors(regions, visit, visit[:0], not forward, scratch)
    else:
        decode_all(visit, not forward, regions, neighbours, labels, scratch)


@compiled
def dual_worker(*arguments: Any) -> bool:
    return run_worker(visit_dual, arguments)


@bare
def bound_of(regions: FactorMessages, begin: int, end: int, scratch: FactorScratch) -> float:
    """Sum the maxima of the reparametrised tables of some factors, and those of all beliefs with the first ones."""
    var_ptr, scope_ptr, state_at, card_e = regions.var_ptr, regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given, total = regions.lam, regions.belief, scratch.given, 0.0
    for i in range(len(var_ptr) - 1 if begin == 0 else 0):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, belief[s])
        total += top
    for a in range(begin, end):
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and card_e[first] == 2 and card_e[first + 1] == 2:  # twice as fast as by `factor_top`
            i_at, j_at, base = state_at[first], state_at[first + 1], regions.edge_ptr[first]
            g0 = -lam[base] if belief[i_at] > -np.inf else -np.inf
            g1 = -lam[base + 1] if belief[i_at + 1] > -np.inf else -np.inf
            h0 = -lam[base + 2] if belief[j_at] > -np.inf else -np.inf
            h1 = -lam[base + 3] if belief[j_at + 1] > -np.inf else -np.inf
            theta, at, weight = regions.theta_t, regions.table_at[a], weight_of(regions.weight, a)
            top0 = max(weight * theta[at] + (g0 + h0), weight * theta[at + 1] + (g0 + h1))
            top1 = max(weight * theta[at + 2] + (g1 + h0), weight * theta[at + 3] + (g1 + h1))
            total += max(top0, top1)
            continue
        place = 0
        for e in range(first, first + arity):
            for s in range(card_e[e]):
                gone = belief[state_at[e] + s] == -np.inf  # messages of impossible states are stale
                given[place] = -np.inf if gone else -lam[regions.edge_ptr[e] + s]
                place += 1
        total += factor_top(a, first, arity, regions, scratch)
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
def decode_all(
    decide: Ints, backward: bool, regions: FactorMessages, neighbours: Neighbours, labels: Ints, scratch: FactorScratch
) -> None:
    """Decide variables one by one: belief plus the best of every factor that has a decided variable."""
    # `labels` are -1 where a variable is not decided yet.
    var_ptr, scope_ptr, scope, score = regions.var_ptr, regions.scope_ptr, regions.scope, scratch.score[0]
    n = len(decide)
    for q in range(n):
        i = decide[n - 1 - q] if backward else decide[q]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            score[s] = regions.belief[var_ptr[i] + s]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            own = neighbours.edge[at]
            a = neighbours.factor_of[own]
            first, known = scope_ptr[a], False
            if scope_ptr[a + 1] - first == 2:
                label = labels[scope[first + 1 if own == first else first]]
                if label >= 0:
                    add_row(a, own == first, label, n_states, regions, score)
                continue
            for e in range(first, scope_ptr[a + 1]):
                known = known or labels[scope[e]] >= 0
            if known:
                add_best(a, own, n_states, regions, labels, score, scratch)
        best = 0
        for s in range(1, n_states):
            if score[s] > score[best]:
                best = s
        labels[i] = best


@inlined
def add_row(a: int, is_first: bool, label: int, n_states: int, regions: FactorMessages, score: Floats) -> None:
    """Add a pair's reparametrised table to the states of one variable, given the label of the other one."""
    lam, edge_ptr, weight = regions.lam, regions.edge_ptr, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    mine, other = edge_ptr[first], edge_ptr[first + 1] + label
    at, step = regions.table_at[a] + label, regions.card_e[first + 1]
    if not is_first:
        mine, other = edge_ptr[first + 1], edge_ptr[first] + label
        at, step = regions.table_at[a] + label * regions.card_e[first + 1], 1
    for s in range(n_states):
        score[s] += weight * regions.theta_t[at + s * step] - (lam[mine + s] + lam[other])


@inlined
def add_best(
    a: int, own: int, n_states: int, regions: FactorMessages, labels: Ints, score: Floats, scratch: FactorScratch
) -> None:
    """Add to the states of edge `own` the best entries of factor `a`'s reparametrised table that agree with labels."""
    # Fixed states are not tested for being impossible: where every state breaks a constraint, one of them is chosen.
    scope, card_e, lam, edge_ptr = regions.scope, regions.card_e, regions.lam, regions.edge_ptr
    state, most, weight = scratch.state, scratch.start, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    arity = regions.scope_ptr[a + 1] - first
    for s in range(n_states):
        n_configs = 1
        for k in range(arity):
            label = s if first + k == own else labels[scope[first + k]]
            state[k] = max(0, label)
            most[k] = 1 if label >= 0 else card_e[first + k]
            n_configs *= most[k]
        top = -np.inf
        for _ in range(n_configs):
            place, taken = 0, 0.0
            for k in range(arity):
                place = place * card_e[first + k] + state[k]
                taken += lam[edge_ptr[first + k] + state[k]]
                if most[k] > 1 and regions.belief[regions.state_at[first + k] + state[k]] == -np.inf:
                    taken = np.inf  # messages of impossible states are stale
            top = max(top, weight * regions.theta_t[regions.table_at[a] + place] - taken)
            for k in range(arity - 1, -1, -1):  # the next configuration of the free variables
                if most[k] > 1:
                    state[k] += 1
                    if state[k] < most[k]:
                        break
                    state[k] = 0
        score[s] += top
