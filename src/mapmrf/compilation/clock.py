"""A clock for the time that numba spends compiling (or loading) kernels during a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

_lock = threading.Lock()
_entered: tuple[CompileClock, ...] = ()
"""The clocks of all threads; replaced, never changed, since other threads are reading it."""


class CompileClock:
    """Seconds that this thread, and any that joins it, spend in numba's compiler while the clock is entered.

    `on_begin` is called when a compilation begins.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.on_begin: Callable[[], None] | None = None
        self._threads = {threading.get_ident()}
        self._depth = 0
        self._began = 0.0

    def __enter__(self) -> CompileClock:
        global _entered
        with _lock:
            _entered = (*_entered, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _entered
        with _lock:
            _entered = tuple(clock for clock in _entered if clock is not self)

    def join(self) -> None:
        """Count compilations of this thread, too; never two threads at a time."""
        self._threads.add(threading.get_ident())

    @property
    def running(self) -> bool:
        """Whether a compilation is in progress."""
        return self._depth > 0

    def begin(self) -> None:
        """Start counting if this thread belongs to the run; nested compilations are part of the outermost one."""
        if threading.get_ident() not in self._threads:
            return
        if self._depth == 0:
            self._began = time.perf_counter()
            if self.on_begin is not None:
                self.on_begin()
        self._depth += 1

    def end(self) -> None:
        """Stop counting."""
        if threading.get_ident() not in self._threads:
            return
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began


def begin() -> None:
    """Tell all clocks that this thread enters the compiler."""
    for clock in _entered:
        clock.begin()


def end() -> None:
    """Tell all clocks that this thread leaves the compiler."""
    for clock in _entered:
        clock.end()
