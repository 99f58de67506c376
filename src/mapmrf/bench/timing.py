"""Timed runs without compilation: a run in which a kernel was compiled is repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from mapmrf.arrays import Ints
from mapmrf.compilation.process import EVENT
from mapmrf.errors import MapMRFError
from mapmrf.run.result import Result, Status, TracePoint

ATTEMPTS = 4
"""Maximum number of attempts at a run in which nothing is compiled."""
FURTHER = 1.25
"""Length of a preparing run in units of the time limit: a timed one may get a little further than the last."""
LOADING, LEAST_LOADING = 0.02, 0.1
"""Share of the time limit, and seconds, spent on loading kernels above which a run is repeated."""

Callback = Callable[[TracePoint, Ints], bool | None]


class Solve(Protocol):
    """A run under a time limit, with a callback that may end it."""

    def __call__(self, time_limit: float | None, callback: Callback) -> Result:
        """Do the run."""


class RunClock(Protocol):
    """Receives the start of a run's clock, and the start of preparations."""

    def begins(self) -> None:
        """Note the start of a run that will be recorded, unless something is compiled in it."""

    def prepares(self) -> None:
        """Note that something is compiled, and that a run is done only for that."""


class Compilations:
    """Counts compilations for this process, by any thread, here or elsewhere; loading compiled code does not count.

    Attributes
    ----------
    n
        Compilations so far.

    Examples
    --------
    >>> import numba
    >>> from mapmrf.bench.timing import Compilations
    >>> with Compilations() as compiled:
    ...     numba.njit(lambda x: x + 1)(1)
    2
    >>> compiled.n
    1
    """

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.n = 0
        self._on_first = on_first
        self._lock = threading.Lock()
        self._depth = 0
        self._began = self._seconds = 0.0
        self._listener: Any = None

    @property
    def seconds(self) -> float:
        """Seconds in which at least one thread was compiling."""
        with self._lock:
            return self._seconds + (time.perf_counter() - self._began if self._depth else 0.0)

    def __enter__(self) -> Compilations:
        from mapmrf.compilation.toolchain import event, listener

        self._listener = listener(self.begin, self.end)
        for name in (EVENT, "numba:compile"):
            event.register(name, self._listener)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from mapmrf.compilation.toolchain import event

        for name in (EVENT, "numba:compile"):
            event.unregister(name, self._listener)

    def begin(self) -> None:
        """Note that a compilation begins, perhaps inside another one."""
        with self._lock:
            self.n += 1
            self._depth += 1
            if self._depth == 1:
                self._began = time.perf_counter()
            first = self.n == 1
        if first:
            self._on_first()

    def end(self) -> None:
        """Note that a compilation ends."""
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._seconds += time.perf_counter() - self._began


def time_run(solve: Solve, time_limit: float, clock: RunClock) -> tuple[Result, float]:
    """The result of a run in which nothing was compiled, and the seconds before it, which are set-up.

    A method of several phases compiles each when it gets there, so the warm-up does not compile everything. As soon as
    something is compiled, the run ends, and another one, whose time without compiling is limited, compiles everything
    that a run of this length needs. A run that was cut short by loading many kernels is also repeated, once.

    Raises
    ------
    MapMRFError
        If something was compiled in every attempt.
    """
    spent, loaded = 0.0, False
    for _ in range(ATTEMPTS):
        with Compilations(clock.prepares) as compiled:
            clock.begins()
            result = solve(time_limit, lambda point, labels: compiled.n > 0)
        cut_short = result.status is Status.TIME_LIMIT and _loading(result, time_limit) and not loaded
        if compiled.n == 0 and not cut_short:
            return result, spent
        loaded |= cut_short
        spent += result.runtime
        if compiled.n:
            spent += prepare(solve, time_limit)
    raise MapMRFError(f"kernels were compiled in each of {ATTEMPTS} runs, so none could be timed")


def prepare(solve: Solve, time_limit: float) -> float:
    """Run until the time limit, not counting compilation; return the total seconds."""
    with Compilations() as compiled:
        end = FURTHER * time_limit
        return solve(None, lambda point, labels: point.time - compiled.seconds > end).runtime


def _loading(result: Result, time_limit: float) -> bool:
    return result.compile_time > max(LOADING * time_limit, LEAST_LOADING)
