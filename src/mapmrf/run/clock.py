"""The clock of a run: when it must end, and calls that are abandoned when the time is up or the user interrupts."""

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
from mapmrf.model.memory import MemoryWatch
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts
from mapmrf.run.calls import CallAbandoned, Supervisor
from mapmrf.run.method import Method

R = TypeVar("R")


class Overrun(NamedTuple):
    """How long a call may continue when the time is up."""

    # seconds, share: seconds after the time limit, and share of the limit on top
    seconds: float
    share: float
    interrupted: float  # extra seconds after an interrupt, on top of those that every call has; none after a second one


STEPPING, ANSWERING, REPORTING = Overrun(0.05, 0.005, 0.0), Overrun(0.1, 0.01, 0.25), Overrun(0.13, 0.015, 0.5)


class Clock:
    """When a run must end: its deadline, signals, memory, and whether a listener has cancelled it."""

    # `solve` makes one and hands it down. Calls that may take too long are made by `attempt`.

    def __init__(self, began: float, time_limit: float | None, memory: float = math.inf) -> None:
        self.began = began  # in a resumed run, less what was spent before
        self.limit = math.inf if time_limit is None else time_limit
        self.deadline = began + self.limit
        self.memory = MemoryWatch(memory)
        self.signals = interrupts.Interrupts(listener=self.wake)
        self.cancelled = False
        self.ask: Callable[[], object] = lambda: None  # asks the listeners while a kernel is compiled
        self.compiling = CompileClock()
        self.watch = CompileWatch(self.must_stop, lambda: self.left)
        self.thread = threading.get_ident()
        self.supervisor: Supervisor | None = None
        self.small = self.medium = False
        self.saves = False  # whether the run is saved when it is cut short
        self.lost: list[Any] = []  # states that abandoned calls still use

    @property
    def left(self) -> float:
        return self.deadline - time.perf_counter()

    def must_stop(self) -> bool:
        """Return whether the run must end now; called from any of its threads while a kernel is compiled."""
        if threading.get_ident() == self.thread:
            self.ask()
        return self.cancelled or self.left <= 0 or interrupts.requested()

    @contextmanager
    def supervising(self, graph: FactorGraph) -> Iterator[None]:
        """Watch signals, and make calls on another thread inside this context, unless the model is small."""
        size = math.inf
        if graph.constraints is None:  # a shared table costs a method time once per factor
            n_configs = int(np.diff(graph.table_ptr)[graph.table_of].sum())
            size = graph.n_vars + graph.n_edges + n_configs
        # Up to these sizes, no call takes long enough to be abandoned: before a run, in one without a time limit, and
        # in one with a limit, as some methods have steps of a second on models that are not much larger.
        self.medium, self.small, tiny = size <= 200_000, size <= 50_000, size <= 10_000
        with self.signals:
            if self.small and (self.limit == math.inf or tiny):
                yield
                return
            self.supervisor = Supervisor(self._setting, self._idle)
            try:
                with nullcontext() if self.small else interrupts.waiting():
                    yield
            finally:
                self.supervisor.close()

    @contextmanager
    def _setting(self) -> Iterator[None]:
        """The context of the other thread, which compiles for this run."""
        self.compiling.join()
        with stoppable(self.watch):
            yield

    def _idle(self) -> None:
        """Called while the run waits for the other thread."""
        if self.compiling.running:
            self.ask()

    def wake(self) -> None:
        """Called by the handler of signals."""
        if self.supervisor is not None:
            self.supervisor.wake()

    def patience(self, overrun: Overrun) -> float:
        over = self.deadline + overrun.seconds + (overrun.share * self.limit if self.limit < math.inf else 0.0)
        extra = 5.0 if self.saves else 0.0  # an abandoned call could not be saved
        return min(over + extra - time.perf_counter(), interrupts.patience(overrun.interrupted + extra))

    def attempt(
        self, overrun: Overrun, function: Callable[..., R], *arguments: Any, undo: Callable[[R | None], object] = id
    ) -> R:
        """Call a function; raise CallAbandoned if it takes too long: then `undo` is called with its late result."""
        enough = 3.0  # seconds for any call on a small model
        if self.supervisor is None or (self.small and self.left > enough):
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
