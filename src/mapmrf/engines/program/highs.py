"""HiGHS at work on a thread of its own: on a relaxation, round after round, or on the whole program."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

import highspy
import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.program.program import DUAL_TOL, Program, Rows
from mapmrf.engines.program.solver_thread import Board, Outcome, Task


def add_rows(highs: Any, rows: Rows) -> None:
    """Add rows at the end; the basis stays, with the new rows in it."""
    lower, upper = np.maximum(rows.lower, -highspy.kHighsInf), np.minimum(rows.upper, highspy.kHighsInf)
    highs.addRows(rows.n, lower, upper, len(rows.column), rows.ptr[:-1], rows.column, rows.entry)


def _highs(program: Program, seed: int) -> Any:
    """A silent, single-threaded HiGHS that holds the program without its integrality."""
    highs: Any = highspy.Highs()
    for key, value in {
        "output_flag": False,
        "threads": 1,
        "parallel": "off",
        "random_seed": seed % 2**31,
        "dual_feasibility_tolerance": DUAL_TOL,
    }.items():
        highs.setOptionValue(key, value)
    n = len(program.cost)
    none = np.zeros(0)
    highs.addCols(n, program.cost, program.lower, program.upper, 0, np.zeros(n), none, none)
    add_rows(highs, program.rows)
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    return highs


@dataclass
class _Flags:
    """What the two threads tell each other."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)


class Relaxation:
    """The linear relaxation: rows and bounds may change between runs, and each run starts from the last basis."""

    def __init__(self, program: Program, seed: int) -> None:
        self.highs = _highs(program, seed)
        self.highs.setOptionValue("presolve", "off")
        self.highs.setOptionValue("solver", "simplex")
        self.flags = _Flags()
        _watch(self.highs, self.flags)
        weakref.finalize(self, self.flags.stop.set)  # nobody waits any more: HiGHS need not go on

    def start(self) -> None:
        """Begin a run."""
        self.flags.done.clear()
        threading.Thread(target=_work, args=(self.highs, self.flags), name="mapmrf-cuts-lp").start()

    def wait(self, seconds: float) -> bool:
        """Whether the run has ended, at the latest after some seconds."""
        return self.flags.done.wait(seconds)

    def stop(self) -> None:
        """Ask HiGHS to end at its next iteration."""
        self.flags.stop.set()

    @property
    def solved(self) -> bool:
        """Whether the run ended with an optimal point."""
        return bool(self.highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)

    def point(self) -> Floats:
        """The optimal point."""
        return np.array(self.highs.getSolution().col_value)

    def weights(self) -> Floats:
        """Multipliers of the rows, all of which must be of the form A x <= upper."""
        solution = self.highs.getSolution()
        found = np.array(solution.row_dual)
        return np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)

    def add(self, rows: Rows) -> None:
        """Add rows at the end."""
        add_rows(self.highs, rows)

    def delete(self, places: Any) -> None:
        """Take rows out by their places."""
        self.highs.deleteRows(len(places), places.astype(np.int32))

    def bound(self, columns: Any, lower: Floats, upper: Floats) -> None:
        """Change the bounds of some columns."""
        self.highs.changeColsBounds(len(columns), columns.astype(np.int32), lower, upper)


def _watch(highs: Any, flags: _Flags) -> None:
    """Have HiGHS look at the stop flag at every iteration."""
    main = threading.main_thread()

    def look(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        # The interpreter waits for this thread before it exits: do not keep it waiting.
        if flags.stop.is_set() or not main.is_alive():
            into.user_interrupt = True

    highs.setCallback(look, None)
    highs.startCallback(highspy.cb.HighsCallbackType.kCallbackSimplexInterrupt)


def _work(highs: Any, flags: _Flags) -> None:
    try:
        highs.run()
    finally:
        flags.done.set()


# -- branch and bound -------------------------------------------------------------------------------------------------


def run_highs(task: Task, board: Board) -> None:
    """Branch and bound on a task."""
    program = task.program
    highs = _highs(program, task.seed)
    for key, value in {
        "mip_rel_gap": 0.0,
        "mip_abs_gap": task.gap,
        "mip_max_nodes": min(task.max_nodes, 2**31 - 1),
        "mip_feasibility_tolerance": 1e-9,
    }.items():
        highs.setOptionValue(key, value)
    whole = np.arange(program.n_integer, dtype=np.int32)
    kind = np.full(program.n_integer, int(highspy.HighsVarType.kInteger), dtype=np.uint8)
    highs.changeColsIntegrality(program.n_integer, whole, kind)
    if task.start is not None:
        highs.setSolution(len(task.start), np.arange(len(task.start), dtype=np.int32), task.start)
    _listen(highs, board)
    highs.run()
    _conclude(highs, board)


def _listen(highs: Any, board: Board) -> None:
    """Have HiGHS tell its points, bound and nodes, and look at the stop flag."""
    types = highspy.cb.HighsCallbackType

    def look(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if kind == types.kCallbackMipImprovingSolution:
            board.found.append(np.array(out.mip_solution))
        if kind != types.kCallbackSimplexInterrupt:
            board.nodes = max(board.nodes, int(out.mip_node_count))
            board.lower_bound_to(float(out.mip_dual_bound))
        if board.must_stop():
            into.user_interrupt = True

    highs.setCallback(look, None)
    for kind in (types.kCallbackMipInterrupt, types.kCallbackMipImprovingSolution, types.kCallbackSimplexInterrupt):
        highs.startCallback(kind)


def _conclude(highs: Any, board: Board) -> None:
    """Take over how HiGHS ended."""
    ended, info = highs.getModelStatus(), highs.getInfo()
    status = highspy.HighsModelStatus
    board.message = highs.modelStatusToString(ended)
    board.nodes = max(board.nodes, int(info.mip_node_count))
    if ended in (status.kInfeasible, status.kUnboundedOrInfeasible):
        board.outcome = Outcome.INFEASIBLE
        return
    if highs.getSolution().value_valid:
        board.found.append(np.array(highs.getSolution().col_value))
    board.lower_bound_to(float(info.mip_dual_bound))
    if ended == status.kOptimal:
        board.outcome = Outcome.OPTIMAL
    elif ended == status.kInterrupt:
        board.outcome = Outcome.STOPPED
    elif ended in (status.kSolutionLimit, status.kIterationLimit):
        board.outcome = Outcome.NODE_LIMIT
