"""Cuts: branch and cut with a mixed-integer programming solver."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import Bools, Ints, segment_argmax
from mapmrf.engines.flow.cut_model import excluded_by_roof, why_no_roof
from mapmrf.engines.moves.constrained_search import ConstrainedSearch
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.program.binary_program import Compact, ProductForm, Products, has_products, is_compact
from mapmrf.engines.program.cutting_planes import (
    TREE_PLACES,
    CuttingPlanes,
    Planes,
    PlaneTree,
    ProductPlanes,
    SpinPlanes,
)
from mapmrf.engines.program.local_polytope import ConstrainedPolytope, LocalPolytope
from mapmrf.engines.program.program import Program, lagrangian, value_range
from mapmrf.engines.program.solvers import (
    PATIENCE,
    POLL,
    BranchTask,
    Confirmation,
    SolverOutcome,
    SolverRun,
    highs_failure,
    scip_failure,
    solve_by_highs,
    solve_by_scip,
)
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from mapmrf.model.summary import Granularity
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import (
    Answer,
    NonNegativeFloat,
    NonNegativeInt,
    PhasedRun,
    Phases,
    PositiveFloat,
    PositiveInt,
    Progress,
    Start,
    follow,
)
from mapmrf.run.result import Status

log = logging.getLogger("mapmrf")

Formulation = Compact | LocalPolytope | ConstrainedPolytope | Products

STEP_CHANGES = 4_000_000  # states examined per step of local search with constraints: some 20 ms
LOCAL_STEPS = 25  # maximum number of steps of local search after the first descent

EXACT_PAIRS = 50_000
"""Maximum number of pairs for which the simplex method continues the relaxation after the quick rounds."""

ALLOWANCE = 1e-3  # share of the tolerance within which a node of that search counts as no better than the incumbent
MAX_ENTRIES = 200_000_000  # entries of the largest constraint matrix that is built: some 20 GB in a solver


@dataclass(frozen=True)
class Cuts(Phases):
    """Solve exactly by branch and cut.

    Binary pairwise models become a compact 0/1 program, and other binary models with small factors one in products of
    spins; odd-cycle inequalities tighten the relaxation until it is integral or none is violated. The remaining
    problem, or the local polytope with 0/1 variables for any other model, is passed to the branch and bound of HiGHS or
    SCIP with the incumbent; large programs in products have their own branch and bound over the cutting planes.
    Constraints are rows of the program.

    Attributes
    ----------
    max_iterations
        Maximum number of nodes of the branch and bound.
    solver
        ``highs``, ``scip`` (an optional extra), or ``auto``: SCIP for branch and bound if it is installed. Relaxations
        that must be solved exactly always use HiGHS.
    rounds
        Maximum number of rounds of odd-cycle inequalities; 0 leaves all cuts to the solver. They end early when they
        bring little.
    persistency
        Fix the variables of a binary pairwise model that are persistent by roof duality.
    local_search
        Effort of local search before the first program, in perturbations per variable; half a second or so at most.
    lp_iterations
        Maximum number of iterations of the LP phase of LS-LP, on models that are not binary and pairwise. If the
        relaxation over the local polytope is tight, this closes the gap, and no program is needed.
    gap
        Relative gap at which the search ends; for models of small potentials, relative to their range.
    memory
        Memory limit for SCIP, in megabytes; HiGHS has no such limit.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.Cuts(solver="highs"))
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "cuts"
    title: ClassVar[str] = "branch and cut with HiGHS or SCIP"
    family: ClassVar[str] = "exact"
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True
    # the run ends with its own proof, as the loop's tolerance may be too wide for small potentials
    stops_at_gap = False

    max_iterations: PositiveInt = sys.maxsize
    solver: Literal["auto", "highs", "scip"] = "auto"
    rounds: NonNegativeInt = 1000
    persistency: bool = True
    local_search: NonNegativeInt = 10
    lp_iterations: NonNegativeInt = 300
    gap: NonNegativeFloat = 1e-6
    memory: PositiveFloat = 8192.0

    def within(self, graph: FactorGraph, left: float) -> Cuts:
        return replace(self, memory=min(self.memory, max(1.0, left / 2**20)))

    def supports(self, problem: Problem) -> str | None:
        """Say why the solver cannot be loaded, if so, and reject programs that exceed any memory."""
        entries = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
        if entries > MAX_ENTRIES:
            return f"its program would have {entries} entries, expected at most {MAX_ENTRIES}"
        failure = highs_failure() if self.solver != "scip" else scip_failure()
        if self.solver == "auto" and failure is not None:
            other = scip_failure()
            return None if other is None else f"{failure}; {other}"
        return failure

    def start(self, problem: Problem, seed: int, initial: Start) -> CutsRun:
        if problem.graph.constraints is not None:  # reductions support tables only
            return CutsRun(self, Simplified(problem, ()), seed, initial.labels)
        roof = self.persistency and problem.only_binary and why_no_roof(problem) is None
        excluded = excluded_by_roof(problem) if roof else None
        return CutsRun(self, simplify(problem, excluded), seed, initial.labels)


class CutsRun(PhasedRun):
    """A run: the simplified model, its incumbent, and the solver."""

    incumbent: Incumbent  # the best labelling and bound of the simplified model, if it is feasible
    local: LocalSearch
    formulation: Formulation
    task: BranchTask

    def __init__(self, method: Cuts, small: Simplified, seed: int, initial: Ints | None) -> None:
        super().__init__()
        # small, problem: the simplification, and the simplified model
        self.method, self.small, self.seed = method, small, seed
        self.problem = small.problem
        self.nodes = 0
        # solver reports after which the branch and bound pauses until the next step; by default it does not pause
        self.reports = math.inf
        self.n_turns = 0  # rounds of cutting planes and turns of the branch and bound so far
        self.details = small.counts.details()
        self.planes: CuttingPlanes | None = None  # the cutting planes of a compact program, once their phase has begun
        self.search: SolverRun | None = None
        self.value_range = value_range(self.problem)
        self.grain = self.problem.graph.granularity if small.feasible else Granularity()
        self._reported = -math.inf
        if small.feasible:
            graph = self.problem.graph
            labels = segment_argmax(graph.theta_v, graph.var_ptr) if initial is None else small.project(initial)
            self.local = LocalSearch(self.problem, labels, seed)
            self.incumbent = Incumbent(graph, labels)
            self.tighten(dual_bound(self.problem, np.zeros(self.problem.n_edge_states)))

    def inform(self, labels: Ints) -> None:
        """Take over a better labelling of the original model found elsewhere, and pass it on to the solver."""
        if not self.small.feasible:
            return
        value = self.incumbent.value
        self.incumbent.offer(self.small.project(labels))
        if self.search is not None and self.incumbent.value > value:
            self.search.report.offered = self.formulation.columns(self.incumbent.labels)

    def answer(self) -> Answer:
        """The best labelling and bound, including what the solver has reported since the last step."""
        if not self.small.feasible:
            return Answer(bound=-math.inf)
        if self.search is not None:
            self.read_search(self.search)
        return Answer(labels=self.best(), bound=self.bound, details=dict(self.details))

    def close(self) -> None:
        super().close()
        if self.planes is not None:
            self.planes.relaxation.close(PATIENCE)
        if self.search is not None:
            self.search.close(PATIENCE)

    def best(self) -> Ints:
        return self.small.lift(self.incumbent.labels)

    @property
    def bound(self) -> float | None:
        return self.incumbent.bound if self.incumbent.bound < math.inf else None

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        labels = self.best() if self.incumbent.value > self._reported else None
        self._reported = self.incumbent.value
        return Progress(self.nodes, labels=labels, bound=self.bound, finished=finished, phase=phase)

    def tighten(self, bound: float) -> None:
        """Keep a bound if it is the best; pruned labellings are worth no more than the incumbent."""
        self.incumbent.tighten(max(self.grain.down(bound), self.incumbent.value))

    @property
    def tolerance(self) -> float:
        """Difference of bound and value, in log potentials, at which a labelling counts as optimal."""
        value = self.incumbent.value
        size = abs(value) if value > -math.inf else 0.0
        return self.method.gap * min(max(1.0, size), self.value_range)

    @property
    def verdict(self) -> Status | None:
        """Return what bound and value prove, if anything."""
        if self.incumbent.bound == -math.inf:
            return Status.INFEASIBLE
        return Status.OPTIMAL if self.incumbent.bound - self.incumbent.value <= self.tolerance else None

    def run(self) -> Generator[Progress, None, None]:
        while not self.small.feasible:  # some variable has no state left
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
        if self.problem.n_vars == 0:
            self.incumbent.tighten(self.incumbent.value)
            yield self.progress("start", Status.OPTIMAL)
        if self.problem.graph.constraints is None:
            yield from self.descend()
            if self.method.lp_iterations > 0 and not is_compact(self.problem):
                yield from self.relax()
        elif self.method.local_search > 0:
            search = ConstrainedSearch(self.problem, self.incumbent.labels, self.seed)
            for _ in range(min(self.method.local_search, LOCAL_STEPS)):  # for a first labelling
                search.run(min(STEP_CHANGES // self.problem.n_states, 50 * self.problem.n_vars) + 1)
                self.incumbent.offer(search.incumbent.labels)
                yield self.progress("start")
        products = self.has_products and self.method.rounds > 0
        program = (yield from self.cut_products()) if products else self.formulate()
        n_needed = program.rows.n
        yield self.progress("start")
        if isinstance(self.formulation, Compact) and self.method.rounds > 0:
            program = yield from self.add_cuts(self.formulation)
        yield self.progress("branch")
        yield from self.branch(program, n_needed)

    def descend(self) -> Iterator[Progress]:
        trials = self.method.local_search * self.problem.n_vars
        n_steps = 0
        while self.local.descending or (self.local.trials < trials and n_steps < LOCAL_STEPS):
            self.improve(pace.LOCAL_SEARCH, trials - self.local.trials)
            n_steps += not self.local.descending
            yield self.progress("start")

    def improve(self, entries: int, max_trials: int) -> None:
        self.local.run(entries, max_trials)
        self.incumbent.offer(self.local.incumbent.labels, self.local.incumbent.value)

    def relax(self) -> Iterator[Progress]:
        """Run the LP phase of LS-LP for a bound and better labellings."""
        from mapmrf.methods.lslp import LSLP  # takes longer to import than all else here

        inner = LSLP(beliefs=0, climb=False, max_iterations=self.method.lp_iterations)
        if inner.supports(self.problem) is not None:
            return
        for step, _ in follow(inner, self.problem, self.seed):
            if step.labels is not None:
                self.incumbent.offer(step.labels)
            if step.bound is not None:
                self.tighten(step.bound)
            yield self.progress("start", self.verdict)
            if step.phase != "lp":
                return

    def formulate(self) -> Program:
        """Build the program; the first bound is the one without any rows."""
        if self.problem.graph.constraints is not None:
            self.formulation = ConstrainedPolytope.build(self.problem)
        else:
            compact = is_compact(self.problem)
            self.formulation = Compact.build(self.problem) if compact else LocalPolytope.build(self.problem)
        program = self.formulation.program
        self.tighten(lagrangian(program, program.rows, np.zeros(program.rows.n))[0])
        self.details |= {"columns": float(len(program.cost)), "rows": float(program.rows.n)}
        return program

    def add_cuts(self, compact: Compact) -> Generator[Progress, None, Program]:
        """Solve relaxations with more and more odd-cycle inequalities; return the program with those that are tight."""
        quick = SpinPlanes(compact)
        yield from self.play(quick)
        failure = highs_failure()
        if failure is not None:
            log.warning("cuts continues without exact relaxations: %s", failure)
        ended = quick.n_rounds >= self.method.rounds or len(compact.first) > EXACT_PAIRS
        if failure is not None or ended:
            return quick.strengthened()
        return (yield from self.cut_exactly(compact, quick))

    def cut_products(self) -> Generator[Progress, None, Program]:
        """Run rounds of cutting planes over products of spins, on fewer and fewer variables; return what remains."""
        # Once many variables are fixed, the remaining model is searched for a labelling better than the incumbent.
        while True:
            planes = ProductPlanes(ProductForm.of(self.problem))
            self.details |= {"columns": float(len(planes.form.cost)), "rows": float(planes.form.blocks.ptr[-1])}
            yield from self.play(planes)
            if not planes.is_decisive or not self.shrink(planes.excluded()):
                break
            self.details["core"] = float(self.problem.n_vars)
            yield self.progress("cuts", self.verdict)
            if not self.has_products:  # only pairs are left, or no factors at all
                return self.formulate()
        if planes.form.blocks.ptr[-1] > TREE_PLACES:
            yield from self.explore(planes)
        self.formulation = planes.strengthened()
        return self.formulation.program

    def explore(self, planes: ProductPlanes) -> Iterator[Progress]:
        """Branch and bound over the cutting planes, from their last round to the end."""
        tree, allowance = PlaneTree(planes, planes.weight), max(ALLOWANCE * self.tolerance, self.grain.slack)
        tree.split()
        while tree.open and self.nodes < self.method.max_iterations:
            tree.enter()
            self.nodes += 1
            is_split = False
            while not is_split and tree.bound_here - self.incumbent.value > allowance:
                for _ in planes.solve(self.incumbent.value):
                    yield self.progress("branch")
                self.round_point(planes.rounded())
                labels = planes.decided()
                if labels is not None:  # no other labelling of this node is better
                    self.incumbent.offer(labels)
                    break
                is_split = tree.is_slow(self.incumbent.value) and tree.split()
                for _ in planes.separate():
                    yield self.progress("branch")
            tree.leave()
            self.n_turns += 1
            self.tighten(tree.bound(self.incumbent.value + allowance))
            yield self.progress("branch", self.verdict)
        while True:
            yield self.progress("branch", Status.ITERATION_LIMIT)

    def shrink(self, excluded: Bools) -> bool:
        """Remove states that are in no better labelling; False if there are none, or if nothing would remain."""
        small = simplify(self.problem, excluded)
        if not small.maps:
            return False
        labels, bound = small.project(self.incumbent.labels), self.incumbent.bound
        self.small = Simplified(small.problem, (*self.small.maps, *small.maps), counts=self.small.counts)
        self.problem = small.problem
        self.local = LocalSearch(self.problem, labels, self.seed)
        self.incumbent = Incumbent(self.problem.graph, labels)
        self.tighten(bound if self.problem.n_vars else self.incumbent.value)
        return True

    @property
    def has_products(self) -> bool:
        """Whether cutting planes over products of spins apply."""
        tables = self.problem.graph.constraints is None
        return tables and not is_compact(self.problem) and has_products(self.problem)

    def play(self, planes: Planes) -> Iterator[Progress]:
        """Add rounds of odd-cycle inequalities until they bring little."""
        while planes.n_rounds < self.method.rounds:
            for _ in planes.solve(self.incumbent.value):
                yield self.progress("cuts")
            self.round_point(planes.rounded())
            while planes.is_closing(self.incumbent.value, 2 * self.tolerance):
                for _ in planes.close(self.incumbent.value):
                    yield self.progress("cuts")
                self.round_point(planes.rounded())
            self.read_round(planes)
            yield self.progress("cuts", self.verdict)
            if planes.tails_off(self.incumbent.value):
                break
            for _ in planes.separate():
                yield self.progress("cuts")

    def cut_exactly(self, compact: Compact, quick: SpinPlanes) -> Generator[Progress, None, Program]:
        """Run more rounds in which the relaxation is solved to optimality."""
        planes = self.planes = CuttingPlanes(compact, self.seed, quick)
        while planes.n_rounds < self.method.rounds:
            planes.relaxation.start()
            while not planes.relaxation.wait(POLL):
                yield self.progress("cuts")
            if planes.relaxation.report.outcome is not SolverOutcome.OPTIMAL:
                break
            planes.read()
            self.round_point(compact.rounded(planes.point))
            self.read_round(planes)
            yield self.progress("cuts", self.verdict)
            n_before = planes.n_cuts
            for _ in planes.separate():
                yield self.progress("cuts")
            if planes.n_cuts == n_before or planes.tails_off(self.incumbent.value):
                break
        return planes.strengthened()

    def round_point(self, labels: Ints) -> None:
        """Round a relaxed point to a labelling and improve it by local search."""
        self.local.restart(labels)
        self.improve(pace.LOCAL_SEARCH // 4, self.problem.n_vars)

    def read_round(self, planes: Planes | CuttingPlanes) -> None:
        """Take over the bound of a solved relaxation, and fix the columns that it decides."""
        self.n_turns += 1
        planes.fix_by_cost(self.incumbent.value)
        labels = planes.decided()
        if labels is not None:  # no other labelling is better
            self.incumbent.offer(labels)
        self.tighten(planes.bound if labels is None else self.incumbent.value)
        self.details |= {
            "rounds": float(planes.n_rounds), "cuts": float(planes.n_cuts), "fixed": float(planes.n_fixed)
        }  # fmt: skip

    def branch(self, program: Program, n_needed: int) -> Iterator[Progress]:
        """Run the solver's branch and bound, starting from the incumbent."""
        # Half of the tolerance covers the margin of the solver's bound, half the gap at which it may stop.
        program = program.in_unit(0.5 * self.tolerance)
        gap = max(0.0, max(0.99 * self.tolerance, self.grain.slack) - program.margin)
        feasible = self.incumbent.value > -math.inf
        self.task = BranchTask(
            program,
            n_needed,
            start=self.formulation.columns(self.incumbent.labels) if feasible else None,
            gap=gap / program.scale,
            max_nodes=self.method.max_iterations,
            seed=self.seed,
            memory=self.method.memory,
        )
        scip = self.method.solver == "scip" or (self.method.solver == "auto" and scip_failure() is None)
        self.search = SolverRun(partial(solve_by_scip if scip else solve_by_highs, self.task), self.reports)
        yield from self.take_turn(self.search)
        while not self.search.wait(0):
            yield self.progress("branch")
            self.search.grant(self.reports)
            yield from self.take_turn(self.search)
        status = self.conclude(self.search)
        if status is Status.OPTIMAL and not self.incumbent.optimal and highs_failure() is None:
            yield from self.confirm(program)
        yield self.progress("branch", status)

    def confirm(self, program: Program) -> Iterator[Progress]:
        """Prove the incumbent optimal without the margin of the solver's bound, if a few nodes suffice."""
        graph, tree = self.problem.graph, Confirmation(program, self.seed)
        allowance = max(graph.allowance, self.grain.slack)
        try:
            for _ in tree.run(
                goal=lambda: self.incumbent.value + allowance,
                offer=lambda point: self.incumbent.offer(self.formulation.labels(point)),
            ):
                yield self.progress("branch")
        finally:
            tree.close(PATIENCE)
        self.tighten(tree.bound)

    def take_turn(self, search: SolverRun) -> Iterator[Progress]:
        """Wait until the solver has ended or used up its turn, and take over its results."""
        while not search.turn_is_over(POLL):
            if self.reports == math.inf:  # with turns, results must not depend on timing
                self.read_search(search)
            yield self.progress("branch")
        self.n_turns += 1
        self.read_search(search)

    def read_search(self, search: SolverRun) -> None:
        """Take over the bound, the node count and the newest labelling of the branch and bound."""
        program, report = self.task.program, search.report
        self.nodes = min(report.iterations, self.method.max_iterations)
        columns = search.newest_point()
        if columns is not None:
            self.incumbent.offer(self.formulation.labels(columns))
        if report.bound < math.inf:
            self.tighten(program.value(report.bound) + program.margin)

    def conclude(self, search: SolverRun) -> Status:
        """Return the status that corresponds to the end of the branch and bound."""
        program, outcome = self.task.program, search.report.outcome
        if outcome is SolverOutcome.INFEASIBLE and self.incumbent.value == -math.inf:
            self.incumbent.tighten(-math.inf)
            return Status.INFEASIBLE
        if outcome is SolverOutcome.OPTIMAL:
            self.tighten(self.incumbent.value + program.scale * self.task.gap + program.margin)
            return Status.OPTIMAL
        if outcome in (SolverOutcome.FAILED, SolverOutcome.INFEASIBLE):  # the incumbent is feasible
            log.warning("the solver gave up: %s", search.report.message)
        return Status.ITERATION_LIMIT
