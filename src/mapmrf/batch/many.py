"""Many models: `solve_many` solves them in parallel and returns the results in order."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import logging
import math
import numbers
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
from mapmrf.errors import FormatError, MapMRFError, OptionError, UnknownName, suggestion
from mapmrf.formats import read
from mapmrf.formats.evidence import read_evidence
from mapmrf.formats.files import AnyPath, plain_name, read_bytes
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import byte_count
from mapmrf.model.names import find_state, index_of
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
    """Returned in place of a result if the batch was interrupted before the model's turn.

    Examples
    --------
    >>> import mapmrf
    >>> graphs = [mapmrf.datasets.grid(3, 3, seed=seed) for seed in range(3)]
    >>> [isinstance(each, mapmrf.batch.NotSolved) for each in mapmrf.solve_many(graphs, "icm")]
    [False, False, False]
    """


@dataclass(frozen=True, eq=False)
class ModelTask:
    """A model of a batch and how to solve it."""

    model: Model | PackedModel  # the model, packed or not, or the file to read it from
    # method, seed, options: how to solve it; the options are those of `solve`, not of the method
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
            return read(model, evidence=self.evidence, memory_limit=self.options.get("memory_limit"))
        if self.evidence is None:
            return model
        if isinstance(self.evidence, Mapping):
            return model.condition(self.evidence)
        return model.condition(cast(Observed, read_evidence(self.evidence, model)[0]))  # the first sample

    def _solve(self, graph: FactorGraph, stopped: Stopped) -> Result:
        options = dict(self.options)
        user = options.pop("callback", None)

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
        """Unpack the model; the last one is cached, since the next row of evidence needs it again."""
        # Its arrays are made read-only again: those of a pickle are not, and kernels would be recompiled for them.
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


# -- Evidence tables: one model, many rows of observations, a result for each -----------------------------------------


Row = dict[int | str, int | str]

Table = AnyPath | Sequence[Mapping[Any, Any]] | Mapping[Any, Sequence[Any]]

Cells = Iterable[tuple[Any, Any]]

_TABS = (".tsv", ".tab")


def solve_rows(
    graph: FactorGraph,
    table: Table,
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> list[Outcome]:
    """Solve one model for every row of a table of observations; results in the order of the rows.

    A row that cannot be parsed, or whose model cannot be solved, yields an error in place of a Result. The model is in
    memory once; it is conditioned on each row in turn.

    Parameters
    ----------
    table
        A CSV or TSV file with a header line, a list of dicts (one per row), or a mapping column -> values such as a
        data frame. Columns are variables by name or index, values are states by name or index; text that could be
        either is read as a name, and True and False are the states that are called so. Empty text, None and nan mean
        that the variable is not observed.
    method, jobs, backend, progress, seeds, **options
        As for `solve_many`, with one seed per row.

    Raises
    ------
    FormatError
        If the file cannot be read.
    UnknownName
        If a column is not a variable.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> [result.labels.tolist() for result in solve_rows(graph, [{0: 0}, {}, {0: 1, 1: 0}])]
    [[0, 0], [1, 1], [1, 0]]
    """
    rows = read_rows(table, graph)
    shared: dict[str, Any] = {"seeds": seeds, **options}
    return list(stream_rows(graph, rows, method, jobs=jobs, backend=backend, progress=progress, **shared))


def stream_rows(
    graph: FactorGraph,
    rows: Sequence[Row | MapMRFError],
    method: str | Method = DEFAULT_METHOD,
    *,
    jobs: int = 1,
    backend: str | None = None,
    progress: bool = False,
    seeds: Sequence[int] | None = None,
    **options: Any,
) -> Iterator[Outcome]:
    """Like `solve_rows` on the output of `read_rows`, but yield each result as soon as it and all before it are ready.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> for result in stream_rows(graph, read_rows({0: [0, 1]}, graph)):
    ...     print(result.labels)
    [0 0]
    [1 1]
    """
    pairs = ((graph, row if isinstance(row, MapMRFError) else row or None) for row in rows)
    tasks = BatchOptions.parse(method, seeds, options).tasks(pairs, len(rows))
    return stream(tasks, len(rows), jobs=jobs, backend=backend, progress=progress)


def read_rows(table: Table, graph: FactorGraph) -> list[Row | MapMRFError]:
    """Read the observations of every row, variable -> state; a row that cannot be parsed yields its error.

    Examples
    --------
    >>> import mapmrf
    >>> names = mapmrf.Names(("rain", "grass"), (("no", "yes"), ("dry", "wet")))
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [], names=names)
    >>> read_rows({"grass": ["wet", "", "dry"], 0: [1, None, "yes"]}, graph)
    [{1: 1, 0: 1}, {}, {1: 0, 0: 1}]
    """
    if isinstance(table, str | os.PathLike):
        return _file_rows(table, graph)
    parser = _RowParser(graph, "evidence")
    return [parser.row(f"row {number}", cells) for number, cells in enumerate(_cells(table, parser))]


def _cells(table: Any, parser: _RowParser) -> Iterator[Cells]:
    """Pairs of column and value, row by row, from a list of dicts or a mapping of columns."""
    if not hasattr(table, "keys"):
        for row in table:
            yield zip(parser.header(row), row.values(), strict=True)
        return
    keys = list(table.keys())
    header, columns = parser.header(keys), [list(table[key]) for key in keys]
    lengths = {len(values) for values in columns}
    if len(lengths) > 1:
        raise FormatError(f"evidence: columns of {min(lengths)} to {max(lengths)} values, expected equal lengths")
    for values in zip(*columns, strict=True):
        yield zip(header, values, strict=True)


def _file_rows(path: AnyPath, graph: FactorGraph) -> list[Row | MapMRFError]:
    parser = _RowParser(graph, os.fspath(path))
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text, expected an evidence table") from None
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text))
    try:
        header = parser.header(column.strip() for column in next(lines, []))
        if not header:
            raise FormatError(f"{path}: found no columns, expected a header line of variables")
        return [_file_row(parser, header, lines.line_num, cells) for cells in lines if cells]
    except csv.Error as error:
        raise FormatError(f"{path}: line {lines.line_num}: {error}") from None


def _file_row(parser: _RowParser, header: list[int], line: int, cells: list[str]) -> Row | MapMRFError:
    if len(cells) != len(header):
        return FormatError(f"{parser.source}: line {line}: found {len(cells)} cells, expected {len(header)}")
    return parser.row(f"line {line}", zip(header, (cell.strip() for cell in cells), strict=True))


def _delimiter(path: AnyPath, text: str) -> str:
    """A tab if the suffix or the first line suggests it, otherwise the comma or semicolon found in that line."""
    first = text.partition("\n")[0]
    if plain_name(path).endswith(_TABS) or ("\t" in first and "," not in first):
        return "\t"
    return ";" if ";" in first and "," not in first else ","


class _RowParser:
    """Converts columns and cells to indices of variables and states."""

    def __init__(self, graph: FactorGraph, source: str) -> None:
        self.graph, self.source = graph, source

    def header(self, columns: Iterable[Any]) -> list[int]:
        found: dict[int, Any] = {}
        for column in columns:
            i = self.variable(column)
            if i in found:
                raise FormatError(f"{self.source}: columns {found[i]!r} and {column!r} are the same variable")
            found[i] = column
        return list(found)

    def variable(self, column: Any) -> int:
        names = self.graph.names.place if self.graph.names is not None else {}
        if isinstance(column, str) and column in names:
            return names[column]
        index = _integer(column)
        if index is not None and 0 <= index < self.graph.n_vars:
            return index
        hint = suggestion(str(column), names)
        known = "a name or " if names else ""
        raise UnknownName(
            f"{self.source}: column {column!r} is not a variable, expected {known}0 to {self.graph.n_vars - 1}{hint}"
        )

    def row(self, place: str, cells: Cells) -> Row | MapMRFError:
        row: Row = {}
        try:
            for i, value in cells:
                state = self.state(place, i, value)
                if state is not None:
                    row[i] = state
        except MapMRFError as error:
            return error
        return row

    def state(self, place: str, i: int, value: Any) -> int | None:
        """Index of the state named by a cell, None if it is empty."""
        if _missing(value):
            return None
        names = self.graph.names
        states = names.states[i] if names is not None and names.states else ()
        named = find_state(states, value) if isinstance(value, str | bool | np.bool_) else None
        if named is not None:
            return named
        index = _integer(value)
        if index is not None and 0 <= index < self.graph.card[i]:
            return index
        name = names.variables[i] if names is not None else str(i)
        some = f" or one of {', '.join(states[:8])}{' ...' if len(states) > 8 else ''}" if states else ""
        raise FormatError(
            f"{self.source}: {place}: found state {value!r} of variable {name}, "
            f"expected 0 to {self.graph.card[i] - 1}{some}"
        )


def _missing(value: Any) -> bool:
    """Return whether a cell means that nothing was observed; data frames have a special object for that."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or type(value).__name__ == "NAType" or (isinstance(value, str) and not value)


def _integer(value: Any) -> int | None:
    """Convert to an integer, also from 1.0 as in tables with gaps; a bool is no number."""
    if isinstance(value, numbers.Integral | bool | np.bool_):
        return index_of(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else None
