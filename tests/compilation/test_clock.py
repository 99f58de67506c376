"""CompileClock: the time that numba spends compiling on this thread."""

import sys
import threading

import numba
import pytest

from mapmrf.compilation.clock import CompileClock


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


def test_without_numba_the_clock_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba")
    with CompileClock() as clock:
        assert clock._listener is None
    assert clock.seconds == 0.0
