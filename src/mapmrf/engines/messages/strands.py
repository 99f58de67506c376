"""How passes over large models are cut into strands, and the threads that share them."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mapmrf.arrays import Ints, offsets
from mapmrf.engines.messages.strands_kernels import (
    FactorTurns,
    Needs,
    Strands,
    Worker,
    find_needs,
    link_visits,
    longest_wait,
)
from mapmrf.kernels.records import blank

LONG, SHORT = 256, 32
"""Visits from which a run is a good strand, and below which it is none."""
MIN_STRANDS = 8
"""Fewer strands are not worth while."""
PARTS = 16
"""Chunks of a strand, roughly."""
MIN_CHUNK, MAX_CHUNK = 16, 256
"""Visits of a chunk."""
MIN_SPEED = 1.5
"""Times that endless workers would be quicker than one, below which there is but one."""


def cut_visits(factors: FactorTurns) -> Ints:
    """Where strands begin, (n_strands + 1,): rows of an image, planes of a volume, or all visits in one strand.

    A run of visits in which each depends on the one before, such as a row, can do no better than one after another; runs
    that depend on each other are taken together, as the rows of a plane, if they are short.
    """
    n = len(factors.rank)
    rows = _run_starts(factors, np.arange(n, dtype=np.int32))
    if n < LONG * len(rows):
        planes = rows[_run_starts(factors, np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(rows, append=n)))]
        if MIN_STRANDS <= len(planes):
            rows = planes
    good = MIN_STRANDS <= len(rows) and SHORT * len(rows) <= n
    return np.append(rows, n) if good else np.array([0, n])


def _run_starts(factors: FactorTurns, run: Ints) -> Ints:
    """The first ones of things in a row of which each depends on the one before; `run` says to which a visit belongs."""
    linked = np.zeros(int(run[-1]) + 1 if len(run) else 0, dtype=bool)
    link_visits(factors, run, linked)
    return np.flatnonzero(~linked)


def lay_out_strands(factors: FactorTurns, begin: Ints) -> Strands:
    """Cut strands into chunks, and find what these wait for."""
    sizes, n = np.diff(begin), len(begin) - 1
    length = int(np.clip(begin[-1] // (PARTS * n), MIN_CHUNK, MAX_CHUNK))
    chunk_ptr = offsets(-(-sizes // length))
    onward, back = (Needs(np.zeros(chunk_ptr[-1], dtype=np.int64), np.zeros(n, dtype=np.int64)) for _ in range(2))
    strands = Strands(begin, chunk_ptr, length, onward, back)
    find_needs(factors, np.repeat(np.arange(n, dtype=np.int32), sizes), strands)
    return strands


class Crew:
    """Workers that share the strands of a pass: the calling thread and some more.

    Attributes
    ----------
    strands
        How visits are cut.
    workers
        What each worker is at.
    """

    def __init__(self, strands: Strands, n_workers: int) -> None:
        self.strands = strands
        self.workers = [blank(Worker) for _ in range(n_workers)]
        self._pool = ThreadPoolExecutor(n_workers - 1)

    @classmethod
    def gather(cls, factors: FactorTurns, begin: Ints, threads: int) -> Crew | None:
        """As many workers as threads, if that many can be busy; None if one is best alone."""
        if threads < 2 or len(begin) <= 2:
            return None
        strands = lay_out_strands(factors, begin)
        n_busy = int(begin[-1] / longest_wait(strands) / MIN_SPEED) + 1
        return cls(strands, min(threads, n_busy)) if n_busy > 1 else None

    def run(self, work: Callable[[int], bool]) -> None:
        """Let all workers, called by their numbers, work until a pass is complete."""
        futures = [self._pool.submit(self._finish, work, w) for w in range(1, len(self.workers))]
        self._finish(work, 0)
        for future in futures:
            future.result()

    def _finish(self, work: Callable[[int], bool], w: int) -> None:
        self.workers[w].place, self.workers[w].complete = -1, 0
        while not work(w):
            time.sleep(0)  # who has to wait lets others run first

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()
