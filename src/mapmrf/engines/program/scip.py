"""Branch and bound by SCIP, through pyscipopt, an optional extra."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.program.loading import load_scip
from mapmrf.engines.program.program import DUAL_TOL
from mapmrf.engines.program.solver_run import BranchTask, SolverOutcome, SolverReport

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
    _conclude(model, columns, report)


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


def _conclude(model: Any, columns: list[Any], report: SolverReport) -> None:
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
