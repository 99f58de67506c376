"""CompileClock: the time that numba spends compiling on this thread."""

import subprocess
import sys
import threading

from mapmrf.compilation.stopping import CompileClock, begin, end
from mapmrf.compilation.toolchain import numba


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


def test_a_compilation_is_timed_and_announced() -> None:
    begun = []
    with CompileClock() as clock:
        clock.on_begin = lambda: begun.append(True)
        compile_something()
    assert clock.seconds > 0
    assert begun


def test_nothing_compiled_takes_no_time() -> None:
    with CompileClock() as clock:
        pass
    assert clock.seconds == 0.0


def test_the_clock_stops_when_it_is_left() -> None:
    with CompileClock() as clock:
        pass
    compile_something()
    assert clock.seconds == 0.0


def test_compilations_of_other_threads_are_not_counted() -> None:
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
from mapmrf.compilation.stopping import CompileClock
with CompileClock() as clock:
    assert "numba" not in sys.modules
    from mapmrf.compilation.toolchain import numba
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
