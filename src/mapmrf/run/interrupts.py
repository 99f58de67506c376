"""Ctrl-C and SIGTERM as a flag that runs check: nothing is raised inside a kernel, a compiler or a solver."""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Literal, NoReturn

PATIENCE = 2.0
"""Seconds after which another signal is raised although the run has reacted to the first, since it seems to hang."""

REACTION = 0.5  # seconds that the current operation has to finish after the first signal

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Handlers that may be replaced; a user's own handler stays."""

Reaction = Literal["wait", "raise", "leave"]


class _SignalFlag:
    """Signals received since the outermost context was entered."""

    def __init__(self, signals: Sequence[signal.Signals]) -> None:
        self.number = self.count = 0  # of the first signal, and of signals
        self.raised = self.noticed = False
        self.reactions: Counter[Reaction] = Counter()  # the contexts `reacting` that the main thread is in
        self.listeners: list[Callable[[], None]] = []
        self._first = 0.0
        self._before = {which: signal.getsignal(which) for which in signals}
        for which in signals:
            signal.signal(which, self._handle)

    def restore(self, *, ignored: bool = False) -> None:
        for which, before in self._before.items():
            signal.signal(which, signal.SIG_IGN if ignored else before)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._first

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self is process.flag and process.exit_code is not None:
            os._exit(128 + number)  # everything is written, but some thread keeps the interpreter alive
        if self.reactions["leave"]:
            _leave_at_once(number)
        if self.number == 0:
            self.number, self._first = number, time.monotonic()
        self.count += 1
        for listener in tuple(self.listeners):
            listener()
        calm = self.noticed or self.reactions["wait"] > 0 or self is process.flag
        impatient = self.count > 1 and (not calm or self.seconds > PATIENCE)
        if self.reactions["raise"] or impatient:
            self.raised, self.reactions["raise"] = True, 0
            raise KeyboardInterrupt


_flag: _SignalFlag | None = None
signs: list[Callable[[], bool]] = []
"""Further signs that runs must end, besides signals."""


class Interrupts:
    """While this context is entered in the main thread, Ctrl-C only sets a flag."""

    # Replaces Python's default handlers until the outermost context is left; contexts inside it share its flag. A
    # second signal raises KeyboardInterrupt, unless the run has called `notice` in the meantime. Does nothing in other
    # threads, or if the user has installed a handler.

    def __init__(self, *signals: signal.Signals, listener: Callable[[], None] | None = None) -> None:
        self._signals = signals or (signal.SIGINT,)
        self._listener = listener
        self._flag: _SignalFlag | None = None
        self._outermost = False

    def __enter__(self) -> Interrupts:
        global _flag
        if _flag is None and _in_main_thread():
            free = [which for which in self._signals if signal.getsignal(which) == DEFAULTS[which]]
            if free:
                _flag = _SignalFlag(free)
                self._outermost = True
        self._flag = _flag
        if self._flag is not None and self._listener is not None:
            self._flag.listeners.append(self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _flag
        if self._flag is None:
            return
        if self._listener is not None:
            self._flag.listeners.remove(self._listener)
        if self._outermost:
            self._flag.restore()
            _flag = None

    @property
    def number(self) -> int:
        return 0 if self._flag is None else self._flag.number

    @property
    def requested(self) -> bool:
        return self.number != 0

    @property
    def raised(self) -> bool:
        """Whether a signal was raised as KeyboardInterrupt, wherever it was raised and however it was handled."""
        return self._flag is not None and self._flag.raised


def requested() -> bool:
    """Return whether the run must end: a signal arrived while a context is active. May be called from any thread."""
    flag = _flag
    return (flag is not None and flag.number != 0) or any(other() for other in signs)


def patience(extra: float = 0.0) -> float:
    """Seconds that the current operation may still take: inf without a signal, 0 after a second one."""
    flag = _flag
    if flag is None or flag.number == 0:
        return math.inf
    return 0.0 if flag.count > 1 else REACTION + extra - flag.seconds


def check() -> None:
    """Raise KeyboardInterrupt if a signal has arrived: for use where that does no harm."""
    if requested():
        raise KeyboardInterrupt


def notice() -> None:
    """Record that the run in the main thread is about to end: another signal must not disturb it."""
    if _flag is not None and _in_main_thread():
        _flag.noticed = True


@contextmanager
def reacting(how: Reaction) -> Iterator[None]:
    """React to a signal in the main thread otherwise than by the flag alone."""
    # wait: raise nothing, even at a second signal, since the main thread waits for calls that it can abandon.
    # raise: raise KeyboardInterrupt immediately, for files and downloads, where only Python code runs.
    # leave: end the program immediately, since nothing can be lost yet; the same as raise where there is no program.
    flag = _flag if _in_main_thread() else None
    if how == "leave" and (flag is None or flag is not process.flag):
        how = "raise"
    if how == "raise":
        check()
    if flag is None:
        yield
        return
    flag.reactions[how] += 1
    try:
        if how == "leave" and flag.number:
            _leave_at_once(flag.number)
        yield
    finally:
        flag.reactions[how] = max(0, flag.reactions[how] - 1)


class GuardedProcess:
    """The process of a program, in which signals are handled from its start to its end."""

    def __init__(self) -> None:
        self.flag: _SignalFlag | None = None  # None in a process that is not guarded
        self.exit_code: int | None = None
        self._exit: Callable[[int], object] = os._exit

    def guard(self, first: Callable[[int, Any], None] | None = None) -> None:
        """Handle SIGINT and SIGTERM until the process ends; before anything heavy is imported."""
        # Until `begin_work`, a signal ends the program immediately.
        global _flag
        free = [which for which, default in DEFAULTS.items() if signal.getsignal(which) in (default, first)]
        if _flag is not None or not free or not _in_main_thread():
            return
        _flag = self.flag = _SignalFlag(free)
        self.flag.reactions["leave"] = 1
        atexit.register(self._end)  # registered first, so called last
        hook = sys.unraisablehook

        def quiet(unraisable: Any) -> None:
            """Suppress Python's message about an exception that it cannot propagate: that the flag is set is enough."""
            if not issubclass(unraisable.exc_type, KeyboardInterrupt):
                hook(unraisable)

        sys.unraisablehook = quiet

    def begin_work(self) -> None:
        """Let signals set the flag from now on."""
        if self.flag is not None:
            self.flag.reactions["leave"] = 0

    @contextmanager
    def ending_within(self, seconds: float) -> Iterator[None]:
        """Leave a guarded process that is still inside this context this many seconds after its first signal."""
        flag = self.flag
        if flag is None or flag is not _flag:
            yield
            return
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(0.2):
                if flag.number and flag.seconds > seconds:
                    _leave_at_once(flag.number)

        watcher = threading.Thread(target=watch, name="mapmrf-signals", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()

    def end_work(self, code: int) -> None:
        """Record that the program has done its work: another signal ends a guarded process immediately."""
        if self.flag is not None:
            self.exit_code = code

    def leave_after_work(self) -> None:
        """End a guarded process whose work has ended, without waiting for its threads, which may run for long."""
        if self.flag is not None and self.exit_code is not None and threading.active_count() > 1:
            self.flag.restore(ignored=True)
            self._flush_and_exit(self.exit_code)

    def run_exit_handlers(self) -> None:
        """Run the exit handlers of C libraries even if threads are left behind: MPICH signs off in one."""
        if os.name == "posix":
            import ctypes

            self._exit = ctypes.PyDLL(None).exit  # holds the GIL, so that no other thread runs meanwhile

    def _end(self) -> None:
        """Set the exit code of the program when everything else is done."""
        # Python restores the system's handlers before it shuts down: a signal would then kill it. And after a
        # KeyboardInterrupt that passed through `exec`, as in the definition of a dataclass, it kills itself by SIGINT,
        # even if that was handled.
        assert self.flag is not None
        self.flag.restore(ignored=True)
        if self.flag.raised and self.exit_code is not None:
            self._flush_and_exit(self.exit_code)

    def _flush_and_exit(self, code: int) -> NoReturn:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        self._exit(code)
        os._exit(code)


process = GuardedProcess()


def _leave_at_once(number: int) -> NoReturn:
    """End the program with the exit code of a signal; nothing has been printed or written yet."""
    with suppress(OSError):
        os.write(2, b"mapmrf: interrupted\n")
    os._exit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
