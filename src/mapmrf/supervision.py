"""Calls that can be given up: they run on another thread, while the one that waits sees signals and the clock.

Nothing can stop a kernel, a compiler or a solver from outside without harm. Whoever cannot wait any longer leaves such
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

from mapmrf import interrupts

R = TypeVar("R")

LOOK = 0.1
"""Seconds after which whoever waits looks at the clock again; a signal that the system gives to another thread does not
wake it."""


class GivenUp(Exception):
    """A call took longer than the patience for it."""


class _Errand:
    """A call, its result, and what to do with that if nobody waits any more."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], undo: Callable[[Any], Any]) -> None:
        self.function, self.arguments, self.undo = function, arguments, undo
        self.context = contextvars.copy_context()  # numpy's settings of errors, among others
        self.outbox: SimpleQueue[_Outcome | None] = SimpleQueue()
        self.lock = threading.Lock()
        self.done = self.given_up = False
        self.within = getattr(_thread, "errand", None)

    @property
    def in_vain(self) -> bool:
        """Whether nobody waits for this call, or for the one that it is part of."""
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
        """Leave the call alone, unless it has just ended; whether that was in time."""
        with self.lock:
            self.given_up = not self.done
        return self.given_up


class _Outcome:
    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self.value, self.error = value, error


_thread = threading.local()
"""The errand that a thread is on."""

_left_alone: set[threading.Thread] = set()


class Supervisor:
    """Makes calls on a thread of its own and waits for them, as long as there is patience.

    Parameters
    ----------
    setting
        Makes the context in which the thread works.
    idle
        Called about ten times a second while a call is under way.

    Attributes
    ----------
    gave_up
        Whether the last call was given up.

    Examples
    --------
    >>> import time
    >>> from mapmrf.supervision import GivenUp, Supervisor, wait_for_all
    >>> supervisor = Supervisor()
    >>> supervisor.call(lambda: 1.0, pow, 2, 10)
    1024
    >>> try:
    ...     supervisor.call(lambda: 0.0, time.sleep, 0.3)
    ... except GivenUp:
    ...     print("too long")
    too long
    >>> supervisor.close()
    >>> wait_for_all()
    """

    def __init__(
        self,
        setting: Callable[[], AbstractContextManager[Any]] = nullcontext,
        idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._setting, self._idle = setting, idle
        self._helper: _CallThread | None = None
        self._errand: _Errand | None = None
        self.gave_up = False

    def call(
        self,
        patience: Callable[[], float],
        function: Callable[..., R],
        *arguments: Any,
        undo: Callable[[R | None], object] = id,
    ) -> R:
        """Return what the function returns.

        Parameters
        ----------
        patience
            Seconds that the call may still take; asked again and again.
        undo
            Called on the other thread, with the result or None after an error, if nobody waits when the call ends.

        Raises
        ------
        GivenUp
            When there is no patience left. The call goes on, and the next one has a new thread.
        """
        self.gave_up = False
        self._helper = self._helper or _CallThread(self._setting)
        self._errand = errand = _Errand(function, arguments, undo)
        self._helper.inbox.put(errand)
        try:
            outcome = self._wait(errand, patience)
        except BaseException:  # the handler of a signal raises here
            if errand.give_up():
                self._leave_alone()
            raise
        finally:
            self._errand = None
        if outcome.error is not None:
            try:
                raise outcome.error
            finally:
                del outcome, errand  # or the traceback keeps its own frame alive
        value: R = outcome.value
        return value

    def _wait(self, errand: _Errand, patience: Callable[[], float]) -> _Outcome:
        while True:
            left = patience()
            if left <= 0 and errand.give_up():
                self._leave_alone()
                raise GivenUp
            with suppress(Empty):
                outcome = errand.outbox.get(timeout=max(0.001, min(LOOK, left)))
                if outcome is not None:
                    return outcome
            self._idle()

    def wake(self) -> None:
        """Have the one who waits look at its patience; for handlers of signals."""
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
        """End the thread, unless it was left alone."""
        if self._helper is not None:
            self._helper.inbox.put(None)
            self._helper.thread.join()
            self._helper = None


class _CallThread:
    """A thread that makes one call after another."""

    def __init__(self, setting: Callable[[], AbstractContextManager[Any]]) -> None:
        self.inbox: SimpleQueue[_Errand | None] = SimpleQueue()
        arguments = (self.inbox, setting, getattr(_thread, "errand", None))
        self.thread = threading.Thread(target=_serve, args=arguments, name="mapmrf-call", daemon=True)
        self.thread.start()


def _serve(
    inbox: SimpleQueue[_Errand | None], setting: Callable[[], AbstractContextManager[Any]], within: _Errand | None
) -> None:
    """Do what comes in until there is nothing more to come."""
    with setting():
        while (errand := inbox.get()) is not None:
            errand.run()
            _thread.errand = within
            del errand  # arrays must not live until the next call
    _left_alone.discard(threading.current_thread())


def given_up() -> bool:
    """Whether nobody waits any more for what this thread does: it may raise or return whatever it likes.

    Examples
    --------
    >>> from mapmrf.supervision import given_up
    >>> given_up()
    False
    """
    errand = getattr(_thread, "errand", None)
    return errand is not None and errand.in_vain


def check_awaited() -> None:
    """Raise GivenUp if nobody waits any more for what this thread does: for the pieces of a step that may take long.

    Examples
    --------
    >>> from mapmrf.supervision import check_awaited
    >>> check_awaited()
    """
    if given_up():
        raise GivenUp


interrupts.count_as_interrupt(given_up)


def left_alone() -> int:
    """Number of threads whose call was given up and has not ended yet.

    Examples
    --------
    >>> from mapmrf.supervision import left_alone, wait_for_all
    >>> wait_for_all()
    >>> left_alone()
    0
    """
    return sum(thread.is_alive() for thread in tuple(_left_alone))


@cache
def _wait_at_exit() -> None:
    """Wait when the interpreter ends; registered once, however many calls are given up."""
    atexit.register(wait_for_all)


def wait_for_all() -> None:
    """Wait for calls that were given up: the interpreter must not be taken apart under them."""
    for thread in tuple(_left_alone):
        thread.join()
