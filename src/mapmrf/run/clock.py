"""Calls of a run that may take too long: they are abandoned when the time is up or the user interrupts."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mapmrf.compilation.stopping import CompileClock, CompileWatch, stoppable
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts
from mapmrf.run.calls import CallAbandoned, Supervisor
from mapmrf.run.checkpoints import SavedRun
from mapmrf.run.method import Method

R = TypeVar("R")

SMALL = 50_000
"""Variables, edges and configurations up to which a run without a time limit never needs to abandon a call."""

TINY = 10_000
"""Such a size for runs with a time limit: some methods have steps of a second on models that are not much larger."""

SMALL_CALL_SECONDS = 3.0
"""Enough seconds for any call on a small model: with more time left, no call is made on another thread."""

MEDIUM = 200_000
"""Such a size for compiling the model and checking that a method supports it, which is done whatever the limit."""

SAVING = 5.0  # extra seconds for a call in a run that is saved when it is cut short


class Overrun(NamedTuple):
    """How long a call may continue when the time is up."""

    # seconds, share: seconds after the time limit, and share of the limit on top
    seconds: float
    share: float
    interrupted: float  # extra seconds after an interrupt, on top of those that every call has; none after a second one


STEPPING, ANSWERING, REPORTING = Overrun(0.05, 0.005, 0.0), Overrun(0.1, 0.01, 0.25), Overrun(0.13, 0.015, 0.5)


class RunCalls:
    """The clock of a run, and calls that can be abandoned when the time is up."""

    def __init__(self) -> None:
        self.saving: SavedRun | None = None
        self.cancelled = False
        self.thread = threading.get_ident()
        self.compiling = CompileClock()
        self.watch = CompileWatch(self.must_stop, lambda: self.deadline - time.perf_counter())
        self.supervisor: Supervisor | None = None
        self.small = False
        self.lost: list[Any] = []
        self.set_clock(time.perf_counter(), None)

    def set_clock(self, began: float, time_limit: float | None) -> None:
        self.began = self.asked = began
        self.limit = math.inf if time_limit is None else time_limit
        self.deadline = began + self.limit

    @property
    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def ask(self) -> None:
        """Ask the listeners whether the run must end, while a kernel is compiled."""

    def must_stop(self) -> bool:
        """Return whether the run must end now; called from any of its threads while a kernel is compiled."""
        if threading.get_ident() == self.thread:
            self.ask()
        return self.cancelled or time.perf_counter() >= self.deadline or interrupts.requested()

    @contextmanager
    def supervised(self, graph: FactorGraph) -> Iterator[None]:
        """Make calls on another thread inside this context, unless the model is small for the time limit."""
        size = math.inf
        if graph.constraints is None:  # a shared table costs a method time once per factor
            n_configs = int(np.diff(graph.table_ptr)[graph.table_of].sum())
            size = graph.n_vars + graph.n_edges + n_configs
        self.medium = size <= MEDIUM
        self.small = size <= SMALL
        if self.small and (self.limit == math.inf or size <= TINY):
            yield
            return
        self.supervisor = Supervisor(self.setting, self.idle)
        try:
            with nullcontext() if self.small else interrupts.waiting():
                yield
        finally:
            self.supervisor.close()

    @contextmanager
    def setting(self) -> Iterator[None]:
        """The context of the other thread, which compiles for this run."""
        self.compiling.join()
        with stoppable(self.watch):
            yield

    def idle(self) -> None:
        """Called while the run waits for the other thread."""
        if self.compiling.running:
            self.ask()

    def wake(self) -> None:
        """Called by the handler of signals."""
        if self.supervisor is not None:
            self.supervisor.wake()

    def patience(self, overrun: Overrun) -> float:
        over = self.deadline + overrun.seconds + (overrun.share * self.limit if self.limit < math.inf else 0.0)
        extra = SAVING if self.saving is not None else 0.0  # an abandoned call could not be saved
        return min(over + extra - time.perf_counter(), interrupts.patience(overrun.interrupted + extra))

    def attempt(
        self, overrun: Overrun, function: Callable[..., R], *arguments: Any, undo: Callable[[R | None], object] = id
    ) -> R:
        """Call a function; raise CallAbandoned if it takes too long: then `undo` is called with its late result."""
        if self.supervisor is None or (self.small and self.left > SMALL_CALL_SECONDS):
            return function(*arguments)
        with interrupts.waiting():
            return self.supervisor.call(lambda: self.patience(overrun), function, *arguments, undo=undo)

    def prepare(self, function: Callable[[Method], R], method: Method) -> R:
        """Call a function before a run; on models that are not large, it is never abandoned."""
        return function(method) if self.medium else self.attempt(STEPPING, function, method)

    def attempt_on(
        self, state: Any, method: Method, overrun: Overrun, function: Callable[..., R], problem: Problem
    ) -> R:
        """Call a function of a method on its state; an abandoned call closes the state when it returns."""
        try:
            return self.attempt(overrun, function, problem, state, undo=lambda late: method.close(problem, state))
        except BaseException:
            if self.supervisor is not None and self.supervisor.abandoned:
                self.lost.append(state)
            raise

    def is_lost(self, state: Any) -> bool:
        """Return whether a state is still used by an abandoned call."""
        return any(state is lost for lost in self.lost)

    def close(self, method: Method, problem: Problem, state: Any) -> None:
        """Close the state of a method, unless an abandoned call will do so."""
        if not self.is_lost(state):
            with suppress(CallAbandoned):
                self.attempt(REPORTING, method.close, problem, state)
