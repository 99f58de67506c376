"""LP-LP: the linear relaxation over the local polytope L_G, solved by HiGHS."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import highspy
import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_argmax
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice
from mapmrf.polytope import dual_bound
from mapmrf.problem import Batch, Problem
from mapmrf.result import Status

log = logging.getLogger("mapmrf")

Algorithm = Literal["simplex", "ipm", "choose"]

POLL = 0.05
"""Seconds that a step waits for HiGHS before it lets the loop look at its limits."""

PATIENCE = 1.0
"""Seconds that a stopped HiGHS is given to hand over where it stands."""


@dataclass(frozen=True)
class LP(Method):
    """Maximise ``<theta, mu>`` over L_G and round the solution (the paper's LP-LP).

    The relaxed solution is returned as HiGHS left it; its kind tells whether it is a labelling. The upper bound is the
    dual of L_G evaluated at HiGHS' row multipliers, so it holds whatever their accuracy and wherever the run stopped.

    Attributes
    ----------
    max_iterations
        Iterations of the simplex method, or of the interior-point method.
    solver
        ``simplex``, ``ipm`` (interior point), or ``choose`` to leave it to HiGHS.
    crossover
        Move an interior-point solution on to a vertex of L_G.
    presolve
        Let HiGHS simplify first: faster on some models with factors of three and more variables, slower on large
        tables. It cannot be stopped meanwhile, and a run that is stopped early has no multipliers.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "lp")
    >>> round(result.bound, 5), result.kind.value  # far from a labelling
    (62.73998, 'uniform')
    """

    name: ClassVar[str] = "lp"
    title: ClassVar[str] = "linear relaxation over the local polytope by HiGHS (LP-LP)"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = 2**31 - 1
    solver: Algorithm = "simplex"
    crossover: bool = True
    presolve: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "solver", get_args(Algorithm))
        check_at_least(self, 1, "max_iterations")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Write the linear program down; the first step starts HiGHS on it."""
        bound = dual_bound(problem, np.zeros(problem.n_edge_states))
        return _State(_Program.build(problem), seed, bound)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Wait a moment for HiGHS, which works on a thread of its own."""
        if state.bound == -math.inf:
            return Progress(0, bound=-math.inf, finished=Status.INFEASIBLE)
        if len(state.program.keep) == 0:  # no factors: nothing is left for HiGHS
            state.take(problem, np.zeros(0))
            return Progress(0, labels=state.labels, bound=state.bound, finished=Status.OPTIMAL)
        if state.solve is None:
            state.solve = _Solve(self, state.program, state.seed)
        done = state.solve.wait(POLL)
        progress = Progress(state.solve.iterations)
        if done:
            state.read(problem, state.solve)
            progress.finished = state.solve.status
        progress.labels, progress.bound, progress.relaxed_value = state.labels, state.bound, state.value
        return progress

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The point where HiGHS stands; stops it if it is still at work."""
        if state.solve is not None:
            state.solve.stop()
            if state.solve.wait(PATIENCE):
                state.read(problem, state.solve)
        return Answer(labels=state.labels, mu_v=state.mu_v, mu_f=state.mu_f, bound=state.bound)


@dataclass
class _State:
    """A run: the program, HiGHS at work on it, and what was read from it."""

    program: _Program
    seed: int
    bound: float
    solve: _Solve | None = None
    labels: Ints | None = None
    value: float | None = None
    mu_v: Floats | None = None
    mu_f: Floats | None = None

    def read(self, problem: Problem, solve: _Solve) -> None:
        """Take the bound and the point over from a HiGHS that has ended."""
        if solve.status is Status.INFEASIBLE:
            self.bound = -math.inf
            return
        lam_e = solve.multipliers(self.program)
        if lam_e is not None:
            self.bound = min(self.bound, dual_bound(problem, lam_e))
        columns = solve.columns()
        if columns is not None:
            self.take(problem, columns)

    def take(self, problem: Problem, columns: Floats) -> None:
        """Keep a point and its rounding."""
        program = self.program
        self.mu_v, self.mu_f = program.expand(problem, columns)
        # Rounded first, so that the last digits of the solver do not decide between equal states.
        self.labels = segment_argmax(np.round(self.mu_v, 9), problem.graph.var_ptr)
        self.value = program.offset + program.scale * float(program.cost @ columns)


# -- the linear program -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """Maximise cost x over A x = rhs, x >= 0; x are the entries of (mu_v, mu_f) that may be positive.

    Rows: total mass 1 of every variable, then mu_i - M_ia mu_a = 0 laid out like `lam_e`. Columns of -inf potential are
    left out, and so are variables without factors: their argmax is their solution. Costs have the maximum of their
    block taken off and are divided by `scale`, so that HiGHS' absolute tolerances suit a model in any unit. Column k of
    A has the coefficients ``signs[ptr[k]:ptr[k + 1]]`` in the rows ``rows[ptr[k]:ptr[k + 1]]``.
    """

    keep: Ints
    cost: Floats
    offset: float
    scale: float
    ptr: Ints
    rows: Ints
    signs: Floats
    rhs: Floats
    n_mass: int

    @classmethod
    def build(cls, problem: Problem) -> _Program:
        """Write the program down for a problem."""
        graph = problem.graph
        theta = np.concatenate([graph.theta_v, problem.theta_f])
        linked = np.repeat(problem.degree > 0, graph.card)
        allowed = theta > -np.inf
        allowed[: problem.n_states] &= linked
        keep = np.flatnonzero(allowed)
        best_v, best_f = _block_max(graph.theta_v, graph.var_ptr), _block_max(problem.theta_f, problem.config_ptr)
        best = np.concatenate([best_v, best_f])
        sizes = np.concatenate([graph.card, np.diff(problem.config_ptr)])
        cost = theta[keep] - np.repeat(best, sizes)[keep]
        lost = -cost[cost < 0]
        scale = float(np.median(lost)) if len(lost) else 1.0
        n_mass = int(np.count_nonzero(problem.degree))
        rhs = np.zeros(n_mass + problem.n_edge_states)
        rhs[:n_mass] = 1.0
        offset = graph.constant + float(best.sum())
        return cls(keep, cost / scale, offset, scale, *_columns(problem, allowed), rhs, n_mass)

    def expand(self, problem: Problem, columns: Floats) -> tuple[Floats, Floats]:
        """(mu_v, mu_f) from the columns of the program; isolated variables take their argmax."""
        mu = np.zeros(problem.n_states + problem.n_configs)
        mu[self.keep] = columns
        mu_v, mu_f = mu[: problem.n_states], mu[problem.n_states :]
        graph = problem.graph
        alone = graph.var_ptr[:-1] + segment_argmax(graph.theta_v, graph.var_ptr)
        mu_v[alone[problem.degree == 0]] = 1.0
        return mu_v, mu_f


def _block_max(values: Floats, ptr: Ints) -> Floats:
    return np.maximum.reduceat(values, ptr[:-1]) if len(ptr) > 1 else np.zeros(0)


def _columns(problem: Problem, allowed: Bools) -> tuple[Ints, Ints, Floats]:
    """The constraints of L_G by columns, those of the allowed columns alone: offsets, rows, coefficients."""
    n_mass = int(np.count_nonzero(problem.degree))
    pieces = [_state_rows(problem, n_mass), *(n_mass + _config_rows(batch) for batch in problem.batches)]
    counts = np.concatenate(
        [_entries_per_state(problem), *(np.full(batch.n * batch.n_configs, batch.arity) for batch in problem.batches)]
    )
    rows = np.concatenate(pieces).astype(np.int32)
    signs = np.repeat([1.0, -1.0], [len(pieces[0]), len(rows) - len(pieces[0])])
    if not allowed.all():
        used = np.repeat(allowed, counts)
        rows, signs, counts = rows[used], signs[used], counts[allowed]
    return offsets(counts), rows, signs


def _entries_per_state(problem: Problem) -> Ints:
    """Rows that a variable's state is in: its mass, and one for each factor."""
    return np.repeat(np.where(problem.degree > 0, 1 + problem.degree, 0), problem.graph.card)


def _state_rows(problem: Problem, n_mass: int) -> Ints:
    """The rows of all variable states: the mass of the variable first, then its edges."""
    starts = offsets(_entries_per_state(problem))
    rows = np.empty(starts[-1], dtype=np.int64)
    first = np.zeros(starts[-1], dtype=bool)
    linked = problem.degree > 0
    first[starts[:-1][np.repeat(linked, problem.graph.card)]] = True
    rows[first] = np.repeat(np.arange(n_mass), problem.graph.card[linked])
    rows[~first] = n_mass + np.argsort(problem.edge_state_at, kind="stable")
    return rows


def _config_rows(batch: Batch) -> Ints:
    """Where the matrices M_ia of a batch hold a 1: the edge states of every configuration."""
    block = batch.config + batch.state_at[:-1]
    size = int(batch.state_at[-1])
    rows: Ints = batch.edge_states.start + size * np.arange(batch.n)[:, None, None] + block
    return rows.ravel()


# -- HiGHS on its own thread ------------------------------------------------------------------------------------------


@dataclass
class _Flags:
    """What the two threads tell each other."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    iterations: int = 0

    def count(self, report: Any) -> None:
        """Take the iterations over from a report of HiGHS, in which -1 or 0 stands for a solver that did not run."""
        counted = max(0, report.simplex_iteration_count) + max(0, report.ipm_iteration_count)
        self.iterations = max(self.iterations, counted)


class _Solve:
    """HiGHS at work on a thread of its own, so that the loop keeps its limits and Ctrl-C is prompt."""

    def __init__(self, options: LP, program: _Program, seed: int) -> None:
        self.flags = _Flags()
        self.highs = _highs(options, program, seed)
        _watch(self.highs, self.flags)
        weakref.finalize(self, self.flags.stop.set)  # nobody waits any more: HiGHS need not go on
        threading.Thread(target=_work, args=(self.highs, self.flags), name="mapmrf-highs").start()

    def wait(self, seconds: float) -> bool:
        """Whether HiGHS has ended, at the latest after some seconds."""
        return self.flags.done.wait(seconds)

    def stop(self) -> None:
        """Ask HiGHS to end at its next iteration."""
        self.flags.stop.set()

    @property
    def iterations(self) -> int:
        """Iterations done so far."""
        if self.flags.done.is_set():
            self.flags.count(self.highs.getInfo())
        return self.flags.iterations

    @property
    def status(self) -> Status:
        """How HiGHS ended."""
        ended = self.highs.getModelStatus()
        if ended in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
            return Status.INFEASIBLE  # L_G is bounded, so it cannot be the other
        if ended == highspy.HighsModelStatus.kInterrupt:
            return Status.INTERRUPTED
        if ended == highspy.HighsModelStatus.kOptimal:
            return Status.CONVERGED
        if ended != highspy.HighsModelStatus.kIterationLimit:
            log.warning("HiGHS gave up: %s", self.highs.modelStatusToString(ended))
        return Status.ITERATION_LIMIT

    def columns(self) -> Floats | None:
        """The primal point, if there is one; outside L_G if HiGHS was stopped."""
        solution = self.highs.getSolution()
        columns = np.array(solution.col_value)
        return columns if solution.value_valid and np.isfinite(columns).all() else None

    def multipliers(self, program: _Program) -> Floats | None:
        """Multipliers of the rows mu_i = M_ia mu_a, if there are any."""
        solution = self.highs.getSolution()
        if not solution.dual_valid:
            return None
        lam_e = np.array(solution.row_dual)[program.n_mass :] * program.scale
        return lam_e if np.isfinite(lam_e).all() else None


def _highs(options: LP, program: _Program, seed: int) -> Any:
    """A silent, single-threaded HiGHS that holds the program."""
    highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    for key, value in {
        "output_flag": False,
        "threads": 1,
        "random_seed": seed % 2**31,
        "solver": options.solver,
        "run_crossover": "on" if options.crossover else "off",
        "presolve": "on" if options.presolve else "off",
        "simplex_iteration_limit": min(options.max_iterations, 2**31 - 1),
        "ipm_iteration_limit": min(options.max_iterations, 2**31 - 1),
    }.items():
        highs.setOptionValue(key, value)
    n_rows, n_columns = len(program.rhs), len(program.cost)
    none = np.zeros(0)
    highs.addRows(n_rows, program.rhs, program.rhs, 0, np.zeros(n_rows), none, none)
    upper = np.full(n_columns, highspy.kHighsInf)
    matrix = (len(program.rows), program.ptr[:-1], program.rows, program.signs)
    highs.addCols(n_columns, program.cost, np.zeros(n_columns), upper, *matrix)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    return highs


def _watch(highs: Any, flags: _Flags) -> None:
    """Have HiGHS look at the stop flag, and tell how far it is, at every iteration."""
    main = threading.main_thread()

    def look(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        flags.count(out)
        # The interpreter waits for this thread before it exits: do not keep it waiting.
        if flags.stop.is_set() or not main.is_alive():
            into.user_interrupt = True

    highs.setCallback(look, None)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackIpmInterrupt)


def _work(highs: Any, flags: _Flags) -> None:
    try:
        highs.run()
    finally:
        flags.done.set()
