"""How passes over large models are cut into chunks, and the threads that share them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges, short
from mapmrf.engines.messages.strands_kernels import Board, FactorTurns, Shares, find_needs, link_runs, longest_wait
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.problem import Problem

LONG, SHORT = 256, 32
"""Visits from which a run is a good strand, and below which it is none."""
MIN_STRANDS = 8
"""Fewer strands are not worth while."""
PARTS = 16
"""Chunks of a strand, roughly."""
MIN_CHUNK, MAX_CHUNK = 16, 256
"""Visits of a chunk."""
MIN_SPEED = 1.3
"""Times that workers must be quicker than one, if nothing but the order of visits held them up."""
NAP = 50e-6
"""Seconds for which a worker that waits in vain lets other processes run."""


def arrange(problem: Problem, order: VisitOrder) -> tuple[VisitOrder, Ints, Ints]:
    """Cut the visits of a large model into strands and chunks, as `cut_visits` does.

    Where they are in no such order, as in most graphs that are not grids, they are sorted by depth first, if there are
    few depths: each is a strand. Returns the order, too.
    """
    begin, strand_ptr = cut_visits(FactorTurns(problem.scope_ptr, problem.scope, order.rank))
    if len(strand_ptr) == 2:
        sorted_order, sizes = order.by_depth(problem)
        if problem.n_vars >= LONG * len(sizes):
            return sorted_order, *cut_strands(offsets(sizes)[:-1], problem.n_vars)
    return order, begin, strand_ptr


def cut_visits(factors: FactorTurns) -> tuple[Ints, Ints]:
    """Cut visits into strands (rows of an image, planes of a volume, or all in one) and these into chunks.

    A run of visits in which each depends on the one before, such as a row, can do no better than one after another;
    runs that depend on each other are taken together, as the rows of a plane, if they are short. Returns where the
    chunks begin, and which chunk is the first of every strand, both with one more at the end.
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
    """Cut strands that begin at these of `n` visits into chunks."""
    length = int(np.clip(-(-n // (PARTS * len(rows))), MIN_CHUNK, MAX_CHUNK))
    n_chunks = -(-np.diff(rows, append=n) // length)
    strand_ptr = offsets(n_chunks)
    inside = np.arange(strand_ptr[-1]) - np.repeat(strand_ptr[:-1], n_chunks)
    return np.append(np.repeat(rows, n_chunks) + length * inside, n), strand_ptr


def _run_starts(factors: FactorTurns, run: Ints) -> Ints:
    """The first of every row of things of which each depends on the one before; `run` is the thing of every visit."""
    linked = np.zeros(int(run[-1]) + 1 if len(run) else 0, dtype=bool)
    link_runs(factors, run, linked)
    return np.flatnonzero(~linked)


class Crew:
    """Workers that share the chunks of a pass: the calling thread and some more.

    Attributes
    ----------
    shares
        Which chunks are whose, and what they wait for.
    n_workers
        How many workers there are.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares, self.n_workers = shares, len(shares.ptr) - 1
        self._pool = ThreadPoolExecutor(self.n_workers - 1)
        self._failed = False

    @classmethod
    def gather(cls, factors: FactorTurns, begin: Ints, strand_ptr: Ints, threads: int) -> Crew | None:
        """As many workers as threads; None if the order of the visits would keep them waiting."""
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
                    other.result()  # raises what ended it
            time.sleep(NAP)

    def own_places(self, board: Board) -> tuple[Ints, Ints]:
        """Places for the visits such that those of each worker stand together.

        Where a worker's visits stand between those of others, half of what the processor fetches ahead is not his.
        Returns where the chunks begin, and the places in the order of the visits.
        """
        sizes, chunk = board.end - board.begin, self.shares.chunk
        chunk_at = np.empty(len(sizes), dtype=np.int64)
        chunk_at[chunk] = offsets(sizes[chunk])[:-1]
        return chunk_at, short(ranges(chunk_at, sizes))

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def share_chunks(factors: FactorTurns, begin: Ints, strand_ptr: Ints, n_workers: int) -> tuple[Shares, Ints]:
    """Give each worker a part of every strand; also returns the worker of every chunk."""
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
