"""Compiling in another process: it hands code over through the cache, and a run can give it up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clocks import wait_until
from mapmrf.compilation import (
    CompileClock,
    CompileWatch,
    CompilingStopped,
    begin,
    end,
    patience,
    process,
    stoppable,
    watch_of_run,
)
from mapmrf.compilation.compiler import numba
from mapmrf.compilation.process import compile_elsewhere


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    for each in tuple(process._processes):
        each.kill()
    process._processes.clear()


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


SLOW = """
import time
from mapmrf.compilation.jit import compiled, when_compiling

when_compiling.append(lambda: time.sleep(1.0))

@compiled
def slow(x):
    return x + 1
"""


def test_a_kernel_that_a_run_does_not_wait_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process finishes the kernel, even after the program has ended; meanwhile, nobody compiles it again."""
    (tmp_path / "slow_kernel.py").write_text(SLOW)
    code = (
        "import slow_kernel; from mapmrf.compilation import *; from mapmrf.compilation import process\n"
        "watch = CompileWatch(lambda: False, left=lambda: 1e-9)\n"
        "for patient in (0.5, 0.5, {last}):\n"
        "    try:\n"
        "        with stoppable(watch), patience(patient): print(slow_kernel.slow(1))\n"
        "    except CompilingPostponed: print(len(process._processes))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)}

    def said(last: str) -> list[str]:
        command = [sys.executable, "-c", code.format(last=last)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert said("0.5") == ["1", "1", "1"]
    wait_until(lambda: list((tmp_path / "cache").rglob("slow-*.kernel")))
    assert said("0.5") == ["2", "2", "2"]
    assert len(list((tmp_path / "cache").rglob("slow-*.kernel"))) == 1


def test_a_process_that_died_is_replaced_and_one_that_is_busy_left_alone() -> None:
    with stoppable(CompileWatch(lambda: False)):
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        (first,) = process._processes
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        assert process._processes == [first]
        first.kill()
        assert first.process.returncode is not None and first.process.stdout is not None and first.process.stdout.closed
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        (second,) = process._processes
        assert second is not first
        second.request = ("another", ())
        compile_elsewhere("mapmrf.compilation.jit.nothing", ())
        assert len(process._processes) == 2


COLD = """
import sys, time, numpy as np, mapmrf
from mapmrf.datasets import grid
{code}
"""


def cold(tmp_path: object, code: str) -> list[str]:
    """What a program prints that begins with an empty kernel cache."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "MAPMRF_KERNELS": "own"}
    command = [sys.executable, "-c", COLD.format(code=code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_a_run_compiles_nothing_in_its_own_process(tmp_path: object) -> None:
    code = "r = mapmrf.solve(grid(4, 4, 1.0, seed=0), 'icm'); print('numba' in sys.modules, r.status.value)"
    assert cold(tmp_path, code) == ["False", "converged"]


@pytest.mark.parametrize(
    ("limit", "status"),
    [("time_limit=0.3", "time_limit"), ("callback=lambda point, labels: point.time > 0.3", "interrupted")],
)
def test_a_cold_run_ends_with_a_labelling_of_known_value(tmp_path: object, limit: str, status: str) -> None:
    code = (
        "graph = grid(150, 150, 1.0, seed=0)\n"
        f"r = mapmrf.solve(graph, 'lslp', {limit})\n"
        "print('numba' in sys.modules, r.status.value, r.value == graph.value(r.labels))"
    )
    assert cold(tmp_path, code) == ["False", status, "True"]


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
    from mapmrf.compilation.compiler import numba
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
