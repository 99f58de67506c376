"""The command `solve`: one model, some questions about it, a model in parts; `batch` solves several models."""

from __future__ import annotations

import csv
import inspect
import io
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from mapmrf import cli
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.model.memory import byte_count
from mapmrf.run import interrupts

if TYPE_CHECKING:
    from mapmrf.arrays import Ints
    from mapmrf.batch import Outcome
    from mapmrf.distributed.parts import Ranks
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result, TracePoint

REFUSED = {
    "several models": (
        "initial", "trace", "progress", "log", "best", "distance", "query", "margins", "checkpoint", "certificate",
    ),
    "a question": (
        "initial", "trace", "polish", "progress", "log", "gap_tolerance", "margins", "checkpoint", "certificate",
        "memory_limit",
    ),
    "parts": ("evidence", "evidence_table", "backend", "threads", "best", "query", "margins", "memory_limit"),
}  # fmt: skip
"""Options that a kind of run does not take."""


class SolveRequest(SimpleNamespace):
    """The options of the command by name; those that are arguments of `mapmrf.solve` have their names and defaults."""

    @property
    def lines(self) -> Literal["log", "improvements"] | None:
        """What is printed besides the result: a full log, or a line per improvement."""
        return "log" if self.log else "improvements" if self.progress else None

    @property
    def in_parts(self) -> bool:
        return len(self.models) == 1 and Path(self.models[0], "parts.json").is_file()

    @property
    def is_batch(self) -> bool:
        to_folder = self.output is not None and (self.output.endswith("/") or Path(self.output).is_dir())
        return len(self.models) > 1 or self.backend is not None or to_folder or self.evidence_table is not None

    def refuse_for(self, kind: str, text: str) -> None:
        defaults = solve.make_context("solve", ["MODEL"]).params
        for name in REFUSED[kind]:
            if getattr(self, name) != defaults[name]:
                raise OptionError(f"--{name.replace('_', '-')} {text}")

    def values(self, default_method: str | None = None) -> dict[str, Any]:
        """The options as values that the library takes; the methods are made here, before a large model is read."""
        with interrupts.reacting("leave"):  # numpy and numba are imported here
            from mapmrf.run.registry import DEFAULT_METHOD, make_method, method_class

            name, options = self.method or default_method or DEFAULT_METHOD, {}
            if self.settings:
                from mapmrf.cli.methods import parse_settings

                options = parse_settings(method_class(name), self.settings)
            method = make_method(name, options)
            polish = None if self.polish is None else make_method(self.polish, {})
        return vars(self) | {
            "method": method,
            "polish": polish,
            "threads": self.threads or None,
            "memory_limit": byte_count(self.memory_limit),
            "progress": not (self.quiet or self.lines),
            "certificate": self.certificate is not None,
        }

    def deliver(self, answer: Any, text: Callable[[], str], write: Callable[[], None]) -> int:
        """Write an answer, then print it as JSON or as text, unless there is nothing to be printed."""
        try:
            write()
        finally:  # the answer must not be lost if the disk is full
            if self.as_json or not self.quiet:
                click.echo(answer.to_json() if self.as_json else text())
        return cli.exit_code(answer.status)


def arguments_of(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """The options that a function takes, but for the evidence, which is used when the model is read."""
    taken = inspect.signature(function).parameters
    return {name: value for name, value in values.items() if name in taken and name != "evidence"}


@cli.main.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@cli.method_option
@cli.evidence_option
@click.option("--evidence-table", metavar="FILE.csv", help="Solve MODEL once for each row of observations.")
@cli.set_option
@cli.time_option
@cli.memory_option
@cli.seed_option
@click.option(
    "--threads", type=click.IntRange(min=0), default=1, show_default=True, help="Threads per model, 0 for all cores."
)
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of models solved in parallel.",
)
@click.option(
    "--backend", metavar="NAME", help="Backend for parallel runs: threads, processes, or a joblib backend such as dask."
)
@click.option("--initial", metavar="FILE", help="Solution file to start from.")
@click.option(
    "--output",
    "-o",
    metavar="FILE|DIR/",
    help="Write the labelling: the full result to *.json, otherwise a solution file (.MPE). With several models, a "
    "folder for their solutions; with an evidence table, a .csv, .tsv or .jsonl file of answers.",
)
@cli.json_option
@click.option("--trace", metavar="FILE.csv", help="Write the trace of the run.")
@click.option("--polish", metavar="NAME", help="Method that improves the final labelling, such as blocks.")
@click.option("--progress", is_flag=True, help="Print a line per improvement: time, phase, value, bound and gap.")
@click.option(
    "--log", is_flag=True, help="Print a log: the model, improvements, and which phases found and proved the answer."
)
@click.option("--gap-tolerance", type=float, metavar="GAP", help="Stop at this relative gap.  [default: 1e-6]")
@click.option(
    "--abs-gap-tolerance", default=0.0, metavar="GAP", help="Stop at this difference between bound and value."
)
@click.option("--best", type=click.IntRange(min=1), metavar="M", help="Find the M best labellings.")
@click.option(
    "--distance",
    type=click.IntRange(min=1),
    metavar="D",
    help="Minimum number of variables in which the M best differ.",
)
@click.option("--query", metavar="NAMES", help="Variables to maximise over, by name or index; sum out all others.")
@click.option(
    "--margins", is_flag=True, help="Compute how certain each label is, for --json, -o *.json and `mapmrf plot`."
)
@click.option("--checkpoint", metavar="DIR", help="Save the state of the run in this folder at regular intervals.")
@click.option("--every", type=click.FloatRange(min=0), default=300.0, metavar="S", help="Seconds between checkpoints.")
@click.option("--resume", is_flag=True, help="Resume from the checkpoint, if there is one.")
@click.option(
    "--part-bound",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="For a model in parts: iterations of TRW-S in each part, for a tighter bound.",
)
@click.option("--certificate", metavar="FILE.npz", help="Write a dual point that proves a bound, for `mapmrf verify`.")
@cli.bytes_option
@cli.force_option
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors.")
def solve(**options: Any) -> int:
    """Find a labelling of MODEL with high log potential.

    Several models are reported one per line, or with --json one object per line, in the order given. A model that
    cannot be solved does not stop the others. The time limit applies to each model.

    MODEL may be a folder of parts, see `mapmrf partition`; under mpiexec, they are shared among the ranks.
    """
    request = SolveRequest(**options)
    if request.in_parts:
        request.refuse_for("parts", "does not apply to a model in parts")
        return _solve_parts(request, request.values("lslp"))
    if request.is_batch:
        if request.evidence_table is not None and len(request.models) > 1:
            raise OptionError(f"--evidence-table: found {len(request.models)} models, expected one")
        found = "an evidence table" if request.evidence_table is not None else "several models"
        request.refuse_for("several models", f"is for a single run, found {found}")
        return _solve_batch(request, request.values())
    cli.check_outputs(request.output, request.trace, request.certificate)
    values = request.values()
    if request.best is None and request.query is None and request.distance is None:
        return _solve_one(request, values)
    if request.distance is not None and request.best is None:
        raise OptionError("--distance needs --best M")
    if request.best is not None and request.query is not None:
        raise OptionError("found --best and --query, expected one of them")
    request.refuse_for("a question", f"cannot be combined with {'--query' if request.best is None else '--best'}")
    return _find_best(request, values) if request.query is None else _answer_query(request, request.query, values)


# -- one model -------------------------------------------------------------------------------------------------------


def _solve_one(request: SolveRequest, values: dict[str, Any]) -> int:
    from mapmrf.run.result import Result, Status
    from mapmrf.run.solve import solve

    model, method = request.models[0], values["method"]
    graph = cli.read_model(model, request.evidence)
    best = graph.unary_labels if request.initial is None else cli.read_labels(request.initial, graph)
    values["initial"] = None if request.initial is None else best
    if request.lines == "log":
        from mapmrf._version import __version__

        most = int(graph.card.max(initial=0))
        size = f"{graph.n_vars} variables of up to {most} states, {graph.n_factors} factors"
        _say(f"mapmrf {__version__}, {method.name} on {model}: {size}")
    listener = _line_printer(request)

    def keep(point: TracePoint, labels: Ints) -> None:
        nonlocal best
        best = labels
        if listener is not None:
            listener(point, labels)

    try:
        result = solve(graph, callback=keep, **arguments_of(solve, values))
    except KeyboardInterrupt:  # outside of the solver's loop, which handles it itself
        result = Result.of_labels(graph, best, Status.INTERRUPTED, method.name)
    if request.lines == "log":
        from mapmrf.run.progress import closing_lines

        for line in closing_lines(result):
            _say(line)

    def write() -> None:
        cli.write_result(result, request.output)
        if request.trace is not None:
            result.write_trace(request.trace)
        if request.certificate is not None:
            _write_certificate(result, request.certificate)

    return request.deliver(result, lambda: cli.report(result), write)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _line_printer(request: SolveRequest) -> Callable[[TracePoint, Ints], bool | None] | None:
    if request.lines is None:
        return None
    from mapmrf.run.progress import ImprovementLines

    return ImprovementLines(_say, regularly=request.lines == "log").update


def _write_certificate(result: Result, path: str) -> None:
    if result.certificate is None:
        cli.complain(f"{path} not written: no certificate was found")
        return
    result.certificate.write(path)
    bound, value = result.certificate.bound, result.value
    if bound > (value if value == -math.inf else value + 1e-9 * max(1.0, abs(value))):
        cli.complain(f"{path} proves no more than the bound {bound:.12g}: the value is {value:.12g}")


# -- other questions -------------------------------------------------------------------------------------------------


def _find_best(request: SolveRequest, values: dict[str, Any]) -> int:
    from mapmrf.formats.solution import write_solutions
    from mapmrf.questions.best import solve_best

    graph = cli.read_model(request.models[0], request.evidence)
    found = solve_best(graph, request.best, diverse=request.distance, **arguments_of(solve_best, values))
    labellings = [result.labels for result in found]
    writer = write_solutions if labellings else None
    write = partial(cli.write_answer, request.output, found, writer, labellings)
    return request.deliver(found, found.summary, write)


def _answer_query(request: SolveRequest, query: str, values: dict[str, Any]) -> int:
    from mapmrf.formats.solution import write_query_solution
    from mapmrf.questions.marginal_map import marginal_map, query_indices
    from mapmrf.run.result import Status

    graph = cli.read_model(request.models[0], request.evidence)
    asked = query_indices(graph, parse_query(query, None if graph.names is None else graph.names.place))
    result = marginal_map(graph, asked, **arguments_of(marginal_map, values))
    writer = None if result.status is Status.INFEASIBLE else write_query_solution
    write = partial(cli.write_answer, request.output, result, writer, asked, result.labels)
    return request.deliver(result, lambda: cli.report(result), write)


def parse_query(text: str, place: dict[str, int] | None) -> list[int | str]:
    """Parse names or indices of variables, separated by commas; a number that is also a name is read as the name."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise OptionError(f"--query: found {text!r}, expected names or indices of variables, separated by commas")
    return [int(part) if part.isdecimal() and part not in (place or {}) else part for part in parts]


# -- a model in parts ------------------------------------------------------------------------------------------------


def _solve_parts(request: SolveRequest, values: dict[str, Any]) -> int:
    """Solve a model in parts on all ranks; rank 0 prints."""
    from mapmrf.distributed.parts import find_ranks

    ranks = find_ranks()
    try:
        code = _solve_on_ranks(request, values, ranks)
    except Exception as error:
        return _fail_on_ranks(ranks, error)
    ranks.leave()  # the program may end without mpi4py's own cleaning
    return code


def _solve_on_ranks(request: SolveRequest, values: dict[str, Any], ranks: Ranks) -> int:
    from mapmrf.distributed.evaluation import join_labels
    from mapmrf.distributed.loop import solve
    from mapmrf.distributed.parts import PartFolder
    from mapmrf.formats.solution import read_solution
    from mapmrf.run.result import write_trace

    folder, initial = request.models[0], request.initial
    if initial is not None:
        by_parts = Path(initial).is_dir()
        values["initial"] = (
            join_labels(initial) if by_parts else read_solution(initial, PartFolder(folder).counts.n_vars)
        )
    listener = _line_printer(request) if ranks.rank == 0 else None
    result = solve(folder, ranks, callback=listener, **arguments_of(solve, values))
    if request.output is not None:
        result.write_labels(request.output)
    if ranks.rank:
        return cli.exit_code(result.status)
    trace = request.trace
    return request.deliver(result, result.summary, lambda: None if trace is None else write_trace(result.trace, trace))


def _fail_on_ranks(ranks: Ranks, error: Exception) -> int:
    """Print one line that names the rank; an error that all ranks share is printed by the first one only."""
    from mapmrf.distributed.parts import RankError, describe

    if isinstance(error, RankError | MapMRFError | ImportError):
        if ranks.rank == 0:
            cli.complain(f"error: {error}")
        return cli.Exit.BAD_INPUT
    if ranks.size == 1:
        raise error
    cli.complain(f"error: rank {ranks.rank}: {type(error).__name__}: {describe(error)}")
    ranks.abort(cli.Exit.BAD_INPUT)
    return cli.Exit.BAD_INPUT


# -- `solve` for several files, or for one model and an evidence table: one line each, in order -----------------------


_FIGURES = ("value", "bound", "gap", "status", "seconds")


def _solve_batch(request: SolveRequest, values: dict[str, Any]) -> int:
    from mapmrf.run.solve import solve

    # Every model is solved with all that `solve` takes, but for the options of a single run.
    single = (*REFUSED["several models"], "every", "resume")
    arguments = {name: value for name, value in arguments_of(solve, values).items() if name not in single}
    arguments |= {name: values[name] for name in ("jobs", "backend", "progress")} | {"max_bytes": cli.max_bytes()}
    with interrupts.process.ending_within(12.0):  # seconds after a signal: somebody may have to read its output
        try:
            return (_solve_files if request.evidence_table is None else _solve_table)(request, arguments)
        finally:
            from mapmrf.run.pool import end_workers

            end_workers()


class BatchReport:
    """Prints the outcomes of a batch as they arrive, and determines the exit code."""

    def __init__(self, request: SolveRequest, what: str, names: Sequence[str]) -> None:
        self.as_json, self.in_lines = request.as_json, not (request.as_json or request.quiet)
        self.total = len(names)
        self.width = min(48, max(map(len, [what, *names])))
        self.errors = self.missed = 0
        self.statuses: set[str] = set()
        if self.in_lines:
            self._print_line(what, _FIGURES)

    def add(self, name: str, data: Mapping[str, Any], outcome: Outcome) -> None:
        """Report one outcome; `data` is its JSON object."""
        from mapmrf.batch import NotSolved

        if isinstance(outcome, NotSolved):
            self.missed += 1
            return
        if isinstance(outcome, MapMRFError):
            self.fail(str(outcome))
        else:
            self.statuses.add(outcome.status.value)
        if self.as_json:
            click.echo(cli.strict_json(data), file=sys.stdout)  # the current one: a progress bar may have replaced it
        elif self.in_lines and not isinstance(outcome, MapMRFError):
            formats = (".6f", ".6f", ".2g", "", ".2f")
            figures = zip(_figures(outcome).values(), formats, strict=True)
            self._print_line(name, ["-" if figure is None else format(figure, form) for figure, form in figures])

    def fail(self, text: str) -> None:
        self.errors += 1
        click.echo(f"mapmrf: error: {' '.join(text.split())}", file=sys.stderr)

    def exit_code(self) -> int:
        """The exit code of the worst outcome."""
        if self.missed:
            cli.complain(f"interrupted: {self.missed} of {self.total} not solved")
        if self.missed or "interrupted" in self.statuses:
            return cli.Exit.INTERRUPTED
        if self.errors:
            return cli.Exit.BAD_INPUT
        return cli.Exit.INFEASIBLE if "infeasible" in self.statuses else 0

    def _print_line(self, name: str, cells: Sequence[str]) -> None:
        value, bound, gap, status, seconds = cells
        line = f"{name:<{self.width}}  {value:>14}  {bound:>14}  {gap:>7}  {status:<15}  {seconds:>8}"
        click.echo(line, file=sys.stdout)


def _figures(result: Result) -> dict[str, Any]:
    return dict(zip(_FIGURES, (result.value, result.bound, result.gap, result.status, result.runtime), strict=True))


# -- many files ------------------------------------------------------------------------------------------------------


def _solve_files(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    models = request.models
    targets = _targets(models, request.output)
    from mapmrf.batch import solve_stream

    report = BatchReport(request, "model", models)
    outcomes = solve_stream(models, evidence=request.evidence, **arguments)
    for model, target, outcome in zip(models, targets, outcomes, strict=True):
        data = {"model": model}
        if isinstance(outcome, MapMRFError):
            data["error"] = str(outcome)
        else:
            data |= json.loads(outcome.to_json())
            try:
                cli.write_result(outcome, target)
            except MapMRFError as error:  # a full disk must not end the batch
                report.fail(str(error))
        report.add(model, data, outcome)
    return report.exit_code()


def _targets(models: Sequence[str], folder: str | None) -> list[str | None]:
    """One solution file per model in the folder, which is created if necessary."""
    if folder is None:
        return [None] * len(models)
    from mapmrf.formats.files import compression

    targets: dict[str, str] = {}
    for model in models:
        name = Path(model).name.removesuffix(compression(model))
        target = str(Path(folder, f"{name}.MPE"))
        if target in targets:
            raise OptionError(f"{targets[target]} and {model} would both be written to {target}")
        targets[target] = model
    if Path(folder).exists() and not Path(folder).is_dir():
        raise OptionError(f"{folder}: is a file, expected a folder for the solutions of several models")
    Path(folder).mkdir(exist_ok=True)
    cli.check_outputs(*targets)
    return list(targets)


# -- one model, many rows --------------------------------------------------------------------------------------------


def _solve_table(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    form = None if request.output is None else _form(request.output)
    from mapmrf.batch import read_rows, stream_rows
    from mapmrf.formats.files import replacing

    assert request.evidence_table is not None
    graph = cli.read_model(request.models[0], request.evidence)
    rows = read_rows(request.evidence_table, graph)
    report = BatchReport(request, "row", [str(len(rows))])
    with nullcontext() if request.output is None else replacing(request.output) as file:
        answers = None if file is None else _Answers(file, form, graph)
        for row, outcome in enumerate(stream_rows(graph, rows, **arguments)):
            data = {"row": row, **_answer(outcome)}
            if answers is not None:
                answers.add(data, outcome)
            report.add(str(row), data, outcome)
    return report.exit_code()


def _form(output: str) -> str:
    from mapmrf.formats.files import plain_name

    cli.check_outputs(output)
    for form in (".csv", ".tsv", ".jsonl"):
        if plain_name(output).endswith(form):
            return form
    raise OptionError(f"{output}: unknown suffix, expected .csv, .tsv or .jsonl for the answers to a table")


def _answer(outcome: Outcome) -> dict[str, Any]:
    from mapmrf.run.result import Status

    if isinstance(outcome, MapMRFError):
        return {"error": str(outcome)}
    found = _figures(outcome)
    if outcome.status is not Status.INFEASIBLE:
        found["labels"] = outcome.labels.tolist()
        if outcome.names is not None:
            found["assignment"] = outcome.assignment
    return found


class _Answers:
    """A file with one line per row: JSON, or a table with a column per variable."""

    def __init__(self, file: IO[bytes], form: str | None, graph: FactorGraph) -> None:
        self.file, self.graph = file, graph
        self.delimiter = {".csv": ",", ".tsv": "\t"}.get(form or "")
        self.head = ["row", *_FIGURES, "error"]
        if self.delimiter is not None:
            self._put([*self.head, *_columns(graph, self.head)])

    def add(self, data: Mapping[str, Any], outcome: Outcome) -> None:
        """Write the answer to a row; states are empty where there is no solution."""
        if self.delimiter is None:
            self.file.write(f"{cli.strict_json(data)}\n".encode())
            return
        states: Sequence[Any] = [""] * self.graph.n_vars
        if "labels" in data and not isinstance(outcome, MapMRFError):
            states = list(outcome.assignment.values())
        self._put([*(data.get(key) for key in self.head), *states])

    def _put(self, cells: Sequence[Any]) -> None:
        line = io.StringIO(newline="")
        csv.writer(line, delimiter=self.delimiter or ",", lineterminator="\n").writerow(cells)
        self.file.write(line.getvalue().encode())


def _columns(graph: FactorGraph, taken: Sequence[str]) -> Iterator[str]:
    """Names of the columns of the variables, distinct from those of the figures."""
    for i in range(graph.n_vars):
        name = str(i)
        if graph.names is not None and graph.names.place[graph.names.variables[i]] == i:
            name = graph.names.variables[i]
        yield f"variable {name}" if name in taken else name
