"""Storing, finding and compiling machine code: the shipped archive, the user's cache, and a compiler process.

`mapmrf.compilation.jit` combines these for the kernels. Nothing here imports numba before it is needed.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

# -- Stopping the compilation of a run's kernels when the run must end ------------------------------------------------


class CompilingStopped(Exception):
    """A run must end while one of its kernels is still being compiled."""


class CompilingPostponed(CompilingStopped):
    """A run continues without a kernel that takes too long to compile."""


@dataclass
class CompileWatch:
    """Limits that a run sets on the compilation of its kernels."""

    stop: Callable[[], bool]  # polled for whether the run must end
    left: Callable[[], float] = lambda: math.inf  # returns the remaining seconds of the run
    patience: float = math.inf  # share of the remaining time that the run waits for a kernel


_watches: dict[int, CompileWatch] = {}  # watches of the current runs, by thread


@contextmanager
def stoppable(watch: CompileWatch) -> Iterator[None]:
    """Compile the kernels of a run such that it can be stopped meanwhile."""
    thread = threading.get_ident()
    before = _watches.get(thread)
    _watches[thread] = watch
    try:
        yield
    finally:
        if before is None:
            del _watches[thread]
        else:
            _watches[thread] = before


@contextmanager
def patience(share: float) -> Iterator[None]:
    """Wait for a kernel no longer than this share of the remaining time, then raise CompilingPostponed."""
    watch = _watches.get(threading.get_ident())
    if watch is None:
        yield
        return
    before, watch.patience = watch.patience, share
    try:
        yield
    finally:
        watch.patience = before


def watch_of_run() -> CompileWatch | None:
    """Return the watch of this thread's run; threads started by a run share its watch."""
    watch = _watches.get(threading.get_ident())
    if watch is None and threading.current_thread() is not threading.main_thread():
        every = tuple(_watches.values())  # a run may use two threads
        return every[0] if every and all(each is every[0] for each in every) else None
    return watch


# -- A clock for the time that kernels are compiled, or loaded, during a run; and compilations for whom it may concern -


_lock = threading.Lock()

_entered: tuple[CompileClock, ...] = ()
"""The clocks of all threads; replaced, never changed, since other threads are reading it."""


class CompileClock:
    """Seconds that this thread, and any that joins it, spend in numba's compiler while the clock is entered."""

    # `on_begin` is called when a compilation begins.

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
        if threading.get_ident() not in self._threads:
            return
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.perf_counter() - self._began


def begin() -> None:
    """Tell all clocks that this thread enters the compiler or loads machine code; `end` that it leaves."""
    for clock in _entered:
        clock.begin()


def end() -> None:
    for clock in _entered:
        clock.end()


class CompileListener(Protocol):
    """Is told of every compilation, by any thread, here or in another process; loading is not one."""

    def begin(self) -> None: ...

    def end(self) -> None: ...


listeners: list[CompileListener] = []


@contextmanager
def told() -> Iterator[None]:
    """Tell all listeners of a compilation."""
    hearing = tuple(listeners)
    for listener in hearing:
        listener.begin()
    try:
        yield
    finally:
        for listener in hearing:
            listener.end()
