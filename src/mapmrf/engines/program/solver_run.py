"""A solver at work on a thread of its own: what it is asked, and what it reports."""

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
"""Seconds after which a solver that waits for its turn looks whether anybody is left to give it one."""


class SolverOutcome(Enum):
    """How a solver ended."""

    OPTIMAL = auto()
    INFEASIBLE = auto()
    LIMIT = auto()
    STOPPED = auto()
    FAILED = auto()


@dataclass(frozen=True)
class BranchTask:
    """A branch and bound that a solver is asked for.

    Attributes
    ----------
    program
        The program; the rows from `n_needed` on are cuts, which every integer point satisfies.
    start
        A point to start from, or None.
    gap
        Difference of bound and value, in the program's unit, at which the search may end.
    max_nodes, seed, memory
        Limit on nodes; seed; megabytes.
    """

    program: Program
    n_needed: int
    start: Floats | None
    gap: float
    max_nodes: int
    seed: int
    memory: float


class Allowance:
    """Reports that a solver may make before it waits for its next turn.

    A solver that takes turns with other work counts its own reports, never seconds: so it stands at the same place
    after the same turns, in every run.
    """

    def __init__(self, reports: float = math.inf) -> None:
        self._left = reports
        self._changed = threading.Condition()
        self._waiting = self._finished = False

    def grant(self, reports: float) -> None:
        """Let the solver go on for so many reports."""
        with self._changed:
            self._left, self._waiting = reports, self._finished
            self._changed.notify_all()

    def spend(self, must_stop: Callable[[], bool]) -> None:
        """Count a report; called by the solver's thread, which waits here once nothing is left."""
        with self._changed:
            self._left -= 1
            while self._left <= 0 and not must_stop():
                self._waiting = True
                self._changed.notify_all()
                self._changed.wait(CHECK_STOP)

    def finish(self) -> None:
        """The solver has ended: it will never use up what it has."""
        with self._changed:
            self._waiting = self._finished = True
            self._changed.notify_all()

    def wake(self) -> None:
        """Have a waiting solver look whether it must stop."""
        with self._changed:
            self._changed.notify_all()

    def used_up(self, seconds: float) -> bool:
        """Whether the solver waits for its next turn, at the latest after some seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting, seconds)


@dataclass
class SolverReport:
    """Where the solver's thread writes and the loop reads.

    In the other direction there are `stop`, `allowance` and `offered`.

    Attributes
    ----------
    iterations
        Nodes of a branch and bound, iterations on a linear program.
    bound
        The best upper bound, in the program's unit.
    found
        Integer points that the loop has not taken yet, the best last.
    allowance
        How long the solver may go on before it waits.
    offered
        A point that was found elsewhere and the solver has not taken yet.
    outcome, message
        How the solver ended, and its own words for it.
    interrupt
        What a solver offers to be called when it is to stop, besides its own checks of the flag.
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
        """Whether the loop wants the solver to end, or the interpreter waits for its threads to exit."""
        return self.stop.is_set() or not self.main_thread.is_alive()

    def spend(self) -> None:
        """Count a report of the solver, and wait if its turn is over."""
        self.allowance.spend(self.must_stop)

    def take_offer(self) -> Floats | None:
        """The point that was found elsewhere, if there is a new one."""
        offered, self.offered = self.offered, None
        return offered

    def tighten(self, bound: float) -> None:
        """Keep a bound if it is the best."""
        self.bound = min(self.bound, bound)

    def count(self, iterations: int) -> None:
        """Keep a number of iterations if it is the largest."""
        self.iterations = max(self.iterations, iterations)


class SolverRun:
    """A solver at work: `solve` is called on a thread of its own with a new report.

    After so many `reports` it waits, until `grant` gives it another turn.
    """

    def __init__(self, solve: Callable[[SolverReport], None], reports: float = math.inf) -> None:
        self.report = SolverReport(allowance=Allowance(reports))
        weakref.finalize(self, self.report.stop.set)  # nobody waits any more: the solver need not go on
        # No daemon, as it would be if one starts it: the interpreter must not end under a solver written in C++.
        self._thread = threading.Thread(target=_work, args=(solve, self.report), name="mapmrf-solver", daemon=False)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Whether the solver has ended, at the latest after some seconds."""
        return self.report.done.wait(seconds)

    def grant(self, reports: float) -> None:
        """Let the solver go on for so many reports."""
        self.report.allowance.grant(reports)

    def turn_is_over(self, seconds: float) -> bool:
        """Whether the solver has used up its allowance or has ended, at the latest after some seconds."""
        return self.report.allowance.used_up(seconds)

    def stop(self) -> None:
        """Ask the solver to end."""
        self.report.stop.set()
        self.report.allowance.wake()
        interrupt = self.report.interrupt
        if interrupt is not None:
            with contextlib.suppress(Exception):  # it may have come to its end meanwhile, where this is an error
                interrupt()

    def close(self, seconds: float) -> None:
        """Stop the solver and wait until its thread has ended, at most some seconds."""
        self.stop()
        self._thread.join(seconds)

    def take(self) -> Floats | None:
        """The last point found since the last call, if any."""
        last = None
        while self.report.found:
            last = self.report.found.pop(0)
        return last


def _work(solve: Callable[[SolverReport], None], report: SolverReport) -> None:
    try:
        solve(report)
    except Exception as error:  # whatever a solver raises must reach the loop, not the thread's end
        report.outcome, report.message = SolverOutcome.FAILED, f"{type(error).__name__}: {error}"
    finally:
        report.done.set()
        report.allowance.finish()
