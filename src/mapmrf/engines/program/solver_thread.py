"""Branch and bound by a solver that works on a thread of its own: what it is asked and what it tells."""

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


class Outcome(Enum):
    """How a search ended."""

    OPTIMAL = auto()
    INFEASIBLE = auto()
    NODE_LIMIT = auto()
    STOPPED = auto()
    FAILED = auto()


@dataclass(frozen=True)
class Task:
    """What a solver is asked.

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


@dataclass
class Board:
    """Where the solver's thread writes and the loop reads; `stop` is the only word in the other direction.

    `interrupt` is what a solver offers to be called when it is to stop, beside its own looks at the flag.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    nodes: int = 0
    bound: float = math.inf
    found: list[Floats] = field(default_factory=list)
    outcome: Outcome = Outcome.FAILED
    message: str = ""
    interrupt: Callable[[], None] | None = None

    def must_stop(self) -> bool:
        """Whether the loop wants the solver to end, or the interpreter waits for its threads to exit."""
        return self.stop.is_set() or not threading.main_thread().is_alive()

    def lower_bound_to(self, bound: float) -> None:
        """Keep a bound if it is the best."""
        if bound < self.bound:
            self.bound = bound


class Search:
    """A solver at work: `run` is called on a thread of its own with the task and the board."""

    def __init__(self, run: Callable[[Task, Board], None], task: Task) -> None:
        self.task, self.board = task, Board()
        weakref.finalize(self, self.board.stop.set)  # nobody waits any more: the solver need not go on
        threading.Thread(target=_work, args=(run, task, self.board), name="mapmrf-cuts").start()

    def wait(self, seconds: float) -> bool:
        """Whether the solver has ended, at the latest after some seconds."""
        return self.board.done.wait(seconds)

    def stop(self) -> None:
        """Ask the solver to end."""
        self.board.stop.set()
        interrupt = self.board.interrupt
        if interrupt is not None:
            with contextlib.suppress(Exception):  # it may have come to its end meanwhile, where this is an error
                interrupt()

    def take(self) -> Floats | None:
        """The last point found since the last call, if any."""
        last = None
        while self.board.found:
            last = self.board.found.pop(0)
        return last


def _work(run: Callable[[Task, Board], None], task: Task, board: Board) -> None:
    try:
        run(task, board)
    except Exception as error:  # whatever a solver raises must reach the loop, not the thread's end
        board.outcome, board.message = Outcome.FAILED, f"{type(error).__name__}: {error}"
    finally:
        board.done.set()
