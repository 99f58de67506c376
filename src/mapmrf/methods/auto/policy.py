"""The parts of `auto` for models that the relaxation leaves open: simplify, eliminate, search and prove in turns."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions, Order, PrimalGraph, fill_orders
from mapmrf.engines.program.compact import is_compact
from mapmrf.engines.reduction.components import solve_small
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.method import Method, Progress, Start
from mapmrf.methods.auto.search import Search
from mapmrf.methods.auto.standing import Standing
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.problem import Problem
from mapmrf.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto import Auto

NARROW_ENTRIES, NARROW_VARIABLES = 2.0**24, 200_000
"""Table entries up to which a model is eliminated at once, and variables up to which an order for it is looked for."""

NARROW_ORDERS = 3
"""Elimination orders that are tried for that."""

STEP_ADDITIONS = 20_000_000
"""Additions of table entries in a step of elimination: some 30 ms."""

MAX_PAIRS, MAX_DEGREE = 50_000, 12.0
"""Pairs, and pairs per variable, up to which a binary model is given to the cutting planes."""

BRANCH_GAP, BRANCH_NODES = 0.01, 1000
"""Relative gap after the cutting planes from which branching is tried, and nodes that it may take."""

BRANCH_VARIABLES = 20_000
"""Variables up to which AND/OR search is tried."""

LP_GAP = 0.01
"""Relative gap of the relaxation up to which LS-LP begins without its sphere: that may close it."""

SEARCH_TURN, PROOF_TURN, CUTS_TURN = 5, 5, 20_000
"""Iterations of a part before it is the next one's turn: what searches, and what proves. Of the cutting planes an
iteration is a round, and a turn is as many as go through so many pairs, at least one."""

PROGRESS, IDLE_TURNS, MAX_PAUSE = 1e-3, 2, 7
"""Share of the gap that a turn must close to count, or else raise the value. After every two turns that did not count
a part is left out of one cycle more, up to seven."""


Steps = Generator[Progress, None, None]


@dataclass
class Part:
    """A part that takes turns with others.

    Attributes
    ----------
    steps, turn
        Its steps, and how many iterations are a turn of it.
    idle, due
        Turns since it last brought anything, and the cycle in which it is due again.
    """

    steps: Steps
    turn: int
    idle: int = 0
    due: int = 0


@runtime_checkable
class Informed(Protocol):
    """A run that can use better labellings that others find."""

    def know(self, labels: Ints) -> None:
        """Take a labelling over if it is better."""


class Portfolio:
    """Everything after the relaxation, on the simplified model.

    Attributes
    ----------
    standing
        What is known of the whole model.
    small, problem
        The simplification, and the model that it leaves.
    search
        The pool of labellings of that model.
    turns
        The parts that take turns.
    """

    small: Simplified
    problem: Problem
    search: Search

    def __init__(self, method: Auto, standing: Standing, seed: int) -> None:
        self.method, self.standing, self.seed = method, standing, seed
        self.turns: list[Part] = []

    def run(self) -> Iterator[Progress]:
        """All parts; the loop ends the run when the gap is closed."""
        standing = self.standing
        self.small = simplify(standing.problem)
        if self.small.feasible:
            self.small = solve_small(self.small)
        if not self.small.feasible:
            yield standing.proven("simplify", -math.inf)
        self.problem = self.small.problem
        standing.details["variables"] = float(self.problem.n_vars)
        standing.offer(self.small.whole(self.small.part(standing.labels)))
        if self.problem.n_vars == 0:
            yield standing.proven("simplify", standing.value)
        yield standing.worked("simplify")
        yield from self.eliminate()
        self.search = Search(self.problem, self.seed, self.method.width, self.method.pool)
        for _ in self.search.add(self.small.part(standing.labels)):
            yield standing.worked("blocks")
        yield self.searched("blocks")
        searchers = [*([self.kick()] if self.search.is_large else []), self.start(), self.restart()]
        self.turns = [Part(steps, SEARCH_TURN) for steps in searchers]
        if self.method.prove:
            self.turns += [Part(self.cut(), self.rounds_per_turn)] if self.is_sparse() else self.provers()
        yield from self.take_turns()

    def halt(self) -> None:
        """End the parts: a solver that works on a thread of its own stops, and the memory of all is free."""
        for part in self.turns:
            part.steps.close()

    # -- turns --------------------------------------------------------------------------------------------------------

    def take_turns(self) -> Iterator[Progress]:
        """Some iterations of each part in turn; what brings nothing comes less often, what has ended no more."""
        standing, cycle = self.standing, 0
        while True:
            for part in self.turns.copy():
                if part.due > cycle:
                    continue
                value, bound = standing.value, standing.bound
                yield from self.take_turn(part)
                gained = standing.value > value or bound - standing.bound > PROGRESS * (bound - standing.value)
                part.idle = 0 if gained else part.idle + 1
                part.due = cycle + 1 + min(part.idle // IDLE_TURNS, MAX_PAUSE)
            cycle += 1

    def take_turn(self, part: Part) -> Iterator[Progress]:
        """A turn of a part; if it comes to its end, it is left out from then on."""
        end = self.standing.iterations + part.turn
        while self.standing.iterations < end:
            step = next(part.steps, None)
            if step is None:
                self.turns.remove(part)
                return
            yield step

    # -- exact elimination --------------------------------------------------------------------------------------------

    def eliminate(self) -> Iterator[Progress]:
        """Exact maximisation, if the tables are small."""
        if self.problem.n_vars > NARROW_VARIABLES:
            return
        graph, card = PrimalGraph.of(self.problem), self.problem.graph.card
        order: Order | None = None
        for found in fill_orders(graph, card, self.seed, NARROW_ORDERS, NARROW_ENTRIES):
            order = found if found.better_than(order) else order
            yield self.standing.worked("eliminate")
        if order is None or order.n_known < graph.n:
            return
        tree = BucketTree.build(graph, card, order)
        if Elimination.bytes_needed(tree) > self.method.memory * 2**20:
            return
        self.standing.details["width"] = float(order.width)
        model = self.problem.graph
        given = Functions.of(self.problem, tree, model.theta_v, model.theta_t, self.problem.table_at)
        elimination = Elimination(tree, given)
        while not elimination.finished:
            elimination.advance(STEP_ADDITIONS, tree.n)
            if not elimination.finished:
                yield self.standing.worked("eliminate")
        if elimination.value > -math.inf:
            self.standing.offer(self.small.whole(elimination.labels()))
        yield self.standing.proven("eliminate", elimination.value + model.constant)

    # -- search -------------------------------------------------------------------------------------------------------

    def start(self) -> Steps:
        """Starting points for the pool."""
        for step in self.search.starts(self.method.starts, lp_phase=self.standing.gap <= LP_GAP):
            self.standing.note(step.bound)
            yield self.searched(step.phase)

    def restart(self) -> Steps:
        """Restarts of regions, for ever."""
        while True:
            self.search.restart_regions()
            yield self.searched("restarts")

    def kick(self) -> Steps:
        """Kicks, for ever."""
        while True:
            self.search.kick()
            yield self.searched("kicks")

    def searched(self, phase: str) -> Progress:
        """What the loop is told after a step of the search."""
        self.offer_pool()
        return self.standing.worked(phase)

    def offer_pool(self) -> None:
        """Keep the best labelling of the pool."""
        if self.search.value > self.standing.value:
            self.standing.offer(self.small.whole(self.search.best))

    # -- proofs -------------------------------------------------------------------------------------------------------

    def is_sparse(self) -> bool:
        """Whether the model is one for cutting planes: binary, pairwise, finite, and not dense."""
        n_pairs = self.problem.n_factors
        return is_compact(self.problem) and n_pairs <= min(MAX_PAIRS, MAX_DEGREE * self.problem.n_vars)

    @property
    def rounds_per_turn(self) -> int:
        """Rounds of cutting planes that take about as long as a turn of the search."""
        return max(1, CUTS_TURN // self.problem.n_factors)

    def cut(self) -> Steps:
        """Cutting planes, and branching if they leave a small gap; the other provers have to do the rest.

        A round is an iteration. While a solver is waited for none goes by: how often is a matter of time.
        """
        method = Cuts(BRANCH_NODES, self.method.solver, local_search=0, memory=self.method.memory)
        state = method.start(self.problem, self.seed, Start(self.search.best))
        step = Progress(0)
        try:
            while step.finished is None and (step.phase != "branch" or self.standing.gap <= BRANCH_GAP):
                state.inform(self.search.best)
                n_rounds = state.n_rounds
                step = method.step(self.problem, state)
                self.standing.iterations += state.n_rounds - n_rounds
                yield self.take("branch and cut" if step.phase == "branch" else "cuts", step)
        finally:
            method.close(self.problem, state)
        self.turns += self.provers()

    def provers(self) -> list[Part]:
        """The parts that lower the bound of any model."""
        found = [Part(self.prove("clusters", MPLPC(max_iterations=sys.maxsize)), PROOF_TURN)]
        if self.problem.n_vars <= BRANCH_VARIABLES:
            found.append(Part(self.prove("branch", Branch(memory=self.method.memory)), PROOF_TURN))
        return found

    def prove(self, phase: str, method: Method) -> Steps:
        """Follow a method that lowers the bound, to its end."""
        if method.supports(self.problem) is not None:
            return
        state = method.start(self.problem, self.seed, Start(self.search.best))
        step = Progress(0)
        try:
            while step.finished is None and step.iterations < method.max_iterations:
                if isinstance(state, Informed):
                    state.know(self.search.best)
                step = method.step(self.problem, state)
                self.standing.iterations += 1
                yield self.take(phase, step)
        finally:
            method.answer(self.problem, state)  # frees its tables

    def take(self, phase: str, step: Progress) -> Progress:
        """Take over what a prover found; the search gets its labelling, too."""
        if step.labels is not None:
            self.search.learn(step.labels)
            self.offer_pool()
        self.standing.note(step.bound)
        proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE)
        return self.standing.progress(phase, step.finished if proven else None)
