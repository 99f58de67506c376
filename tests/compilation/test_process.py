"""Compiling in another process: it hands code over through the cache, and a run can give it up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from mapmrf.compilation import (
    CompileClock,
    CompileWatch,
    CompilingPostponed,
    CompilingStopped,
    begin,
    end,
    patience,
    process,
    stoppable,
    watch_of_run,
)
from mapmrf.compilation.jit import numba
from mapmrf.compilation.process import CompileProcess, compile_elsewhere


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    process.close()


def test_only_a_run_that_may_go_on_compiles_elsewhere() -> None:
    assert watch_of_run() is None
    assert not compile_elsewhere("mapmrf.compilation.jit.nothing", ())
    with patience(0.5):
        assert watch_of_run() is None
    with stoppable(CompileWatch(lambda: True)), pytest.raises(CompilingStopped):
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
    with stoppable(CompileWatch(lambda: False)):
        assert not compile_elsewhere("mapmrf.compilation.jit.nothing", ())


def test_watches_nest() -> None:
    outer = CompileWatch(lambda: False)
    with stoppable(outer):
        with stoppable(CompileWatch(lambda: True)):
            assert watch_of_run() is not outer
        assert watch_of_run() is outer
    assert watch_of_run() is None


def test_giving_up_ends_the_process() -> None:
    process = CompileProcess()
    began = time.monotonic()
    with pytest.raises(CompilingStopped):
        process.compile("mapmrf.compilation.jit.nothing", (), CompileWatch(lambda: time.monotonic() > began))
    process.close()
    assert not process.alive


def postpone() -> CompileProcess:
    """Have a run go on without its kernel; returns the process that finishes by itself."""
    with stoppable(CompileWatch(lambda: False, left=lambda: 1e-9)), patience(0.5), pytest.raises(CompilingPostponed):
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
    return process._finishing[-1]


def test_a_process_that_a_run_does_not_wait_for_finishes_by_itself_and_nothing_remains() -> None:
    first = postpone()
    assert process._process is None
    first.listener.join()
    assert first.process.returncode == 0  # not a zombie
    assert first.process.stdout is not None and first.process.stdout.closed
    assert process._finishing == [first]
    assert process._finishing == [postpone()]


def test_a_process_that_died_is_replaced() -> None:
    with stoppable(CompileWatch(lambda: False)):
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        first = process._process
        assert first is not None
        first.close()
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        assert process._process is not first


COLD = """
import sys, time, numpy as np, mapmrf
from mapmrf.datasets import grid
from numba.core import event
count = []
class Listener(event.Listener):
    def on_start(self, event): count.append(event)
    def on_end(self, event): pass
event.register("numba:compile", Listener())
{code}
"""


def cold(tmp_path: object, code: str) -> list[str]:
    """What a program prints that begins with an empty kernel cache."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "MAPMRF_KERNELS": "own"}
    command = [sys.executable, "-c", COLD.format(code=code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_a_run_compiles_nothing_in_its_own_process(tmp_path: object) -> None:
    code = "r = mapmrf.solve(grid(4, 4, 1.0, seed=0), 'icm'); print(len(count), r.status.value)"
    assert cold(tmp_path, code) == ["0", "converged"]


@pytest.mark.parametrize(
    ("limit", "status"),
    [("time_limit=0.3", "time_limit"), ("callback=lambda point, labels: point.time > 0.3", "interrupted")],
)
def test_a_cold_run_ends_with_a_labelling_of_known_value(tmp_path: object, limit: str, status: str) -> None:
    code = (
        "graph = grid(150, 150, 1.0, seed=0)\n"
        f"r = mapmrf.solve(graph, 'lslp', {limit})\n"
        "print(len(count), r.status.value, r.value == graph.value(r.labels))"
    )
    assert cold(tmp_path, code) == ["0", status, "True"]


def test_threads_of_a_run_share_its_stop() -> None:
    found = []
    with stoppable(CompileWatch(lambda: False)):
        thread = threading.Thread(target=lambda: found.append(watch_of_run()))
        thread.start()
        thread.join()
        assert found == [watch_of_run()]


# -- the time that compiling takes ------------------------------------------------------------------------------------


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


def test_a_compilation_is_timed_and_announced() -> None:
    begun = []
    with CompileClock() as clock:
        clock.on_begin = lambda: begun.append(True)
        compile_something()
    assert clock.seconds > 0
    assert begun


def test_only_compilations_of_this_thread_under_the_clock_count() -> None:
    with CompileClock() as clock:
        pass
    assert clock.seconds == 0.0
    with CompileClock() as clock:
        pass
    compile_something()
    assert clock.seconds == 0.0
    with CompileClock() as clock:
        thread = threading.Thread(target=compile_something)
        thread.start()
        thread.join()
    assert clock.seconds == 0.0


def test_nested_compilations_count_once() -> None:
    clock = CompileClock()
    begun = []
    clock.on_begin = lambda: begun.append(True)
    clock.begin()
    clock.begin()
    clock.end()
    assert clock.seconds == 0.0
    clock.end()
    assert clock.seconds > 0.0
    assert len(begun) == 1


def test_numba_may_be_imported_while_the_clock_runs() -> None:
    code = """
import sys
from mapmrf.compilation import CompileClock
with CompileClock() as clock:
    assert "numba" not in sys.modules
    from mapmrf.compilation.jit import numba
    numba.njit(lambda x: x + 1)(1)
assert clock.seconds > 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_clocks_of_other_threads_come_and_go_during_a_compilation() -> None:
    """A clock that missed the end of a compilation would be running for ever."""
    ended = threading.Event()

    def others() -> None:
        while not ended.is_set():
            with CompileClock(), CompileClock():
                pass

    thread = threading.Thread(target=others)
    thread.start()
    with CompileClock() as clock:
        for _ in range(20_000):
            begin()
            assert clock.running
            end()
            assert not clock.running
    ended.set()
    thread.join()
