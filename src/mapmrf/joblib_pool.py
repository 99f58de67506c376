"""The models of a batch in the workers of a joblib backend: other processes, a Dask cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import logging
import pickle
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mapmrf.errors import MapMRFError, OptionError
from mapmrf.graph import FactorGraph
from mapmrf.pools import Model, Outcome, Task, bare
from mapmrf.result import Result, Status

log = logging.getLogger("mapmrf")

IN_PROCESS = ("threading", "sequential")
"""Backends of joblib whose workers share our memory."""


class Switch:
    """A switch that threads share; a copy in another process stays as it is."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Whether it is on."""
        return self._event.is_set()

    def on(self) -> None:
        """Turn it on, for good."""
        self._event.set()

    def __reduce__(self) -> tuple[type[Switch], tuple[()]]:
        return Switch, ()


def run_by_joblib(tasks: Iterator[Task], jobs: int, backend: str, done: Callable[[Outcome], None]) -> Iterator[Outcome]:
    """Give the outcomes in order, from workers of a backend that joblib knows, such as a Dask cluster."""
    parallel = _parallel(jobs, backend)
    batch = _JoblibBatch(tasks, backend)
    try:
        while not batch.finished:
            try:
                for outcome in parallel(batch.calls()):
                    task = batch.waiting.popleft()
                    done(outcome)
                    yield outcome
                    if _interrupted(task, outcome):
                        raise KeyboardInterrupt
                batch.finished = not batch.alone
            except KeyboardInterrupt:
                batch.finished = True
                yield from [task.unsolved() for task in (*batch.waiting, *batch.lost)]
            except Exception as error:
                if not batch.waiting or batch.source_failed:
                    raise
                log.debug("a worker of joblib died", exc_info=True)
                if batch.alone:
                    yield MapMRFError(f"the worker of {backend} that solved this model died: {type(error).__name__}")
                else:
                    batch.lost.extend(batch.waiting)
            batch.waiting.clear()
    finally:
        batch.stopped.on()


class _JoblibBatch:
    """What joblib is given, and what of it has not come back.

    When a worker dies, joblib does not say which task it had: those that have not come back are tried alone.
    """

    def __init__(self, tasks: Iterator[Task], backend: str) -> None:
        self.tasks = tasks
        self.pack: Callable[[Model], Any] = bare if backend in IN_PROCESS else Packer()
        self.stopped = Switch()
        self.waiting: deque[Task] = deque()
        self.lost: deque[Task] = deque()
        self.alone = self.finished = self.source_failed = False

    def calls(self) -> Iterator[Any]:
        """The calls that are left to make, drawn when joblib has a worker for them; a lost one by itself."""
        self.alone = bool(self.lost)
        source = iter([self.lost.popleft()]) if self.alone else self.tasks
        delayed = importlib.import_module("joblib").delayed
        while not self.stopped():
            self.source_failed = True
            task = next(source, None)
            self.source_failed = False
            if task is None:
                return
            self.waiting.append(task)
            yield delayed(_remote)(self.pack(task.model), dataclasses.replace(task, model=""), self.stopped)


def _interrupted(task: Task, outcome: Outcome) -> bool:
    """Whether Ctrl-C reached the worker itself."""
    if not isinstance(outcome, Result) or task.options.get("callback") is not None:
        return False
    return outcome.status is Status.INTERRUPTED


def _parallel(jobs: int, backend: str) -> Any:
    """The pool of joblib; results one by one where the backend can."""
    joblib = _joblib(backend)
    try:
        with joblib.parallel_config(backend=backend):  # unlike Parallel, this finds backends such as Dask by itself
            with contextlib.suppress(ValueError):
                return joblib.Parallel(n_jobs=jobs, return_as="generator")
            return joblib.Parallel(n_jobs=jobs)
    except ValueError as error:
        said = " ".join(str(error).split())
        raise OptionError(f"backend={backend!r}, expected threads, processes or a backend of joblib ({said})") from None


def _joblib(backend: str) -> Any:
    try:
        return importlib.import_module("joblib")
    except ImportError:
        raise ImportError(f"backend={backend!r} needs joblib: pip install 'mapmrf[batch]'") from None


class Packer:
    """Turns models into arrays of bytes, which backends know how to hand out once for many tasks."""

    def __init__(self) -> None:
        self._model: Model | None = None
        self._packed: Any = None

    def __call__(self, model: Model) -> Any:
        """Bytes of a model; a file stays its name."""
        if not isinstance(model, FactorGraph):
            return model
        if model is not self._model:
            self._model, self._packed = model, np.frombuffer(pickle.dumps(bare(model), protocol=5), dtype=np.uint8)
        return self._packed


def _remote(model: Any, task: Task, stopped: Switch) -> Outcome:
    """Run a task in a worker of joblib."""
    if isinstance(model, np.ndarray):
        model = bare(pickle.loads(model.tobytes()))
    return dataclasses.replace(task, model=model).run(stopped)
