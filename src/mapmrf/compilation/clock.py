"""A clock for the time that numba spends compiling (or loading) kernels during a run."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class CompileClock:
    """Seconds that this thread, and any that joins it, spend in numba's compiler while the clock is entered.

    `on_begin` is called when a compilation begins. The clock does nothing if numba has not been imported: a method that
    needs it imports it before it runs.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.on_begin: Callable[[], None] | None = None
        self._threads = {threading.get_ident()}
        self._depth = 0
        self._began = 0.0
        self._listener: Any = None

    def __enter__(self) -> CompileClock:
        if "numba" in sys.modules:
            self._listener = listener(self.begin, self.end)
            events().register("numba:compiler_lock", self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            events().unregister("numba:compiler_lock", self._listener)

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


def events() -> Any:
    """Return numba's event module, which is untyped."""
    from numba.core import event

    return event


def listener(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    """Return a listener to numba's events that calls two functions."""
    base: Any = events().Listener

    class CompileListener(base):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            begin()

        def on_end(self, event: Any) -> None:
            end()

    return CompileListener()
