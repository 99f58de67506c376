"""The clock of a run: when it must end, and calls that are abandoned when the time is up or the user interrupts."""

from __future__ import annotations

import atexit
import contextvars
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from mapmrf.compilation import CompileClock, CompileWatch, stoppable
from mapmrf.model.memory import MemoryWatch
from mapmrf.run import interrupts

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph
    from mapmrf.model.problem import Problem
    from mapmrf.run.method import Method

REPAIR_SECONDS = 1.0
"""Seconds after the time limit in which a run without a labelling of finite value may still look for one."""

R = TypeVar("R")


Overrun = tuple[float, float, float]
"""How long a call may continue when the time is up: seconds after the time limit, a share of the limit on top, and
seconds after an interrupt, besides those that every call has; none after a second one."""

STEPPING, ANSWERING, REPORTING = (0.05, 0.005, 0.0), (0.1, 0.01, 0.25), (0.13, 0.015, 0.5)


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
            n_configs = int((graph.table_ptr[1:] - graph.table_ptr[:-1])[graph.table_of].sum())
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
                with nullcontext() if self.small else interrupts.reacting("wait"):
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
        seconds, share, interrupted = overrun
        over = self.deadline + seconds + (share * self.limit if self.limit < math.inf else 0.0)
        extra = 5.0 if self.saves else 0.0  # an abandoned call could not be saved
        return min(over + extra - time.perf_counter(), interrupts.patience(interrupted + extra))

    def attempt(
        self, overrun: Overrun, function: Callable[..., R], *arguments: Any, undo: Callable[[R | None], object] = id
    ) -> R:
        """Call a function; raise CallAbandoned if it takes too long: then `undo` is called with its late result."""
        enough = 3.0  # seconds for any call on a small model
        if self.supervisor is None or (self.small and self.left > enough):
            return function(*arguments)
        with interrupts.reacting("wait"):
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


# -- Calls that can be abandoned: they run on another thread, while the caller watches signals and the clock ----------
# Kernels, compilers and solvers cannot safely be stopped from outside. A caller that cannot wait any longer abandons
# such a call to its thread, which drops the result, cleans up and ends as soon as the call returns.


class CallAbandoned(Exception):
    """A call took too long and was abandoned."""


_Outcome = tuple[Any, BaseException | None]  # the value of a call, or its error


class _Call:
    """A call, its result, and what to do with the result if nobody is waiting for it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], undo: Callable[[Any], Any]) -> None:
        self.function, self.arguments, self.undo = function, arguments, undo
        self.context = contextvars.copy_context()  # includes numpy's error settings
        self.outbox: SimpleQueue[_Outcome | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.done = self.abandoned = False
        self.within = getattr(_thread, "call", None)

    def is_abandoned(self) -> bool:
        """Return whether this call, or the one that it is part of, was abandoned."""
        return self.abandoned or (self.within is not None and self.within.is_abandoned())

    def run(self) -> None:
        _thread.call = self
        try:
            outcome: _Outcome = self.context.run(self.function, *self.arguments), None
        except BaseException as error:
            outcome = None, error
        with self.lock:
            self.done = True
        if not self.abandoned:
            self.outbox.put(outcome)
        else:
            with suppress(Exception):
                self.undo(outcome[0])

    def abandon(self) -> bool:
        """Abandon the call; return False if it has already ended."""
        with self.lock:
            self.abandoned = not self.done
        return self.abandoned


_thread = threading.local()  # its `call` is the current one of a thread

_abandoned: set[threading.Thread] = set()


class Supervisor:
    """Makes calls on a separate thread, in the context `setting()`, and waits for them as long as patience lasts."""

    # `idle` is called about ten times per second during a call.

    def __init__(
        self, setting: Callable[[], AbstractContextManager[Any]] = nullcontext, idle: Callable[[], None] = lambda: None
    ) -> None:
        self._setting, self._idle = setting, idle
        self._helper: _CallThread | None = None
        self._call: _Call | None = None
        self.abandoned = False  # whether the last call was

    def call(
        self,
        patience: Callable[[], float],
        function: Callable[..., R],
        *arguments: Any,
        undo: Callable[[R | None], object] = id,
    ) -> R:
        """Call a function and return its result; raise CallAbandoned when `patience()` has no seconds left."""
        # An abandoned call continues, and the next one gets a new thread. `undo` is called on the other thread with the
        # late result, or None after an error.
        self.abandoned = False
        self._helper = self._helper or _CallThread(self._setting)
        self._call = call = _Call(function, arguments, undo)
        self._helper.inbox.put(call)
        try:
            value, error = self._wait(call, patience)
        except BaseException:  # a signal handler raises here
            if call.abandon():
                self._abandon_thread()
            raise
        finally:
            self._call = None
        if error is not None:
            try:
                raise error
            finally:
                del error, call  # otherwise the traceback keeps its own frame alive
        found: R = value
        return found

    def _wait(self, call: _Call, patience: Callable[[], float]) -> _Outcome:
        look = 0.1  # seconds between two checks: a signal delivered to another thread does not wake this one
        while True:
            left = patience()
            if left <= 0 and call.abandon():
                self._abandon_thread()
                raise CallAbandoned
            with suppress(Empty):
                outcome = call.outbox.get(timeout=max(0.001, min(look, left)))
                if outcome is not None:
                    return outcome
            self._idle()

    def wake(self) -> None:
        """Make the caller check its patience now; for signal handlers."""
        call = self._call
        if call is not None:
            call.outbox.put(None)

    def _abandon_thread(self) -> None:
        helper, self._helper, self.abandoned = self._helper, None, True
        if helper is not None:
            _wait_at_exit()
            _abandoned.add(helper.thread)
            helper.inbox.put(None)

    def close(self) -> None:
        """End the thread, unless its call was abandoned."""
        if self._helper is not None:
            self._helper.inbox.put(None)
            self._helper.thread.join()
            self._helper = None


class _CallThread:
    """A thread that makes one call after another."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self.inbox: SimpleQueue[_Call | None] = SimpleQueue()
        arguments = (self.inbox, setting, getattr(_thread, "call", None))
        self.thread = threading.Thread(target=_serve, args=arguments, name="mapmrf-call", daemon=True)
        self.thread.start()


def _serve(
    inbox: SimpleQueue[_Call | None], setting: Callable[[], AbstractContextManager[Any]], within: _Call | None
) -> None:
    with setting():
        while (call := inbox.get()) is not None:
            call.run()
            _thread.call = within
            del call  # do not keep arrays alive until the next call
    _abandoned.discard(threading.current_thread())


def is_abandoned() -> bool:
    """Return whether this thread's call was abandoned, so that its result does not matter."""
    call = getattr(_thread, "call", None)
    return call is not None and call.is_abandoned()


def check_awaited() -> None:
    """Raise CallAbandoned if this thread's call was abandoned; for use inside steps that may take long."""
    if is_abandoned():
        raise CallAbandoned


interrupts.signs.append(is_abandoned)


def n_abandoned() -> int:
    """Number of threads whose abandoned call has not ended yet."""
    return sum(thread.is_alive() for thread in tuple(_abandoned))


@cache
def _wait_at_exit() -> None:
    """Wait at interpreter exit; registered once, however many calls are abandoned."""
    atexit.register(wait_for_all)


def wait_for_all() -> None:
    """Wait for abandoned calls: the interpreter must not shut down while they run."""
    for thread in tuple(_abandoned):
        thread.join()
