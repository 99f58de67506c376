"""Run benchmark tasks in worker processes and write every record as soon as it is finished.

The pool of `mapmrf.batch` is not suitable: a run here has a deadline after which only its process is killed, and a
crash is recorded with its exit code; joblib ends all workers together.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import signal
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple, cast

from mapmrf.bench.records import Record, RecordFile
from mapmrf.bench.run_list import BenchTask
from mapmrf.bench.worker import BEGINS, PREPARES, machine, work
from mapmrf.run.interrupts import Interrupts
from mapmrf.run.progress import TerminalBar


class RunLimits(NamedTuple):
    """Limits of a run besides its time limit, after which its process is killed."""

    memory: float | None = None  # bytes for program, model and run
    grace: float = 60.0  # seconds beyond the time limit: the last step and the report need some of them
    setup: float = 600.0  # seconds for reading the model and compiling the method


@dataclass(frozen=True)
class Summary:
    """Summary of a benchmark: tasks planned, done before, done in this call, whether it was interrupted, failures."""

    planned: int
    before: int
    done: int
    interrupted: bool
    troubles: Counter[str]  # outcomes of this call's runs that failed


def run_all(
    tasks: Sequence[BenchTask],
    path: str | Path,
    *,
    jobs: int = 1,
    limits: RunLimits | None = None,
    retry: bool = False,
    progress: bool = False,
) -> Summary:
    """Run all tasks without a record in the file, `jobs` in parallel; `progress` shows a bar in a terminal."""
    # Ctrl-C ends the current runs, which leave no record; the same call resumes the benchmark.
    with RecordFile(path, retry=retry) as file:
        missing = [task for task in tasks if task.key not in file.keys]
        with _BenchBar(missing, jobs) if progress else contextlib.nullcontext() as bar:
            bench = _Bench(file, missing, lambda: _BenchWorker(limits or RunLimits()), bar)
            interrupted = bench.run(min(jobs, max(1, len(missing))))
    return Summary(len(tasks), len(tasks) - len(missing), bench.done, interrupted, bench.troubles)


class _Bench:
    """A running benchmark: state shared by the threads that supervise the workers."""

    def __init__(
        self, file: RecordFile, tasks: Sequence[BenchTask], hire: Callable[[], _BenchWorker], bar: _BenchBar | None
    ) -> None:
        self.file, self.hire, self.bar = file, hire, bar
        self.waiting: queue.SimpleQueue[BenchTask] = queue.SimpleQueue()
        for task in tasks:
            self.waiting.put(task)
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.done = 0
        self.troubles: Counter[str] = Counter()

    def run(self, jobs: int) -> bool:
        """Supervise `jobs` workers until all tasks are done; return whether Ctrl-C ended it."""
        threads = [threading.Thread(target=self._supervise, name=f"mapmrf-bench-{number}") for number in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            with Interrupts() as interrupts:
                while any(thread.is_alive() for thread in threads) and not interrupts.requested:
                    time.sleep(0.05)
                return self._stop(threads, interrupts.requested)
        except KeyboardInterrupt:
            return self._stop(threads, True)

    def _stop(self, threads: Sequence[threading.Thread], interrupted: bool) -> bool:
        """End the current runs, and raise the error of a thread, if any."""
        self.stopped.set()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure
        return interrupted

    def _supervise(self) -> None:
        """Run tasks one by one; every job has its own thread."""
        # Every peer has its own worker: OR-Tools and highspy ship different libraries with the same name, and the
        # second one loaded cannot be used.
        workers: defaultdict[str, _BenchWorker] = defaultdict(self.hire)
        try:
            while not self.stopped.is_set():
                task = self.waiting.get_nowait()
                record = workers[task.run.peer if task.run.is_peer else ""].record(task, self.stopped)
                if record is None:
                    continue
                with self.lock:
                    self.file.append(record)
                    self.done += 1
                    if record["outcome"] not in ("done", "unsupported"):
                        self.troubles[record["outcome"]] += 1
                    if self.bar is not None:
                        self.bar.update(record, self.done)
        except queue.Empty:
            pass
        except BaseException as error:  # a full disk, for instance: raised by the thread that called `run`
            self.failure = error
            self.stopped.set()
        finally:
            for worker in workers.values():
                worker.kill()


class _BenchWorker:
    """A worker process, started on demand and restarted after it was killed."""

    def __init__(self, limits: RunLimits) -> None:
        self.limits = limits
        self.process: BaseProcess | None = None
        self.pipe: Any = None

    def record(self, task: BenchTask, stopped: threading.Event) -> Record | None:
        """The record of a run, even if it crashed or took too long; None if the benchmark was stopped."""
        self._ensure()
        try:
            self.pipe.send(task)
            found = self._wait(task, self.limits.setup, "not started", stopped)
            while found in (BEGINS, PREPARES):
                if found == BEGINS:
                    found = self._wait(task, task.time_limit + self.limits.grace, "still running", stopped)
                else:
                    found = self._wait(task, self.limits.setup, "still compiling", stopped)
            return cast(Record | None, found)
        except (EOFError, OSError):
            assert self.process is not None
            self.process.join(5.0)
            code = self.process.exitcode
            self.kill()
            return None if stopped.is_set() else _lost(task, "crash", f"the process ended with code {code}")

    def _wait(self, task: BenchTask, seconds: float, phase: str, stopped: threading.Event) -> Any:
        """The next message of the process; the record of a killed run after a timeout, None if all was stopped."""
        end = time.monotonic() + seconds
        while not self.pipe.poll(0.1):
            if stopped.is_set():
                self.kill()
                return None
            if time.monotonic() > end:
                self.kill()
                return _lost(task, "killed", f"{phase} after {seconds:.0f} s")
        return self.pipe.recv()

    def _ensure(self) -> None:
        if self.process is not None and self.process.is_alive():
            return
        self.kill()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.limits.memory), daemon=True)
        resource_tracker.ensure_running()  # otherwise started with the process, which would unblock the signal
        with _blocked(), _without_main():
            self.process.start()
        theirs.close()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and for good in the processes that it starts, which Ctrl-C would reach as well."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_STARTING = threading.Lock()


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Prevent a new process from importing the main module: a user's script, which may run a benchmark itself."""
    # Methods defined there are sent by value.
    main: Any = sys.modules["__main__"]
    with _STARTING:
        spec, path = getattr(main, "__spec__", None), vars(main).pop("__file__", None)
        main.__spec__ = None
        try:
            yield
        finally:
            main.__spec__ = spec
            if path is not None:
                main.__file__ = path


def _lost(task: BenchTask, outcome: str, message: str) -> Record:
    finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {**task.fields(), "outcome": outcome, "message": message, **machine(), "finished": finished}


# -- progress ---------------------------------------------------------------------------------------------------------


class _BenchBar(TerminalBar):
    """A progress bar of finished runs with an estimate of the time left; silent in a pipe."""

    # The estimate assumes that a run takes the mean time of its method on that set so far, or else of all runs.

    def __init__(self, tasks: Sequence[BenchTask], jobs: int) -> None:
        super().__init__("[bold]bench", "bar", "count", "elapsed", "{task.fields[state]}", total=len(tasks))
        self.jobs = jobs
        self._left = {task.key: (task.run.name, task.model.set) for task in tasks}
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def update(self, record: Record, done: int) -> None:
        self._left.pop(record["key"], None)
        spent = float(record.get("runtime") or record["time_limit"])  # a killed run took at least its limit
        self._seconds.setdefault((record["run"], record["set"]), []).append(spent)
        every = [seconds for some in self._seconds.values() for seconds in some]
        left = sum(statistics.fmean(self._seconds.get(kind, every)) for kind in self._left.values()) / self.jobs
        text = f"{left:.0f} s" if left < 90 else f"{left / 60:.0f} min" if left < 5400 else f"{left / 3600:.1f} h"
        self.draw(completed=done, state=f"about {text} left, last: {record['run']} on {record['model']}")
