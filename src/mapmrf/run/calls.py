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

LOOK = 0.1
"""Seconds between a waiting caller's checks of the clock: a signal delivered to another thread does not wake it."""


class CallAbandoned(Exception):
    """A call took too long and was abandoned."""


class _Call:
    """A call, its result, and what to do with the result if nobody is waiting for it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], undo: Callable[[Any], Any]) -> None:
        self.function, self.arguments, self.undo = function, arguments, undo
        self.context = contextvars.copy_context()  # includes numpy's error settings
        self.outbox: SimpleQueue[_Outcome | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.done = self.given_up = False
        self.within = getattr(_thread, "errand", None)

    @property
    def in_vain(self) -> bool:
        """Whether this call, or the one that it is part of, was abandoned."""
        return self.given_up or (self.within is not None and self.within.in_vain)

    def run(self) -> None:
        _thread.errand = self
        try:
            outcome = _Outcome(self.context.run(self.function, *self.arguments))
        except BaseException as error:
            outcome = _Outcome(None, error)
        with self.lock:
            self.done = True
        if not self.given_up:
            self.outbox.put(outcome)
        else:
            with suppress(Exception):
                self.undo(outcome.value)

    def give_up(self) -> bool:
        """Abandon the call; return False if it has already ended."""
        with self.lock:
            self.given_up = not self.done
        return self.given_up


class _Outcome:
    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


_thread = threading.local()
"""The current errand of a thread."""

_left_alone: set[threading.Thread] = set()


class Supervisor:
    """Makes calls on a separate thread and waits for them, as long as patience lasts.

    Attributes
    ----------
    gave_up
        Whether the last call was abandoned.
    """

    def __init__(
        self,
        setting: Callable[[], AbstractContextManager[Any]] = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._setting, self._idle = setting, idle
        self._helper: _CallThread | None = None
        self._errand: _Call | None = None
        self.gave_up = False

    def call(
        self,
        patience: Callable[[], float],
        function: Callable[..., R],
        *arguments: Any,
        undo: Callable[[R | None], object] = id,
    ) -> R:
        """Call a function and return its result.

        Raises
        ------
        CallAbandoned
            When patience runs out. The abandoned call continues, and the next one gets a new thread.
        """
        self.gave_up = False
        self._helper = self._helper or _CallThread(self._setting)
        self._errand = errand = _Call(function, arguments, undo)
        self._helper.inbox.put(errand)
        try:
            outcome = self._wait(errand, patience)
        except BaseException:  # a signal handler raises here
            if errand.give_up():
                self._leave_alone()
            raise
        finally:
            self._errand = None
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                del outcome, errand  # otherwise the traceback keeps its own frame alive
        value: R = outcome.value
        return value

    def _wait(self, errand: _Call, patience: Callable[[], float]) -> _Outcome:
        while True:
            left = patience()
            if left <= 0 and errand.give_up():
                self._leave_alone()
                raise CallAbandoned
            with suppress(Empty):
                outcome = errand.outbox.get(timeout=max(0.001, min(LOOK, left)))
                if outcome is not None:
                    return outcome
            self._idle()

    def wake(self) -> None:
        """Make the caller check its patience now; for signal handlers."""
        errand = self._errand
        if errand is not None:
            errand.outbox.put(None)

    def _leave_alone(self) -> None:
        helper, self._helper, self.gave_up = self._helper, None, True
        if helper is not None:
            _wait_at_exit()
            _left_alone.add(helper.thread)
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
        arguments = (self.inbox, setting, getattr(_thread, "errand", None))
        self.thread = threading.Thread(target=_serve, args=arguments, name="mapmrf-call", daemon=True)
        self.thread.start()


def _serve(
    inbox: SimpleQueue[_Call | None], setting: Callable[[], AbstractContextManager[Any]], within: _Call | None
) -> None:
    with setting():
        while (errand := inbox.get()) is not None:
            errand.run()
            _thread.errand = within
            del errand  # do not keep arrays alive until the next call
    _left_alone.discard(threading.current_thread())


def given_up() -> bool:
    """Return whether this thread's call was abandoned, so that its result does not matter."""
    errand = getattr(_thread, "errand", None)
    return errand is not None and errand.in_vain


def check_awaited() -> None:
    """Raise CallAbandoned if this thread's call was abandoned; for use inside steps that may take long."""
    if given_up():
        raise CallAbandoned


interrupts.count_as_interrupt(given_up)


def left_alone() -> int:
    """Number of threads whose abandoned call has not ended yet."""
    return sum(thread.is_alive() for thread in tuple(_left_alone))


@cache
def _wait_at_exit() -> None:
    """Wait at interpreter exit; registered once, however many calls are abandoned."""
    atexit.register(wait_for_all)


def wait_for_all() -> None:
    """Wait for abandoned calls: the interpreter must not shut down while they run."""
    for thread in tuple(_left_alone):
        thread.join()
