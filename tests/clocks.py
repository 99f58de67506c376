"""A clock that tests of time limits turn themselves, and a wait for what other threads and processes do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LIMIT = 1e6
"""A time limit in seconds that passes only where a test lets it pass."""

PATIENCE = 300.0
"""Seconds after which a test takes something for hung; on any machine all of it takes far less."""


class Clock:
    """What `time.perf_counter` shows: the real time, unless the clock is stopped, and what a test has added to it."""

    def __init__(self) -> None:
        self.added = 0.0
        self._real = time.perf_counter

    def __call__(self) -> float:
        return self._real() + self.added

    def stop(self) -> None:
        """Let no time pass but what is added; for limits below `LIMIT`."""
        now = self._real()
        self._real = lambda: now

    def pass_limit(self, *ignored: object) -> None:
        """Let the time limit pass; also a callback of a run."""
        self.added += LIMIT


def solver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mapmrf-solver"]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that other threads or processes do, however long it takes."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "hung"
        time.sleep(0.01)
