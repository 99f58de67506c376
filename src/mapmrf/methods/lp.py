"""LP-LP: the linear relaxation over the local polytope L_G, solved by HiGHS."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.engines.program.local_polytope import ConstrainedPolytope, LocalPolytope
from mapmrf.engines.program.solvers import PATIENCE, POLL, LPRelaxation, SolverOutcome, highs_failure
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import Sizes, shown_bytes
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start
from mapmrf.run.result import Status

log = logging.getLogger("mapmrf")


PER_ROW, PER_ENTRY, FIXED = 3000.0, 100.0, 1e8
"""Bytes per row and per entry of the program, and fixed: measured by benches/footprints.py; 10.4 GB on a 500 x 500
grid."""

LARGE = 2_000_000  # non-zeros of a program from which a run logs how much memory it will need

STATUSES = {
    SolverOutcome.OPTIMAL: Status.CONVERGED,
    SolverOutcome.INFEASIBLE: Status.INFEASIBLE,
    SolverOutcome.LIMIT: Status.ITERATION_LIMIT,
    SolverOutcome.FAILED: Status.ITERATION_LIMIT,
}
"""Status of the run for each outcome of HiGHS; an interrupted run of HiGHS is continued."""


@dataclass(frozen=True)
class LP(Method):
    """Maximise ``<theta, mu>`` over L_G and round the solution (the paper's LP-LP).

    Constraints become rows of the program; those with a penalty, parities and disjunctions have additional columns. The
    relaxed solution is returned as HiGHS left it; its kind says whether it is a labelling. The upper bound is the dual
    of L_G evaluated at HiGHS' row multipliers, so it is valid regardless of their accuracy and of when the run stopped.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations of the simplex or interior-point method.
    solver
        ``simplex``, ``ipm`` (interior point), or ``choose`` to leave the choice to HiGHS.
    crossover
        Move an interior-point solution to a vertex of L_G.
    presolve
        Run HiGHS' presolve first: faster on some models with factors of three or more variables, slower on large
        tables. It cannot be interrupted, and a run that is stopped early has no multipliers.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), "lp")
    >>> round(result.bound, 5), result.kind.value  # far from a labelling
    (62.73998, 'uniform')
    """

    name: ClassVar[str] = "lp"
    title: ClassVar[str] = "linear relaxation over the local polytope by HiGHS (LP-LP)"
    family: ClassVar[str] = "LP and decomposition"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True

    max_iterations: PositiveInt = 2**31 - 1
    solver: Literal["simplex", "ipm", "choose"] = "simplex"
    crossover: bool = True
    presolve: bool = False

    def footprint(self, graph: FactorGraph) -> float:
        """Estimate the bytes of the program and of HiGHS, roughly: its basis factors grow during the run."""
        sizes = Sizes.of(graph)
        entries = float(np.diff(graph.table_ptr)[graph.table_of] @ graph.arity)
        return PER_ROW * (sizes.edge_states + 2 * sizes.binary_edges + sizes.variables) + PER_ENTRY * entries + FIXED

    def supports(self, problem: Problem) -> str | None:
        return highs_failure()

    def start(self, problem: Problem, seed: int, initial: Start) -> LPRun:
        n_nonzeros = count_nonzeros(problem)
        if n_nonzeros >= LARGE:
            log.warning(
                "a linear program of %.2g columns and %.2g non-zeros, for which HiGHS needs about %s; "
                "trws and lslp solve the same relaxation in less",
                problem.n_states + problem.n_configs, n_nonzeros, shown_bytes(self.footprint(problem.graph)),
            )  # fmt: skip
        if problem.graph.constraints is None:
            return LPRun(self, LocalPolytope.build(problem), seed)
        return LPRun(self, ConstrainedPolytope.build(problem, compact=False), seed)

    def step(self, problem: Problem, state: LPRun) -> Progress:
        """Wait a moment for HiGHS, which runs in another thread."""
        if state.bound == -math.inf:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        if len(state.polytope.entries) == 0:  # no factors: nothing for HiGHS to do
            state.keep_point(np.zeros(0))
            return Progress(0, labels=state.labels, bound=state.bound, finished=Status.OPTIMAL)
        finished = state.advance(POLL)
        progress = Progress(state.iterations, bound=state.bound, finished=finished)
        progress.labels, progress.relaxed_value = state.labels, state.value
        return progress

    def answer(self, problem: Problem, state: LPRun) -> Answer:
        """The current point of HiGHS, which is interrupted to read it and resumes at the next step."""
        state.pause()
        return Answer(labels=state.labels, mu_v=state.mu_v, mu_f=state.mu_f, bound=state.bound)

    def close(self, problem: Problem, state: LPRun) -> None:
        if state.relaxation is not None:
            state.relaxation.close(PATIENCE)


def count_nonzeros(problem: Problem) -> int:
    """Count the non-zeros of the rows of L_G, ignoring constraints and forbidden entries."""
    inside = sum(batch.arity * batch.n * batch.n_configs for batch in problem.batches)
    return problem.n_states + problem.n_edge_states + inside


class LPRun:
    def __init__(self, method: LP, polytope: LocalPolytope | ConstrainedPolytope, seed: int) -> None:
        self.method, self.polytope, self.seed = method, polytope, seed
        self.relaxation: LPRelaxation | None = None
        self.bound = dual_bound(polytope.problem, np.zeros(polytope.problem.n_edge_states))  # the best bound so far
        # labels, value, mu_v, mu_f: the last point's rounding, its value ``<theta, mu>``, and the point itself; None
        # before the first
        self.labels: Ints | None = None
        self.value: float | None = None
        self.mu_v: Floats | None = None
        self.mu_f: Floats | None = None
        self._paused = True
        self._iterations_before = 0
        self._began = self._worked = 0.0

    @property
    def iterations(self) -> int:
        """Iterations so far, over all runs of HiGHS."""
        return self._iterations_before + (0 if self.relaxation is None else self.relaxation.report.iterations)

    def advance(self, seconds: float) -> Status | None:
        """Let HiGHS work for some seconds; return its status if it has ended."""
        if self.relaxation is None:
            settings: dict[str, str | int] = {
                "solver": self.method.solver,
                "run_crossover": "on" if self.method.crossover else "off",
                "presolve": "on" if self.method.presolve else "off",
            }
            self.relaxation = LPRelaxation(self.polytope.relaxation, self.seed, settings)
        relaxation = self.relaxation
        if self._paused and relaxation.wait(seconds):  # the simplex method resumes from where it was interrupted
            self._iterations_before += relaxation.report.iterations
            left = min(max(0, self.method.max_iterations - self._iterations_before), 2**31 - 1)
            relaxation.change_settings({"simplex_iteration_limit": left, "ipm_iteration_limit": left})
            relaxation.start()
            self._paused, self._began = False, time.perf_counter()
        if self._paused or not relaxation.wait(seconds):
            return None
        self.read(relaxation)
        if relaxation.report.outcome is SolverOutcome.FAILED:
            log.warning("HiGHS gave up: %s", relaxation.report.message)
        return STATUSES.get(relaxation.report.outcome)

    def pause(self) -> None:
        if self.relaxation is None or self._paused:
            return
        worked = time.perf_counter() - self._began
        # The interior-point method restarts from scratch, so it works longer each time in order to finish eventually.
        if not self.relaxation.wait(0.0) and worked >= 2 * self._worked:
            self._paused, self._worked = True, worked
            self.relaxation.stop()
            self.relaxation.wait(PATIENCE)
        if self.relaxation.wait(0.0):
            self.read(self.relaxation)

    def read(self, relaxation: LPRelaxation) -> None:
        if relaxation.report.outcome is SolverOutcome.INFEASIBLE:
            self.bound = -math.inf
            return
        weights, columns = relaxation.weights(), relaxation.point()
        if weights is not None:
            self.bound = min(self.bound, self.polytope.bound(weights))
        if columns is not None:
            self.keep_point(columns)

    def keep_point(self, columns: Floats) -> None:
        """Keep a point and its rounding."""
        program = self.polytope.program
        self.mu_v, self.mu_f = self.polytope.marginals(columns)
        # Rounded first, so that the solver's last digits do not decide ties between states.
        self.labels = segment_argmax(np.round(self.mu_v, 9), self.polytope.problem.graph.var_ptr)
        self.value = program.value(float(program.cost @ columns))
