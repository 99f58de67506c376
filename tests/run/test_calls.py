"""Calls that can be given up: what becomes of them, of their results and of those who wait."""

from __future__ import annotations

import atexit
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import mapmrf
from clocks import LIMIT, PATIENCE, Clock
from mapmrf import Status, datasets
from mapmrf.constraints.as_tables import rewrite
from mapmrf.run import clock as supervision
from mapmrf.run import interrupts
from mapmrf.run.clock import CallAbandoned, Supervisor, is_abandoned, n_abandoned
from mapmrf.run.interrupts import Interrupts
from mapmrf.run.method import Answer, Method, Progress

GRAPH = datasets.grid(80, 80)
"""Large enough for a run on it to be supervised."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = {which: signal.signal(which, default) for which, default in interrupts.DEFAULTS.items()}
    yield
    for which, handler in before.items():
        signal.signal(which, handler)
    supervision.wait_for_all()
    assert n_abandoned() == 0


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    made = Supervisor()
    yield made
    made.close()


def forever() -> float:
    return np.inf


# -- calls ------------------------------------------------------------------------------------------------------------


def test_results_errors_and_settings_of_numpy_go_along(supervisor: Supervisor) -> None:
    idents = [supervisor.call(forever, threading.get_ident) for _ in range(3)]
    assert len(set(idents)) == 1 and idents[0] != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        supervisor.call(forever, divmod, 1, 0)
    assert supervisor.call(forever, divmod, 7, 2) == (3, 1)
    with np.errstate(divide="raise"):
        assert supervisor.call(forever, np.geterr)["divide"] == "raise"


def test_calls_that_are_given_up_leave_nothing_behind_for_the_exit(supervisor: Supervisor) -> None:
    counts = []
    for _ in range(3):
        may_end = threading.Event()
        with pytest.raises(CallAbandoned):
            supervisor.call(lambda: 0.0, may_end.wait, PATIENCE)
        may_end.set()
        supervision.wait_for_all()
        counts.append(atexit._ncallbacks())
    assert counts[0] == counts[-1]


def test_a_call_that_is_given_up_is_undone_when_it_ends(supervisor: Supervisor) -> None:
    may_end, undone = threading.Event(), threading.Event()
    late: list[Any] = []

    def work() -> str:
        assert may_end.wait(PATIENCE)
        late.append(is_abandoned())
        return "late"

    def undo(result: str | None) -> None:
        late.append(result)
        undone.set()

    with pytest.raises(CallAbandoned):
        supervisor.call(lambda: 0.0, work, undo=undo)
    assert supervisor.abandoned and n_abandoned() == 1
    assert supervisor.call(forever, is_abandoned) is False  # the next call has a thread of its own
    assert not supervisor.abandoned
    may_end.set()
    assert undone.wait(PATIENCE)
    assert late == [True, "late"]


def test_what_is_within_a_call_that_is_given_up_is_in_vain(supervisor: Supervisor) -> None:
    may_end = threading.Event()
    seen: list[bool] = []

    def work() -> None:
        inner = Supervisor()
        try:
            inner.call(forever, lambda: may_end.wait(PATIENCE))
            seen.append(inner.call(forever, interrupts.requested))
        finally:
            inner.close()

    with pytest.raises(CallAbandoned):
        supervisor.call(lambda: 0.0, work)
    may_end.set()
    supervision.wait_for_all()
    assert seen == [True]


def test_an_exception_of_a_handler_gives_the_call_up(supervisor: Supervisor) -> None:
    class Impatience(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Impatience

    may_end = threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert may_end.wait(PATIENCE)

    signal.signal(signal.SIGINT, handler)
    with pytest.raises(Impatience):
        supervisor.call(forever, work)
    assert supervisor.abandoned
    may_end.set()


def test_a_program_waits_for_calls_that_were_given_up_before_it_ends() -> None:
    text = """
import threading, time
from mapmrf.run.clock import CallAbandoned, Supervisor
may_end = threading.Event()
try:
    Supervisor().call(lambda: 0.0, lambda: (may_end.wait(), time.sleep(0.3), print("ended")))
except CallAbandoned:
    print("given up")
may_end.set()
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\nended\n", "")


# -- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stuck(Method):
    """Takes a step, and then waits in one of its functions until it is let go."""

    name: ClassVar[str] = "stuck"
    title: ClassVar[str] = "a method that hangs"

    where: str = "step"
    presses: int = 0
    clock: Clock | None = None
    max_iterations: int = 10**12
    go: threading.Event = field(default_factory=threading.Event, compare=False)
    log: list[str] = field(default_factory=list, compare=False)

    def at(self, where: str) -> None:
        self.log.append(where)
        if where == self.where:
            for _ in range(self.presses):
                os.kill(os.getpid(), signal.SIGINT)
                while not interrupts.requested():
                    time.sleep(0.01)
            self.pass_limit()
            assert self.go.wait(PATIENCE)

    def pass_limit(self) -> None:
        if self.clock is not None:
            self.clock.pass_limit()

    def start(self, problem: Any, seed: int, initial: Any) -> list[int]:
        self.at("start")
        return [0]

    def step(self, problem: Any, state: list[int]) -> Progress:
        state[0] += 1
        if state[0] > 1:
            self.pass_limit()
            self.at("step")
        return Progress(state[0], labels=np.ones(problem.n_vars, dtype=np.int64), bound=1e9)

    def answer(self, problem: Any, state: list[int]) -> Answer:
        self.at("answer")
        return Answer()

    def close(self, problem: Any, state: list[int]) -> None:
        self.at("close")


def run(
    monkeypatch: pytest.MonkeyPatch, method: Stuck, graph: mapmrf.FactorGraph = GRAPH, **limits: Any
) -> mapmrf.Result:
    monkeypatch.setattr("mapmrf.run.loop.Run.options", lambda self: {})
    return mapmrf.solve(graph, method, **limits)


@pytest.mark.parametrize("where", ["start", "step", "answer", "close"])
def test_a_method_that_hangs_does_not_keep_the_run_from_ending(monkeypatch, where, clock) -> None:
    clock.stop()
    method = Stuck(where, clock=clock)
    result = run(monkeypatch, method, time_limit=1.0)
    assert result.status is Status.TIME_LIMIT and n_abandoned() == 1
    first = GRAPH.value(np.ones(GRAPH.n_vars, dtype=np.int64))
    assert result.value >= (first if where != "start" else -np.inf)
    assert (result.bound is None) == (where == "start")
    method.go.set()
    supervision.wait_for_all()
    assert method.log.count("close") == 1  # by the thread that was left alone


def shared_table(n_factors: int) -> mapmrf.FactorGraph:
    """Factors of 2000 configurations each, of which one is stored."""
    graph = mapmrf.FactorGraph.from_tables([20, 10, 10], [(0, 1, 2)], [np.zeros((20, 10, 10))])
    return dataclasses.replace(
        graph,
        card=np.full(3 * n_factors, 10) + 10 * (np.arange(3 * n_factors) % 3 == 0),
        theta_v=np.zeros(40 * n_factors),
        scope_ptr=3 * np.arange(n_factors + 1),
        scope=np.arange(3 * n_factors),
        table_of=np.zeros(n_factors, dtype=np.int64),
    )


@pytest.mark.parametrize("graph", [datasets.grid(40, 40), shared_table(40)], ids=["small", "shared tables"])
def test_with_a_limit_small_models_are_no_exception(monkeypatch, graph, clock) -> None:
    clock.stop()
    method = Stuck(clock=clock)
    assert run(monkeypatch, method, graph, time_limit=1.0).status is Status.TIME_LIMIT and n_abandoned() == 1
    method.go.set()


def test_a_table_counts_for_every_factor_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    method = Stuck(presses=2)
    assert len(shared_table(40).theta_t) == 2000
    assert run(monkeypatch, method, shared_table(40)).status is Status.INTERRUPTED and n_abandoned() == 1
    method.go.set()


def test_a_rewriting_that_nobody_waits_for_ends() -> None:
    counted = datasets.grid(10, 10).with_constraints([mapmrf.constraints.at_most_k(range(100), 30)])
    abandoned, errors = threading.Event(), []

    def work() -> None:
        assert abandoned.wait(PATIENCE)
        try:
            rewrite(counted)
        except CallAbandoned as error:
            errors.append(error)

    supervisor = Supervisor()
    with pytest.raises(CallAbandoned):
        supervisor.call(lambda: 0.0, work)
    abandoned.set()
    supervision.wait_for_all()
    assert len(errors) == 1
    assert rewrite(counted).graph.n_vars == 198


@pytest.mark.parametrize("times", [1, 2])
def test_signals_end_a_run_whose_step_hangs(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    method = Stuck(presses=times)
    result = run(monkeypatch, method)
    assert (result.status, result.iterations) == (Status.INTERRUPTED, 1)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    method.go.set()


def test_a_run_leaves_no_thread_and_calls_back_on_that_of_the_caller() -> None:
    seen = set()
    mapmrf.solve(GRAPH, "trws", max_iterations=20, callback=lambda point, labels: seen.add(threading.get_ident()))
    assert seen == {threading.get_ident()}
    before = threading.active_count()
    mapmrf.solve(GRAPH, "icm")
    assert threading.active_count() == before


def test_patience_ends_with_the_second_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "REACTION", LIMIT)
    with Interrupts() as flag, interrupts.reacting("wait"):
        assert interrupts.patience() == np.inf
        signal.raise_signal(signal.SIGINT)
        assert 0 < interrupts.patience() <= interrupts.REACTION < interrupts.patience(extra=5.0)
        signal.raise_signal(signal.SIGINT)
        assert interrupts.patience(extra=5.0) == 0.0 and not flag.raised
    assert interrupts.patience() == np.inf
