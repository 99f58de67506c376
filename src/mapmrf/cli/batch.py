"""`mapmrf solve` for several files, or for one model and an evidence table: one line each, in order."""

from __future__ import annotations

import csv
import io
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from mapmrf import cli
from mapmrf.errors import MapMRFError, OptionError
from mapmrf.run import interrupts

if TYPE_CHECKING:
    from mapmrf.batch import Outcome
    from mapmrf.cli.solving import SolveRequest
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result

FIGURES = ("value", "bound", "gap", "status", "seconds")
RESULTS = ("model", *FIGURES, "method", "error")
"""Columns of the results of several models."""


def solve_batch(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    """Solve the models, or the rows of the table; `arguments` are those of `solve_stream`."""
    with interrupts.process.ending_within(12.0):  # seconds after a signal: somebody may have to read its output
        try:
            return (_solve_files if request.evidence_table is None else _solve_table)(request, arguments)
        finally:
            from mapmrf.run.pool import end_workers

            end_workers()


class BatchReport:
    """Prints the outcomes of a batch as they arrive and a summary at the end, and determines the exit code."""

    def __init__(self, request: SolveRequest, what: str, names: Sequence[str], before: int = 0) -> None:
        self.as_json, self.in_lines = request.as_json, not (request.as_json or request.quiet)
        self.what, self.total, self.before, self.began = what, len(names), before, time.perf_counter()
        self.width = min(48, max(map(len, [what, *names])))
        self.failed: list[str] = []
        self.missed = 0
        self.statuses: Counter[str] = Counter()
        if self.in_lines:
            self._print_line(what, FIGURES)

    def add(self, name: str, data: Mapping[str, Any], outcome: Outcome) -> None:
        """Report one outcome; `data` is its JSON object."""
        from mapmrf.batch import NotSolved

        if isinstance(outcome, NotSolved):
            self.missed += 1
            return
        if isinstance(outcome, MapMRFError):
            self.fail(name, str(outcome))
        else:
            self.statuses[outcome.status.value] += 1
        if self.as_json:
            click.echo(cli.strict_json(data), file=sys.stdout)  # the current one: a progress bar may have replaced it
        elif self.in_lines and not isinstance(outcome, MapMRFError):
            formats = (".6f", ".6f", ".2g", "", ".2f")
            cells = zip(figures(outcome).values(), formats, strict=True)
            self._print_line(name, ["-" if cell is None else format(cell, form) for cell, form in cells])

    def fail(self, name: str, text: str) -> None:
        self.failed.append(name)
        cli.complain(f"error: {text}")

    def finish(self) -> int:
        """Print the summary on standard error; return the exit code of the worst outcome."""
        if self.in_lines and self.total + self.before > 1:
            counts = [f"{self.before} done before"] if self.before else []
            counts += [f"{count} {status}" for status, count in self.statuses.most_common()]
            counts += [f"{len(self.failed)} failed"] if self.failed else []
            plural = f"{self.total + self.before} {self.what}s"
            cli.complain(f"{plural} in {time.perf_counter() - self.began:.1f} s: {', '.join(counts) or 'none solved'}")
            if self.failed:
                more = f" and {len(self.failed) - 10} more" if len(self.failed) > 10 else ""
                cli.complain(f"failed: {', '.join(self.failed[:10])}{more}")
        if self.missed:
            cli.complain(f"interrupted: {self.missed} of {self.total} not solved")
        if self.missed or "interrupted" in self.statuses:
            return cli.Exit.INTERRUPTED
        if self.failed:
            return cli.Exit.BAD_INPUT
        return cli.Exit.INFEASIBLE if "infeasible" in self.statuses else 0

    def _print_line(self, name: str, cells: Sequence[str]) -> None:
        value, bound, gap, status, seconds = cells
        line = f"{name:<{self.width}}  {value:>14}  {bound:>14}  {gap:>7}  {status:<15}  {seconds:>8}"
        click.echo(line, file=sys.stdout)


def figures(result: Result) -> dict[str, Any]:
    return dict(zip(FIGURES, (result.value, result.bound, result.gap, result.status, result.runtime), strict=True))


# -- many files ------------------------------------------------------------------------------------------------------


def _solve_files(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    targets: dict[str, str | None] = dict.fromkeys(request.models)
    form, done = None, list[Mapping[str, Any]]()
    if request.output is not None and (form := _form(request.output)) is None:
        targets |= _targets(request.models, request.output)
        done = _done(request.output, targets, arguments["method"].name) if request.resume else []
    elif request.resume:
        raise OptionError(f"--resume: found {request.output}, expected a folder for the solutions of several models")
    from mapmrf.batch import solve_stream

    before = {row["model"] for row in done}
    missing = [model for model in request.models if model not in before]
    report = BatchReport(request, "model", missing, len(done))
    with _answer_file(request.output, form, RESULTS, done) as answers:
        outcomes = solve_stream(missing, evidence=request.evidence, **arguments)
        for model, outcome in zip(missing, outcomes, strict=True):
            data: dict[str, Any] = {"model": model}
            if isinstance(outcome, MapMRFError):
                data["error"] = str(outcome)
            else:
                data |= json.loads(outcome.to_json())
            try:
                if not isinstance(outcome, MapMRFError):
                    cli.write_result(outcome, targets[model])
                if answers is not None:
                    answers.add(data if form == ".jsonl" else {**data, "seconds": data.get("runtime")})
            except (MapMRFError, OSError) as error:  # a full disk must not end the batch
                report.fail(model, str(error))
            report.add(model, data, outcome)
    return report.finish()


def _done(folder: str, targets: Mapping[str, str | None], method: str) -> list[Mapping[str, Any]]:
    """The rows of `results.csv` about models that an earlier call has solved by this method, with their solutions."""
    path = Path(folder, "results.csv")
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if None not in row.values()]  # the last line may be torn
    ended = [row for row in rows if row.get("method") == method and row.get("status") not in ("", "interrupted", None)]
    return [
        row
        for row in ended
        if (target := targets.get(row["model"])) and (Path(target).exists() or row["status"] == "infeasible")
    ]


def _targets(models: Sequence[str], folder: str) -> dict[str, str]:
    """One solution file per model in the folder, which is created if necessary."""
    from mapmrf.formats.files import compression

    targets: dict[str, str] = {}
    for model in models:
        name = Path(model).name.removesuffix(compression(model))
        target = str(Path(folder, f"{name}.MPE"))
        if target in targets:
            raise OptionError(f"{targets[target]} and {model} would both be written to {target}")
        targets[target] = model
    if Path(folder).exists() and not Path(folder).is_dir():
        raise OptionError(f"{folder}: is a file, expected a folder for the solutions of several models, or a new table")
    Path(folder).mkdir(exist_ok=True)
    cli.check_outputs(*targets)
    return {model: target for target, model in targets.items()}


# -- one model, many rows --------------------------------------------------------------------------------------------


def _solve_table(request: SolveRequest, arguments: Mapping[str, Any]) -> int:
    form = None if request.output is None else _form(request.output)
    if request.output is not None and form is None:
        raise OptionError(f"{request.output}: unknown suffix, expected .csv, .tsv or .jsonl for the answers to a table")
    from mapmrf.batch import read_rows, stream_rows

    assert request.evidence_table is not None
    graph = cli.read_model(request.models[0], request.evidence)
    rows = read_rows(request.evidence_table, graph)
    report = BatchReport(request, "row", [str(row) for row in range(len(rows))])
    head = ["row", *FIGURES, "error"]
    with _answer_file(request.output, form, [*head, *columns(graph, head)]) as answers:
        for row, outcome in enumerate(stream_rows(graph, rows, **arguments)):
            data = {"row": row, **_answer(outcome)}
            if answers is not None:
                cells = data
                if form != ".jsonl" and "labels" in data and not isinstance(outcome, MapMRFError):
                    cells = data | dict(zip(answers.head[len(head) :], outcome.assignment.values(), strict=True))
                answers.add(cells)
            report.add(str(row), data, outcome)
    return report.finish()


def _answer(outcome: Outcome) -> dict[str, Any]:
    from mapmrf.run.result import Status

    if isinstance(outcome, MapMRFError):
        return {"error": str(outcome)}
    found = figures(outcome)
    if outcome.status is not Status.INFEASIBLE:
        found["labels"] = outcome.labels.tolist()
        if outcome.names is not None:
            found["assignment"] = outcome.assignment
    return found


# -- files of answers --------------------------------------------------------------------------------------------------


def _form(output: str) -> str | None:
    """The suffix of a table of answers; None for any other name, which may be a folder."""
    from mapmrf.formats.files import plain_name

    if output.endswith("/") or Path(output).is_dir():
        return None
    form = next((form for form in (".csv", ".tsv", ".jsonl") if plain_name(output).endswith(form)), None)
    if form is not None:
        cli.check_outputs(output)
    return form


@contextmanager
def _answer_file(
    output: str | None, form: str | None, head: Sequence[str], done: Sequence[Mapping[str, Any]] = ()
) -> Iterator[AnswerTable | None]:
    """The file of answers: the output itself, or `results.csv` in a folder, whose lines are there at once."""
    from mapmrf.formats.files import replacing, write_bytes

    if output is None:
        yield None
    elif form is not None:
        with replacing(output) as file:
            yield AnswerTable(file, form, head)
    else:
        begun = io.BytesIO()
        table = AnswerTable(begun, ".csv", head)
        for row in done:
            table.add(row)
        path = Path(output, "results.csv")
        write_bytes(path, begun.getvalue(), keep=False if done else None)
        with open(path, "ab", buffering=0) as file:
            table.file = file
            yield table


class AnswerTable:
    """One line per answer: JSON, or the cells of a table."""

    def __init__(self, file: IO[bytes], form: str, head: Sequence[str]) -> None:
        self.file, self.head = file, head
        self.delimiter = {".csv": ",", ".tsv": "\t"}.get(form)
        if self.delimiter is not None:
            self._put(head)

    def add(self, data: Mapping[str, Any]) -> None:
        """Write an answer; cells that it does not have are empty."""
        if self.delimiter is None:
            self.file.write(f"{cli.strict_json(data)}\n".encode())
        else:
            self._put([data.get(key) for key in self.head])

    def _put(self, cells: Sequence[Any]) -> None:
        self.file.write(cli.csv_text([cells], self.delimiter or ",").encode())


def columns(graph: FactorGraph, taken: Sequence[str]) -> Iterator[str]:
    """Names of the columns of the variables, distinct from those of the figures."""
    for i in range(graph.n_vars):
        name = str(i)
        if graph.names is not None and graph.names.place[graph.names.variables[i]] == i:
            name = graph.names.variables[i]
        yield f"variable {name}" if name in taken else name
