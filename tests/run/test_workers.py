"""Threads that share calls: results in order, errors handed on, and no thread left behind."""

from __future__ import annotations

import gc
import threading

import pytest

from mapmrf.run.pool import Workers


def square(x: int) -> int:
    if x < 0:
        raise ValueError(f"negative: {x}")
    return x * x


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("calls", [0, 1, 3, 9])
def test_results_come_in_the_order_of_the_calls(n: int, calls: int) -> None:
    workers = Workers(n)
    assert workers.run(square, [(x,) for x in range(calls)]) == [x * x for x in range(calls)]
    workers.close()


def test_calls_run_side_by_side() -> None:
    workers, meeting = Workers(3), threading.Barrier(3, timeout=300)
    assert sorted(workers.run(meeting.wait, [(), (), ()])) == [0, 1, 2]
    workers.close()


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_in_any_thread_is_raised_and_the_next_run_is_whole(bad: int) -> None:
    workers = Workers(3)
    with pytest.raises(ValueError, match="negative"):
        workers.run(square, [(-1,) if t == bad else (t,) for t in range(3)])
    assert workers.run(square, [(1,), (2,), (3,)]) == [1, 4, 9]
    workers.close()


@pytest.mark.parametrize("closed", [True, False])
def test_no_thread_stays(closed: bool) -> None:
    before = set(threading.enumerate())
    workers = Workers(3)
    workers.run(square, [(1,), (2,), (3,)])
    mine = set(threading.enumerate()) - before
    assert len(mine) == 2
    if closed:
        workers.close()
    del workers
    gc.collect()
    for thread in mine:
        thread.join(timeout=300)
        assert not thread.is_alive()


def test_spans_cover_everything_once() -> None:
    workers = Workers(3)
    assert workers.spans(10) == [(0, 3), (3, 6), (6, 10)]
    workers.close()
