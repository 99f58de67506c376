"""The phases of `auto` after the relaxation: simplify, eliminate, then search and prove in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions
from mapmrf.engines.elimination.orders import Order, PrimalGraph, fill_orders
from mapmrf.engines.flow.roof_duality import UNDECIDED, persistent_states, why_no_roof
from mapmrf.engines.moves.kicks import SearchKicks
from mapmrf.engines.reduction.components import solve_small
from mapmrf.engines.reduction.simplify import Simplified, excluded_states, simplify_in_steps
from mapmrf.methods.auto.dense import dense_searchers, is_dense
from mapmrf.methods.auto.feasibility import TURN, FeasibilityPhase
from mapmrf.methods.auto.provers import Provers
from mapmrf.methods.auto.race import Race
from mapmrf.methods.auto.scouts import Scout, Scouts
from mapmrf.methods.auto.search import PoolSearch
from mapmrf.methods.auto.shared import Phase, SharedState, Steps
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto import Auto

MOST_STATES = 2_000_000
"""Maximum number of states, beyond one per variable, for which a model is simplified; more would take too long."""

NARROW_VARIABLES, NARROW_ORDERS = 200_000, 3
"""Maximum number of variables for which elimination orders are computed, and the number of orders tried."""

STEP_ADDITIONS = 20_000_000
"""Additions of table entries per step of elimination: some 30 ms."""

LP_GAP = 0.01
"""Relative gap of the relaxation up to which LS-LP begins with its LP phase, which may close it."""

SEARCH_TURN, STARTS_FIRST = 5, 7
"""Iterations per turn of a search phase; and of the first turn of LS-LP after a long turn of a prover, enough for its
first labellings."""


class Portfolio:
    """All phases after the relaxation, on the simplified model."""

    # reduced, problem: the simplification, and the simplified model
    reduced: Simplified
    problem: Problem
    search: PoolSearch  # the pool of labellings of the simplified model
    race: Race  # the turns of searchers and provers

    def __init__(
        self,
        options: Auto,
        shared: SharedState,
        seed: int,
        feasibility: FeasibilityPhase | None = None,
        scouts: Scouts | None = None,
    ) -> None:
        # shared: incumbent and bound of the original model
        self.options, self.shared, self.seed = options, shared, seed
        self.feasibility = FeasibilityPhase(shared, seed) if feasibility is None else feasibility
        self.scouts = Scouts(shared, seed) if scouts is None else scouts

    def run(self) -> Iterator[Progress]:
        """Run all phases; the loop ends the run once the gap is closed."""
        yield from self.reduce()
        yield from self.eliminate()
        shared, options = self.shared, self.options
        if not shared.has_room_for(("blocks",), self.problem):
            yield shared.report("search", Status.CONVERGED)
            return
        wide = shared.incumbent.gap > LP_GAP
        if wide:  # the relaxation says little about good labellings: search before anything is proven
            yield from self.scouts.run()
        self.search = PoolSearch(self.problem, self.seed, options.width, options.pool)
        for _ in self.search.add(self.reduced.project(shared.incumbent.labels)):
            yield shared.step("blocks")
        yield self.searched("blocks")
        if wide and shared.has_room_for(("chains",), shared.problem):
            for _ in self.search.follow_chains():
                yield self.searched("chains")
        kicks = self.search.kicks(wide) if shared.has_room_for(("chains", "flips"), self.problem) else []
        kickers = [Phase(self.kick(make), SEARCH_TURN) for make in kicks]
        others = [Phase(self.start(not wide), SEARCH_TURN), Phase(self.restart(), SEARCH_TURN)]
        if wide:
            left = (scout for scout in (self.scouts.beliefs, self.scouts.chains) if not scout.over)
            others += [Phase(self.scout(scout), SEARCH_TURN) for scout in left]
        searchers = [*kickers, *others]
        if is_dense(self.problem) and shared.has_room_for(("tabu",), self.problem):
            searchers = dense_searchers(self, searchers)
        provers = Provers(self).phases() if options.prove else []
        provers = [phase for phase in provers if not shared.is_refuted(phase.name)]
        if wide and any(phase.name == "wcsp" for phase in provers):  # its first turn is long and may be the last one
            searchers = [*others, *kickers]
            for phase, first in zip(others, (STARTS_FIRST, SEARCH_TURN, 0, 0), strict=False):
                phase.first, phase.skipped = first, 1
        if self.feasibility.is_needed:
            searchers.insert(0, Phase(self.feasibility.run(), TURN))
        self.race = Race(self, searchers, provers)
        yield from self.race.run()

    def close(self) -> None:
        """End all phases."""
        if "race" in vars(self):
            self.race.close()
        self.scouts.close()

    # -- exact reductions ---------------------------------------------------------------------------------------------

    def reduce(self) -> Iterator[Progress]:
        """Simplify the model, possibly to nothing."""
        shared = self.shared
        self.reduced = Simplified(shared.problem, ())
        simplify = self.options.simplify and not shared.is_refuted("simplify")
        excluded = self.excluded() if simplify else np.zeros(0, dtype=bool)
        few = len(excluded) - np.count_nonzero(excluded) <= MOST_STATES + shared.problem.n_vars
        worthwhile = bool(few) and shared.has_room_for(("branch",), shared.problem)  # `branch` starts with the same
        shared.release("branch")
        if simplify and worthwhile:
            self.reduced = yield from self.simplified(excluded)
        if simplify and worthwhile and self.reduced.feasible:
            self.reduced = solve_small(self.reduced)
        if not self.reduced.feasible:
            yield shared.prove("simplify", -math.inf)
        self.problem = self.reduced.problem
        shared.details |= {"variables": float(self.problem.n_vars), **self.reduced.counts.details()}
        shared.incumbent.offer(self.reduced.lift(self.reduced.project(shared.incumbent.labels)))
        if self.problem.n_vars == 0:
            yield shared.prove("simplify", shared.incumbent.value)
        yield shared.step("simplify")

    def simplified(self, excluded: Bools) -> Generator[Progress, None, Simplified]:
        """Simplify the model step by step."""
        steps = simplify_in_steps(self.shared.problem, excluded)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                simplified: Simplified = end.value
                return simplified
            yield self.shared.report("simplify")

    def excluded(self) -> Bools:
        """States that no optimal labelling needs, (n_states,), by the relaxation's bound or by roof duality."""
        shared, problem = self.shared, self.shared.problem
        excluded: Bools = np.zeros(problem.n_states, dtype=bool)
        if shared.state_bounds is not None and shared.incumbent.value > -math.inf:
            excluded |= excluded_states(problem, shared.state_bounds, shared.incumbent.value)
        roof_fits = self.options.flow and problem.only_binary and why_no_roof(problem) is None
        roof_fits = roof_fits and not shared.is_refuted("qpbo")
        if roof_fits and shared.has_room_for(("qpbo",), problem):
            roof = persistent_states(problem)
            shared.incumbent.tighten(roof.bound, "qpbo")
            decided = np.flatnonzero(roof.states != UNDECIDED)
            excluded[2 * decided + 1 - roof.states[decided]] = True
            shared.details["variables_by_roof_duality"] = float(len(decided))
            shared.release("qpbo")
        shared.state_bounds = None
        if not shared.is_refuted("feasible"):
            excluded |= self.feasibility.excluded()
        return excluded

    def eliminate(self) -> Iterator[Progress]:
        """Solve exactly by elimination, if the tables are small."""
        if self.problem.n_vars > NARROW_VARIABLES or self.options.elimination_entries == 0:
            return
        if self.shared.is_refuted("eliminate"):
            return
        shared, model = self.shared, self.problem.graph
        graph = PrimalGraph.of(self.problem)
        order: Order | None = None
        for found in fill_orders(graph, model.card, self.seed, NARROW_ORDERS, self.options.elimination_entries):
            order = found if found.better_than(order) else order
            yield shared.step("eliminate")
        if order is None or order.n_known < graph.n:
            return
        tree = BucketTree.build(graph, model.card, order)
        if Elimination.bytes_needed(tree) > self.options.memory * 2**20:
            return
        shared.details["width"] = float(order.width)
        elimination = Elimination(tree, Functions.of_model(self.problem, tree))
        while not elimination.finished:
            elimination.advance(STEP_ADDITIONS, tree.n)
            if not elimination.finished:
                yield shared.step("eliminate")
        if elimination.value > -math.inf:
            shared.incumbent.offer(self.reduced.lift(elimination.labels()))
        yield shared.prove("eliminate", elimination.value + model.constant)

    # -- search -------------------------------------------------------------------------------------------------------

    def scout(self, scout: Scout) -> Steps:
        """Go on with a method on the original model."""
        for step in scout.steps:
            self.search.learn(self.reduced.project(self.shared.incumbent.labels))
            yield step

    def start(self, beliefs: bool) -> Steps:
        """Starting points for the pool, from belief propagation too if that is still to come."""
        best, search, admits = self.shared.incumbent, self.search, self.shared.admits
        if beliefs:
            for step in search.believe(admits):
                yield self.searched(step.phase)
        for step in search.relax(self.options.starts, best.gap <= LP_GAP, admits):
            best.tighten(step.bound, step.phase)
            yield self.searched(step.phase)

    def restart(self) -> Steps:
        """Restart regions, without end."""
        while True:
            self.search.restart_regions()
            yield self.searched("restarts")

    def kick(self, make: Callable[[], SearchKicks]) -> Steps:
        """Apply kicks of one kind, without end."""
        for _ in self.search.kick(make()):
            yield self.searched("kicks")

    def searched(self, phase: str) -> Progress:
        """Report after a step of the search."""
        self.offer_pool()
        return self.shared.step(phase)

    def offer_pool(self) -> None:
        """Offer the best labelling of the pool to the incumbent."""
        if self.search.value > self.shared.incumbent.value:
            self.shared.incumbent.offer(self.reduced.lift(self.search.best))
