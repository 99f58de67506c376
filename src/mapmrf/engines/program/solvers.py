"""HiGHS and SCIP in a separate thread: a linear program, repeatedly, or a branch and bound."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program.program import DUAL_TOL, Program, Rows, lagrangian


class SolverOutcome(Enum):
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
    scip = importlib.import_module("pyscipopt")
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
        model.addSol(_solution(model, columns, task.start))
    _listen(scip, model, columns[: task.program.n_integer], report)
    _feed(scip, model, columns, report)
    report.spend()
    if report.must_stop():
        report.outcome = SolverOutcome.STOPPED
        return
    report.interrupt = lambda: _interrupt(scip, model)
    try:
        model.optimizeNogil()
    finally:
        report.interrupt = None
    report.message = model.getStatus()
    report.outcome = OUTCOMES.get(report.message, SolverOutcome.FAILED)
    report.count(int(model.getNTotalNodes()))
    if report.outcome is not SolverOutcome.INFEASIBLE:
        if model.getNSols():
            best = model.getBestSol()
            report.found.append(np.array([best[column] for column in columns]))
        report.tighten(float(model.getDualbound()))


def _build(scip: Any, model: Any, task: BranchTask) -> list[Any]:
    """Declare the columns and rows; cuts need not be enforced or checked."""
    program, rows = task.program, task.program.rows
    kinds = ["B"] * program.n_integer + ["C"] * (len(program.cost) - program.n_integer)
    figures = zip(kinds, program.lower.tolist(), program.upper.tolist(), program.cost.tolist(), strict=True)
    columns = [model.addVar("", kind, lower, upper, cost) for kind, lower, upper, cost in figures]
    model.setMaximize()
    terms = [scip.scip.Term(column) for column in columns]
    places, entries = rows.matrix.indices.tolist(), rows.matrix.data.tolist()
    for r, (begin, end) in enumerate(pairwise(rows.matrix.ptr.tolist())):
        left = scip.Expr({terms[places[t]]: entries[t] for t in range(begin, end)})
        lower = None if rows.lower[r] == -np.inf else float(rows.lower[r])
        cut = r >= task.n_needed
        model.addCons(
            scip.scip.ExprCons(left, lower, float(rows.upper[r])), "", enforce=not cut, check=not cut, removable=cut
        )
    return columns


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
                _interrupt(scip, self.model)
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


def _interrupt(scip: Any, model: Any) -> None:
    """Set a flag in SCIP, from any thread: it is noticed within long rounds without a report."""
    if model.getStage() != scip.SCIP_STAGE.INITSOLVE:  # there SCIP refuses it, with a line on standard error
        model.interruptSolve()


# -- A solver in a separate thread: its tasks and its reports ---------------------------------------------------------

POLL = 0.05  # seconds to wait for a solver before its caller returns to the loop, or checks whether to stop
PATIENCE = 1.0  # seconds that a solver has to hand over its point after an interrupt, and to stop when a run is closed


@dataclass(frozen=True)
class BranchTask:
    program: Program  # the program; the rows from `n_needed` on are cuts, which every integer point satisfies
    n_needed: int
    start: Floats | None  # a point to start from, or None
    gap: float  # difference between bound and value, in the program's unit, at which the search may end
    # max_nodes, seed, memory: node limit, seed, and memory limit in megabytes
    max_nodes: int
    seed: int
    memory: float


@dataclass
class SolverReport:
    """Channel between the solver's thread, which writes, and the loop, which reads.

    `stop`, `left` and `offered` go in the other direction. A solver that takes turns with other work counts its reports
    rather than seconds, so that it is in the same state after the same turns in every run.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    iterations: int = 0  # nodes of a branch and bound, or iterations on a linear program
    bound: float = math.inf  # the best upper bound, in the program's unit
    found: list[Floats] = field(default_factory=list)  # integer points not yet taken by the loop, the best last
    left: float = math.inf  # reports that the solver may make before it waits for its next turn
    waiting: bool = False  # whether it waits, or has ended
    changed: threading.Condition = field(default_factory=threading.Condition)
    offered: Floats | None = None  # a point found elsewhere that the solver has not taken yet
    # outcome, message: outcome of the solver, and its message
    outcome: SolverOutcome = SolverOutcome.FAILED
    message: str = ""
    interrupt: Callable[[], None] | None = None  # called to stop the solver, in addition to its own checks of the flag
    main_thread: threading.Thread = field(default_factory=threading.main_thread)

    def must_stop(self) -> bool:
        """Return whether the solver must stop, for the loop or because the interpreter is exiting."""
        return self.stop.is_set() or not self.main_thread.is_alive()

    def spend(self) -> None:
        """Count a report; called by the solver's thread, which waits here once none is left."""
        with self.changed:
            self.left -= 1
            while self.left <= 0 and not self.must_stop():
                self.waiting = True
                self.changed.notify_all()
                # seconds after which a solver that waits for its turn checks whether it must stop
                self.changed.wait(0.5)

    def take_offer(self) -> Floats | None:
        """Return the point found elsewhere, if there is a new one."""
        offered, self.offered = self.offered, None
        return offered

    def tighten(self, bound: float) -> None:
        self.bound = min(self.bound, bound)

    def count(self, iterations: int) -> None:
        self.iterations = max(self.iterations, iterations)


class SolverRun:
    """A running solver: `solve` is called in a separate thread with a new report.

    After this many `reports` it waits until `grant` gives it another turn.
    """

    def __init__(self, solve: Callable[[SolverReport], None], reports: float = math.inf) -> None:
        self.report = SolverReport(left=reports)
        weakref.finalize(self, self.report.stop.set)  # nobody waits any more: stop the solver
        # Not a daemon, even if started by one: the interpreter must not exit under a running C++ solver.
        self._thread = threading.Thread(target=_work, args=(solve, self.report), name="mapmrf-solver", daemon=False)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the solver has ended."""
        return self.report.done.wait(seconds)

    def grant(self, reports: float) -> None:
        with self.report.changed:
            self.report.left, self.report.waiting = reports, self.report.done.is_set()
            self.report.changed.notify_all()

    def turn_is_over(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether the solver has used up its reports or has ended."""
        with self.report.changed:
            return self.report.changed.wait_for(lambda: self.report.waiting, seconds)

    def stop(self) -> None:
        self.report.stop.set()
        with self.report.changed:  # a waiting solver checks whether it must stop
            self.report.changed.notify_all()
        interrupt = self.report.interrupt
        if interrupt is not None:
            with contextlib.suppress(Exception):  # an error if it has ended in the meantime
                interrupt()

    def close(self, seconds: float) -> None:
        self.stop()
        self._thread.join(seconds)

    def newest_point(self) -> Floats | None:
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
        with report.changed:
            report.done.set()
            report.waiting = True
            report.changed.notify_all()


# -- HiGHS in a separate thread: on a linear program, repeatedly, or on a branch and bound ----------------------------

PIECE = 20_000  # rows or columns passed to HiGHS at a time: some milliseconds

Settings = Mapping[str, Any]  # HiGHS options by name


class LPRelaxation:
    """A linear program in HiGHS, solved in a separate thread.

    Rows and bounds may change between runs, and each run starts from the last basis. Only `wait`, `stop`, `close` and
    the iterations of `report` may be used during a run.
    """

    def __init__(self, program: Program, seed: int, settings: Settings) -> None:
        self._highs = _highs(program, seed, settings)
        self._run: SolverRun | None = None
        self.report = SolverReport()  # of the current or last run

    def start(self) -> None:
        highs = self._highs  # not self: the thread must not keep alive the object whose finalizer stops it
        self._run = SolverRun(lambda report: _solve_relaxation(highs, report))
        self.report = self._run.report

    def wait(self, seconds: float) -> bool:
        """Wait for some seconds at most; return whether no run is active."""
        return self._run is None or self._run.wait(seconds)

    def stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def close(self, seconds: float) -> None:
        if self._run is not None:
            self._run.close(seconds)

    def point(self) -> Floats | None:
        """Return the final point of the last run, if any; it is infeasible if the run was stopped."""
        solution = self._highs.getSolution()
        columns = np.array(solution.col_value)
        return columns if solution.value_valid and np.isfinite(columns).all() else None

    def weights(self) -> Floats | None:
        solution = self._highs.getSolution()
        found = np.array(solution.row_dual)
        return found if solution.dual_valid and np.isfinite(found).all() else None

    def ray(self) -> Floats | None:
        """Return multipliers of the rows that prove the last program infeasible, up to their sign, if any."""
        _, known, found = self._highs.getDualRay()
        return np.array(found) if known and np.isfinite(found).all() else None

    def add(self, rows: Rows) -> None:
        """Add rows at the end, with the new rows basic."""
        _add_rows(self._highs, rows)

    def delete(self, places: Ints) -> None:
        self._highs.deleteRows(len(places), places.astype(np.int32))

    def change_bounds(self, columns: Ints, lower: Floats, upper: Floats) -> None:
        self._highs.changeColsBounds(len(columns), columns.astype(np.int32), lower, upper)

    def change_settings(self, settings: Settings) -> None:
        for key, value in settings.items():
            self._highs.setOptionValue(key, value)


def solve_by_highs(task: BranchTask, report: SolverReport) -> None:
    program = task.program
    settings = {
        "parallel": "off",
        "dual_feasibility_tolerance": DUAL_TOL,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": task.gap,
        "mip_max_nodes": min(task.max_nodes, 2**31 - 1),
        "mip_feasibility_tolerance": 1e-9,
    }
    highs = integer_program(program, task.seed, settings)
    if task.start is not None:
        highs.setSolution(len(task.start), np.arange(len(task.start), dtype=np.int32), task.start)
    _listen_to_branching(highs, report)
    report.spend()
    highs.run()
    _conclude_highs(highs, report)
    report.count(int(highs.getInfo().mip_node_count))
    if report.outcome is not SolverOutcome.INFEASIBLE:
        if highs.getSolution().value_valid:
            report.found.append(np.array(highs.getSolution().col_value))
        report.tighten(float(highs.getInfo().mip_dual_bound))


def integer_program(program: Program, seed: int, settings: Settings) -> Any:
    """Create a HiGHS that holds the program with integrality."""
    highs = _highs(program, seed, settings)
    integer = np.arange(program.n_integer, dtype=np.int32)
    kind = np.full(program.n_integer, int(load_highs().HighsVarType.kInteger), dtype=np.uint8)
    highs.changeColsIntegrality(program.n_integer, integer, kind)
    return highs


def _highs(program: Program, seed: int, settings: Settings) -> Any:
    """Create a silent, single-threaded HiGHS that holds the program without integrality."""
    highspy = load_highs()
    highs = highspy.Highs()
    for key, value in {"output_flag": False, "threads": 1, "random_seed": seed % 2**31, **settings}.items():
        highs.setOptionValue(key, value)
    upper, none = np.minimum(program.upper, highspy.kHighsInf), np.zeros(0)
    for begin in range(0, len(upper), PIECE):  # in pieces, since HiGHS holds the GIL during each call
        part = slice(begin, begin + PIECE)
        n = len(upper[part])
        highs.addCols(n, program.cost[part], program.lower[part], upper[part], 0, np.zeros(n), none, none)
    _add_rows(highs, program.rows)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    return highs


def _add_rows(highs: Any, rows: Rows) -> None:
    """Add rows at the end, in pieces, since HiGHS holds the GIL during each call."""
    infinity = load_highs().kHighsInf
    lower, upper = np.maximum(rows.lower, -infinity), np.minimum(rows.upper, infinity)
    ptr, indices, data = rows.matrix.ptr, rows.matrix.indices, rows.matrix.data
    for begin in range(0, rows.n, PIECE):
        part, end = slice(begin, begin + PIECE), min(begin + PIECE, rows.n)
        entries = slice(ptr[begin], ptr[end])
        n_entries = int(ptr[end] - ptr[begin])
        starts = ptr[begin:end] - ptr[begin]
        highs.addRows(end - begin, lower[part], upper[part], n_entries, starts, indices[entries], data[entries])


def _solve_relaxation(highs: Any, report: SolverReport) -> None:
    """Run HiGHS on a linear program; point and multipliers remain in HiGHS."""
    types = load_highs().cb.HighsCallbackType

    def watch(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        report.iterations = _iterations(out)
        into.user_interrupt = report.must_stop()  # set every time: HiGHS keeps the last value for its next run

    highs.setCallback(watch, None)
    highs.startCallback(types.kCallbackSimplexInterrupt)
    highs.startCallback(types.kCallbackIpmInterrupt)
    highs.run()
    _conclude_highs(highs, report)
    report.iterations = _iterations(highs.getInfo())


def _iterations(figures: Any) -> int:
    """Return the iterations on a linear program; -1 or 0 stand for a solver that did not run."""
    simplex, ipm = figures.simplex_iteration_count, figures.ipm_iteration_count
    return int((simplex if simplex > 0 else 0) + (ipm if ipm > 0 else 0))


def _listen_to_branching(highs: Any, report: SolverReport) -> None:
    """Register a callback that reports points, bound and nodes, and checks the stop flag."""
    types = load_highs().cb.HighsCallbackType

    def watch(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if kind == types.kCallbackMipImprovingSolution:
            report.found.append(np.array(out.mip_solution))
        if kind != types.kCallbackSimplexInterrupt:
            report.count(int(out.mip_node_count))
            report.tighten(float(out.mip_dual_bound))
        if kind == types.kCallbackMipInterrupt:
            report.spend()
        elif kind == feed:
            offered = report.take_offer()
            if offered is not None:
                into.setSolution(offered)
        if report.must_stop():
            into.user_interrupt = True

    feed = getattr(types, "kCallbackMipUserSolution", None)  # HiGHS 1.8 and later accept points during a run
    highs.setCallback(watch, None)
    highs.startCallback(types.kCallbackMipInterrupt)
    highs.startCallback(types.kCallbackMipImprovingSolution)
    highs.startCallback(types.kCallbackSimplexInterrupt)
    if feed is not None:
        highs.startCallback(feed)


def _conclude_highs(highs: Any, report: SolverReport) -> None:
    status, ended = load_highs().HighsModelStatus, highs.getModelStatus()
    report.message = highs.modelStatusToString(ended)
    report.outcome = {
        status.kOptimal: SolverOutcome.OPTIMAL,
        status.kInfeasible: SolverOutcome.INFEASIBLE,
        status.kUnboundedOrInfeasible: SolverOutcome.INFEASIBLE,  # all programs are bounded
        status.kInterrupt: SolverOutcome.STOPPED,
        status.kIterationLimit: SolverOutcome.LIMIT,
        status.kSolutionLimit: SolverOutcome.LIMIT,
    }.get(ended, SolverOutcome.FAILED)


# -- A proof of optimality without the tolerances of a solver: a small tree of relaxations with rigorous bounds -------

WORK = 2_000_000  # maximum number of nodes times matrix entries: some seconds


class Confirmation:
    """Branch and bound over linear relaxations, each bounded by `lagrangian` at the multipliers that HiGHS finds."""

    def __init__(self, program: Program, seed: int) -> None:
        settings = {"dual_feasibility_tolerance": DUAL_TOL, "presolve": "off", "solver": "simplex", "parallel": "off"}
        # bound: upper bound on all points of the program, once every node is pruned; inf until then
        self.program, self.bound = program, math.inf
        self._relaxation = LPRelaxation(dataclasses.replace(program, n_integer=0), seed, settings)
        self._columns = np.arange(len(program.cost))

    def run(self, goal: Callable[[], float], offer: Callable[[Floats], object]) -> Iterator[None]:
        """Prune all nodes whose bound is at most the goal; give up if there are too many. Yields while HiGHS works."""
        # Integer points on the way are offered, which may raise the goal.
        open_nodes, highest = [(self.program.lower.copy(), self.program.upper.copy())], -math.inf
        for _ in range(WORK // max(1, len(self.program.rows.matrix.data))):
            lower, upper = open_nodes.pop()
            node = dataclasses.replace(self.program, lower=lower, upper=upper)
            self._relaxation.change_bounds(self._columns, node.lower, node.upper)
            self._relaxation.start()
            while not self._relaxation.wait(POLL):
                yield
            bound, point = self._bound(node), self._relaxation.point()
            if bound > goal():
                children = [] if point is None else self._split(node, point)
                if point is not None and not children:
                    offer(point)
                if not children and bound > goal():  # no proof within round-off
                    return
                open_nodes += children
            else:
                highest = max(highest, bound)
            if not open_nodes:
                self.bound = highest
                return

    def close(self, seconds: float) -> None:
        self._relaxation.close(seconds)

    def _bound(self, node: Program) -> float:
        """Return an upper bound on a node, -inf if it has no point; inf if HiGHS gives no proof."""
        if self._relaxation.report.outcome is SolverOutcome.INFEASIBLE:
            ray, nothing = self._relaxation.ray(), dataclasses.replace(node, cost=0.0 * node.cost, offset=0.0)
            rays = [] if ray is None else [ray, -ray]
            return -math.inf if any(lagrangian(nothing, node.rows, each)[0] < 0.0 for each in rays) else math.inf
        weights = self._relaxation.weights()
        return math.inf if weights is None else lagrangian(node, node.rows, weights)[0]

    def _split(self, node: Program, point: Floats) -> list[tuple[Floats, Floats]]:
        """Split at the most fractional column, the side to which it rounds last; nothing if all are integral."""
        whole = np.round(point[: node.n_integer])
        distance = np.abs(point[: node.n_integer] - whole)
        distance[node.lower[: node.n_integer] == node.upper[: node.n_integer]] = 0.0
        # distance from an integer below which a column is not branched on
        if distance.max(initial=0.0) <= 1e-6:
            return []
        at, sides = int(distance.argmax()), []
        for side in (1.0 - whole[at], whole[at]):
            lower, upper = node.lower.copy(), node.upper.copy()
            lower[at] = upper[at] = side
            sides.append((lower, upper))
        return sides


# -- HiGHS and SCIP, imported when first needed: they may be missing, or conflict with another library ----------------


def load_highs() -> Any:
    return importlib.import_module("highspy")


def highs_failure() -> str | None:
    """Return why HiGHS cannot be loaded, in one line; None if it can."""
    # A process that has imported OR-Tools, which bundles another HiGHS, may be unable to load highspy.
    return _failure("highspy", "HiGHS")


def scip_failure() -> str | None:
    """Return why SCIP cannot be loaded, in one line; None if it can."""
    if importlib.util.find_spec("pyscipopt") is None:
        return "SCIP needs the optional extra: pip install 'mapmrf[exact]' ('.[exact]' in a checkout)"
    return _failure("pyscipopt", "SCIP")


def _failure(module: str, title: str) -> str | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # an incompatible extension may raise anything on import
        lines = str(error).splitlines() or [type(error).__name__]
        return f"{title} cannot be loaded: {lines[0]}"
    return None
