"""`solve` for several files, or for one model and an evidence table: one line each, in order."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from mapmrf.cli.output import check_outputs, strict_json, write_result
from mapmrf.cli.program import BAD_INPUT, INFEASIBLE, INTERRUPTED, complain, read_model
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.run.interrupts import ending_within

if TYPE_CHECKING:
    from mapmrf.batch import Outcome
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.method import Method
    from mapmrf.run.result import Result

_FIGURES = ("value", "bound", "gap", "status", "seconds")
_WIDEST = 48
LONGEST = 12.0
"""Seconds after a signal until a batch is left that still waits, for instance for somebody to read its output."""


@dataclass(frozen=True)
class BatchRequest:
    """The options of a batch.

    Attributes
    ----------
    method, options
        The method, and the options of `solve_many`.
    evidence
        Evidence file that applies to every model.
    output
        A folder for solutions, or the file of answers to a table.
    as_json, quiet
        What to print.
    """

    method: Method
    options: Mapping[str, Any]
    evidence: str | None
    output: str | None
    as_json: bool
    quiet: bool


class BatchReport:
    """Prints the outcomes of a batch as they arrive, and determines the exit code."""

    def __init__(self, request: BatchRequest, what: str, names: Sequence[str]) -> None:
        self.request, self.what, self.total = request, what, len(names)
        self.width = min(_WIDEST, max(map(len, [what, *names])))
        self.errors = self.missed = 0
        self.statuses: set[str] = set()
        if self._in_lines:
            _echo(self._line(what, dict(zip(_FIGURES, _FIGURES, strict=True))))

    @property
    def _in_lines(self) -> bool:
        return not (self.request.as_json or self.request.quiet)

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
        if self.request.as_json:
            _echo(strict_json(data))
        elif self._in_lines and not isinstance(outcome, MapMRFError):
            _echo(self._line(name, _shown(figures(outcome))))

    def fail(self, text: str) -> None:
        """Report that one model of the batch failed."""
        self.errors += 1
        click.echo(f"mapmrf: error: {' '.join(text.split())}", file=sys.stderr)

    def exit_code(self) -> int:
        """The exit code of the worst outcome."""
        if self.missed:
            complain(f"interrupted: {self.missed} of {self.total} not solved")
        if self.missed or "interrupted" in self.statuses:
            return INTERRUPTED
        if self.errors:
            return BAD_INPUT
        return INFEASIBLE if "infeasible" in self.statuses else 0

    def _line(self, name: str, cells: Mapping[str, str]) -> str:
        value, bound, gap, status, seconds = (cells[key] for key in _FIGURES)
        return f"{name:<{self.width}}  {value:>14}  {bound:>14}  {gap:>7}  {status:<15}  {seconds:>8}"


def _echo(text: str) -> None:
    """Print a line on the current standard output, which the progress bar may have replaced."""
    click.echo(text, file=sys.stdout)


def figures(result: Result) -> dict[str, Any]:
    """Return the figures of a result that are shown in its line."""
    return dict(zip(_FIGURES, (result.value, result.bound, result.gap, result.status, result.runtime), strict=True))


def _shown(found: Mapping[str, Any]) -> dict[str, str]:
    formats = {"value": ".6f", "bound": ".6f", "gap": ".2g", "status": "", "seconds": ".2f"}
    return {key: "-" if found[key] is None else format(found[key], formats[key]) for key in _FIGURES}


def solve_batch(models: Sequence[str], table: str | None, request: BatchRequest) -> int:
    """Solve every file, or one model for every row of an evidence table; return the exit code."""
    with ending_within(LONGEST):
        try:
            return solve_files(models, request) if table is None else solve_table(models[0], table, request)
        finally:
            from mapmrf.run.pool import end_workers

            end_workers()


# -- many files ------------------------------------------------------------------------------------------------------


def solve_files(models: Sequence[str], request: BatchRequest) -> int:
    """Solve every file, report each in one line and write its solution; return the exit code."""
    targets = _targets(models, request.output)
    from mapmrf.batch import solve_stream

    report = BatchReport(request, "model", models)
    outcomes = solve_stream(models, request.method, evidence=request.evidence, **request.options)
    for model, target, outcome in zip(models, targets, outcomes, strict=True):
        if isinstance(outcome, MapMRFError):
            report.add(model, {"model": model, "error": str(outcome)}, outcome)
            continue
        _write(outcome, target, report)
        report.add(model, {"model": model, **json.loads(outcome.to_json())}, outcome)
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
    check_outputs(*targets)
    return list(targets)


def _write(result: Result, target: str | None, report: BatchReport) -> None:
    """Write a solution; a full disk must not end the batch."""
    try:
        if target is not None and not write_result(result, target):
            complain(f"{target} not written: {result.status.meaning}")
    except MapMRFError as error:
        report.fail(str(error))


# -- one model, many rows --------------------------------------------------------------------------------------------


def solve_table(model: str, table: str, request: BatchRequest) -> int:
    """Solve a model for every row of an evidence table; return the exit code."""
    form = None if request.output is None else _form(request.output)
    from mapmrf.batch import read_rows, stream_rows
    from mapmrf.formats.files import replacing

    graph = read_model(model, request.evidence)
    rows = read_rows(table, graph)
    report = BatchReport(request, "row", [str(len(rows))])
    with nullcontext() if request.output is None else replacing(request.output) as file:
        answers = None if file is None else _Answers(file, form, graph)
        for row, outcome in enumerate(stream_rows(graph, rows, request.method, **request.options)):
            data = {"row": row, **_answer(outcome)}
            if answers is not None:
                answers.add(data, outcome)
            report.add(str(row), data, outcome)
    return report.exit_code()


def _form(output: str) -> str:
    """The format of the answers, by the suffix of their file."""
    from mapmrf.formats.files import plain_name

    check_outputs(output)
    for form in (".csv", ".tsv", ".jsonl"):
        if plain_name(output).endswith(form):
            return form
    raise OptionError(f"{output}: unknown suffix, expected .csv, .tsv or .jsonl for the answers to a table")


def _answer(outcome: Outcome) -> dict[str, Any]:
    """The JSON object of a row."""
    from mapmrf.run.result import Status

    if isinstance(outcome, MapMRFError):
        return {"error": str(outcome)}
    found = figures(outcome)
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
            self.file.write(f"{strict_json(data)}\n".encode())
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
