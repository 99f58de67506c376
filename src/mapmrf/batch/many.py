"""Many models: `solve_many` solves them in parallel and returns the results in order."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.formats import read
from mapmrf.formats.evidence import read_evidence
from mapmrf.formats.files import AnyPath
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import byte_count
from mapmrf.run.method import Method
from mapmrf.run.pool import run_in_order
from mapmrf.run.progress import TerminalBar
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result, Status, TracePoint
from mapmrf.run.solve import as_graph, check_limits, solve

_OF_SOLVE = (
    "time_limit",
    "threads",
    "memory_limit",
    "initial",
    "callback",
    "gap_tolerance",
    "abs_gap_tolerance",
    "polish",
    "max_bytes",
)


def solve_many(
    graphs: Iterable[Model],
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    evidence: Evidence = None,
    **options: Any,
) -> list[Outcome]:
    """Solve many models, `jobs` in parallel; results are in input order.

    A model that cannot be read or solved yields an error in place of a Result and does not stop the rest. The answers
    depend neither on `jobs` nor on `backend`. Ctrl-C ends the current runs and returns their incumbents; a model that
    was still waiting yields its first labelling or, if it is a file, a `NotSolved`.

    Parameters
    ----------
    graphs
        Models, or files with models. Files are read and iterators advanced only when a worker is about to become free,
        so a long list does not fill the memory.
    backend
        Where to run: ``"threads"`` (the default; kernels run in parallel), ``"processes"``, or the name of a joblib
        backend such as ``"dask"``, which uses the cluster of the current Dask client and ignores `jobs`.
    progress
        Show one progress bar for all models on standard error, if that is a terminal.
    seeds
        One seed per model, instead of one `seed` for all.
    evidence
        Observations that apply to every model: an evidence file or a mapping variable -> state.
    **options
        Further arguments of `solve` and options of the method; `time_limit` and `memory_limit` apply to each model
        separately.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> good, bad = mapmrf.solve_many([graph, "absent.uai"], jobs=2)
    >>> good.value
    2.0
    >>> print(bad)
    absent.uai: cannot read: No such file or directory
    """
    shared: dict[str, Any] = {"seeds": seeds, "evidence": evidence, **options}
    return list(solve_stream(graphs, method, jobs=jobs, backend=backend, progress=progress, **shared))


def solve_stream(
    graphs: Iterable[Model],
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    evidence: Evidence = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Like `solve_many`, but yield each result as soon as it and all before it are ready.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> for result in solve_stream([graph, graph.condition({0: 0})]):
    ...     print(result.value)
    2.0
    1.0
    """
    if isinstance(graphs, FactorGraph | str | os.PathLike) or not isinstance(graphs, Iterable):
        raise OptionError(f"graphs is {graphs!r}, expected a list of models or files")
    total = len(graphs) if isinstance(graphs, Sized) else None
    pairs = ((model, evidence) for model in graphs)
    tasks = BatchOptions.parse(method, seeds, options).tasks(pairs, total)
    return stream(tasks, total, jobs=jobs, backend=backend, progress=progress)


@dataclass(frozen=True)
class BatchOptions:
    """How to solve the models of a batch: shared options, and seeds."""

    method: Method
    seed: int
    seeds: Sequence[int] | None
    options: dict[str, Any]

    @classmethod
    def parse(cls, method: str | Method, seeds: Sequence[int] | None, options: dict[str, Any]) -> BatchOptions:
        """Separate the options of `solve` from those of the method, and check both before anything runs."""
        rest = dict(options)
        of_solve = {key: rest.pop(key) for key in _OF_SOLVE if key in rest}
        if seeds is not None and "seed" in rest:
            raise OptionError("seed and seeds are both given, expected one of them")
        seed = rest.pop("seed", 0)
        if of_solve.get("polish") is not None:
            of_solve["polish"] = make_method(of_solve["polish"], {})
        byte_count(of_solve.get("memory_limit"))
        check_limits(of_solve.get("time_limit"), of_solve.get("threads", 1), min(seeds or [seed]))
        return cls(make_method(method, rest), seed, seeds, of_solve)

    def tasks(self, pairs: Iterable[tuple[Model, Evidence]], total: int | None) -> Iterator[ModelTask]:
        if self.seeds is not None and total not in (None, len(self.seeds)):
            raise OptionError(f"{len(self.seeds)} seeds, expected one for each of the {total} models")
        return self._tasks(pairs)

    def _tasks(self, pairs: Iterable[tuple[Model, Evidence]]) -> Iterator[ModelTask]:
        seeds = itertools.repeat(self.seed) if self.seeds is None else iter(self.seeds)
        for model, evidence in pairs:
            seed = next(seeds, None)
            if seed is None:
                raise OptionError(f"{len(self.seeds or ())} seeds, expected one for each model")
            yield ModelTask(model, self.method, seed, self.options, evidence)


def stream(
    tasks: Iterator[ModelTask], total: int | None, *, jobs: int, backend: str | None, progress: bool
) -> Iterator[Outcome]:
    """Run tasks and yield their outcomes in order: `total` of them, if known, even after Ctrl-C."""
    if jobs < 1:
        raise OptionError(f"jobs is {jobs}, expected at least 1")
    bar = BatchBar(total, wanted=progress)
    outcomes = run_in_order(tasks, jobs=jobs, backend=backend, done=bar.update, pack=ModelPacker())
    return _stream(outcomes, bar, tasks if total is not None else iter(()))


def _stream(outcomes: Iterator[Outcome], bar: BatchBar, rest: Iterator[ModelTask]) -> Iterator[Outcome]:
    with bar:
        yield from outcomes
    yield from (task.unsolved() for task in rest)  # empty unless the batch was interrupted


class BatchBar(TerminalBar):
    """One progress bar for all models of a batch."""

    def __init__(self, total: int | None, *, wanted: bool) -> None:
        super().__init__("bar", "count", "{task.fields[state]}", "elapsed", total=total, wanted=wanted)
        self.done = self.optimal = self.errors = 0

    def update(self, outcome: Outcome) -> None:
        self.optimal += isinstance(outcome, Result) and outcome.status.closes_gap
        self.errors += not isinstance(outcome, Result)
        self.done += 1
        failed = f", {self.errors} failed" if self.errors else ""
        self.draw(completed=self.done, state=f"{self.optimal} optimal{failed}")


# -- One model of a batch: what to solve, how, and what to return when that fails -------------------------------------


log = logging.getLogger("mapmrf")

Model = FactorGraph | AnyPath
Outcome = Result | MapMRFError
Observed = Mapping[int | str, int | str]
Evidence = AnyPath | Observed | MapMRFError | None
Stopped = Callable[[], bool]


class NotSolved(MapMRFError):
    """Returned in place of a result if the batch was interrupted before the model's turn."""


@dataclass(frozen=True, eq=False)
class ModelTask:
    """A model of a batch and how to solve it."""

    model: Model | PackedModel  # the model, packed or not, or the file to read it from
    # method, seed, options: how to solve it; the options are those of `solve`, not of the method, and `max_bytes` of
    # `read`
    method: Method
    seed: int
    options: Mapping[str, Any]
    evidence: Evidence = None  # the observations, or the error that was found in them

    def run(self, stopped: Stopped) -> Outcome:
        """Solve the model; errors are returned, not raised, so that the rest of the batch continues."""
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
        """The outcome without any work: the best state of every variable on its own, if the model is in memory."""
        graph = self.model.unpack() if isinstance(self.model, PackedModel) else self.model
        if not isinstance(graph, FactorGraph) or self.evidence is not None:
            return self._named(NotSolved("not solved: interrupted before its turn"))
        labels = segment_argmax(graph.theta_v, graph.var_ptr)
        return replace(Result.of_labels(graph, labels, Status.INTERRUPTED, self.method.name), seed=self.seed)

    def lost(self, error: Exception) -> Outcome:
        """The outcome of a task that could not be sent to a worker, or whose worker died."""
        if isinstance(error, pickle.PicklingError):
            reason = " ".join(str(error.__cause__ or error).split()).strip("'\" ")
            return OptionError(f"a model, method, callback or option cannot be sent to a process: {reason}")
        code = re.search(r"[A-Z]+\(-?\d+\)", str(error))  # joblib gives it at the end of several sentences
        how = f" with {code[0]}" if code else ""
        return self._named(MapMRFError(f"the process that solved this model died{how}; did it run out of memory?"))

    def _graph(self) -> FactorGraph:
        if isinstance(self.evidence, MapMRFError):
            raise self.evidence
        model = self.model.unpack() if isinstance(self.model, PackedModel) else self.model
        if not isinstance(model, FactorGraph | str | os.PathLike):
            return as_graph(model)  # which says what to call
        if not isinstance(model, FactorGraph):
            return read(model, evidence=self.evidence, max_bytes=self.options.get("max_bytes"))
        if self.evidence is None:
            return model
        if isinstance(self.evidence, Mapping):
            return model.condition(self.evidence)
        return model.condition(cast(Observed, read_evidence(self.evidence, model)[0]))  # the first sample

    def _solve(self, graph: FactorGraph, stopped: Stopped) -> Result:
        options = dict(self.options)
        user = options.pop("callback", None)
        options.pop("max_bytes", None)

        def callback(point: TracePoint, labels: Ints) -> bool:
            return stopped() or bool(user is not None and user(point, labels))

        result = solve(graph, self.method, seed=self.seed, callback=callback, **options)
        return replace(result, dual=None)  # thousands of results may be kept or sent

    def _named(self, error: MapMRFError) -> MapMRFError:
        """The error, prefixed by the file unless it already names it."""
        if not isinstance(self.model, str | os.PathLike) or os.fspath(self.model) in str(error):
            return error
        return type(error)(f"{os.fspath(self.model)}: {error}")


# -- models on their way to another process ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PackedModel:
    """A model as one array of bytes, which joblib shares between processes once for all tasks that use it."""

    key: str
    data: NDArray[np.uint8]

    @classmethod
    def pack(cls, graph: FactorGraph) -> PackedModel:
        """Pack a model without its cached arrays, which are cheap to recompute."""
        data = pickle.dumps(dataclasses.replace(graph), protocol=5)
        return cls(uuid.uuid4().hex, np.frombuffer(data, dtype=np.uint8))

    def unpack(self) -> FactorGraph:
        """Unpack the model; the last one is cached, since the next row of evidence needs it again.

        Its arrays are made read-only again: those of a pickle are not, and kernels would be recompiled for them.
        """
        graph = _UNPACKED.get(self.key)
        if graph is None:
            graph = dataclasses.replace(cast(FactorGraph, pickle.loads(self.data.tobytes())))
            _UNPACKED.clear()
            _UNPACKED[self.key] = graph
        return graph


_UNPACKED: dict[str, FactorGraph] = {}  # the last model unpacked by this process


class ModelPacker:
    """Packs the models of tasks, each once where consecutive tasks share it."""

    def __init__(self) -> None:
        self._last: FactorGraph | None = None
        self._packed: PackedModel | None = None

    def __call__(self, task: ModelTask) -> ModelTask:
        """Return the task with its model packed; file names are left as they are."""
        if not isinstance(task.model, FactorGraph):
            return task
        if task.model is not self._last or self._packed is None:
            self._last, self._packed = task.model, PackedModel.pack(task.model)
        return dataclasses.replace(task, model=self._packed)
