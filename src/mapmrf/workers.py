"""Threads that share the calls of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

R = TypeVar("R")


class Workers:
    """The calling thread and those that help it; without helpers a plain loop.

    Attributes
    ----------
    n
        How many threads there are.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._pool = ThreadPoolExecutor(n - 1) if n > 1 else None

    def run(self, kernel: Callable[..., R], calls: Sequence[tuple[Any, ...]]) -> list[R]:
        """Call the kernel with each of these arguments, one call per thread, and wait for all; return the results."""
        if self._pool is None:
            return [kernel(*arguments) for arguments in calls]
        futures = [self._pool.submit(kernel, *arguments) for arguments in calls[1:]]
        found = [kernel(*arguments) for arguments in calls[:1]]
        return found + [future.result() for future in futures]

    def spans(self, n: int) -> list[tuple[int, int]]:
        """Cut n things into neighbouring parts of nearly equal size, one per thread."""
        return list(pairwise([n * part // self.n for part in range(self.n + 1)]))

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
