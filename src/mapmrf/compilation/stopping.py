"""How a run that must end tells those who compile its kernels."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class CompilingStopped(Exception):
    """A run must end, and a kernel that it wants is still being compiled."""


class CompilingPostponed(CompilingStopped):
    """A run goes on without a kernel that takes too long to be compiled."""


@dataclass
class CompileWatch:
    """How a run watches over the compilation of its kernels.

    Attributes
    ----------
    stop
        Asked again and again whether the run must end.
    left
        Seconds that the run has left.
    patience
        Share of these that it waits for a kernel.
    """

    stop: Callable[[], bool]
    left: Callable[[], float] = lambda: math.inf
    patience: float = math.inf


_watches: dict[int, CompileWatch] = {}
"""Those of the runs under way, by thread."""


@contextmanager
def stoppable(watch: CompileWatch) -> Iterator[None]:
    """Compile the kernels of a run where that can be given up."""
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
    """Wait for a kernel no longer than this share of the time that the run has left, then raise CompilingPostponed."""
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
    """The watch of the run of this thread; threads that a run has started have that of the run."""
    watch = _watches.get(threading.get_ident())
    if watch is None and threading.current_thread() is not threading.main_thread():
        every = tuple(_watches.values())  # a run may have two threads of its own
        return every[0] if every and all(each is every[0] for each in every) else None
    return watch
