"""Signals as a flag: who sees it, when it is raised after all, and that handlers come back."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import mapmrf
from mapmrf import Status
from mapmrf.cli import write_model
from mapmrf.run import interrupts
from mapmrf.run.interrupts import Interrupts
from mapmrf.run.method import Answer, Method, Progress

GRAPH = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Python's own handlers, even where the suite was started with signals ignored; afterwards those of before."""
    before = {which: signal.signal(which, default) for which, default in interrupts.DEFAULTS.items()}
    yield
    assert {which: signal.getsignal(which) for which in before} == interrupts.DEFAULTS
    for which, handler in before.items():
        signal.signal(which, handler)


def press(times: int = 1) -> None:
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


# -- the flag ---------------------------------------------------------------------------------------------------------


def test_the_first_signal_sets_the_flag_and_the_second_is_raised() -> None:
    with Interrupts() as flag:
        assert not flag.requested and not interrupts.requested()
        press()
        assert (flag.requested, flag.number, flag.raised) == (True, signal.SIGINT, False)
        assert interrupts.requested()
        with pytest.raises(KeyboardInterrupt):
            press()
        assert flag.raised
    assert not interrupts.requested()


def test_a_run_that_has_noticed_the_signal_is_not_disturbed_unless_it_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Interrupts() as flag:
        press()
        interrupts.notice()
        press(3)
        assert not flag.raised
        monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
        with pytest.raises(KeyboardInterrupt):
            press()


def test_contexts_inside_share_the_flag() -> None:
    heard: list[str] = []
    with Interrupts() as outer:
        with Interrupts(listener=lambda: heard.append("inner")) as inner:
            press()
            assert inner.requested
        assert outer.requested and interrupts.requested()
        with Interrupts() as late:
            assert late.requested
        outer_handler = signal.getsignal(signal.SIGINT)
        assert outer_handler is not signal.default_int_handler
    assert heard == ["inner"]


def test_other_threads_see_the_flag_but_install_nothing() -> None:
    seen: list[Any] = []

    def look() -> None:
        with Interrupts() as flag:
            interrupts.notice()
            seen.append((signal.getsignal(signal.SIGINT), flag.requested, interrupts.requested()))

    for pressed in (False, True):
        with Interrupts():
            press(pressed)
            handler = signal.getsignal(signal.SIGINT)
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
            assert seen.pop() == (handler, pressed, pressed)
            if pressed:  # notice() of another thread is not that of the run in this one
                with pytest.raises(KeyboardInterrupt):
                    press()
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [(signal.default_int_handler, False, False)]


def test_a_handler_of_the_user_stays() -> None:
    heard: list[int] = []

    def own(number: int, frame: object) -> None:
        heard.append(number)

    signal.signal(signal.SIGINT, own)
    with Interrupts() as flag:
        press()
        assert not flag.requested and heard == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is own
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_sigterm_and_other_signs_count_where_they_are_asked_for() -> None:
    with Interrupts():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with Interrupts(signal.SIGINT, signal.SIGTERM) as flag:
        signal.raise_signal(signal.SIGTERM)
        assert flag.number == signal.SIGTERM
    stopped = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interrupts, "signs", [stopped.is_set])
        assert not interrupts.requested()
        stopped.set()
        assert interrupts.requested()
    assert not interrupts.requested()


def test_check_and_reacting_raise() -> None:
    with Interrupts() as flag:
        interrupts.check()
        with pytest.raises(KeyboardInterrupt), interrupts.reacting("raise"):
            press()
        assert flag.raised
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt), interrupts.reacting("raise"):
            raise AssertionError("must not begin")
    with interrupts.reacting("raise"):
        pass


# -- solve ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pressing(Method):
    """Finds the best labelling in its first step, then does something; never ends by itself."""

    name: ClassVar[str] = "pressing"
    title: ClassVar[str] = "a user who is in a hurry"

    deed: Callable[[], None] = press
    where: str = "step"
    bound: float | None = None
    max_iterations: int = 50

    def at(self, where: str) -> None:
        if where == self.where:
            self.deed()

    def start(self, problem: Any, seed: int, initial: Any) -> list[int]:
        self.at("start")
        return [0]

    def step(self, problem: Any, state: list[int]) -> Progress:
        state[0] += 1
        if state[0] > 1:
            self.at("step")
        return Progress(state[0], labels=np.ones(2, dtype=np.int64), bound=self.bound if state[0] > 1 else None)

    def answer(self, problem: Any, state: list[int]) -> Answer:
        self.at("answer")
        return Answer()

    def close(self, problem: Any, state: list[int]) -> None:
        self.at("close")


def solved(**options: Any) -> tuple[Status, float, int]:
    result = mapmrf.solve(GRAPH, Pressing(**options))
    return result.status, result.value, result.iterations


@pytest.mark.parametrize(
    ("options", "status", "value", "iterations"),
    [
        ({}, Status.INTERRUPTED, 2.0, 2),  # after the step
        ({"where": "start"}, Status.INTERRUPTED, 1.0, 0),  # before the first step
        ({"where": "answer"}, Status.INTERRUPTED, 2.0, 50),  # in the report
        ({"bound": 2.0}, Status.OPTIMAL, 2.0, 2),  # what is proven stays proven
        ({"deed": lambda: press(2)}, Status.INTERRUPTED, 2.0, 1),  # the second signal ends the step itself
    ],
)
def test_a_signal_ends_the_run(options: dict[str, Any], status: Status, value: float, iterations: int) -> None:
    assert solved(**options) == (status, value, iterations)
    assert not interrupts.requested()


@pytest.mark.parametrize("where", ["answer", "close"])
def test_signals_at_the_end_of_an_interrupted_run_do_not_disturb_it(where: str) -> None:
    def stop(point: Any, labels: Any) -> bool:
        press()
        return False

    result = mapmrf.solve(GRAPH, Pressing(where=where, deed=lambda: press(3)), callback=stop)
    assert (result.status, result.value) == (Status.INTERRUPTED, 2.0)


def test_what_compiled_code_makes_of_the_second_signal_is_an_interrupt() -> None:
    """Numba ignores the exception while it hands its arrays over, and the interpreter makes a SystemError of it."""

    def swallow() -> None:
        with pytest.raises(KeyboardInterrupt):
            press(2)
        raise SystemError("a result with an exception set")

    def fail() -> None:
        press()
        raise SystemError("something else")

    assert solved(deed=swallow) == (Status.INTERRUPTED, 2.0, 1)
    with pytest.raises(SystemError, match="something else"):
        solved(deed=fail)


def test_solve_in_another_thread_ends_with_that_of_the_main_thread() -> None:
    results: list[mapmrf.Result] = []
    begun = threading.Event()

    def endless() -> None:
        method = Pressing(deed=lambda: begun.set(), max_iterations=10**12)
        results.append(mapmrf.solve(GRAPH, method))

    with Interrupts():
        thread = threading.Thread(target=endless)
        thread.start()
        assert begun.wait(60)
        press()
        thread.join(60)
    assert [result.status for result in results] == [Status.INTERRUPTED]


def test_a_signal_ends_the_writing_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def text(*_: object) -> Iterator[str]:
        yield "MARKOV"
        press()
        yield pytest.fail("the rest was written")

    monkeypatch.setattr("mapmrf.formats.uai.model_text", text)
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        write_model(GRAPH, str(tmp_path / "m.uai"))
    assert list(tmp_path.iterdir()) == []


WAITING = """
import signal, time
from mapmrf.run.interrupts import process
process.guard()
process.begin_work()
with process.ending_within(0.0):
    signal.raise_signal(signal.SIGTERM)
    while True:
        time.sleep(1000)
"""


def test_a_program_ends_although_it_waits() -> None:
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "mapmrf: interrupted\n")


LEAVING = """
import ctypes, os, sys, threading, time
from mapmrf.run.interrupts import process
process.guard()
process.begin_work()
handler = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda nothing: os.write(1, b"signed off") and None)
ctypes.CDLL(None).__cxa_atexit(handler, None, None)
threading.Thread(target=time.sleep, args=(1000,)).start()
if len(sys.argv) > 1:
    process.run_exit_handlers()
process.end_work(3)
process.leave_after_work()
"""


@pytest.mark.parametrize("handlers", [False, True])
def test_a_program_leaves_its_threads_behind_with_or_without_exit_handlers(handlers: bool) -> None:
    command = [sys.executable, "-c", LEAVING, *["handlers"] * handlers]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, "signed off" * handlers, "")
