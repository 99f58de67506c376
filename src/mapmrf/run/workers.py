"""Threads that share the calls of a kernel."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

R = TypeVar("R")

SharedCalls = tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]  # a kernel and the arguments of its calls


class Workers:
    """The calling thread and its helpers; without helpers, a plain loop.

    Each helper waits at its own queue: a pool of the standard library takes several times as long to hand over a call,
    as long as a kernel needs for thousands of factors.
    """

    def __init__(self, n: int) -> None:
        self.n = n  # number of threads
        self._helpers = [_Helper() for _ in range(n - 1)]
        self._end = weakref.finalize(self, _dismiss, self._helpers)  # in case nobody calls `close`

    def run(self, kernel: Callable[..., R], calls: Sequence[tuple[Any, ...]]) -> list[R]:
        """Call the kernel with each of these arguments, shared among the threads; return all results."""
        busy = self._helpers[: max(0, len(calls) - 1)]
        if not busy:
            return [kernel(*arguments) for arguments in calls]
        n = len(busy) + 1
        for t, helper in enumerate(busy, 1):
            helper.inbox.put((kernel, calls[t::n]))
        results: list[Any] = [None] * len(calls)
        try:
            results[::n] = [kernel(*arguments) for arguments in calls[::n]]
        finally:
            found = [helper.outbox.get() for helper in busy]  # in any case, no helper must still be running
        for t, outcome in enumerate(found, 1):
            if isinstance(outcome, BaseException):
                raise outcome
            results[t::n] = outcome
        return results

    def spans(self, n: int) -> list[tuple[int, int]]:
        """Divide n items into contiguous parts of nearly equal size, one per thread."""
        return list(pairwise([n * part // self.n for part in range(self.n + 1)]))

    def close(self) -> None:
        self._end()
        for helper in self._helpers:
            helper.thread.join()


class _Helper:
    def __init__(self) -> None:
        self.inbox: SimpleQueue[SharedCalls | None] = SimpleQueue()
        self.outbox: SimpleQueue[list[Any] | BaseException] = SimpleQueue()
        self.thread = Thread(target=_serve, args=(self.inbox, self.outbox), daemon=True)
        self.thread.start()


def _serve(inbox: SimpleQueue[SharedCalls | None], outbox: SimpleQueue[list[Any] | BaseException]) -> None:
    while (given := inbox.get()) is not None:
        kernel, calls = given
        try:
            outbox.put([kernel(*arguments) for arguments in calls])
        except BaseException as error:
            outbox.put(error)
        del given, kernel, calls  # do not keep arrays alive until the next call


def _dismiss(helpers: list[_Helper]) -> None:
    for helper in helpers:
        helper.inbox.put(None)
