"""Sequential passes over the variables of a model, forward and backward, and their division among threads."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import compiled, inlined, when_compiling
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem

if TYPE_CHECKING:
    from mapmrf.run.pool import Workers

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
        self.chunks = Chunks.assigned(None, np.array([0, problem.n_vars]), np.array([0, 1]), 1)
        if work >= LARGE:
            visits = (order.seq, problem.nbr_ptr, problem.edge_factor[problem.nbr], problem.n_factors)
            self.chunks, place = divide_sweep(visits, problem.threads)
            order = order if place is None else order.sorted_by(place)
        self.problem, self.order, self.stopping = problem, order, stopping
        self.seq = order.seq
        self.work = work  # approximate number of table entries processed per iteration
        # labels, in_order: (n_vars,): the last decoded labelling and the best one so far, in visiting order
        self.labels: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.in_order: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.figures = PassFigures()
        self.n_workers = len(self.chunks.ptr) - 1
        self.workers: Workers | None = None  # those that share passes, None for a single one
        if self.n_workers > 1:
            from mapmrf.run.pool import Workers  # not loaded for a single thread

            self.workers = Workers(self.n_workers)

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
        model, messages, chunks = self.model, self.messages, self.chunks
        for half in range(2 * begin, 2 * end):
            forward, decode = half % 2 == 0, half // 2 % decode_every == 0

            def work(w: int, forward: bool = forward, decode: bool = decode) -> bool:
                return self.kernels[1](w, forward, decode, model, messages, self.scratches[w], chunks)

            begin_pass(forward, chunks, self.start)
            share_sweep(self.workers, work, self.n_workers)
            figures, stopping = self.figures, self.stopping
            why, self.figures = end_pass(forward, decode, self.constant, figures, stopping, chunks, messages)
            if not forward and why != LIMIT:
                return half // 2 + 1 - begin, why
        return end - begin, LIMIT

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
    lam: Floats  # the messages, of pairs each to the end that is visited next; of other factors the multipliers
    theta: Floats  # the unary potentials, or the fields of spins; of other factors -inf for impossible states
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
        chunks.done[APART * w] += 1
        if chunks.tell[0 if forward else 1, c]:  # other workers wait for it
            publish(chunks.told, APART * w, chunks.done[APART * w])


@compiled
def end_pass(
    forward: bool, decode: bool, constant: float, figures: PassFigures, stopping: PassStopping, chunks: Chunks,
    messages: Any,
) -> tuple[int, PassFigures]:  # fmt: skip
    """Add up what the chunks of a pass have given, and keep its labels if they are the best so far."""
    # Returns why to stop after a backward pass, LIMIT if there is no reason, and the figures. The bound is -inf if that
    # of some chunk is.
    first = chunk_at(forward, 0, chunks)
    total, value = chunks.bound[first], chunks.value[first]
    for place in range(1, len(chunks.bound)):
        c = chunk_at(forward, place, chunks)
        total += chunks.bound[c]
        value += chunks.value[c]
    for c in range(len(chunks.bound)):
        if chunks.bound[c] == -np.inf:
            total = value = -np.inf
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


# Visits in order, and the groups of each, ``group[ptr[i] : ptr[i + 1]]``, with the number of groups. A visit depends on
# those before it in its groups: variables on others in their factors, and factors on others of their variables.
Visits = tuple[Ints, Ints, Ints, int]


def divide_sweep(visits: Visits, threads: int) -> tuple[Chunks, Ints | None]:
    """Divide the visits of a large model into strands and chunks, and share them among threads."""
    # If they are in no suitable order, as in most graphs that are not grids, they are first sorted by depth, if there
    # are few depths; each depth is then a strand. Also returns that order of the visits. All that depend on each other
    # stay in order, so that messages are unchanged.
    begin, strand_ptr, place = *cut_visits(visits), None
    if len(strand_ptr) == 2:
        depth = depths_of(visits)
        sizes, n = np.bincount(depth), len(depth)
        if n >= LONG * len(sizes):
            place = np.argsort(depth, kind="stable")
            visits = (visits[0][place], *visits[1:])
            begin, strand_ptr = cut_strands(offsets(sizes)[:-1], n)
    return Chunks.shared(visits, begin, strand_ptr, threads), place


def cut_visits(visits: Visits) -> tuple[Ints, Ints]:
    """Divide visits into strands (rows of an image, planes of a volume, or all in one) and these into chunks."""
    # A run of visits in which each depends on the previous one, such as a row, is inherently sequential; short runs
    # that depend on each other are grouped, like the rows of a plane. Returns where the chunks begin, and the first
    # chunk of every strand, both with one more at the end.
    n, fewest = len(visits[0]), 8  # fewest strands for which the division is worthwhile
    rows = np.flatnonzero(~linked_runs(visits, np.arange(n, dtype=np.int32)))
    if n < LONG * len(rows):
        row = np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(rows, append=n))
        planes = rows[~linked_runs(visits, row)]
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


def share_sweep(workers: Workers, work: Callable[[int], bool], n: int) -> None:
    """Call `n` workers by their numbers again and again until all have done their part; if one fails, all stop."""
    failed = False

    def finish(w: int) -> None:
        nonlocal failed
        try:
            while not failed and not work(w):
                time.sleep(NAP)
        except BaseException:
            failed = True
            raise

    workers.run(finish, [(w,) for w in range(n)])


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
    def shared(cls, visits: Visits, begin: Ints, strand_ptr: Ints, threads: int) -> Chunks:
        """Share chunks among as many workers as threads; one if the order of the visits would keep them waiting."""
        n_workers = min(threads, int(np.diff(strand_ptr).max()))
        if n_workers > 1:
            chunks = cls.assigned(visits, begin, strand_ptr, n_workers)
            # Minimum speed-up of several workers, as far as limited by the order of visits
            if begin[-1] >= 1.3 * longest_wait(chunks):
                return chunks
        return cls.assigned(visits, begin, strand_ptr, 1)

    @classmethod
    def assigned(cls, visits: Visits | None, begin: Ints, strand_ptr: Ints, n_workers: int) -> Chunks:
        """Assign a part of every strand to each worker."""
        n_chunks, sizes = len(begin) - 1, np.diff(strand_ptr)
        inside = np.arange(n_chunks) - np.repeat(strand_ptr[:-1], sizes)
        owner = inside * n_workers // np.repeat(sizes, sizes)
        chunk = np.argsort(owner, kind="stable")
        ptr = offsets(np.bincount(owner, minlength=n_workers))
        needs, tell = np.zeros((2, n_chunks, n_workers), dtype=np.int64), np.zeros((2, n_chunks), dtype=bool)
        (bound, value), (done, told) = np.zeros((2, n_chunks)), np.zeros((2, APART * n_workers), dtype=np.int64)
        chunks = cls(begin[:-1], begin[1:], owner, bound, value, ptr, chunk, needs, tell, done, told)
        if visits is not None and n_workers > 1:
            place = np.empty(n_chunks, dtype=np.int64)
            place[chunk] = np.arange(n_chunks) - ptr[owner[chunk]]
            find_needs(visits, np.repeat(np.arange(n_chunks, dtype=np.int32), np.diff(begin)), place, chunks)
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


@compiled
def linked_runs(visits: Visits, run: Ints) -> Bools:
    """Mark the runs of visits of which some depends on one in the run right before it."""
    seq, ptr, group, n_groups = visits
    linked = np.zeros(run[-1] + 1 if len(run) > 0 else 0, dtype=np.bool_)
    last = np.full(n_groups, -2, dtype=np.int64)  # the run of the last visit in every group
    for q in range(len(seq)):
        for k in range(ptr[seq[q]], ptr[seq[q] + 1]):
            if run[q] - last[group[k]] == 1:
                linked[run[q]] = True
            last[group[k]] = run[q]
    return linked


@compiled
def depths_of(visits: Visits) -> Ints:
    """Compute the length of the longest chain of dependencies that leads to each visit."""
    seq, ptr, group, n_groups = visits
    depth, least = np.zeros(len(seq), dtype=np.int32), np.zeros(n_groups, dtype=np.int32)
    for q in range(len(seq)):
        here = 0
        for k in range(ptr[seq[q]], ptr[seq[q] + 1]):
            here = max(here, least[group[k]])
        depth[q] = here
        for k in range(ptr[seq[q]], ptr[seq[q] + 1]):
            least[group[k]] = here + 1
    return depth


@compiled
def find_needs(visits: Visits, chunk_of: Ints, place: Ints, chunks: Chunks) -> None:
    """Fill in what chunks wait for: the visits right before theirs in some group, which waited for those before."""
    # `chunk_of` is the chunk of every visit, and `place` the place of every chunk among those of its worker.
    onward, back = chunks.needs[0], chunks.needs[1]
    seq, ptr, group, n_groups = visits
    last = np.full(n_groups, -1, dtype=np.int64)  # the chunk of the last visit in every group
    for q in range(len(seq)):
        late = chunk_of[q]
        for k in range(ptr[seq[q]], ptr[seq[q] + 1]):
            early = last[group[k]]
            last[group[k]] = late
            if early < 0 or chunks.owner[early] == chunks.owner[late]:
                continue
            w, v = chunks.owner[early], chunks.owner[late]
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


def publish(numbers: Ints, at: int, value: int) -> None:
    """Write a number with release semantics: it makes visible all earlier writes of this thread."""
    numbers[at] = value


def observe(numbers: Ints, at: int) -> int:
    """Read a number with acquire semantics: everything written before it was published is visible."""
    return int(numbers[at])


def _define_in_kernels() -> None:
    """In kernels: loads and stores of 64 bits that neither the compiler nor the processor moves past others."""
    from mapmrf.compilation.compiler import cgutils, extending, types

    untyped: Any = cgutils
    intrinsic: Any = extending.intrinsic
    overload: Any = extending.overload

    def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        return untyped.get_item_pointer(context, builder, kind, view, [arguments[1]], wraparound=False)

    @intrinsic  # type: ignore[untyped-decorator]
    def store(typing: Any, numbers: Any, at: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            builder.store_atomic(arguments[2], pointer(context, builder, signature, arguments), "release", 8)
            return context.get_dummy_value()

        return types.none(numbers, types.int64, types.int64), code

    @intrinsic  # type: ignore[untyped-decorator]
    def load(typing: Any, numbers: Any, at: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load_atomic(pointer(context, builder, signature, arguments), "acquire", 8)

        return types.int64(numbers, types.int64), code

    def as_store(numbers: Any, at: Any, value: Any) -> Any:
        return lambda numbers, at, value: store(numbers, at, value)

    def as_load(numbers: Any, at: Any) -> Any:
        return lambda numbers, at: load(numbers, at)

    # Not `inline="always"`: numba then removes, as dead, stores of the caller into arrays from nested tuples.
    options = {"forceinline": True, "_nrt": False}
    overload(publish, jit_options=options, strict=False)(as_store)
    overload(observe, jit_options=options, strict=False)(as_load)


when_compiling.append(_define_in_kernels)
