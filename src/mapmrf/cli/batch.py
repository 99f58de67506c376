"""`solve` for several files, or for one model and an evidence table: one line each, in order."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from mapmrf.cli.output import check_outputs, strict_json, write_result
from mapmrf.cli.program import BAD_INPUT, INFEASIBLE, INTERRUPTED, complain, max_bytes, read_model
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.run.interrupts import ending_within

if TYPE_CHECKING:
    from mapmrf.batch import Outcome
    from mapmrf.cli.solving import SolveRequest
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result

_FIGURES = ("value", "bound", "gap", "status", "seconds")
_WIDEST = 48
LONGEST = 12.0
"""Seconds after a signal until a batch is left that still waits, for instance for somebody to read its output."""


def solve_batch(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    """Solve every file, or one model for every row of an evidence table."""
    arguments = {**arguments, "max_bytes": max_bytes()}
    with ending_within(LONGEST):
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
        self.width = min(_WIDEST, max(map(len, [what, *names])))
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
            click.echo(strict_json(data), file=sys.stdout)  # the current one: a progress bar may have replaced it
        elif self.in_lines and not isinstance(outcome, MapMRFError):
            formats = (".6f", ".6f", ".2g", "", ".2f")
            figures = zip(_figures(outcome).values(), formats, strict=True)
            self._print_line(name, ["-" if figure is None else format(figure, form) for figure, form in figures])

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

    def _print_line(self, name: str, cells: Sequence[str]) -> None:
        value, bound, gap, status, seconds = cells
        line = f"{name:<{self.width}}  {value:>14}  {bound:>14}  {gap:>7}  {status:<15}  {seconds:>8}"
        click.echo(line, file=sys.stdout)


def _figures(result: Result) -> dict[str, Any]:
    return dict(zip(_FIGURES, (result.value, result.bound, result.gap, result.status, result.runtime), strict=True))


# -- many files ------------------------------------------------------------------------------------------------------


def _solve_files(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    """Solve every file, report each in one line and write its solution."""
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
                write_result(outcome, target)
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
    check_outputs(*targets)
    return list(targets)


# -- one model, many rows --------------------------------------------------------------------------------------------


def _solve_table(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    """Solve a model for every row of an evidence table."""
    form = None if request.output is None else _form(request.output)
    from mapmrf.batch import read_rows, stream_rows
    from mapmrf.formats.files import replacing

    assert request.evidence_table is not None
    graph = read_model(request.models[0], request.evidence)
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
