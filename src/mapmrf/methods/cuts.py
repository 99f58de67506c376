"""Cuts: branch and cut over a solver for mixed-integer programs."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.program.compact import Compact, is_compact
from mapmrf.engines.program.cutting_planes import Rounds
from mapmrf.engines.program.highs import run_highs
from mapmrf.engines.program.local_polytope import Polytope
from mapmrf.engines.program.program import Formulation, Program, lagrangian, spread
from mapmrf.engines.program.scip import has_scip, run_scip
from mapmrf.engines.program.solver_thread import Outcome, Search, Task
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.methods.lslp import LSLP
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.polytope import dual_bound
from mapmrf.problem import Problem
from mapmrf.result import Status

log = logging.getLogger("mapmrf")

Solver = Literal["auto", "highs", "scip"]

POLL = 0.05
"""Seconds that a step waits for a solver before it lets the loop look at its limits."""

PATIENCE = 1.0
"""Seconds that a stopped solver is given to hand over where it stands."""

STEP_ENTRIES = 2_000_000
"""Table entries that a step of local search looks at: some 20 ms."""

LOCAL_STEPS = 25
"""Steps of local search after the first descent, at most."""

MAX_ENTRIES = 200_000_000
"""Matrix entries of the largest program that is written down: some 20 GB in a solver."""


@dataclass(frozen=True)
class Cuts(Method):
    """Solve exactly by branch and cut.

    Binary pairwise models become the compact 0/1 program; its relaxation is tightened by odd-cycle inequalities until
    it is integral or no more are violated. What is left, and any other model as the local polytope with 0/1 variables,
    goes to the branch and bound of HiGHS or SCIP, together with the best labelling so far.

    Attributes
    ----------
    max_iterations
        Nodes of the branch and bound.
    solver
        ``highs``, ``scip`` (an optional extra), or ``auto``: SCIP for the branch and bound if it is installed. The
        relaxations are always solved by HiGHS.
    rounds
        Rounds of odd-cycle inequalities, at most; 0 leaves all cuts to the solver. They end early when they bring
        little.
    persistency
        Fix the variables that the first relaxation sets to 0 or 1: some optimum has them so.
    local_search
        Effort of local search before the first program: perturbations per variable, for half a second or so at most.
    lp_iterations
        Iterations of the LP phase of LS-LP on models that are not binary and pairwise, at most. Where the relaxation
        over the local polytope is tight they close the gap, and no program is needed.
    gap
        Relative gap at which the search ends; in a model of small potentials relative to how far these are apart.
    memory
        Megabytes that SCIP may use; HiGHS knows no such limit.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.Cuts(solver="highs"))
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "cuts"
    title: ClassVar[str] = "branch and cut over HiGHS or SCIP"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    solver: Solver = "auto"
    rounds: int = 1000
    persistency: bool = True
    local_search: int = 10
    lp_iterations: int = 300
    gap: float = 1e-6
    memory: float = 8192.0

    def __post_init__(self) -> None:
        check_choice(self, "solver", get_args(Solver))
        check_at_least(self, 1, "max_iterations")
        check_at_least(self, 0, "rounds", "local_search", "lp_iterations", "gap")
        check_above(self, 0, "memory")

    @property
    def stops_at_gap(self) -> bool:
        """It ends with its own proof: a gap that the loop takes for closed may be open in a model of small unit."""
        return False

    def supports(self, problem: Problem) -> str | None:
        """Ask for the extra where it is asked for and missing; refuse programs beyond all memory."""
        if self.solver == "scip" and not has_scip():
            return "solver='scip' needs the optional extra: pip install 'mapmrf[exact]'"
        entries = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
        if entries > MAX_ENTRIES:
            return f"its program would have {entries} entries, at most {MAX_ENTRIES} are written down"
        return None

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Simplify the model and begin with local search."""
        return _State(self, simplify(problem), seed, initial.labels)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Go on with the phase under way."""
        return next(state.phases)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling and bound; stops the solver if it is still at work."""
        state.halt()
        labels = state.best() if state.small.feasible else None
        bound = state.bound if state.bound < math.inf else None
        return Answer(labels=labels, bound=bound, details=state.details)


class _State:
    """A run: the phases as one generator, the best labelling of the simplified model and the best bound."""

    def __init__(self, method: Cuts, small: Simplified, seed: int, initial: Ints | None) -> None:
        self.method, self.small, self.seed = method, small, seed
        self.problem = small.problem
        self.nodes = 0
        self.told = -math.inf
        self.n_counted = 0
        self.bound = math.inf if small.feasible else -math.inf
        self.details: dict[str, float] = {}
        self.rounds: Rounds | None = None
        self.search: Search | None = None
        self.formulation: Formulation | None = None
        self.spread = spread(self.problem)
        self.phases = self.run() if small.feasible else self.give_up()
        if small.feasible:
            graph = self.problem.graph
            labels = segment_argmax(graph.theta_v, graph.var_ptr) if initial is None else small.project(initial)
            self.local = LocalSearch(self.problem, labels, seed)
            self.lower_bound_to(dual_bound(self.problem, np.zeros(self.problem.n_edge_states)))

    # -- what the loop is told ----------------------------------------------------------------------------------------

    def best(self) -> Ints:
        """The best labelling so far, of the whole model."""
        return self.small.lift(self.local.labels)

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        """The best bound, and the best labelling if it is better than what the loop has been told."""
        bound = self.bound if self.bound < math.inf else None
        labels = self.best() if self.local.value > self.told else None
        self.told = self.local.value
        return Progress(self.nodes, labels=labels, bound=bound, finished=finished, phase=phase)

    def lower_bound_to(self, bound: float) -> None:
        """Keep a bound if it is the best; what a search leaves out is worth no more than the best labelling."""
        self.bound = min(self.bound, max(bound, self.local.value))

    def inform(self, labels: Ints) -> None:
        """Take over a labelling of the whole model that somebody else has found, if it is better."""
        self.local.offer(self.small.project(labels))

    @property
    def tolerance(self) -> float:
        """The gap, as a difference of log potentials, at which a labelling counts as optimal."""
        size = abs(self.local.value) if self.local.value > -math.inf else 0.0
        return self.method.gap * min(max(1.0, size), self.spread)

    @property
    def verdict(self) -> Status | None:
        """What bound and value prove, if anything."""
        if self.bound == -math.inf:
            return Status.INFEASIBLE
        return Status.OPTIMAL if self.bound - self.local.value <= self.tolerance else None

    # -- the phases ---------------------------------------------------------------------------------------------------

    def give_up(self) -> Generator[Progress, None, None]:
        """A model in which some variable has no state left."""
        while True:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)

    def run(self) -> Generator[Progress, None, None]:
        """All phases, one after another."""
        if self.problem.n_vars == 0:
            self.bound = self.local.value
            yield self.progress("start", Status.OPTIMAL)
        yield from self.descend()
        if self.method.lp_iterations > 0 and not is_compact(self.problem):
            yield from self.relax()
        program, n_needed = self.formulate()
        yield self.progress("start")
        if isinstance(self.formulation, Compact) and self.method.rounds > 0:
            yield from self.cut(self.formulation)
            assert self.rounds is not None
            program = self.rounds.strengthened()
        yield self.progress("branch")
        yield from self.branch(program, n_needed)

    def descend(self) -> Iterator[Progress]:
        """Local search, for the first labelling."""
        trials = self.method.local_search * self.problem.n_vars
        n_steps = 0
        while self.local.descending or (self.local.trials < trials and n_steps < LOCAL_STEPS):
            self.local.run(STEP_ENTRIES, trials - self.local.trials)
            n_steps += not self.local.descending
            yield self.progress("start")

    def relax(self) -> Iterator[Progress]:
        """The LP phase of LS-LP, for a bound and better labellings."""
        inner = LSLP(max_iterations=self.method.lp_iterations)
        if inner.supports(self.problem) is not None:
            return
        state = inner.start(self.problem, self.seed, Start())
        step = Progress(0, phase="lp")
        while step.phase == "lp" and step.finished is None:
            step = inner.step(self.problem, state)
            if step.labels is not None:
                self.local.offer(step.labels)
            if step.bound is not None:
                self.lower_bound_to(step.bound)
            yield self.progress("start", self.verdict)

    def formulate(self) -> tuple[Program, int]:
        """Write the program down; its first bound is that without any row."""
        compact = is_compact(self.problem)
        formulation = Compact.build(self.problem) if compact else Polytope.build(self.problem)
        self.formulation, program = formulation, formulation.program
        free, _ = lagrangian(program, program.rows, np.zeros(program.rows.n))
        self.lower_bound_to(program.value(free) + program.round_off)
        self.details |= {"columns": float(len(program.cost)), "rows": float(program.rows.n)}
        return program, program.rows.n

    def cut(self, compact: Compact) -> Iterator[Progress]:
        """Rounds of the relaxation, each with more odd-cycle inequalities."""
        rounds = self.rounds = Rounds(compact, self.seed)
        while rounds.n_rounds < self.method.rounds:
            rounds.relaxation.start()
            while not rounds.relaxation.wait(POLL):
                yield self.progress("cuts")
            if not rounds.relaxation.solved:
                return
            self.read_round(compact, rounds)
            yield self.progress("cuts", self.verdict)
            n_before = rounds.n_cuts
            for _ in rounds.separate():
                yield self.progress("cuts")
            if rounds.n_cuts == n_before or rounds.tails_off(self.local.value):
                return

    def count_rounds(self) -> int:
        """Rounds of cuts since this was last asked."""
        n_rounds = 0 if self.rounds is None else self.rounds.n_rounds
        before, self.n_counted = self.n_counted, n_rounds
        return n_rounds - before

    def read_round(self, compact: Compact, rounds: Rounds) -> None:
        """Take bound and labellings from a relaxation that is solved, and fix what they decide."""
        rounds.read()
        self.lower_bound_to(rounds.bound)
        self.local.restart(compact.rounded(rounds.point))
        self.local.run(STEP_ENTRIES // 4, self.problem.n_vars)
        if self.method.persistency and rounds.n_rounds == 1:
            rounds.fix_persistent()
        rounds.fix_by_cost(self.local.value)
        self.details |= {
            "rounds": float(rounds.n_rounds), "cuts": float(rounds.n_cuts), "fixed": float(rounds.n_fixed)
        }  # fmt: skip

    def branch(self, program: Program, n_needed: int) -> Iterator[Progress]:
        """Branch and bound by the solver, from the best labelling."""
        assert self.formulation is not None
        # Half of the tolerance is for the margin of the solver's bound, half for the gap at which it may end.
        program = program.in_unit(0.5 * self.tolerance)
        gap = max(0.0, 0.99 * self.tolerance - program.margin)
        scip = self.method.solver == "scip" or (self.method.solver == "auto" and has_scip())
        start = self.formulation.columns(self.local.labels) if self.local.value > -math.inf else None
        task = Task(
            program,
            n_needed,
            start,
            gap=gap / program.scale,
            max_nodes=self.method.max_iterations,
            seed=self.seed,
            memory=self.method.memory,
        )
        self.search = Search(run_scip if scip else run_highs, task)
        while not self.search.wait(POLL):
            self.read_search(self.search)
            yield self.progress("branch")
        self.read_search(self.search)
        yield self.progress("branch", self.conclude(self.search))

    def read_search(self, search: Search) -> None:
        """Take bound, nodes and the newest labelling over from a search."""
        assert self.formulation is not None
        program, board = search.task.program, search.board
        self.nodes = min(board.nodes, self.method.max_iterations)
        columns = search.take()
        if columns is not None:
            self.local.offer(self.formulation.labels(columns))
        if board.bound < math.inf:
            self.lower_bound_to(program.value(board.bound) + program.margin)

    def conclude(self, search: Search) -> Status:
        """What the end of a search means."""
        program, outcome = search.task.program, search.board.outcome
        if outcome is Outcome.INFEASIBLE and self.local.value == -math.inf:
            self.bound = -math.inf
            return Status.INFEASIBLE
        if outcome is Outcome.OPTIMAL:
            self.lower_bound_to(self.local.value + program.scale * search.task.gap + program.margin)
            return Status.OPTIMAL
        if outcome in (Outcome.FAILED, Outcome.INFEASIBLE):  # there is a labelling: infeasible cannot be right
            log.warning("the solver gave up: %s", search.board.message)
        return Status.ITERATION_LIMIT

    def halt(self) -> None:
        """Stop the solver and take over where it stands; this ends the run."""
        self.phases.close()  # or else the program would be in memory until Python looks for cycles
        if self.rounds is not None:
            self.rounds.relaxation.stop()
        if self.search is not None and not self.search.wait(0.0):
            self.search.stop()
            self.search.wait(PATIENCE)
            self.read_search(self.search)
