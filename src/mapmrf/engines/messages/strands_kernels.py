"""Passes cut into strands that threads share, so that every visit still comes after those that it depends on.

A strand is a stretch of consecutive visits, such as a row of an image. Threads take strands one after another. Inside a
strand a thread goes chunk by chunk, and before each it waits until the thread on the strand before is far enough ahead:
a row may follow the row above at the distance of a chunk. Whatever a visit reads has then been written, whoever comes
first, and sums are kept per strand: results do not depend on the number of threads or on their speed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.atomics import observe, publish, take_next
from mapmrf.kernels.jit import bare, compiled, inlined

# What a worker is told.
READY, STALLED, FINISHED = range(3)
PATIENT = 20_000
"""How often a worker looks whether it may go on before it lets other processes run: some microseconds."""


class Needs(NamedTuple):
    """What the visits of a pass in one direction wait for.

    Attributes
    ----------
    chunk : (n_chunks,)
        Visits of the strand before that must be done before the chunk.
    complete : (n_strands,)
        Strands, counted from where the pass begins, that must be complete before the strand.
    """

    chunk: Ints
    complete: Ints


class Strands(NamedTuple):
    """How visits are cut.

    Attributes
    ----------
    begin : (n_strands + 1,)
        Where strands begin.
    chunk_ptr : (n_strands + 1,)
        Where their chunks begin in `Needs.chunk`.
    length
        Visits in a chunk.
    onward, back
        What forward and backward passes wait for.
    """

    begin: Ints
    chunk_ptr: Ints
    length: int
    onward: Needs
    back: Needs


class Board(NamedTuple):
    """Where a pass stands.

    Attributes
    ----------
    taken : (1,)
        Number of strands that workers have begun.
    done : (n_strands,)
        Visits done in every strand.
    bound, value : (n_strands,)
        What the visits of a strand add to the bound and to the labelling's value.
    """

    taken: Ints
    done: Ints
    bound: Floats
    value: Floats

    @classmethod
    def allocate(cls, n_strands: int) -> Board:
        """A board for so many strands."""
        done, (bound, value) = np.zeros(n_strands, dtype=np.int64), np.zeros((2, n_strands))
        return cls(np.zeros(1, dtype=np.int64), done, bound, value)


class Worker:
    """What a worker is at: its strand, counted from where the pass begins, -1 for none; visits done in it; strands that
    it knows to be complete; and the next visits."""

    place: int
    visited: int
    complete: int
    begin: int
    end: int


@compiled
def begin_pass(forward: bool, board: Board, start: float) -> None:
    """Prepare for a pass; `start` is what the sums begin with."""
    board.taken[0] = 0
    for q in range(len(board.done)):
        board.done[q] = 0
        board.bound[q] = board.value[q] = 0.0
    first = 0 if forward else len(board.done) - 1
    board.bound[first] = board.value[first] = start


@inlined
def sums(forward: bool, board: Board) -> tuple[float, float]:
    """Bound and value of a pass, strand by strand; the bound is -inf if that of some strand is."""
    n = len(board.done)
    first = strand_at(forward, 0, n)
    bound, value = board.bound[first], board.value[first]
    for place in range(1, n):
        q = strand_at(forward, place, n)
        bound += board.bound[q]
        value += board.value[q]
    for q in range(n):
        if board.bound[q] == -np.inf:
            return -np.inf, -np.inf
    return bound, value


@inlined
def strand_at(forward: bool, place: int, n: int) -> int:
    """The strand that comes at this place of a pass."""
    return place if forward else n - 1 - place


@bare
def may_begin(forward: bool, strands: Strands, board: Board, worker: Worker) -> bool:
    """Wait until all strands are complete that must be before the worker's; False if that takes long."""
    n = len(board.done)
    needs = strands.onward.complete if forward else strands.back.complete
    need = needs[strand_at(forward, worker.place, n)]
    while worker.complete < need:
        q = strand_at(forward, worker.complete, n)
        if not far_enough(board.done, q, strands.begin[q + 1] - strands.begin[q]):
            return False
        worker.complete += 1
    return True


@inlined
def far_enough(done: Ints, strand: int, need: int) -> bool:
    """Wait until so many visits of a strand are done; False if that takes long."""
    for _ in range(PATIENT):
        if observe(done, strand) >= need:
            return True
    return False


@bare
def next_visits(forward: bool, strands: Strands, board: Board, worker: Worker) -> int:
    """Find the worker its next visits, ``begin`` to ``end``, and wait until they may be made."""
    n = len(board.done)
    if worker.place < 0:
        place = take_next(board.taken)
        if place >= n:
            return FINISHED
        worker.place = place
        worker.visited = 0
    q = strand_at(forward, worker.place, n)
    if worker.visited == 0 and not may_begin(forward, strands, board, worker):
        return STALLED
    needs = strands.onward.chunk if forward else strands.back.chunk
    need = needs[strands.chunk_ptr[q] + worker.visited // strands.length]
    if need > 0 and not far_enough(board.done, strand_at(forward, worker.place - 1, n), need):
        return STALLED
    begin, end = strands.begin[q], strands.begin[q + 1]
    if forward:
        worker.begin = begin + worker.visited
        worker.end = min(worker.begin + strands.length, end)
    else:
        worker.end = end - worker.visited
        worker.begin = max(worker.end - strands.length, begin)
    return READY


@inlined
def report_visits(forward: bool, strands: Strands, board: Board, worker: Worker, failed: bool) -> None:
    """Tell other workers that the visits are done; after a failure those of the whole strand, for nobody to wait."""
    n = len(board.done)
    q = strand_at(forward, worker.place, n)
    size = strands.begin[q + 1] - strands.begin[q]
    worker.visited = size if failed else worker.visited + worker.end - worker.begin
    publish(board.done, q, worker.visited)
    if worker.visited == size:
        worker.place = -1


# -- how visits are cut -----------------------------------------------------------------------------------------------


class FactorTurns(NamedTuple):
    """The factors' variables, and the place of every variable among the visits."""

    scope_ptr: Ints
    scope: Ints
    rank: Ints


@compiled
def link_visits(factors: FactorTurns, run: Ints, linked: Bools) -> None:
    """Mark the runs of visits with a variable that shares a factor with one of the run right before them."""
    scope_ptr, scope, rank = factors
    for a in range(len(scope_ptr) - 1):
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            one = run[rank[scope[k]]]
            for m in range(k + 1, scope_ptr[a + 1]):
                other = run[rank[scope[m]]]
                if one - other == 1:
                    linked[one] = True
                elif other - one == 1:
                    linked[other] = True


@compiled
def find_needs(factors: FactorTurns, strand: Ints, strands: Strands) -> None:
    """Fill in what visits wait for: the variables with which they share a factor and that come before in the pass.

    `strand` is the strand of every visit.
    """
    scope_ptr, scope, rank = factors
    for a in range(len(scope_ptr) - 1):
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            for m in range(k + 1, scope_ptr[a + 1]):
                s, t = rank[scope[k]], rank[scope[m]]
                u, v = min(s, t), max(s, t)
                if strand[u] != strand[v]:
                    note_need(u, v, strand[u], strand[v], strands)


@inlined
def note_need(u: int, v: int, early: int, late: int, strands: Strands) -> None:
    """Visit `v` of strand `late` waits for visit `u` of strand `early` in a forward pass, and for it in a backward one."""
    begin, onward, back = strands.begin, strands.onward, strands.back
    if late == early + 1:
        chunk = strands.chunk_ptr[late] + (v - begin[late]) // strands.length
        onward.chunk[chunk] = max(onward.chunk[chunk], u - begin[early] + 1)
        chunk = strands.chunk_ptr[early] + (begin[early + 1] - 1 - u) // strands.length
        back.chunk[chunk] = max(back.chunk[chunk], begin[late + 1] - v)
    else:
        onward.complete[late] = max(onward.complete[late], early + 1)
        back.complete[early] = max(back.complete[early], len(begin) - 1 - late)


@compiled
def longest_wait(strands: Strands) -> float:
    """Visits one after another that a forward pass takes at least, however many workers there are."""
    begin, chunk_ptr, n = strands.begin, strands.chunk_ptr, len(strands.begin) - 1
    end_at = np.zeros(len(strands.onward.chunk))
    complete_at = np.zeros(n + 1)
    for q in range(n):
        now = complete_at[strands.onward.complete[q]]
        for c in range(chunk_ptr[q], chunk_ptr[q + 1]):
            need = strands.onward.chunk[c]
            if need > 0:
                now = max(now, end_at[chunk_ptr[q - 1] + (need - 1) // strands.length])
            at = begin[q] + (c - chunk_ptr[q]) * strands.length
            now += min(at + strands.length, begin[q + 1]) - at
            end_at[c] = now
        complete_at[q + 1] = max(complete_at[q], now)
    return complete_at[n]
