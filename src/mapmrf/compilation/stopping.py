"""Interrupting the compilation of a run's kernels when the run must end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class CompilingStopped(Exception):
    """A run must end while one of its kernels is still being compiled."""


class CompilingPostponed(CompilingStopped):
    """A run continues without a kernel that takes too long to compile."""


@dataclass
class CompileWatch:
    """Limits that a run sets on the compilation of its kernels.

    Attributes
    ----------
    stop
        Polled for whether the run must end.
    left
        Returns the remaining seconds of the run.
    patience
        Share of the remaining time that the run waits for a kernel.
    """

    stop: Callable[[], bool]
    left: Callable[[], float] = lambda: math.inf
    patience: float = math.inf


_watches: dict[int, CompileWatch] = {}
"""Watches of the current runs, by thread."""


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
