"""Division of passes over large models into chunks, and the threads that share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges, short
from mapmrf.engines.messages.parallel_sweep_kernels import (
    Board,
    FactorTurns,
    Shares,
    find_needs,
    link_runs,
    longest_wait,
)
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem

LONG, SHORT = 256, 32  # number of visits from which a run is a good strand, and below which it is none
MIN_STRANDS = 8  # minimum number of strands for which the division is worthwhile
PARTS = 16  # approximate number of chunks per strand
MIN_CHUNK, MAX_CHUNK = 16, 256  # minimum and maximum number of visits per chunk
MIN_SPEED = 1.3  # minimum speed-up of several workers, as far as limited by the order of visits
NAP = 50e-6  # seconds for which a waiting worker yields to other processes


def arrange(problem: Problem, order: VisitOrder) -> tuple[VisitOrder, Ints, Ints]:
    """Divide the visits of a large model into strands and chunks, as `cut_visits` does.

    If they are in no suitable order, as in most graphs that are not grids, they are first sorted by depth, if there are
    few depths; each depth is then a strand. Also returns the order.
    """
    begin, strand_ptr = cut_visits(FactorTurns(problem.scope_ptr, problem.scope, order.rank))
    if len(strand_ptr) == 2:
        sorted_order, sizes = order.by_depth(problem)
        if problem.n_vars >= LONG * len(sizes):
            return sorted_order, *cut_strands(offsets(sizes)[:-1], problem.n_vars)
    return order, begin, strand_ptr


def cut_visits(factors: FactorTurns) -> tuple[Ints, Ints]:
    """Divide visits into strands (rows of an image, planes of a volume, or all in one) and these into chunks.

    A run of visits in which each depends on the previous one, such as a row, is inherently sequential; short runs that
    depend on each other are grouped, like the rows of a plane. Returns where the chunks begin, and the first chunk of
    every strand, both with one more at the end.
    """
    n = len(factors.rank)
    rows = _run_starts(factors, np.arange(n, dtype=np.int32))
    if n < LONG * len(rows):
        planes = rows[_run_starts(factors, np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(rows, append=n)))]
        rows = planes if len(planes) >= MIN_STRANDS else rows
    if len(rows) < MIN_STRANDS or n < SHORT * len(rows):
        return np.array([0, n]), np.array([0, 1])
    return cut_strands(rows, n)


def cut_strands(rows: Ints, n: int) -> tuple[Ints, Ints]:
    """Divide strands that begin at these of `n` visits into chunks."""
    length = int(np.clip(-(-n // (PARTS * len(rows))), MIN_CHUNK, MAX_CHUNK))
    n_chunks = -(-np.diff(rows, append=n) // length)
    strand_ptr = offsets(n_chunks)
    inside = np.arange(strand_ptr[-1]) - np.repeat(strand_ptr[:-1], n_chunks)
    return np.append(np.repeat(rows, n_chunks) + length * inside, n), strand_ptr


def _run_starts(factors: FactorTurns, run: Ints) -> Ints:
    """Return the starts of chains in which each run depends on the previous one; `run` is the run of every visit."""
    linked = np.zeros(int(run[-1]) + 1 if len(run) else 0, dtype=bool)
    link_runs(factors, run, linked)
    return np.flatnonzero(~linked)


class Crew:
    """Workers that share the chunks of a pass: the calling thread and some more."""

    def __init__(self, shares: Shares) -> None:
        # shares: assignment of chunks to workers, and their dependencies
        # n_workers: number of workers
        self.shares, self.n_workers = shares, len(shares.ptr) - 1
        self._pool = ThreadPoolExecutor(self.n_workers - 1)
        self._failed = False

    @classmethod
    def gather(cls, factors: FactorTurns, begin: Ints, strand_ptr: Ints, threads: int) -> Crew | None:
        """Create as many workers as threads; None if the order of the visits would keep them waiting."""
        n_workers = min(threads, int(np.diff(strand_ptr).max()))
        if n_workers < 2:
            return None
        shares, owner = share_chunks(factors, begin, strand_ptr, n_workers)
        return cls(shares) if begin[-1] >= MIN_SPEED * longest_wait(begin, owner, shares) else None

    def run(self, work: Callable[[int], bool]) -> None:
        """Let all workers, called by their numbers, work until a pass is complete; if one fails, all stop."""
        self._failed = False
        futures = [self._pool.submit(self._finish, work, w) for w in range(1, self.n_workers)]
        try:
            self._finish(work, 0, futures)
            for future in futures:
                future.result()
        except BaseException:
            self._failed = True
            raise

    def _finish(self, work: Callable[[int], bool], w: int, others: Sequence[Future[None]] = ()) -> None:
        while not self._failed and not work(w):
            for other in others:
                if other.done():
                    other.result()  # raises the exception that ended it
            time.sleep(NAP)

    def own_places(self, board: Board) -> tuple[Ints, Ints]:
        """Return positions for the visits such that those of each worker are contiguous.

        Otherwise half of the data prefetched by the processor belongs to other workers. Returns where the chunks begin,
        and the positions in visiting order.
        """
        sizes, chunk = board.end - board.begin, self.shares.chunk
        chunk_at = np.empty(len(sizes), dtype=np.int64)
        chunk_at[chunk] = offsets(sizes[chunk])[:-1]
        return chunk_at, short(ranges(chunk_at, sizes))

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def share_chunks(factors: FactorTurns, begin: Ints, strand_ptr: Ints, n_workers: int) -> tuple[Shares, Ints]:
    """Assign a part of every strand to each worker; also returns the worker of every chunk."""
    n_chunks, sizes = len(begin) - 1, np.diff(strand_ptr)
    inside = np.arange(n_chunks) - np.repeat(strand_ptr[:-1], sizes)
    owner = inside * n_workers // np.repeat(sizes, sizes)
    chunk = np.argsort(owner, kind="stable")
    ptr = offsets(np.bincount(owner, minlength=n_workers))
    place = np.empty(n_chunks, dtype=np.int64)
    place[chunk] = np.arange(n_chunks) - ptr[owner[chunk]]
    shares = Shares(
        ptr, chunk, *np.zeros((2, n_chunks, n_workers), dtype=np.int64), *np.zeros((2, n_chunks), dtype=bool)
    )
    chunk_of = np.repeat(np.arange(n_chunks, dtype=np.int32), np.diff(begin))
    find_needs(factors, chunk_of, owner, place, shares)
    return shares, owner
