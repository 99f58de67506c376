"""Branch and bound by SCIP, through pyscipopt, an optional extra."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.program.program import DUAL_TOL, Program, load_scip


class SolverOutcome(Enum):
    """Outcome of a solver."""

    OPTIMAL = auto()
    INFEASIBLE = auto()
    LIMIT = auto()
    STOPPED = auto()
    FAILED = auto()


OUTCOMES = {
    "optimal": SolverOutcome.OPTIMAL,
    "gaplimit": SolverOutcome.OPTIMAL,
    "infeasible": SolverOutcome.INFEASIBLE,
    "inforunbd": SolverOutcome.INFEASIBLE,  # all columns are bounded, so it cannot be unbounded
    "nodelimit": SolverOutcome.LIMIT,
    "totalnodelimit": SolverOutcome.LIMIT,
    "userinterrupt": SolverOutcome.STOPPED,
}


def solve_by_scip(task: BranchTask, report: SolverReport) -> None:
    """Run branch and bound on a task. SCIP works without the GIL and acquires it for its reports only."""
    scip = load_scip()
    model = scip.Model()
    model.hideOutput()
    for key, value in {
        "misc/catchctrlc": False,  # Ctrl-C is handled by the loop
        "limits/absgap": task.gap,
        "limits/totalnodes": min(task.max_nodes, 2**62),
        "limits/memory": task.memory,
        "numerics/dualfeastol": DUAL_TOL,
        "randomization/randomseedshift": task.seed % 2**31,
    }.items():
        model.setParam(key, value)
    columns = _build(scip, model, task)
    if task.start is not None:
        _give_start(model, columns, task.start)
    _listen(scip, model, columns[: task.program.n_integer], report)
    _feed(scip, model, columns, report)
    report.spend()
    if report.must_stop():
        report.outcome = SolverOutcome.STOPPED
        return
    # Only sets a flag in SCIP: safe from any thread, and noticed within long rounds without a report.
    report.interrupt = model.interruptSolve
    try:
        model.optimizeNogil()
    finally:
        report.interrupt = None
    _conclude_scip(model, columns, report)


def _build(scip: Any, model: Any, task: BranchTask) -> list[Any]:
    """Declare the columns and rows; cuts need not be enforced or checked."""
    program, rows = task.program, task.program.rows
    kinds = ["B"] * program.n_integer + ["C"] * (len(program.cost) - program.n_integer)
    figures = zip(kinds, program.lower.tolist(), program.upper.tolist(), program.cost.tolist(), strict=True)
    columns = [model.addVar("", kind, lower, upper, cost) for kind, lower, upper, cost in figures]
    model.setMaximize()
    terms = [scip.scip.Term(column) for column in columns]
    places, entries = rows.matrix.indices.tolist(), rows.matrix.data.tolist()
    for r, (begin, end) in enumerate(pairwise(rows.matrix.indptr.tolist())):
        left = scip.Expr({terms[places[t]]: entries[t] for t in range(begin, end)})
        lower = None if rows.lower[r] == -np.inf else float(rows.lower[r])
        cut = r >= task.n_needed
        model.addCons(
            scip.scip.ExprCons(left, lower, float(rows.upper[r])), "", enforce=not cut, check=not cut, removable=cut
        )
    return columns


def _give_start(model: Any, columns: list[Any], start: Floats) -> None:
    model.addSol(_solution(model, columns, start))


def _solution(model: Any, columns: list[Any], point: Floats, heuristic: Any = None) -> Any:
    """Convert a point to a solution of the original program: presolving may have removed some of its columns."""
    solution = model.createOrigSol(heuristic)
    for place in np.flatnonzero(point).tolist():
        model.setSolVal(solution, columns[place], float(point[place]))
    return solution


def _feed(scip: Any, model: Any, columns: list[Any], report: SolverReport) -> None:
    """Register a heuristic that passes points found elsewhere to SCIP before every node."""

    class OfferedPoints(scip.Heur):  # type: ignore[misc]
        def heurexec(self, heurtiming: Any, nodeinfeasible: bool) -> dict[str, Any]:
            offered = report.take_offer()
            if offered is None:
                return {"result": scip.SCIP_RESULT.DIDNOTRUN}
            accepted = self.model.trySol(_solution(self.model, columns, offered, self))
            return {"result": scip.SCIP_RESULT.FOUNDSOL if accepted else scip.SCIP_RESULT.DIDNOTFIND}

    heuristic = OfferedPoints()
    timing = scip.SCIP_HEURTIMING.BEFORENODE
    model.includeHeur(heuristic, "mapmrf", "takes points that are found elsewhere", "M", timingmask=timing)


def _listen(scip: Any, model: Any, integer: list[Any], report: SolverReport) -> None:
    """Register a handler that reports points, bound and nodes, and checks the stop flag."""
    types = scip.SCIP_EVENTTYPE
    caught = (types.BESTSOLFOUND, types.NODESOLVED, types.LPSOLVED, types.FIRSTLPSOLVED, types.PRESOLVEROUND)

    class SolverListener(scip.Eventhdlr):  # type: ignore[misc]
        def eventinit(self) -> None:
            for kind in caught:
                self.model.catchEvent(kind, self)

        def eventexit(self) -> None:
            for kind in caught:
                self.model.dropEvent(kind, self)

        def eventexec(self, event: Any) -> None:
            if report.must_stop():
                self.model.interruptSolve()
            kind = event.getType()
            if kind == types.BESTSOLFOUND:
                best = self.model.getBestSol()
                report.found.append(np.array([best[column] for column in integer]))
            if kind in (types.NODESOLVED, types.LPSOLVED, types.FIRSTLPSOLVED):
                report.count(int(self.model.getNTotalNodes()))
                report.tighten(float(self.model.getDualbound()))
            if kind != types.BESTSOLFOUND:
                report.spend()

    model.includeEventhdlr(SolverListener(), "mapmrf", "reports to the loop how far the search is")


def _conclude_scip(model: Any, columns: list[Any], report: SolverReport) -> None:
    """Report the outcome of SCIP."""
    status = model.getStatus()
    report.outcome = OUTCOMES.get(status, SolverOutcome.FAILED)
    report.message = status
    report.count(int(model.getNTotalNodes()))
    if report.outcome is SolverOutcome.INFEASIBLE:
        return
    if model.getNSols():
        best = model.getBestSol()
        report.found.append(np.array([best[column] for column in columns]))
    report.tighten(float(model.getDualbound()))


# -- A solver in a separate thread: its tasks and its reports ---------------------------------------------------------


CHECK_STOP = 0.5
"""Seconds after which a solver that waits for its turn checks whether it must stop."""


@dataclass(frozen=True)
class BranchTask:
    """A branch-and-bound task for a solver."""

    program: Program  # The program; the rows from `n_needed` on are cuts, which every integer point satisfies
    n_needed: int
    start: Floats | None  # A point to start from, or None
    gap: float  # Difference between bound and value, in the program's unit, at which the search may end
    # max_nodes, seed, memory: Node limit, seed, and memory limit in megabytes
    max_nodes: int
    seed: int
    memory: float


class Allowance:
    """Number of reports that a solver may make before it waits for its next turn.

    A solver that takes turns with other work counts its reports rather than seconds, so that it is in the same state
    after the same turns in every run.
    """

    def __init__(self, reports: float = math.inf) -> None:
        self._left = reports
        self._changed = threading.Condition()
        self._waiting = self._finished = False

    def grant(self, reports: float) -> None:
        """Let the solver continue for this many reports."""
        with self._changed:
            self._left, self._waiting = reports, self._finished
            self._changed.notify_all()

    def spend(self, must_stop: Callable[[], bool]) -> None:
        """Count a report; called by the solver's thread, which waits here once none is left."""
        with self._changed:
            self._left -= 1
            while self._left <= 0 and not must_stop():
                self._waiting = True
                self._changed.notify_all()
                self._changed.wait(CHECK_STOP)

    def finish(self) -> None:
        """Note that the solver has ended and will not use up its allowance."""
        with self._changed:
            self._waiting = self._finished = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Let a waiting solver check whether it must stop."""
        with self._changed:
            self._changed.notify_all()

    def used_up(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the solver waits for its next turn."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting, seconds)


@dataclass
class SolverReport:
    """Channel between the solver's thread, which writes, and the loop, which reads.

    `stop`, `allowance` and `offered` go in the other direction.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    iterations: int = 0  # Nodes of a branch and bound, or iterations on a linear program
    bound: float = math.inf  # The best upper bound, in the program's unit
    found: list[Floats] = field(default_factory=list)  # Integer points not yet taken by the loop, the best last
    allowance: Allowance = field(default_factory=Allowance)  # Limits how long the solver continues before it waits
    offered: Floats | None = None  # A point found elsewhere that the solver has not taken yet
    # outcome, message: Outcome of the solver, and its message
    outcome: SolverOutcome = SolverOutcome.FAILED
    message: str = ""
    interrupt: Callable[[], None] | None = None  # Called to stop the solver, in addition to its own checks of the flag
    main_thread: threading.Thread = field(default_factory=threading.main_thread)

    def must_stop(self) -> bool:
        """Return whether the solver must stop, for the loop or because the interpreter is exiting."""
        return self.stop.is_set() or not self.main_thread.is_alive()

    def spend(self) -> None:
        """Count a report of the solver, and wait if its turn is over."""
        self.allowance.spend(self.must_stop)

    def take_offer(self) -> Floats | None:
        """Return the point found elsewhere, if there is a new one."""
        offered, self.offered = self.offered, None
        return offered

    def tighten(self, bound: float) -> None:
        """Keep a bound if it is the best."""
        self.bound = min(self.bound, bound)

    def count(self, iterations: int) -> None:
        """Keep a number of iterations if it is the largest."""
        self.iterations = max(self.iterations, iterations)


class SolverRun:
    """A running solver: `solve` is called in a separate thread with a new report.

    After this many `reports` it waits until `grant` gives it another turn.
    """

    def __init__(self, solve: Callable[[SolverReport], None], reports: float = math.inf) -> None:
        self.report = SolverReport(allowance=Allowance(reports))
        weakref.finalize(self, self.report.stop.set)  # nobody waits any more: stop the solver
        # Not a daemon, even if started by one: the interpreter must not exit under a running C++ solver.
        self._thread = threading.Thread(target=_work, args=(solve, self.report), name="mapmrf-solver", daemon=False)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the solver has ended."""
        return self.report.done.wait(seconds)

    def grant(self, reports: float) -> None:
        """Let the solver continue for this many reports."""
        self.report.allowance.grant(reports)

    def turn_is_over(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the solver has used up its allowance or has ended."""
        return self.report.allowance.used_up(seconds)

    def stop(self) -> None:
        """Ask the solver to stop."""
        self.report.stop.set()
        self.report.allowance.wake()
        interrupt = self.report.interrupt
        if interrupt is not None:
            with contextlib.suppress(Exception):  # an error if it has ended in the meantime
                interrupt()

    def close(self, seconds: float) -> None:
        """Stop the solver and wait for its thread, at most some seconds."""
        self.stop()
        self._thread.join(seconds)

    def take(self) -> Floats | None:
        """Return the best point found since the last call, if any."""
        last = None
        while self.report.found:
            last = self.report.found.pop(0)
        return last


def _work(solve: Callable[[SolverReport], None], report: SolverReport) -> None:
    try:
        solve(report)
    except Exception as error:  # exceptions of a solver must reach the loop
        report.outcome, report.message = SolverOutcome.FAILED, f"{type(error).__name__}: {error}"
    finally:
        report.done.set()
        report.allowance.finish()
