"""A solver on a thread of its own: it reports, it can be stopped, and it does not outlive its run."""

from __future__ import annotations

import threading

import numpy as np

from mapmrf.engines.program.solver_run import SolverOutcome, SolverReport, SolverRun


def until_stopped(report: SolverReport) -> None:
    report.stop.wait(60)
    report.outcome = SolverOutcome.STOPPED


def test_a_run_that_nobody_waits_for_is_stopped() -> None:
    stopped = threading.Event()

    def solve(report: SolverReport) -> None:
        until_stopped(report)
        stopped.set()

    run = SolverRun(solve)
    assert not run.wait(0.01)
    del run
    assert stopped.wait(60)


def test_closing_a_run_ends_its_thread() -> None:
    before = set(threading.enumerate())
    run = SolverRun(until_stopped)
    assert set(threading.enumerate()) - before
    run.close(60)
    assert set(threading.enumerate()) == before
    assert run.report.outcome is SolverOutcome.STOPPED


def test_closing_does_not_wait_longer_than_asked_for() -> None:
    release = threading.Event()
    run = SolverRun(lambda report: assert_true(release.wait(60)))
    run.close(0.01)
    assert not run.wait(0.0)
    release.set()
    assert run.wait(60)


def assert_true(holds: bool) -> None:
    assert holds


def test_a_solver_that_raises_has_failed_with_what_it_said() -> None:
    def solve(report: SolverReport) -> None:
        raise RuntimeError("out of order")

    run = SolverRun(solve)
    assert run.wait(60)
    assert (run.report.outcome, run.report.message) == (SolverOutcome.FAILED, "RuntimeError: out of order")


def test_only_the_last_point_is_taken_and_only_once() -> None:
    def solve(report: SolverReport) -> None:
        report.found += [np.zeros(2), np.ones(2)]
        report.tighten(3.0)
        report.tighten(5.0)
        report.count(7)
        report.count(4)

    run = SolverRun(solve)
    assert run.wait(60)
    assert run.take().tolist() == [1, 1]  # type: ignore[union-attr]
    assert run.take() is None
    assert (run.report.bound, run.report.iterations) == (3.0, 7)


def test_a_solver_that_offers_an_interrupt_is_called() -> None:
    called, ready = threading.Event(), threading.Event()

    def solve(report: SolverReport) -> None:
        report.interrupt = called.set
        ready.set()
        assert called.wait(60)

    run = SolverRun(solve)
    assert ready.wait(60)
    run.close(60)
    assert called.is_set()
