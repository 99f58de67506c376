"""The dual minimised by MPLP and MPLP-C, and a run on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges, short
from mapmrf.engines.messages.ascending_incumbent import ClimbingIncumbent
from mapmrf.engines.messages.mplp_kernels import (
    PassOrder,
    Regions,
    bound_of,
    decode,
    passes_factors,
    passes_pairs2,
    peel_factors,
)
from mapmrf.engines.messages.parallel_sweep import TiledPass, tiles_of, tiles_of_variables
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.kernels.max_marginals import FactorScratch
from mapmrf.kernels.pair_transforms import StructuredPairs
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM
from mapmrf.run.dual_state import DualState
from mapmrf.run.method import Progress
from mapmrf.run.workers import Workers

FactorOrder = Literal["variables", "model", "random"]
PassDirection = Literal["alternate", "forward"]
LAYOUT = "mplp"  # layout of the messages, that of `Regions.lam`, for `DualState`
STEP_ENTRIES = 3_000_000  # maximum number of table entries processed per step: some 20 ms
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
    # Constraints may connect the leaves of trees; then no factor is pendant.
    if problem.graph.constraints is not None:
        none = np.zeros(0, dtype=np.int64)
        return none, none, np.arange(problem.n_factors)
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
        end = min(until, self.iterations + max(1, STEP_ENTRIES // self.work))
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
