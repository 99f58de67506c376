"""The worker process, which does one run after another; if it crashes or is killed, only that run is lost."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mapmrf
from mapmrf.bench.models import ModelRef, lattice
from mapmrf.bench.peers import prepare, solve_with
from mapmrf.bench.records import Record, pack_labels, thin
from mapmrf.bench.run_list import BenchTask
from mapmrf.bench.timing import Callback, RunClock, time_run
from mapmrf.datasets.catalogue import model_statistics
from mapmrf.errors import MapMRFError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import describe
from mapmrf.run.result import Result

BEGINS, PREPARES = "begins", "prepares"
"""Messages sent before the record of a run: its clock starts; something is compiled, and it will be repeated."""


def work(pipe: Connection, memory: int) -> None:
    """Do the runs received through a pipe until it closes; `memory` is the limit in bytes, 0 for none."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that distributes the runs
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    runner, clock = Runner(memory), PipeClock(pipe)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        clock.send(runner.record(task, clock))


def _leave_with_parent(parent: int) -> None:
    """End this process when its parent is gone: nobody is waiting for the run."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


class SilentClock:
    """A clock that nobody reads."""

    def begins(self) -> None:
        """Tell nobody."""

    def prepares(self) -> None:
        """Tell nobody."""


class PipeClock:
    """Reports to the process that distributes the runs; any thread may compile."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a record or one of the messages before it."""
        with self._lock:
            self._pipe.send(message)

    def begins(self) -> None:
        """The clock of a run starts."""
        self.send(BEGINS)

    def prepares(self) -> None:
        """Something is compiled."""
        self.send(PREPARES)


class Runner:
    """Does runs; keeps the last model and remembers which methods are compiled."""

    def __init__(self, memory: int = 0) -> None:
        self.memory = memory
        if memory:
            import mapmrf.compilation.toolchain  # noqa: F401  # the limit is for the run, not for what the interpreter loads
        self._model: tuple[ModelRef, FactorGraph] | None = None
        self._warm: set[tuple[str, str]] = set()

    def record(self, task: BenchTask, clock: RunClock | None = None) -> Record:
        """Do a run and record it; never raises."""
        record: Record = {**task.fields(), "outcome": "done", "message": "", **machine()}
        try:
            with _memory_limit(self.memory):
                graph = self._graph(task.model)
                record |= {**_model_fields(graph), "shape": lattice(graph), **self._warm_up(task, graph)}
                result, spent = _timed(task, graph, clock or SilentClock())
                record |= _figures(result)
                record["setup_time"] += spent
        except UnsupportedModel as error:
            record |= {"outcome": "unsupported", "message": str(error)}
        except MemoryError:
            record |= {"outcome": "memory", "message": f"needs more than {self.memory / 2**20:.0f} MiB"}
        except (MapMRFError, OSError) as error:
            record |= {"outcome": "error", "message": str(error)}
        except Exception as error:
            record |= {"outcome": "error", "message": f"{type(error).__name__}: {error}"}
        return record | {"peak_memory": peak_memory(), "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z")}

    def _graph(self, model: ModelRef) -> FactorGraph:
        if self._model is None or self._model[0] != model:
            self._model = (model, model.load())
        return self._model[1]

    def _warm_up(self, task: BenchTask, graph: FactorGraph) -> Record:
        """Compile the method, or import the other package, before the clock starts; return the seconds."""
        began = time.perf_counter()
        about: Record = {}
        if task.run.is_peer:
            about["package"] = prepare(task.run.peer)
        elif (pair := (task.run.method, task.model.set)) not in self._warm:
            _solve(task, graph, 0.0)
            self._warm.add(pair)
        return {**about, "setup_time": time.perf_counter() - began}


def _model_fields(graph: FactorGraph) -> Record:
    """The fields of a record that describe the model: the columns of the paper's table of the sets."""
    found = model_statistics(graph)
    return {
        "n_vars": graph.n_vars,
        "n_factors": graph.n_factors,
        "n_edges": graph.n_edges,
        "factor_size": found.factor_size,
        "variable_states": found.variable_states,
        "factor_states": found.factor_states,
    }


def _timed(task: BenchTask, graph: FactorGraph, clock: RunClock) -> tuple[Result, float]:
    """The result of a run without compilation, and the seconds of set-up within or before it."""
    if task.run.is_peer:
        clock.begins()
        reset_peak()
        result = solve_with(task.run.peer, graph, task.time_limit, task.seed)
        return result, result.compile_time

    def solve(time_limit: float | None, callback: Callback) -> Result:
        reset_peak()
        return _solve(task, graph, time_limit, callback)

    return time_run(solve, task.time_limit, clock)


def _solve(task: BenchTask, graph: FactorGraph, time_limit: float | None, callback: Callback | None = None) -> Result:
    return mapmrf.solve(graph, task.run.make(), time_limit=time_limit, seed=task.seed, callback=callback)


def _figures(result: Result) -> Record:
    """The fields of a record that describe the result."""
    fractions = result.kind_fractions
    return {
        "value": result.value,
        "relaxed_value": result.relaxed_value,
        "bound": result.bound,
        "gap": result.gap,
        "kind": None if result.kind is None else result.kind.value,
        "kind_text": None if result.kind is None or fractions is None else describe(result.kind, fractions),
        "uniform": None if fractions is None else fractions.uniform,
        "fractional": None if fractions is None else fractions.fractional,
        "status": result.status.value,
        "iterations": result.iterations,
        "compile_time": result.compile_time,
        "runtime": result.runtime,
        "options": dict(result.options),
        "details": dict(result.details),
        "trace": thin(result.trace),
        "labels": pack_labels(result.labels),
    }


# -- the machine ------------------------------------------------------------------------------------------------------


@cache
def machine() -> dict[str, str]:
    """Versions and processor, for every record."""
    found = {"version": mapmrf.__version__, "python": platform.python_version(), "system": platform.system()}
    for package in ("numpy", "numba", "highspy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found | {"cpu": _processor(), "cores": str(os.cpu_count() or 1)}


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def reset_peak() -> None:
    """Reset the peak of the resident memory, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_memory() -> int | None:
    """Peak of the resident memory in bytes since `reset_peak`, or of the process where it cannot be reset."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return None


@contextlib.contextmanager
def _memory_limit(size: int) -> Any:
    """Limit this process to `size` bytes more than it uses now; 0 for no limit."""
    try:
        import resource
    except ImportError:
        size = 0
    if size == 0:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    with contextlib.suppress(OSError):
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
