"""Auto: the best labelling within the time limit, and a bound on how far it is from the optimum."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, ClassVar, Literal

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.numpy_elimination import eliminate_small, small_order
from mapmrf.methods.auto.constrained import ConstrainedRun
from mapmrf.methods.auto.feasibility import FeasibilityPhase
from mapmrf.methods.auto.relax import EarlyTrial, ExpansionTurns, RelaxationEnd, Scouts
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import SharedRun
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import NonNegativeFloat, Phases, PositiveFloat, PositiveInt, Progress, Start, running
from mapmrf.run.repair import penalised
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto.portfolio import Portfolio


@dataclass(frozen=True)
class Auto(Phases):
    """Relax, simplify, eliminate, search and prove; stop as soon as the labelling is proven optimal.

    Tiny models are eliminated at once, and binary submodular models are solved by a minimum cut. On models with
    forbidden entries, a conflict-driven search first looks for a feasible labelling and may prove that there is none.
    Each further phase runs only if the previous ones have left a gap: TRW-S for a dual bound and decoded labellings,
    which alpha-expansions improve on large pairwise models; exact simplification, which also removes states excluded by
    the bound or by roof duality; and elimination, if the induced width is small.

    Where the gap is still wide, chains of flips and belief propagation follow at once. Search and provers then take
    turns. The search takes starting points from belief propagation and LS-LP, improves them by exact block moves and
    crossover, and continues by restarting regions; dense binary models get tabu search first. The provers are cutting
    planes on sparse binary pairwise models, semidefinite bounds on dense ones, and on all others soft arc consistency,
    a 0/1 program, AND/OR branch and bound, and cluster tightening.

    Models with constraints alternate between local search with counters, a program with the constraints as rows, and
    all of the above on a model in which tables replace the constraints.

    Attributes
    ----------
    max_iterations
        Maximum number of steps over all phases, each of some hundredths of a second.
    starts
        Number of LS-LP starts.
    pool
        Number of labellings that the search keeps and improves in turn.
    width
        Base-2 logarithm of the largest table allowed when a region is optimised exactly.
    prove
        Spend time on bounds beyond that of the relaxation.
    solver
        Solver for branch and bound after the cutting planes: ``highs``, ``scip`` (an optional extra), or ``auto``,
        which uses SCIP if it is installed.
    memory
        Memory in megabytes for the tables of elimination and AND/OR search, and for SCIP.
    relax_iterations
        Maximum number of iterations of the relaxation.
    flow
        Use minimum cuts: for binary submodular models, expansions and roof duality.
    simplify
        Reduce the model before the search.
    elimination_entries
        Maximum number of table entries, in total, for which a model is eliminated outright; 0 for never.
    cuts_degree
        Maximum number of pairs per variable for which cutting planes are used on a binary pairwise model.
    branch_gap
        Maximum relative gap after the cutting planes at which branch and cut follows.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1))  # auto is the default
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "portfolio of relaxation, reduction, search and proofs, adapted to the model"
    family: ClassVar[str] = "portfolio"
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True
    measured_as: ClassVar[str] = "trws"  # the relaxation; later phases are skipped where they do not fit

    max_iterations: PositiveInt = 3000
    starts: PositiveInt = 5
    pool: PositiveInt = 3
    width: NonNegativeFloat = 13.0
    prove: bool = True
    solver: Literal["auto", "highs", "scip"] = "auto"
    memory: PositiveFloat = 1024.0
    relax_iterations: PositiveInt = 1000
    flow: bool = True
    simplify: bool = True
    elimination_entries: NonNegativeFloat = 2.0**24
    cuts_degree: NonNegativeFloat = 12.0
    branch_gap: NonNegativeFloat = 0.01

    def within(self, graph: FactorGraph, left: float) -> Auto:
        most = max(1.0, left / 2 / 2**20)
        return self if self.memory <= most else replace(self, memory=most)

    def start(self, problem: Problem, seed: int, initial: Start) -> AutoRun | ConstrainedRun:
        if problem.graph.constraints is not None:
            return ConstrainedRun(self, problem, seed, initial.first_labels(problem.graph))
        return AutoRun(self, problem, seed, initial.first_labels(problem.graph))


class AutoRun(SharedRun):
    """A run of `auto`: the relaxation, then a portfolio if a gap remains.

    Models with tables in place of constraints are `rewritten`: their relaxation says little about good labellings.
    """

    def __init__(self, options: Auto, problem: Problem, seed: int, labels: Ints, rewritten: bool = False) -> None:
        super().__init__(options, problem, seed, labels)
        self.rewritten = rewritten
        self.scouts: Scouts | None = None
        self.trial: EarlyTrial | None = None
        self.portfolio: Portfolio | None = None

    def run(self) -> Generator[Progress, None, None]:
        """Run the relaxation, then the portfolio if a gap remains; the loop ends the run once the gap is closed."""
        yield from self.eliminate_small()
        if self.problem.n_factors >= SETTINGS.large:
            yield self.shared.report("start")
        if self.options.flow:
            yield from self.minimum_cut()
        self.feasibility = FeasibilityPhase(self.shared, self.seed)
        yield from self.feasibility.first()
        if self.rewritten:
            yield from islice(self.called_scouts().chains.turn(), SETTINGS.rewritten_steps)
        yield from self.relax()
        yield from self.try_to_prove()
        yield from self.feasibility.steps(SETTINGS.feasible_more)
        from mapmrf.methods.auto.portfolio import Portfolio  # easy models skip the import of everything that follows

        bounds = self.shared.incumbent.bounds
        while True:
            self.portfolio = Portfolio(self.options, self.shared, self.seed, self.feasibility, self.scouts, self.trial)
            n_refuted = len(bounds.refuted)
            for step in self.portfolio.run():
                if len(bounds.refuted) > n_refuted:
                    break
                yield step
            else:
                return
            # What was refuted may have been the prover or the reduction that it rests on: trust neither, begin again.
            self.portfolio.close()
            self.shared.incumbent.withdraw()
            yield self.shared.report("start")

    def eliminate_small(self) -> Iterator[Progress]:
        """Solve a tiny model exactly, without kernels."""
        graph, shared = self.problem.graph, self.shared
        order = small_order(graph, self.options.elimination_entries)
        if order is not None:
            optimum = eliminate_small(graph, order)
            if optimum.value == -math.inf:
                optimum = optimum._replace(labels=eliminate_small(penalised(graph), order).labels)
            shared.incumbent.offer(optimum.labels)
            shared.details["width"] = float(max(map(len, order.values()), default=0))
            yield shared.prove("eliminate", optimum.value)

    def minimum_cut(self) -> Iterator[Progress]:
        if not self.problem.only_binary:
            return
        from mapmrf.methods.maxflow import MaxFlow

        method = MaxFlow()
        if self.shared.admits(method, self.problem):
            yield from self.follow(method, "cut", Start())

    def expand(self, labels: Ints) -> Iterator[Progress]:
        """Run alpha-expansions from a labelling, unless too many labels would need too many cuts."""
        from mapmrf.methods.expansion import Expansion

        method, graph = Expansion(), self.problem.graph
        if graph.card.max(initial=0) <= SETTINGS.expansion_labels and self.shared.admits(method, self.problem):
            yield from self.follow(method, "expansion", Start(labels))

    def relax(self) -> Iterator[Progress]:
        """Run TRW-S as long as it closes the gap, which proves easy models; large models get expansions in between."""
        from mapmrf.methods.trws import TRWS  # tiny models skip the import of numba

        shared, inner = self.shared, TRWS(max_iterations=self.options.relax_iterations)
        best, turns = shared.incumbent, ExpansionTurns(self.problem, self.options.flow)
        if turns.due(0, best.gap, -math.inf):
            yield from self.expand(best.labels)
            turns.end(best.value)
        shared.has_room_for(("trws",), self.problem)
        with running(inner, self.problem, self.seed, Start()) as state:
            stops, step = RelaxationEnd(self.problem, best), Progress(0)
            n_steps, scout_at = 0, SETTINGS.slow_steps
            while step.finished is None and step.iterations < inner.max_iterations:
                if stops.at(step.iterations, state.passes):
                    break
                step = inner.step(self.problem, state)
                report = shared.take_over(step, "relax", "relax")
                report.finished = Status.INFEASIBLE if report.finished is Status.INFEASIBLE else None
                yield report
                yield from self.feasibility.steps(1)
                if shared.is_refuted("relax"):
                    break
                if turns.due(step.iterations, best.gap, state.passes.figures.value):
                    yield from self.expand(state.passes.best)
                    turns.end(best.value)
                n_steps += 1
                if n_steps == SETTINGS.trial_after:
                    yield from self.try_to_prove()
                if n_steps == scout_at and best.gap > SETTINGS.stall_gap and not turns.planned:
                    scout_at *= 2
                    if best.gap <= SETTINGS.loose_gap:
                        yield from self.called_scouts().climb(state.passes.best, 1)
                    elif self.scouts is None:  # tables that stand for constraints have had their chains before
                        yield from self.called_scouts().first()
            if best.gap < math.inf and not shared.is_refuted("relax"):
                shared.state_bounds = state.passes.state_bounds()
        shared.release("trws")

    def try_to_prove(self) -> Iterator[Progress]:
        """Begin `wcsp` on a model for which it is not too large, once."""
        if self.trial is None and self.options.prove and not self.rewritten:
            self.trial = EarlyTrial(self.shared, self.seed)
            yield from self.trial.begin()

    def called_scouts(self) -> Scouts:
        """The methods that run by themselves, made when first needed."""
        self.scouts = self.scouts or Scouts(self.shared, self.seed)
        return self.scouts

    def close(self) -> None:
        """End all phases: solvers stop and their memory is freed."""
        super().close()
        if self.portfolio is not None:
            self.portfolio.close()
        if self.scouts is not None:
            self.scouts.close()
        if self.trial is not None:
            self.trial.close()
