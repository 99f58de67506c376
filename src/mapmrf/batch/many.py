"""Many models: `solve_many` solves them in parallel and returns the results in order."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from mapmrf.batch.tasks import Evidence, Model, ModelPacker, ModelTask, Outcome
from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import byte_count
from mapmrf.run.method import Method
from mapmrf.run.pool import run_in_order
from mapmrf.run.progress import TerminalBar
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result
from mapmrf.run.solve import check_limits

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
    method
        Name of a method, or a method object.
    jobs
        Number of models solved in parallel.
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
    >>> from mapmrf.batch import solve_stream
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
        """The tasks for pairs of a model and its evidence."""
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
        """Count an outcome."""
        self.optimal += isinstance(outcome, Result) and outcome.status.closes_gap
        self.errors += not isinstance(outcome, Result)
        self.done += 1
        failed = f", {self.errors} failed" if self.errors else ""
        self.draw(completed=self.done, state=f"{self.optimal} optimal{failed}")
