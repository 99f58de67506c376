"""A solver in a separate thread: its tasks and its reports."""

from __future__ import annotations

import contextlib
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from mapmrf.arrays import Floats
from mapmrf.engines.program.program import Program

CHECK_STOP = 0.5
"""Seconds after which a solver that waits for its turn checks whether it must stop."""


class SolverOutcome(Enum):
    """Outcome of a solver."""

    OPTIMAL = auto()
    INFEASIBLE = auto()
    LIMIT = auto()
    STOPPED = auto()
    FAILED = auto()


@dataclass(frozen=True)
class BranchTask:
    """A branch-and-bound task for a solver.

    Attributes
    ----------
    program
        The program; the rows from `n_needed` on are cuts, which every integer point satisfies.
    start
        A point to start from, or None.
    gap
        Difference between bound and value, in the program's unit, at which the search may end.
    max_nodes, seed, memory
        Node limit, seed, and memory limit in megabytes.
    """

    program: Program
    n_needed: int
    start: Floats | None
    gap: float
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

    Attributes
    ----------
    iterations
        Nodes of a branch and bound, or iterations on a linear program.
    bound
        The best upper bound, in the program's unit.
    found
        Integer points not yet taken by the loop, the best last.
    allowance
        Limits how long the solver continues before it waits.
    offered
        A point found elsewhere that the solver has not taken yet.
    outcome, message
        Outcome of the solver, and its message.
    interrupt
        Called to stop the solver, in addition to its own checks of the flag.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    iterations: int = 0
    bound: float = math.inf
    found: list[Floats] = field(default_factory=list)
    allowance: Allowance = field(default_factory=Allowance)
    offered: Floats | None = None
    outcome: SolverOutcome = SolverOutcome.FAILED
    message: str = ""
    interrupt: Callable[[], None] | None = None
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
