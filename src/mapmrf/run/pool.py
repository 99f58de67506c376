"""Run tasks in parallel with joblib: in threads, in processes, or on a cluster."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import math
import os
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, Protocol, TypeVar

from mapmrf.errors import OptionError
from mapmrf.run.clock import CallAbandoned, Supervisor
from mapmrf.run.interrupts import Interrupts

log = logging.getLogger("mapmrf")

STOP_SECONDS = 5.0  # seconds that a process has to return its best labelling after Ctrl-C before it ends itself

PATIENCE = STOP_SECONDS + 2.0  # seconds after Ctrl-C until a batch gives up tasks that do not return

POLL_SECONDS = 0.1  # seconds between a process's checks whether it must stop

IN_PROCESS = ("threading", "sequential")  # joblib backends whose workers share our memory

OUR_NAMES = {None: "threading", "threads": "threading", "processes": "loky"}

Outcome = TypeVar("Outcome")

Outcome_co = TypeVar("Outcome_co", covariant=True)

Stopped = Callable[[], bool]


class PoolTask(Protocol[Outcome_co]):
    """Work for a pool. Exceptions raised in this process are passed to the caller of the pool."""

    def run(self, stopped: Stopped) -> Outcome_co:
        """Do the work; return early with the best so far once `stopped()` is true."""

    def unsolved(self) -> Outcome_co:
        """The outcome of a task that was interrupted before its turn."""

    def lost(self, error: Exception) -> Outcome_co:
        """The outcome of a task that could not be sent to a worker, or whose worker died."""


_has_workers = False  # whether joblib may have started processes, which it keeps for the next batch


def run_in_order(
    tasks: Iterator[PoolTask[Outcome]],
    *,
    jobs: int,
    backend: str | None = None,
    done: Callable[[Outcome], None] = lambda outcome: None,
    pack: Callable[[Any], PoolTask[Outcome]] = lambda task: task,
) -> Iterator[Outcome]:
    """Run tasks and yield their outcomes in order."""
    # The first Ctrl-C stops the current runs, whose outcomes are still yielded if they are ready within some seconds,
    # and starts no more tasks; the second does not wait for them. A task is taken from its source shortly before a
    # worker becomes free. `done` is called with every outcome as soon as it is ready, whatever its place in the order;
    # `pack` prepares a task for being sent to another process. `backend` is ``"threads"`` (None), ``"processes"``, or
    # one of joblib; a cluster ignores `jobs`.
    name = str(OUR_NAMES.get(backend, backend))
    _parallel(jobs, name)  # report an unknown backend now, not at the first outcome
    return _Batch(tasks, partial(_parallel, jobs, name), None if name in IN_PROCESS else pack).run(done)


def _parallel(jobs: int, backend: str) -> Any:
    """The joblib pool, which returns outcomes one by one if the backend can."""
    global _has_workers
    joblib = importlib.import_module("joblib")
    # joblib would run a single job in our own process, which a crash would end: use two workers, one task at a time.
    single = backend == "loky" and jobs == 1
    local = backend in (*IN_PROCESS, "loky")  # a cluster has latency
    pre_dispatch = "1" if single else "n_jobs" if local else "2 * n_jobs"
    options = {"n_jobs": 2 if single else jobs, "batch_size": 1, "pre_dispatch": pre_dispatch}
    if backend == "loky":
        _has_workers = True
        options |= {"initializer": end_with, "initargs": (os.getpid(),)}
    try:
        with joblib.parallel_config(backend=backend):  # unlike Parallel, this finds backends such as Dask
            with contextlib.suppress(ValueError):
                return joblib.Parallel(return_as="generator_unordered", **options)
            return joblib.Parallel(**options)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise OptionError(f"backend={backend!r}, expected threads, processes or a joblib backend ({said})") from None


def end_workers() -> None:
    """End the processes that wait for the next batch; for programs that leave by `os._exit`."""
    if _has_workers:
        reusable: Any = importlib.import_module("joblib.externals.loky.reusable_executor")
        executor, reusable._executor = reusable._executor, None
        if executor is not None:
            executor.terminate(kill_workers=True)  # and remove the folder of its arrays
            del executor
            gc.collect()  # its semaphores


class _Batch(Generic[Outcome]):
    """Tasks in progress."""

    # When a worker dies, joblib ends them all without saying which task was to blame: those without an outcome are
    # repeated, one at a time.

    def __init__(
        self,
        tasks: Iterator[PoolTask[Outcome]],
        make_parallel: Callable[[], Any],
        pack: Callable[[PoolTask[Outcome]], PoolTask[Outcome]] | None,
    ) -> None:
        self.numbered = enumerate(tasks)
        self.make_parallel, self.pack = make_parallel, pack
        self.stopped = StopFlag()
        self.sent: dict[int, PoolTask[Outcome]] = {}
        self.lost: deque[tuple[int, PoolTask[Outcome]]] = deque()
        self.failure: Exception | None = None

    def run(self, done: Callable[[Outcome], None]) -> Iterator[Outcome]:
        early: dict[int, Outcome] = {}
        index = 0
        if self.pack is not None:
            self.stopped.share()
        try:
            for number, outcome in self._outcomes():
                done(outcome)
                early[number] = outcome
                while index in early:
                    yield early.pop(index)
                    index += 1
        finally:
            self.stopped.close()
        if self.failure is not None:
            raise self.failure

    def _outcomes(self) -> Iterator[tuple[int, Outcome]]:
        yield from self._round(self.numbered)
        while self.lost and not self.stopped():
            yield from self._round(iter([self.lost.popleft()]), alone=True)
            if not self.lost:
                yield from self._round(self.numbered)
        yield from ((number, task.unsolved()) for number, task in self.lost)

    def _round(
        self, source: Iterator[tuple[int, PoolTask[Outcome]]], alone: bool = False
    ) -> Iterator[tuple[int, Outcome]]:
        """Run tasks until the source ends, a worker dies, or nobody waits for the tasks after Ctrl-C any longer."""
        # joblib is called on another thread: whatever it waits for, a task or the source, it can be left waiting.
        results: Iterator[tuple[int, Outcome]] = iter(())
        supervisor = Supervisor()
        try:
            parallel = self.make_parallel()  # a used one keeps tasks that it has read ahead
            with self._interruptible():
                results = supervisor.call(self._patience, lambda: iter(parallel(self._calls(source))), undo=_exhaust)
            while True:
                with self._interruptible():
                    pair = supervisor.call(self._patience, next, results, None, undo=lambda late: _exhaust(results))
                if pair is None:
                    break
                del self.sent[pair[0]]
                yield pair
        except (KeyboardInterrupt, CallAbandoned):
            self.stopped.set()
        except Exception as error:
            if self.pack is None:  # no worker dies in our own process: an error of the task itself
                raise
            log.debug("a worker died", exc_info=True)
            if alone and self.sent and not self.stopped():
                yield from [(number, task.lost(error)) for number, task in self.sent.items()]
                self.sent.clear()
        except GeneratorExit:
            self.stopped.set()
            with contextlib.suppress(CallAbandoned):
                supervisor.call(self._patience, _exhaust, results)
            raise
        finally:
            supervisor.close()
        self.lost.extend(self.sent.items())
        self.sent.clear()

    def _calls(self, source: Iterator[tuple[int, PoolTask[Outcome]]]) -> Iterator[Any]:
        """The calls for joblib, drawn when it has a free worker; an error of the source ends the batch."""
        delayed = importlib.import_module("joblib").delayed
        while not self.stopped():
            try:
                number, task = next(source)
            except StopIteration:
                return
            except Exception as error:
                self.failure = error
                self.stopped.set()
                return
            self.sent[number] = task
            yield delayed(_run)(number, task if self.pack is None else self.pack(task), self.stopped)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """On the first Ctrl-C, stop the tasks and wait for them; on the second, raise KeyboardInterrupt."""
        # joblib itself would discard the running tasks.

        def interrupt() -> None:
            if self.stopped():
                raise KeyboardInterrupt
            self.stopped.set()

        with Interrupts(listener=interrupt) as interrupts:
            if interrupts.requested:
                self.stopped.set()
            yield

    def _patience(self) -> float:
        return self.stopped.since + PATIENCE - time.monotonic()


def _exhaust(results: Iterator[object] | None) -> None:
    """Take all results: joblib would warn about unused ones."""
    with contextlib.suppress(Exception):
        deque(results or (), maxlen=0)


# -- in the worker -----------------------------------------------------------------------------------------------------


def end_with(owner: int) -> None:
    """End this process, a worker, with the one that started it, even if that is killed: nobody waits for it."""

    def watch() -> None:
        while os.getppid() == owner:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class StopFlag:
    """A flag for tasks to stop: an event, and a file for the other processes of this machine."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.owner = os.getpid()
        self.since = math.inf  # when it was set, by the monotonic clock
        self._event = threading.Event()

    def share(self) -> None:
        """Make the flag visible to copies in other processes, through a file that is created when it is set."""
        self.folder = Path(tempfile.mkdtemp(prefix="mapmrf-"))

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self.since = min(self.since, time.monotonic())
        self._event.set()
        if self.folder is not None:
            with contextlib.suppress(OSError):
                self._file.touch()

    def close(self) -> None:
        self.set()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    @contextlib.contextmanager
    def followed(self) -> Iterator[None]:
        """Watch the file while a task runs; end the process if the task does not return after the flag is set."""
        if self.folder is None or os.getpid() == self.owner:
            yield
            return
        ours = threading.current_thread() is threading.main_thread()  # a cluster's workers must not be ended
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that distributes the tasks
        if self._file.exists():
            self._event.set()
        finished = threading.Event()
        threading.Thread(target=self._watch, args=(finished, ours), daemon=True).start()
        try:
            yield
        finally:
            finished.set()

    def _watch(self, finished: threading.Event, ours: bool) -> None:
        while not finished.wait(POLL_SECONDS):
            if self._file.exists():
                self._event.set()
                if not finished.wait(STOP_SECONDS) and ours:
                    os._exit(1)
                return

    @property
    def _file(self) -> Path:
        assert self.folder is not None
        return self.folder / "stop"

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "owner": self.owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.since = math.inf
        self._event = threading.Event()


def _run(number: int, task: PoolTask[Outcome], stopped: StopFlag) -> tuple[int, Outcome]:
    with stopped.followed():
        return number, task.run(stopped)


# -- Threads that share the calls of a kernel -------------------------------------------------------------------------


R = TypeVar("R")

SharedCalls = tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]  # a kernel and the arguments of its calls


class Workers:
    """The calling thread and its helpers; without helpers, a plain loop."""

    # Each helper waits at its own queue: a pool of the standard library takes several times as long to hand over a
    # call, as long as a kernel needs for thousands of factors.

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
