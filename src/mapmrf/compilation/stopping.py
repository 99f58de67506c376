"""How a run that must end tells those who compile its kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CompilingStopped(Exception):
    """A run must end, and a kernel that it wants is still being compiled."""


_stops: dict[int, Callable[[], bool]] = {}
"""What tells the runs under way that they must end, by thread."""


@contextmanager
def stoppable(stop: Callable[[], bool]) -> Iterator[None]:
    """Compile the kernels of a run where that can be given up; `stop` is asked again and again whether it must be."""
    thread = threading.get_ident()
    before = _stops.get(thread)
    _stops[thread] = stop
    try:
        yield
    finally:
        if before is None:
            del _stops[thread]
        else:
            _stops[thread] = before


def stop_of_run() -> Callable[[], bool] | None:
    """What tells the run of this thread that it must end; threads that a run has started have that of the run."""
    stop = _stops.get(threading.get_ident())
    if stop is None and len(_stops) == 1 and threading.current_thread() is not threading.main_thread():
        return next(iter(_stops.values()), None)
    return stop
