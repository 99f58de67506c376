"""Output of several commands: checks of files, answers, JSON and text tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mapmrf.cli.program import complain
from mapmrf.errors import OptionError
from mapmrf.run.atomic_files import keeps_old
from mapmrf.run.interrupts import raising

if TYPE_CHECKING:
    from mapmrf.cli.solving import SolveRequest
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result, Status

MAX_MU_STATES = 1 << 20
"""Number of states up to which a relaxed solution is written with a result: for a large picture it would be huge."""


# -- files -----------------------------------------------------------------------------------------------------------


def check_outputs(*paths: str | None) -> None:
    """Reject outputs that could not be written, before the work is done."""
    for path in paths:
        if path is None:
            continue
        target = Path(path)
        if target.is_dir():
            raise OptionError(f"{path}: is a folder, expected a file")
        if not target.parent.is_dir():
            raise OptionError(f"{path}: there is no folder {target.parent}")
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise OptionError(f"{path}: no permission to write")


def check_parts(folder: str) -> None:
    """Reject a folder that already holds a model in parts, unless `--force` is given."""
    # The old parts are removed first, so that a folder never holds parts of two models.
    manifest = Path(folder, "parts.json")
    if manifest.exists() and keeps_old():
        raise OptionError(
            f"{folder}: already holds a model in parts, expected another folder, or --force to replace it"
        )
    manifest.unlink(missing_ok=True)


def write_model(graph: FactorGraph, path: str) -> None:
    """Write a model in the format given by the suffix; a signal ends that, and no file is written."""
    from mapmrf.formats import write

    with raising():
        write(graph, path)


def write_answer(
    path: str | None, status: Status, to_json: Callable[[], str], write: Callable[..., None] | None, *labels: Any
) -> None:
    """Write an answer as JSON to *.json, otherwise its labels by `write`, which is None if there are none."""
    if path is None:
        return
    if path.endswith(".json"):
        from mapmrf.formats.files import write_bytes

        write_bytes(path, (to_json() + "\n").encode())
    elif write is None:
        complain(f"{path} not written: {status.meaning}")
    else:
        write(path, *labels)


def write_result(result: Result, path: str | None) -> None:
    """Write a result with its trace to *.json, otherwise its labels as a solution."""
    from mapmrf.formats.solution import write_solution
    from mapmrf.run.result import Status

    with_mu = result.mu_v is not None and result.mu_v.size <= MAX_MU_STATES
    writer = None if result.status is Status.INFEASIBLE else write_solution
    write_answer(path, result.status, lambda: result.to_json(trace=True, mu_v=with_mu), writer, result.labels)


# -- text ------------------------------------------------------------------------------------------------------------


def print_answer(request: SolveRequest, to_json: Callable[[], str], to_text: Callable[[], str]) -> None:
    """Print an answer as JSON or as text, unless there is nothing to be printed."""
    if request.as_json or not request.quiet:
        click.echo(to_json() if request.as_json else to_text())


def strict_json(data: Any) -> str:
    """Format one JSON object; infinite numbers become strings, as in `Result.to_json`."""
    return json.dumps(json.loads(json.dumps(data, default=str), parse_constant=lambda text: str(float(text))))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [
        list(rows[0]),
        *([f"{value:.8g}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def report(result: Result, shown: int = 30) -> str:
    """Summarise a result, with its first labels; for a model with names, one line per variable and its state."""
    if result.names is not None:
        rows = [{"variable": name, "state": state} for name, state in list(result.assignment.items())[:shown]]
        more = f"\n... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
        return f"{result.summary(shown=0)}\n\n{table(rows)}{more}"
    more = f" ... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
    return f"{result.summary()}\nlabels         {' '.join(map(str, result.labels[:shown]))}{more}"
