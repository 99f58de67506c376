"""The worker process, which does one run after another; if it crashes or is killed, only that run is lost."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import mapmrf
import mapmrf.compilation as compilation
from mapmrf.arrays import Ints
from mapmrf.bench.peers import prepare, solve_with
from mapmrf.bench.records import Record, pack_labels, thin
from mapmrf.bench.run_list import BenchTask, ModelRef
from mapmrf.datasets.catalogue import model_statistics
from mapmrf.errors import MapMRFError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import limited_memory, machine_bytes, resident_bytes, shown_bytes
from mapmrf.model.polytope import describe
from mapmrf.plots import lattice_shape
from mapmrf.run.pool import end_with
from mapmrf.run.result import Result, Status, TracePoint

BEGINS, PREPARES = "begins", "prepares"
"""Messages sent before the record of a run: its clock starts; something is compiled, and it will be repeated."""
ATTEMPTS = 4  # maximum number of attempts at a run in which nothing is compiled

Tell = Callable[[str], None]  # takes the messages
Callback = Callable[[TracePoint, Ints], bool | None]
Solve = Callable[[float | None, Callback], Result]  # a run under a time limit, with a callback that may end it


def work(pipe: Connection, memory: float | None) -> None:
    """Do the runs received through a pipe until it closes, within this many bytes of memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the process that distributes the runs
    end_with(os.getppid())
    runner, lock = Runner(memory), threading.Lock()

    def send(message: Any) -> None:
        with lock:  # any thread may compile
            pipe.send(message)

    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        send(runner.record(task, send))


class Runner:
    """Does runs; keeps the last model and remembers which methods are compiled."""

    def __init__(self, memory: float | None = None) -> None:
        self.memory = memory
        if memory is not None:
            import mapmrf.compilation.jit  # noqa: F401  # loading it should not run into the limit
        self._model: tuple[ModelRef, FactorGraph] | None = None
        self._warm: set[tuple[str, str]] = set()

    def record(self, task: BenchTask, tell: Tell = lambda message: None) -> Record:
        """Do a run and record it; never raises."""
        record: Record = {**task.fields(), "outcome": "done", "message": "", **machine()}
        try:
            with contextlib.ExitStack() as stack:
                if self.memory is not None:  # memory that is reserved but not used does not count
                    stack.enter_context(limited_memory(max(0.0, self.memory - resident_bytes())))
                graph = self._graph(task.model)
                # The columns of the paper's table of the sets, and the rows and columns of a map.
                found = model_statistics(graph)
                record |= {"n_vars": graph.n_vars, "n_factors": graph.n_factors, "n_edges": graph.n_edges}
                record |= {name: getattr(found, name) for name in ("factor_size", "variable_states", "factor_states")}
                record |= {"shape": lattice_shape(graph), **self._warm_up(task, graph)}
                result, spent = _timed(task, graph, tell)
                record |= _figures(result)
                record["setup_time"] += spent
        except UnsupportedModel as error:
            record |= {"outcome": "unsupported", "message": str(error)}
        except MemoryError:
            record |= {"outcome": "memory", "message": f"needs more than {shown_bytes(self.memory or machine_bytes())}"}
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


def _timed(task: BenchTask, graph: FactorGraph, tell: Tell) -> tuple[Result, float]:
    """The result of a run without compilation, and the seconds of set-up within or before it."""
    if task.run.is_peer:
        tell(BEGINS)
        reset_peak()
        result = solve_with(task.run.peer, graph, task.time_limit, task.seed)
        return result, result.compile_time

    def solve(time_limit: float | None, callback: Callback) -> Result:
        reset_peak()
        return _solve(task, graph, time_limit, callback)

    return time_run(solve, task.time_limit, tell)


def _solve(task: BenchTask, graph: FactorGraph, time_limit: float | None, callback: Callback | None = None) -> Result:
    return mapmrf.solve(graph, task.run.make(), time_limit=time_limit, seed=task.seed, callback=callback)


def _figures(result: Result) -> Record:
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


# -- timed runs without compilation -----------------------------------------------------------------------------------


class Compilations:
    """Counts compilations for this process, by any thread, here or elsewhere; loading compiled code does not count."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.n = 0
        self._on_first = on_first
        self._lock = threading.Lock()
        self._depth = 0
        self._began = self._seconds = 0.0

    @property
    def seconds(self) -> float:
        """Seconds in which at least one thread was compiling."""
        with self._lock:
            return self._seconds + (time.perf_counter() - self._began if self._depth else 0.0)

    def begin(self) -> None:
        with self._lock:
            self.n += 1
            self._depth += 1
            if self._depth == 1:
                self._began = time.perf_counter()
            first = self.n == 1
        if first:
            self._on_first()

    def end(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._seconds += time.perf_counter() - self._began


@contextlib.contextmanager
def counting_compilations(on_first: Callable[[], None] = lambda: None) -> Iterator[Compilations]:
    from mapmrf.compilation.compiler import NumbaListener, event  # there may be kernels that are not ours

    found = Compilations(on_first)
    compilation.listeners.append(found)
    try:
        with event.install_listener("numba:compile", NumbaListener(found)):
            yield found
    finally:
        compilation.listeners.remove(found)


def time_run(solve: Solve, time_limit: float, tell: Tell) -> tuple[Result, float]:
    """The result of a run in which nothing was compiled, and the seconds before it, which are set-up."""
    # A method of several phases compiles each when it gets there, so the warm-up does not compile everything. As soon
    # as something is compiled, the run ends, and another one, whose time without compiling is limited, compiles
    # everything that a run of this length, or a little longer, needs. A run that was cut short by loading many kernels
    # is also repeated, once.
    spent, loaded = 0.0, False
    long = max(0.02 * time_limit, 0.1)
    for _ in range(ATTEMPTS):
        with counting_compilations(lambda: tell(PREPARES)) as compiled:
            tell(BEGINS)
            result = solve(time_limit, lambda point, labels: compiled.n > 0)
        cut_short = result.status is Status.TIME_LIMIT and result.compile_time > long and not loaded
        if compiled.n == 0 and not cut_short:
            return result, spent
        loaded |= cut_short
        spent += result.runtime
        if compiled.n:
            with counting_compilations() as preparing:
                spent += solve(None, lambda point, labels: point.time - preparing.seconds > 1.25 * time_limit).runtime
    raise MapMRFError(f"kernels were compiled in each of {ATTEMPTS} runs, so none could be timed")


# -- the machine ------------------------------------------------------------------------------------------------------


@cache
def machine() -> dict[str, str]:
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
