"""What the loop must know of numba: how long it compiles (or loads) kernels."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any


class CompileClock:
    """Seconds that this thread, and any that joins it, spent in numba's compiler while the clock was entered.

    `on_begin` is called when a compilation begins. Does nothing as long as numba is not imported: a method that needs
    it has imported it before it runs.
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
        """Count what this thread compiles, too; never two threads at a time."""
        self._threads.add(threading.get_ident())

    @property
    def running(self) -> bool:
        """Whether something is being compiled now."""
        return self._depth > 0

    def begin(self) -> None:
        """Note that a compilation begins on a thread of the run; nested ones are part of the outermost."""
        if threading.get_ident() not in self._threads:
            return
        if self._depth == 0:
            self._began = time.perf_counter()
            if self.on_begin is not None:
                self.on_begin()
        self._depth += 1

    def end(self) -> None:
        """Note that a compilation ends."""
        if threading.get_ident() not in self._threads:
            return
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began


def events() -> Any:
    """Numba's event module, which carries no types."""
    from numba.core import event

    return event


def listener(begin: Callable[[], None], end: Callable[[], None]) -> Any:
    """A listener to numba's events that calls two functions."""
    base: Any = events().Listener

    class CompileListener(base):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            begin()

        def on_end(self, event: Any) -> None:
            end()

    return CompileListener()
