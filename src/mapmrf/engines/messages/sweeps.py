"""Sequential passes over the variables of a model, forward and backward, and their division among threads."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import bare, cgutils, compiled, extending, inlined, types
from mapmrf.engines.messages.visit_order import Neighbours, VisitOrder, variable_depths
from mapmrf.model.problem import Problem

if TYPE_CHECKING:
    from mapmrf.run.pool import Workers

# The factors' variables, `scope_ptr` and `scope`, and the place of every variable among the visits
Turns = tuple[Ints, Ints, Ints]

LARGE = 4_000_000  # work of an iteration from which passes are divided into chunks
MAX_TRANSPOSED = 1 << 22  # number of table entries above which no transposed copies are made


class SequentialPasses(ABC):
    """Passes in an order of the variables; they keep the best bound and the best decoded labelling."""

    layout: ClassVar[str]  # layout of the messages, for `DualState`
    # `run_iterations` and `run_worker` with the visit of this kind of model: kernels that Python calls with a compiled
    # function as an argument are not kept on disk
    kernels: tuple[Callable[..., tuple[int, int, PassFigures]], Callable[..., bool]]
    model: NamedTuple  # the factors along the visits
    messages: Any  # with the labels of the last pass and the best ones
    scratches: Sequence[Any]  # of every worker, None if the visits need none
    constant: float  # constant added to bound and value after a pass
    start: float = 0.0  # initial value of their sums

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping, work: int, kind: type) -> None:
        begin, strand_ptr = np.array([0, problem.n_vars]), np.array([0, 1])
        if work >= LARGE:
            order, begin, strand_ptr = divide_sweep(problem, order)
        self.problem, self.order, self.stopping = problem, order, stopping
        self.seq = order.seq
        self.work = work  # approximate number of table entries processed per iteration
        # labels, in_order: (n_vars,): the last decoded labelling and the best one so far, in visiting order
        self.labels: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.in_order: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.figures = PassFigures()
        self.chunks = Chunks.shared((problem.scope_ptr, problem.scope, order.rank), begin, strand_ptr, problem.threads)
        self.n_workers = len(self.chunks.ptr) - 1
        # the workers that share passes, None for a single one
        self.workers = SweepWorkers(self.n_workers) if self.n_workers > 1 else None

    @property
    def best(self) -> Ints:
        best = np.empty_like(self.in_order)
        best[self.seq] = self.in_order
        return best

    def iterate(self, begin: int, end: int, decode_every: int) -> tuple[int, int]:
        """Run the iterations from `begin` to `end` unless they stop earlier; return how many, and why they ended."""
        # Two labellings are decoded in every `decode_every`-th iteration, one in each pass.
        if self.workers is None:
            sums = (self.start, self.constant, self.stopping, self.figures)
            parts = (self.model, self.messages, self.scratches[0], self.chunks)
            n, why, self.figures = self.kernels[0](begin, end, decode_every, *sums, *parts)
            return n, why
        for n in range(begin, end):
            for forward in (True, False):
                why = self.sweep_parallel(self.workers, forward, n % decode_every == 0)
            if why != LIMIT:
                return n + 1 - begin, why
        return end - begin, LIMIT

    def sweep_parallel(self, workers: SweepWorkers, forward: bool, decode: bool) -> int:
        def sweep_worker(w: int) -> bool:
            return self.kernels[1](w, forward, decode, self.model, self.messages, self.scratches[w], self.chunks)

        begin_pass(forward, self.chunks, self.start)
        workers.run(sweep_worker)
        why, self.figures = end_pass(
            forward, decode, self.constant, self.figures, self.stopping, self.chunks, self.messages
        )
        return why

    @abstractmethod
    def message_values(self) -> Floats:
        """Return the messages between two iterations, in the order of the problem's factors."""

    @abstractmethod
    def load_messages(self, numbers: Floats) -> None:
        """Set the messages to what `message_values` returned."""

    @property
    @abstractmethod
    def n_messages(self) -> int:
        """Number of entries of the messages."""

    @abstractmethod
    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state, (n_states,); takes an iteration."""

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


# -- Shared by the kernels of sequential passes: messages, figures, the stopping rule and the driver ------------------


LIMIT, CLOSED, AT_REST, INFEASIBLE = range(4)  # why a kernel stopped
# A kernel that visits the variables of a chunk: forward, decode, the chunk, model, messages, scratch, chunks
Visit = Callable[..., None]


class PassStopping(NamedTuple):
    """Relative improvement of the bound that counts as converged, and relative gap that counts as closed."""

    tol: float
    gap_tol: float


class PassFigures(NamedTuple):
    """Best bound and value so far, and the number of consecutive iterations that have not improved the bound."""

    bound: float = np.inf
    value: float = -np.inf
    calm: int = 0


class PassMessages(NamedTuple):
    """State of the passes over pairs; that of other tables is `SrmpMessages`."""

    lam: Floats  # the messages, each to the end of a pair that is visited next
    theta: Floats  # the unary potentials, or the fields of spins
    # labels, best: (n_vars,): the labelling decoded last, and the best one, in the order of the visits
    labels: Ints
    best: Ints


@inlined
def run_iterations(visit: Visit, arguments: Any) -> tuple[int, int, PassFigures]:
    """Run iterations until a limit, a closed gap or rest; return how many, why they ended, and the figures."""
    begin, end, decode_every, start, constant, stopping, figures, model, messages, scratch, chunks = arguments
    for n in range(begin, end):
        decode = n % decode_every == 0
        for half in range(2):
            forward = half == 0
            begin_pass(forward, chunks, start)
            for place in range(len(chunks.bound)):
                visit(forward, decode, chunk_at(forward, place, chunks), model, messages, scratch, chunks)
            why, figures = end_pass(forward, decode, constant, figures, stopping, chunks, messages)
        if why != LIMIT:
            return n + 1 - begin, why, figures
    return end - begin, LIMIT, figures


@inlined
def run_worker(visit: Visit, arguments: Any) -> bool:
    """Visit the chunks of worker `w` in a pass; return False, for another call, after a long wait for others."""
    w, forward, decode, model, messages, scratch, chunks = arguments
    while True:
        c = next_chunk(forward, w, chunks)
        if c < 0:
            return c == -1
        visit(forward, decode, c, model, messages, scratch, chunks)
        report_chunk(forward, c, w, chunks)


@compiled
def end_pass(
    forward: bool, decode: bool, constant: float, figures: PassFigures, stopping: PassStopping, chunks: Chunks,
    messages: Any,
) -> tuple[int, PassFigures]:  # fmt: skip
    """Add up what the chunks of a pass have given, and keep its labels if they are the best so far."""
    # Returns why to stop after a backward pass, LIMIT if there is no reason, and the figures.
    total, value = add_up(forward, chunks)
    value += constant
    if decode and value > figures.value:
        for s in range(len(messages.best)):
            messages.best[s] = messages.labels[s]
        figures = PassFigures(figures.bound, value, figures.calm)
    if forward:
        return LIMIT, figures
    bound, value, why = total + constant, figures.value, LIMIT
    calm = figures.calm
    if value > -np.inf and bound - value <= stopping.gap_tol * abs(value):
        why = CLOSED
    else:
        calm = calm + 1 if figures.bound - bound <= stopping.tol * abs(bound) else 0
        # Consecutive iterations that improve the bound by less than the tolerance before a run has converged
        why = AT_REST if calm >= 5 else LIMIT
    figures = PassFigures(min(figures.bound, bound), value, calm)
    return INFEASIBLE if total == -np.inf else why, figures


# -- Division of passes over large models into chunks, and the threads that share them --------------------------------


LONG = 256  # number of visits from which a run is a good strand
NAP = 50e-6  # seconds for which a waiting worker yields to other processes


def divide_sweep(problem: Problem, order: VisitOrder) -> tuple[VisitOrder, Ints, Ints]:
    """Divide the visits of a large model into strands and chunks, as `cut_visits` does."""
    # If they are in no suitable order, as in most graphs that are not grids, they are first sorted by depth, if there
    # are few depths; each depth is then a strand. Also returns the order.
    begin, strand_ptr = cut_visits((problem.scope_ptr, problem.scope, order.rank))
    if len(strand_ptr) == 2:
        sorted_order, sizes = order.by_depth(problem)
        if problem.n_vars >= LONG * len(sizes):
            return sorted_order, *cut_strands(offsets(sizes)[:-1], problem.n_vars)
    return order, begin, strand_ptr


def cut_visits(turns: Turns) -> tuple[Ints, Ints]:
    """Divide visits into strands (rows of an image, planes of a volume, or all in one) and these into chunks."""
    # A run of visits in which each depends on the previous one, such as a row, is inherently sequential; short runs
    # that depend on each other are grouped, like the rows of a plane. Returns where the chunks begin, and the first
    # chunk of every strand, both with one more at the end.
    n, fewest = len(turns[2]), 8  # fewest strands for which the division is worthwhile
    rows = _run_starts(turns, np.arange(n, dtype=np.int32))
    if n < LONG * len(rows):
        planes = rows[_run_starts(turns, np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(rows, append=n)))]
        rows = planes if len(planes) >= fewest else rows
    if len(rows) < fewest or n < 32 * len(rows):
        return np.array([0, n]), np.array([0, 1])
    return cut_strands(rows, n)


def cut_strands(rows: Ints, n: int) -> tuple[Ints, Ints]:
    """Divide strands that begin at these of `n` visits into chunks."""
    length = int(np.clip(-(-n // (16 * len(rows))), 16, 256))  # some 16 chunks per strand
    n_chunks = -(-np.diff(rows, append=n) // length)
    strand_ptr = offsets(n_chunks)
    inside = np.arange(strand_ptr[-1]) - np.repeat(strand_ptr[:-1], n_chunks)
    return np.append(np.repeat(rows, n_chunks) + length * inside, n), strand_ptr


def _run_starts(turns: Turns, run: Ints) -> Ints:
    """Return the starts of chains in which each run depends on the previous one; `run` is the run of every visit."""
    linked = np.zeros(int(run[-1]) + 1 if len(run) else 0, dtype=bool)
    link_runs(turns, run, linked)
    return np.flatnonzero(~linked)


class SweepWorkers:
    """Workers that share the chunks of a pass: the calling thread and some more."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self._pool = ThreadPoolExecutor(n_workers - 1)
        self._failed = False

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

    def close(self) -> None:
        self._pool.shutdown()


# -- Passes divided into chunks for several threads, such that every visit follows those that it depends on -----------
# A chunk is a range of consecutive visits. Every worker has its own chunks, such as those of the left half of every row
# of an image, and processes them in the order of the pass. Before a chunk, it waits until the other workers have
# completed the chunks on which it depends: the right half of a row is processed after the left one, at the same time as
# the left half of the next row. Everything that a visit reads has been written before, and sums are kept per chunk, so
# results do not depend on the number of workers or on their speed.

APART = 8  # spacing of numbers written by different threads, so that each has its own cache line


class Chunks(NamedTuple):
    """The chunks of a sweep, how workers share them, and how far they are."""

    # begin, end, owner: (n_chunks,): the visits of every chunk, and its worker
    begin: Ints
    end: Ints
    owner: Ints
    # bound, value: (n_chunks,): what the visits of a chunk add to the bound and to the labelling's value
    bound: Floats
    value: Floats
    # ptr, chunk: the chunks of worker `w` in order: ``chunk[ptr[w] : ptr[w + 1]]``
    ptr: Ints
    chunk: Ints
    # needs: (2, n_chunks, n_workers): how many chunks each of the workers must have done before a chunk of another one,
    # in a forward and in a backward pass; tell: (2, n_chunks): whether others wait for a chunk
    needs: Ints
    tell: Bools
    # done, told: number of chunks that each worker has done, and that others know of, at every `APART`-th place
    done: Ints
    told: Ints

    @classmethod
    def shared(cls, turns: Turns, begin: Ints, strand_ptr: Ints, threads: int) -> Chunks:
        """Share chunks among as many workers as threads; one if the order of the visits would keep them waiting."""
        n_workers = min(threads, int(np.diff(strand_ptr).max()))
        if n_workers > 1:
            chunks = cls.assigned(turns, begin, strand_ptr, n_workers)
            # Minimum speed-up of several workers, as far as limited by the order of visits
            if begin[-1] >= 1.3 * longest_wait(chunks):
                return chunks
        return cls.assigned(turns, begin, strand_ptr, 1)

    @classmethod
    def assigned(cls, turns: Turns, begin: Ints, strand_ptr: Ints, n_workers: int) -> Chunks:
        """Assign a part of every strand to each worker."""
        n_chunks, sizes = len(begin) - 1, np.diff(strand_ptr)
        inside = np.arange(n_chunks) - np.repeat(strand_ptr[:-1], sizes)
        owner = inside * n_workers // np.repeat(sizes, sizes)
        chunk = np.argsort(owner, kind="stable")
        ptr = offsets(np.bincount(owner, minlength=n_workers))
        needs, tell = np.zeros((2, n_chunks, n_workers), dtype=np.int64), np.zeros((2, n_chunks), dtype=bool)
        (bound, value), (done, told) = np.zeros((2, n_chunks)), np.zeros((2, APART * n_workers), dtype=np.int64)
        chunks = cls(begin[:-1], begin[1:], owner, bound, value, ptr, chunk, needs, tell, done, told)
        if n_workers > 1:
            place = np.empty(n_chunks, dtype=np.int64)
            place[chunk] = np.arange(n_chunks) - ptr[owner[chunk]]
            find_needs(turns, np.repeat(np.arange(n_chunks, dtype=np.int32), np.diff(begin)), place, chunks)
        return chunks

    def own_places(self) -> tuple[Ints, Ints]:
        """Return positions for the visits such that those of each worker are contiguous."""
        # Otherwise half of the data prefetched by the processor belongs to other workers. Returns where the chunks
        # begin, and the positions in visiting order.
        sizes = self.end - self.begin
        chunk_at = np.empty(len(sizes), dtype=np.int64)
        chunk_at[self.chunk] = offsets(sizes[self.chunk])[:-1]
        return chunk_at, short(ranges(chunk_at, sizes))


@compiled
def begin_pass(forward: bool, chunks: Chunks, start: float) -> None:
    """Prepare for a pass; `start` is what the sums begin with."""
    chunks.done[:] = 0
    chunks.told[:] = 0
    for c in range(len(chunks.bound)):
        chunks.bound[c] = chunks.value[c] = 0.0
    first = chunk_at(forward, 0, chunks)
    chunks.bound[first] = chunks.value[first] = start


@inlined
def chunk_at(forward: bool, place: int, chunks: Chunks) -> int:
    return place if forward else len(chunks.bound) - 1 - place


@inlined
def add_up(forward: bool, chunks: Chunks) -> tuple[float, float]:
    """Bound and value of a pass, chunk by chunk; the bound is -inf if that of some chunk is."""
    first = chunk_at(forward, 0, chunks)
    bound, value = chunks.bound[first], chunks.value[first]
    for place in range(1, len(chunks.bound)):
        c = chunk_at(forward, place, chunks)
        bound += chunks.bound[c]
        value += chunks.value[c]
    for c in range(len(chunks.bound)):
        if chunks.bound[c] == -np.inf:
            return -np.inf, -np.inf
    return bound, value


@inlined
def next_chunk(forward: bool, w: int, chunks: Chunks) -> int:
    """Wait for the worker's next chunk until it may be visited; return -1 if none is left, -2 after a long wait."""
    done, n_mine = chunks.done[APART * w], chunks.ptr[w + 1] - chunks.ptr[w]
    if done == n_mine:
        return -1
    c = chunks.chunk[chunks.ptr[w] + done if forward else chunks.ptr[w + 1] - 1 - done]
    for other in range(chunks.needs.shape[2]):
        need = chunks.needs[0 if forward else 1, c, other]
        if need == 0:
            continue
        # Number of polls before a waiting worker yields to other processes: some 50 microseconds
        for _ in range(100_000):
            if observe(chunks.told, APART * other) >= need:
                break
        else:
            return -2
    return int(c)


@inlined
def report_chunk(forward: bool, c: int, w: int, chunks: Chunks) -> None:
    """Count a chunk as done, and tell the other workers if one of them waits for it."""
    chunks.done[APART * w] += 1
    if chunks.tell[0 if forward else 1, c]:
        publish(chunks.told, APART * w, chunks.done[APART * w])


@compiled
def link_runs(turns: Turns, run: Ints, linked: Bools) -> None:
    """Mark the runs of visits with a variable that shares a factor with one of the run right before it."""
    scope_ptr, scope, rank = turns
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
def find_needs(turns: Turns, chunk_of: Ints, place: Ints, chunks: Chunks) -> None:
    """Fill in what chunks wait for: variables that share a factor with theirs and come before in the pass."""
    # `chunk_of` is the chunk of every visit, and `place` the place of every chunk among those of its worker.
    onward, back = chunks.needs[0], chunks.needs[1]
    scope_ptr, scope, rank = turns
    for a in range(len(scope_ptr) - 1):
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            for m in range(k + 1, scope_ptr[a + 1]):
                s, t = rank[scope[k]], rank[scope[m]]
                early, late = chunk_of[min(s, t)], chunk_of[max(s, t)]
                w, v = chunks.owner[early], chunks.owner[late]
                if w != v:
                    onward[late, w] = max(onward[late, w], place[early] + 1)
                    back[early, v] = max(back[early, v], chunks.ptr[v + 1] - chunks.ptr[v] - place[late])
                    chunks.tell[0, early] = chunks.tell[1, late] = True


@compiled
def longest_wait(chunks: Chunks) -> int:
    """Visits, one after another, that a forward pass takes with these workers."""
    owner, onward = chunks.owner, chunks.needs[0]
    free_at = np.zeros(len(chunks.ptr) - 1, dtype=np.int64)
    done_at = np.zeros(len(owner) + 1, dtype=np.int64)
    for c in range(len(owner)):
        now = free_at[owner[c]]
        for w in range(len(free_at)):
            if onward[c, w] > 0:
                now = max(now, done_at[chunks.chunk[chunks.ptr[w] + onward[c, w] - 1]])
        done_at[c] = free_at[owner[c]] = now + chunks.end[c] - chunks.begin[c]
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


# In kernels: loads and stores of 64 bits that neither the compiler nor the processor moves past others.
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

# -- A pass over factors on several threads, with the same messages as on one -----------------------------------------
# A factor of a pass depends on those before it with which it shares a variable. Two numbers never decrease along
# such a dependency: the factor's position in the pass, and its depth, the length of the longest chain of
# dependencies that ends in it. So a pass is divided by position into *bands*, and each band by depth into *tiles*:
# a tile can start when the previous one in its band, and the tile of the same depths in the previous band, have
# ended. Threads take the bands in turn, each some tiles behind the previous one, and wait for each other only where
# one gets too close.

CALL = 15_000.0  # overhead of a tile in nanoseconds, a factor takes 4 and 1 per entry, decoding a variable 40


@dataclass(frozen=True)
class TiledPass:
    """The factors of a pass in tiles, or the variables of a decoding."""

    # for every band the factors of its tiles, each in the order of the pass; tiles may be empty
    bands: list[list[Ints]]

    def run(self, workers: Workers, call: Callable[[Ints, int], None], backward: bool) -> None:
        """Call a function with the factors of every tile and the number of the thread, in a valid order."""
        bands = [band[::-1] for band in reversed(self.bands)] if backward else self.bands
        ended: list[SimpleQueue[None]] = [SimpleQueue() for _ in bands]

        def work(thread: int) -> None:
            for b in range(thread, len(bands), workers.n):
                try:
                    for tile in bands[b]:
                        if b > 0:
                            ended[b - 1].get()
                        if len(tile):
                            call(tile, thread)
                        ended[b].put(None)
                except BaseException:
                    for queue in ended[b :: workers.n]:  # release all threads that wait for these bands
                        for _ in bands[b]:
                            queue.put(None)
                    raise

        workers.run(work, [(thread,) for thread in range(workers.n)])


def tiles_of(visit: Ints, scope_ptr: Ints, scope: Ints, threads: int, entries: float) -> TiledPass | None:
    """Divide a pass such that the predicted time is lowest; None if that saves too little."""
    depth, last = np.zeros(len(visit), dtype=np.int32), np.zeros(int(scope.max(initial=0)) + 1, dtype=np.int32)
    n_depths = int(depths_of(visit, scope_ptr, scope, last, depth))
    return _tiles(visit, depth, n_depths, threads, CALL / (4.0 + entries))


def tiles_of_variables(
    decide: Ints, neighbours: Neighbours, scope_ptr: Ints, scope: Ints, threads: int
) -> TiledPass | None:
    """Divide the decoding of variables, each given those before it in its factors, like a pass."""
    depth, last = np.zeros(len(decide), dtype=np.int32), np.zeros(len(neighbours.ptr) - 1, dtype=np.int32)
    n_depths = int(variable_depths(decide, neighbours, scope_ptr, scope, last, depth))
    return _tiles(decide, depth, n_depths, threads, CALL / 40.0)


def _tiles(visit: Ints, depth: Ints, n_depths: int, threads: int, call: float) -> TiledPass | None:
    """Divide visits by position and depth; `call` is the overhead of a tile, in units of a visit."""
    # Maximum share of the single-threaded time for which several threads are used
    best, least, n = None, 0.85 * len(visit), len(depth)
    # Bands per thread, and tiles per band
    for bands, tiles in product([per_thread * threads for per_thread in (4, 8, 16)], (8, 16, 32)):
        band = np.arange(n) * bands // max(1, n)
        tile = band * tiles + depth.astype(np.int64) * tiles // max(1, n_depths)
        sizes = np.bincount(tile, minlength=bands * tiles).reshape(-1, tiles)
        time = _time(sizes, threads, call)
        if time < least:
            best, least = (tile, sizes), time
    if best is None:
        return None
    tile, sizes = best
    factors, ptr = short(visit[np.argsort(tile, kind="stable")]), offsets(sizes.ravel()).tolist()
    cut = [factors[ptr[t] : ptr[t + 1]] for t in range(sizes.size)]
    width = sizes.shape[1]
    return TiledPass([cut[begin : begin + width] for begin in range(0, len(cut), width)])


def _time(sizes: Ints, threads: int, call: float) -> float:
    """Predict when the last thread ends, in units of a factor."""
    before, free = [0.0] * sizes.shape[1], [0.0] * threads
    for b, band in enumerate(sizes.tolist()):
        now = free[b % threads]
        for d, size in enumerate(band):
            now = max(now, before[d])
            now += size + call if size else 0.0
            before[d] = now
        free[b % threads] = now
    return max(free)


@bare
def depths_of(visit: Ints, scope_ptr: Ints, scope: Ints, last: Ints, depth: Ints) -> int:
    """Compute the dependency depth of each factor of a pass; return the number of depths."""
    # `last` has the least depth of the next factor with each variable, zero at first.
    n_depths = 0
    for q in range(len(visit)):
        a = visit[q]
        here = 0
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            here = max(here, last[scope[e]])
        depth[q] = here
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            last[scope[e]] = here + 1
        n_depths = max(n_depths, here + 1)
    return n_depths
