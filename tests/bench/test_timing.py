"""Timed runs contain no compilation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import pytest

from mapmrf.bench.worker import ATTEMPTS, Callback, Compilations, time_run
from mapmrf.errors import MapMRFError
from mapmrf.run.result import Result, Status, TracePoint


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


class Runs:
    """Runs of a method: in each something is done, and the callback is asked a second and an hour later."""

    def __init__(self, *deeds: Callable[[], None], status: Status = Status.TIME_LIMIT, compile_time: float = 0.0):
        self.deeds, self.status, self.compile_time = list(deeds), status, compile_time
        self.limits: list[float | None] = []
        self.ended: list[float] = []

    def __call__(self, time_limit: float | None, callback: Callback) -> Result:
        self.limits.append(time_limit)
        if self.deeds:
            self.deeds.pop(0)()
        labels = np.zeros(1, dtype=np.int64)
        times = (1.0, 3600.0)
        self.ended.append(next((t for t in times if callback(TracePoint(t, 1, 0.0, None), labels)), 0.0))
        return Result(labels, 0.0, self.status, "icm", compile_time=self.compile_time, runtime=40.0)


def test_a_run_without_compilations_is_kept() -> None:
    runs, told = Runs(), []
    result, spent = time_run(runs, 5.0, told.append)
    assert (runs.limits, runs.ended, told, spent) == ([5.0], [0.0], ["begins"], 0.0)
    assert result.runtime == 40.0


@pytest.mark.parametrize("status", [Status.TIME_LIMIT, Status.OPTIMAL])
def test_a_run_that_compiles_is_ended_prepared_for_and_made_again(status: Status) -> None:
    runs, told = Runs(compile_something, compile_something, status=status), []
    _, spent = time_run(runs, 5.0, told.append)
    assert runs.limits == [5.0, None, 5.0]  # the second compiles without a limit
    assert runs.ended == [1.0, 3600.0, 0.0]  # and ends when it has run for longer than that
    assert told == ["begins", "prepares", "begins"]
    assert spent == 80.0


def test_a_compilation_in_another_thread_counts() -> None:
    def elsewhere() -> None:
        thread = threading.Thread(target=compile_something)
        thread.start()
        thread.join()

    runs = Runs(elsewhere)
    time_run(runs, 5.0, print)
    assert runs.limits == [5.0, None, 5.0]


def test_a_run_that_always_compiles_is_given_up() -> None:
    runs = Runs(*[compile_something] * 20)
    with pytest.raises(MapMRFError, match=f"compiled in each of {ATTEMPTS} runs"):
        time_run(runs, 5.0, print)
    assert runs.limits == [5.0, None] * ATTEMPTS


@pytest.mark.parametrize(
    ("compile_time", "status", "attempts"),
    [
        (1.0, Status.TIME_LIMIT, 2),  # perhaps the model itself takes so long
        (1.0, Status.CONVERGED, 1),  # not cut short
        (0.05, Status.TIME_LIMIT, 1),
    ],
)
def test_a_run_cut_short_by_loading_is_made_again_once(compile_time: float, status: Status, attempts: int) -> None:
    runs = Runs(status=status, compile_time=compile_time)
    _, spent = time_run(runs, 5.0, print)
    assert runs.limits == [5.0] * attempts
    assert spent == 40.0 * (attempts - 1)


def test_compilations_inside_others_count_but_their_seconds_do_not() -> None:
    compiled = Compilations()
    compiled.begin()
    compiled.begin()
    compiled.end()
    inner = compiled.seconds
    compiled.end()
    whole = compiled.seconds
    assert compiled.n == 2
    assert compiled.seconds == whole > inner > 0.0


CACHED = """
import numba
from mapmrf.bench.worker import Compilations

@numba.njit(cache=True)
def kernel(x):
    return x + 1

with Compilations() as compiled:
    kernel(1)
print(compiled.n)
"""


def test_loading_compiled_code_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CACHED)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "cached.py")]
    said = [subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(2)]
    assert said == [b"1\n", b"0\n"]
