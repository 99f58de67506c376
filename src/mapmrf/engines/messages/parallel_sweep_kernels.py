"""Passes divided into chunks for several threads, such that every visit follows those that it depends on.

A chunk is a range of consecutive visits. Every worker has its own chunks, such as those of the left half of every row
of an image, and processes them in the order of the pass. Before a chunk, it waits until the other workers have
completed the chunks on which it depends: the right half of a row is processed after the left one, at the same time as
the left half of the next row. Everything that a visit reads has been written before, and sums are kept per chunk, so
results do not depend on the number of workers or on their speed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.compilation.toolchain import cgutils, extending, types

PATIENCE = 100_000  # number of polls before a waiting worker yields to other processes: some 50 microseconds
APART = 8  # spacing of numbers written by different threads, so that each has its own cache line


class Board(NamedTuple):
    """Progress of a pass."""

    # begin, end: (n_chunks,): the visits of every chunk
    begin: Ints
    end: Ints
    # bound, value: (n_chunks,): what the visits of a chunk add to the bound and to the labelling's value
    bound: Floats
    value: Floats
    # done, told: number of chunks that each worker has done, and that others know of, at every `APART`-th place
    done: Ints
    told: Ints

    @classmethod
    def allocate(cls, begin: Ints, end: Ints, n_workers: int) -> Board:
        """A board for these chunks and so many workers."""
        bound, value = np.zeros((2, len(begin)))
        done, told = (np.zeros(APART * n_workers, dtype=np.int64) for _ in range(2))
        return cls(begin, end, bound, value, done, told)


class Shares(NamedTuple):
    """Assignment of chunks to workers, and their dependencies."""

    # ptr, chunk: the chunks of worker `w` in order: ``chunk[ptr[w] : ptr[w + 1]]``
    ptr: Ints
    chunk: Ints
    # onward, back: (n_chunks, n_workers): how many chunks each of the workers must have done before a chunk of another
    # one, in a forward and in a backward pass
    onward: Ints
    back: Ints
    # tell_onward, tell_back: (n_chunks,): whether others wait for a chunk
    tell_onward: Bools
    tell_back: Bools


@compiled
def begin_pass(forward: bool, board: Board, start: float) -> None:
    """Prepare for a pass; `start` is what the sums begin with."""
    board.done[:] = 0
    board.told[:] = 0
    for c in range(len(board.bound)):
        board.bound[c] = board.value[c] = 0.0
    first = chunk_at(forward, 0, board)
    board.bound[first] = board.value[first] = start


@inlined
def chunk_at(forward: bool, place: int, board: Board) -> int:
    """The chunk that comes at this place of a pass."""
    return place if forward else len(board.bound) - 1 - place


@inlined
def add_up(forward: bool, board: Board) -> tuple[float, float]:
    """Bound and value of a pass, chunk by chunk; the bound is -inf if that of some chunk is."""
    first = chunk_at(forward, 0, board)
    bound, value = board.bound[first], board.value[first]
    for place in range(1, len(board.bound)):
        c = chunk_at(forward, place, board)
        bound += board.bound[c]
        value += board.value[c]
    for c in range(len(board.bound)):
        if board.bound[c] == -np.inf:
            return -np.inf, -np.inf
    return bound, value


@inlined
def next_chunk(forward: bool, w: int, shares: Shares, board: Board) -> int:
    """The worker's next chunk, once it may be visited; -1 if there is none left, -2 after long waiting in vain."""
    done, n_mine = board.done[APART * w], shares.ptr[w + 1] - shares.ptr[w]
    if done == n_mine:
        return -1
    c = shares.chunk[shares.ptr[w] + done if forward else shares.ptr[w + 1] - 1 - done]
    needs = shares.onward if forward else shares.back
    for other in range(needs.shape[1]):
        need = needs[c, other]
        if need == 0:
            continue
        for _ in range(PATIENCE):
            if observe(board.told, APART * other) >= need:
                break
        else:
            return -2
    return int(c)


@inlined
def report_chunk(forward: bool, c: int, w: int, shares: Shares, board: Board) -> None:
    """Count a chunk as done, and tell the other workers if one of them waits for it."""
    board.done[APART * w] += 1
    if shares.tell_onward[c] if forward else shares.tell_back[c]:
        publish(board.told, APART * w, board.done[APART * w])


# -- how visits are cut and shared ------------------------------------------------------------------------------------


class FactorTurns(NamedTuple):
    """The factors' variables, and the place of every variable among the visits."""

    scope_ptr: Ints
    scope: Ints
    rank: Ints


@compiled
def link_runs(factors: FactorTurns, run: Ints, linked: Bools) -> None:
    """Mark the runs of visits with a variable that shares a factor with one of the run right before it."""
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
def find_needs(factors: FactorTurns, chunk_of: Ints, owner: Ints, place: Ints, shares: Shares) -> None:
    """Fill in what chunks wait for: variables that share a factor with theirs and come before in the pass.

    `chunk_of` is the chunk of every visit, `owner` the worker of every chunk, and `place` its place among his.
    """
    scope_ptr, scope, rank = factors
    for a in range(len(scope_ptr) - 1):
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            for m in range(k + 1, scope_ptr[a + 1]):
                s, t = rank[scope[k]], rank[scope[m]]
                early, late = chunk_of[min(s, t)], chunk_of[max(s, t)]
                w, v = owner[early], owner[late]
                if w != v:
                    shares.onward[late, w] = max(shares.onward[late, w], place[early] + 1)
                    left = shares.ptr[v + 1] - shares.ptr[v] - place[late]
                    shares.back[early, v] = max(shares.back[early, v], left)
                    shares.tell_onward[early] = shares.tell_back[late] = True


@compiled
def longest_wait(begin: Ints, owner: Ints, shares: Shares) -> int:
    """Visits, one after another, that a forward pass takes with these workers."""
    free_at = np.zeros(len(shares.ptr) - 1, dtype=np.int64)
    done_at = np.zeros(len(owner) + 1, dtype=np.int64)
    for c in range(len(owner)):
        now = free_at[owner[c]]
        for w in range(len(free_at)):
            if shares.onward[c, w] > 0:
                now = max(now, done_at[shares.chunk[shares.ptr[w] + shares.onward[c, w] - 1]])
        done_at[c] = free_at[owner[c]] = now + begin[c + 1] - begin[c]
    return int(free_at.max())


# -- Integers through which threads signal their progress to each other, without locks --------------------------------
# Everything that a thread wrote before `publish` is visible to any thread that has read the published number by
# `observe`.

_cgutils: Any = cgutils  # untyped, like numba's decorators

_intrinsic: Any = extending.intrinsic

_overload: Any = extending.overload


def publish(numbers: Ints, at: int, value: int) -> None:
    """Write a number with release semantics: it makes visible all earlier writes of this thread."""
    numbers[at] = value


def observe(numbers: Ints, at: int) -> int:
    """Read a number with acquire semantics: everything written before it was published is visible."""
    return int(numbers[at])


# -- in kernels: loads and stores of 64 bits that neither the compiler nor the processor moves past others ------------


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    kind = signature.args[0]
    view = context.make_array(kind)(context, builder, arguments[0])
    return _cgutils.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)


def _store(typing: Any, numbers: Any, at: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store_atomic(arguments[2], _pointer(context, builder, signature, arguments), "release", 8)
        return context.get_dummy_value()

    return types.none(numbers, types.int64, types.int64), code


def _load(typing: Any, numbers: Any, at: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_pointer(context, builder, signature, arguments), "acquire", 8)

    return types.int64(numbers, types.int64), code


_store_release, _load_acquire = _intrinsic(_store), _intrinsic(_load)


def _publish(numbers: Any, at: Any, value: Any) -> Any:
    return lambda numbers, at, value: _store_release(numbers, at, value)


def _observe(numbers: Any, at: Any) -> Any:
    return lambda numbers, at: _load_acquire(numbers, at)


_overload(publish, inline="always", strict=False)(_publish)

_overload(observe, inline="always", strict=False)(_observe)
