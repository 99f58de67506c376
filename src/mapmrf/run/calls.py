"""Calls that can be abandoned: they run on another thread, while the caller watches signals and the clock.

Kernels, compilers and solvers cannot safely be stopped from outside. A caller that cannot wait any longer abandons such
a call to its thread, which drops the result, cleans up and ends as soon as the call returns.
"""

from __future__ import annotations

import atexit
import contextvars
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from mapmrf.run import interrupts

R = TypeVar("R")


class CallAbandoned(Exception):
    """A call took too long and was abandoned."""


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
            outcome = _Outcome(self.context.run(self.function, *self.arguments))
        except BaseException as error:
            outcome = _Outcome(None, error)
        with self.lock:
            self.done = True
        if not self.abandoned:
            self.outbox.put(outcome)
        else:
            with suppress(Exception):
                self.undo(outcome.value)

    def abandon(self) -> bool:
        """Abandon the call; return False if it has already ended."""
        with self.lock:
            self.abandoned = not self.done
        return self.abandoned


class _Outcome:
    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


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
            outcome = self._wait(call, patience)
        except BaseException:  # a signal handler raises here
            if call.abandon():
                self._abandon_thread()
            raise
        finally:
            self._call = None
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                del outcome, call  # otherwise the traceback keeps its own frame alive
        value: R = outcome.value
        return value

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


interrupts.count_as_interrupt(is_abandoned)


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
