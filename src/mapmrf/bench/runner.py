"""Hand the tasks of a plan out to worker processes and write every finished record down at once."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from mapmrf.bench.plan import Task
from mapmrf.bench.records import Record, RecordFile
from mapmrf.bench.worker import BEGINS, machine, work

GRACE = 60.0
"""Seconds beyond its time limit after which a run is killed: a long step and the report take some of them."""
SETUP = 600.0
"""Seconds after which a run is killed that has not begun: reading the model and compiling the method come first."""

Listener = Callable[[Record], None]


@dataclass(frozen=True)
class Summary:
    """How a benchmark ended: tasks of the plan, of these done before, done in this call, and whether it was stopped."""

    planned: int
    before: int
    done: int
    interrupted: bool


def run_all(
    tasks: Sequence[Task],
    path: str | Path,
    *,
    jobs: int = 1,
    memory: int = 0,
    grace: float = GRACE,
    setup: float = SETUP,
    retry: bool = False,
    listener: Listener | None = None,
) -> Summary:
    """Make all runs that the file has no record of, `jobs` at a time.

    Ctrl-C ends the runs under way, which leave no record; the same call goes on from there.

    Parameters
    ----------
    tasks
        The runs to make.
    path
        The file of records; it is made, or appended to.
    jobs
        Worker processes.
    memory
        Bytes that a run may take, 0 for no limit.
    grace
        Seconds beyond its time limit after which a run is killed and recorded as such.
    setup
        Seconds that reading the model and compiling the method may take before that.
    retry
        Make runs that failed once more; their new record takes the place of the old one.
    listener
        Called with every record once it is on the disk.
    """
    with RecordFile(path, retry=retry) as file:
        missing = [task for task in tasks if task.key not in file.keys]
        bench = _Bench(file, missing, lambda: _Worker(memory, setup, grace), listener)
        interrupted = bench.run(min(jobs, max(1, len(missing))))
    return Summary(len(tasks), len(tasks) - len(missing), bench.done, interrupted)


class _Bench:
    """A benchmark under way: what the threads that mind the workers share."""

    def __init__(
        self, file: RecordFile, tasks: Sequence[Task], hire: Callable[[], _Worker], listener: Listener | None
    ) -> None:
        self.file, self.hire, self.listener = file, hire, listener
        self.waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            self.waiting.put(task)
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.failure: BaseException | None = None
        self.done = 0

    def run(self, jobs: int) -> bool:
        """Mind `jobs` workers until all is done; return whether Ctrl-C ended it."""
        threads = [threading.Thread(target=self._mind, name=f"mapmrf-bench-{number}") for number in range(jobs)]
        for thread in threads:
            thread.start()
        interrupted = False
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.05)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join()
        if self.failure is not None:
            raise self.failure
        return interrupted

    def _mind(self) -> None:
        """Run task after task, one at a time; a thread of its own for each job.

        Every peer has a worker of its own: OR-Tools and highspy bring different libraries of the same name, and
        whichever is loaded second cannot be used.
        """
        workers: defaultdict[str, _Worker] = defaultdict(self.hire)
        try:
            while not self.stopped.is_set():
                task = self.waiting.get_nowait()
                record = workers[task.run.peer if task.run.is_peer else ""].record(task, self.stopped)
                if record is not None:
                    self._keep(record)
        except queue.Empty:
            pass
        except BaseException as error:  # a full disk, for instance: said by the thread that called `run`
            self.failure = error
            self.stopped.set()
        finally:
            for worker in workers.values():
                worker.kill()

    def _keep(self, record: Record) -> None:
        with self.lock:
            self.file.append(record)
            self.done += 1
            if self.listener is not None:
                self.listener(record)


class _Worker:
    """A worker process, started when it is needed and again after it had to be killed."""

    def __init__(self, memory: int, setup: float, grace: float) -> None:
        self.memory, self.setup, self.grace = memory, setup, grace
        self.process: BaseProcess | None = None
        self.pipe: Any = None

    def record(self, task: Task, stopped: threading.Event) -> Record | None:
        """The record of a run, also of one that crashed or took too long; None if the benchmark was stopped."""
        self._ensure()
        try:
            self.pipe.send(task)
            found = self._wait(task, self.setup, "not begun", stopped)
            while found == BEGINS:
                found = self._wait(task, task.time_limit + self.grace, "still running", stopped)
            return cast(Record | None, found)
        except (EOFError, OSError):
            code = self._exit_code()
            if stopped.is_set():
                return None
            return _lost(task, "crash", f"the process ended with code {code}")

    def _wait(self, task: Task, seconds: float, stage: str, stopped: threading.Event) -> Any:
        """What the process says next; the record of a killed run if that takes too long, None if all was stopped."""
        end = time.monotonic() + seconds
        while not self.pipe.poll(0.1):
            if stopped.is_set():
                self.kill()
                return None
            if time.monotonic() > end:
                self.kill()
                return _lost(task, "killed", f"{stage} after {seconds:.0f} s")
        return self.pipe.recv()

    def _ensure(self) -> None:
        if self.process is not None and self.process.is_alive():
            return
        self.kill()
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(theirs, self.memory), daemon=True)
        self.process.start()
        theirs.close()

    def _exit_code(self) -> int | None:
        assert self.process is not None
        self.process.join(5.0)
        code = self.process.exitcode
        self.kill()
        return code

    def kill(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None


def _lost(task: Task, outcome: str, message: str) -> Record:
    """The record of a run that could not report itself."""
    finished = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {**task.facts(), "outcome": outcome, "message": message, **machine(), "finished": finished}
