"""How the models of a batch are solved side by side: in threads, in processes, or by a backend of joblib."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from mapmrf._version import __version__
from mapmrf.arrays import Ints, segment_argmax
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.formats import read
from mapmrf.formats.evidence import read_evidence
from mapmrf.formats.files import AnyPath
from mapmrf.graph import FactorGraph
from mapmrf.method import Method
from mapmrf.result import Result, Status, TracePoint
from mapmrf.solver import solve

log = logging.getLogger("mapmrf")

STOP_SECONDS = 10.0
"""How long a process may take to come back with its best labelling after Ctrl-C before it is killed."""

Model = FactorGraph | AnyPath
Outcome = Result | MapMRFError
Observed = Mapping[int | str, int | str]
Evidence = AnyPath | Observed | MapMRFError | None
Stopped = Callable[[], bool]


class NotSolved(MapMRFError):
    """What stands in the place of a model whose turn had not come when a batch was interrupted."""


@dataclass(frozen=True, eq=False)
class Task:
    """A model of a batch and how to solve it.

    Attributes
    ----------
    model
        The model, or the file to read it from.
    method, seed, options
        What to solve it with; the options are those of `solve`, not of the method.
    evidence
        What is observed, or the error that was found in it.
    """

    model: Model
    method: Method
    seed: int
    options: Mapping[str, Any]
    evidence: Evidence = None

    def run(self, stopped: Stopped) -> Outcome:
        """Solve the model; whatever goes wrong is the outcome, so that the rest can go on."""
        try:
            if stopped():
                return self.unsolved()
            return self._solve(self._graph(), stopped)
        except MapMRFError as error:
            return self._named(error)
        except MemoryError:
            return self._named(MapMRFError("not enough memory for this model"))
        except Exception as error:
            log.debug("a model of a batch failed", exc_info=True)
            outcome = self._named(MapMRFError(f"{type(error).__name__}: {' '.join(str(error).split())}"))
            outcome.__cause__ = error
            return outcome

    def unsolved(self) -> Outcome:
        """What is known without any work: the best state of every variable alone, if the model is at hand."""
        graph = self.model
        if not isinstance(graph, FactorGraph) or self.evidence is not None:
            return self._named(NotSolved("not solved: interrupted before its turn"))
        labels = segment_argmax(graph.theta_v, graph.var_ptr)
        return Result(
            labels,
            graph.value(labels),
            Status.INTERRUPTED,
            self.method.name,
            seed=self.seed,
            version=__version__,
            unit=graph.unit,
            names=graph.names,
        )

    def _graph(self) -> FactorGraph:
        if isinstance(self.evidence, MapMRFError):
            raise self.evidence
        if not isinstance(self.model, FactorGraph):
            return read(self.model, evidence=self.evidence)
        if self.evidence is None:
            return self.model
        return self.model.condition(_observed(self.evidence, self.model))

    def _solve(self, graph: FactorGraph, stopped: Stopped) -> Result:
        options = dict(self.options)
        user = options.pop("callback", None)

        def callback(point: TracePoint, labels: Ints) -> bool:
            return stopped() or bool(user is not None and user(point, labels))

        return solve(graph, self.method, seed=self.seed, callback=callback, **options)

    def _named(self, error: MapMRFError) -> MapMRFError:
        """The error with the file before it, where it does not name that itself."""
        if isinstance(self.model, FactorGraph) or os.fspath(self.model) in str(error):
            return error
        return type(error)(f"{os.fspath(self.model)}: {error}")


def _observed(evidence: AnyPath | Observed, graph: FactorGraph) -> Observed:
    """Observations as they are given, or the first sample of an evidence file."""
    return evidence if isinstance(evidence, Mapping) else cast(Observed, read_evidence(evidence, graph)[0])


# -- threads, each of which solves models itself or minds a process that does ----------------------------------------


class Runner(Protocol):
    """What a thread has to run tasks with."""

    def run(self, task: Task, stopped: Stopped) -> Outcome:
        """Run a task."""

    def close(self) -> None:
        """Give back what the runner holds."""


class Here:
    """Runs tasks in the thread that calls it: kernels leave the interpreter's lock to others."""

    def run(self, task: Task, stopped: Stopped) -> Outcome:
        """Run a task."""
        return task.run(stopped)

    def close(self) -> None:
        """Nothing to give back."""


class Process:
    """Runs tasks in a process of its own, which is started when it is needed and again after a crash."""

    def __init__(self) -> None:
        self._process: Any = None
        self._pipe: Any = None
        self._sent: Model | None = None

    def run(self, task: Task, stopped: Stopped) -> Outcome:
        """Run a task; a process that dies takes only this one along."""
        if stopped():
            return task.unsolved()
        self._ensure()
        try:
            self._send(task)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            return OptionError(f"a model, method, callback or option cannot be sent to a process: {error}")
        except OSError:
            return self._lost()
        return self._outcome(task, stopped)

    def _send(self, task: Task) -> None:
        """Send a task; a model that the process has already, for another row of evidence, stays where it is."""
        known = isinstance(task.model, FactorGraph) and task.model is self._sent
        model: Any = None if known else bare(task.model)
        self._pipe.send((model, dataclasses.replace(task, model="")))
        self._sent = task.model

    def _outcome(self, task: Task, stopped: Stopped) -> Outcome:
        asked = 0.0
        try:
            while not self._pipe.poll(0.05):
                if stopped() and not asked:
                    self._pipe.send("stop")
                    asked = time.monotonic()
                elif asked and time.monotonic() - asked > STOP_SECONDS:
                    self.close()
                    return task.unsolved()
            outcome: Outcome = self._pipe.recv()
            return outcome
        except (EOFError, OSError):
            return self._lost()

    def _ensure(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self.close()
        context = multiprocessing.get_context("spawn")  # a fork would copy the locks of threads that it does not copy
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _lost(self) -> MapMRFError:
        self._process.join(5.0)
        code = self._process.exitcode
        self.close()
        return MapMRFError(f"the process that solved this model ended with code {code}; was memory short?")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._sent = None


def serve(pipe: Any) -> None:
    """Run the tasks that come through a pipe until it closes; a message in the middle of a run ends that run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that hands out the tasks
    model: Any = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pipe.recv()
            if message == "stop":  # the run that it was for had just come to its end
                continue
            sent, task = message
            model = model if sent is None else bare(sent)
            pipe.send(dataclasses.replace(task, model=model).run(pipe.poll))


def bare(model: Model) -> Model:
    """The model without what it has computed and kept, which need not be sent, and with read-only arrays.

    Arrays that come out of a pickle are not; kernels would be compiled a second time for them.
    """
    return dataclasses.replace(model) if isinstance(model, FactorGraph) else model


class Crew:
    """Threads that take tasks from one source and leave the outcomes where they are called for in order.

    A task is taken when a thread is free for it, so that no more models than threads are in memory.
    """

    def __init__(self, tasks: Iterator[Task], done: Callable[[Outcome], None]) -> None:
        self.tasks, self.done = tasks, done
        self.source = threading.Lock()  # of its own: a slow source must not keep outcomes back
        self.changed = threading.Condition()
        self.stopped = threading.Event()
        self.outcomes: dict[int, Outcome] = {}
        self.failure: BaseException | None = None
        self._taken = 0
        self._at_work = 0

    def run(self, jobs: int, make: Callable[[], Runner]) -> Iterator[Outcome]:
        """Give the outcomes in order; the first Ctrl-C ends the runs under way, whose best labellings still come."""
        self._at_work = jobs
        threads = [threading.Thread(target=self._work, args=(make,), name=f"mapmrf-{n}") for n in range(jobs)]
        for thread in threads:
            thread.start()
        try:
            index = 0
            while (outcome := self._wait(index)) is not None:
                yield outcome
                index += 1
        finally:
            self.stopped.set()
            for thread in threads:
                thread.join()
        if self.failure is not None:
            raise self.failure

    def _wait(self, index: int) -> Outcome | None:
        """The outcome of a task, None if there is no such task."""
        while True:
            try:
                with self.changed:
                    self.changed.wait_for(lambda: index in self.outcomes or self._at_work == 0 or self.failure)
                    return None if self.failure else self.outcomes.pop(index, None)
            except KeyboardInterrupt:
                if self.stopped.is_set():
                    raise
                self.stopped.set()

    def _work(self, make: Callable[[], Runner]) -> None:
        runner = make()
        try:
            while (taken := self._take()) is not None:
                index, task = taken
                outcome = runner.run(task, self.stopped.is_set)
                with self.changed:
                    self.outcomes[index] = outcome
                    self.done(outcome)
                    self.changed.notify_all()
        except BaseException as error:  # what the source of the models raises is said by the thread that waits
            self.failure = error
        finally:
            runner.close()
            with self.changed:
                self._at_work -= 1
                self.changed.notify_all()

    def _take(self) -> tuple[int, Task] | None:
        with self.source:
            task = None if self.stopped.is_set() or self.failure else next(self.tasks, None)
            if task is None:
                return None
            self._taken += 1
            return self._taken - 1, task


def outcomes_of(
    tasks: Iterable[Task], jobs: int, backend: str | None, done: Callable[[Outcome], None]
) -> Iterator[Outcome]:
    """Run tasks, `jobs` at a time, and give their outcomes in order; `done` is told of each as soon as it is there."""
    source = iter(tasks)
    if backend in (None, "threads"):
        return Crew(source, done).run(jobs, Here)
    if backend == "processes":
        return Crew(source, done).run(jobs, Process)
    from mapmrf.joblib_pool import run_by_joblib

    return run_by_joblib(source, jobs, str(backend), done)
