"""Output of the command line: files, JSON and text tables. Prints nothing."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mapmrf.errors import OptionError
from mapmrf.run.atomic_files import keeps_old
from mapmrf.run.interrupts import raising

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result

Row = Mapping[str, Any]

MAX_MU_STATES = 1 << 20
"""Number of states up to which a relaxed solution is written with a result: for a large picture it would be huge."""


class Tuned(Protocol):
    """The outcome of a parameter search."""

    @property
    def best(self) -> Row:
        """The best options."""

    @property
    def result(self) -> Result:
        """The result of the best options."""

    @property
    def table(self) -> Sequence[Row]:
        """One row per run."""


# -- files -----------------------------------------------------------------------------------------------------------


def check_outputs(*paths: str | None) -> None:
    """Reject outputs that could not be written, before the work is done.

    Raises
    ------
    OptionError
        If a path is a folder, is in a folder that does not exist, or may not be written.
    """
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
    """Reject a folder that already holds a model in parts, unless `--force` is given.

    The old parts are removed first, so that a folder never holds parts of two models.
    """
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


def write_result(result: Result, path: str) -> bool:
    """Write the result to a .json file, or its labels as a solution; return False for an infeasible model."""
    from mapmrf.formats.files import write_bytes
    from mapmrf.formats.solution import write_solution
    from mapmrf.run.result import Status

    if path.endswith(".json"):
        with_mu = result.mu_v is not None and result.mu_v.size <= MAX_MU_STATES
        write_bytes(path, (result.to_json(trace=True, mu_v=with_mu) + "\n").encode())
        return True
    if result.status is Status.INFEASIBLE:
        return False
    write_solution(path, result.labels)
    return True


def write_rows(rows: Sequence[Row], path: str) -> None:
    """Write rows with the same keys as CSV."""
    from mapmrf.formats.files import write_bytes

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


# -- text ------------------------------------------------------------------------------------------------------------


def strict_json(data: Any) -> str:
    """Format one JSON object; infinite numbers become strings, as in `Result.to_json`.

    Examples
    --------
    >>> strict_json({"value": float("-inf")})
    '{"value": "-inf"}'
    """
    return json.dumps(json.loads(json.dumps(data, default=str), parse_constant=lambda text: str(float(text))))


def table(rows: Sequence[Row]) -> str:
    """Format rows with the same keys as aligned columns under their names.

    Examples
    --------
    >>> print(table([{"name": "a", "value": 1.5}, {"name": "bc", "value": 20}]))
    name  value
    a     1.5
    bc    20
    """
    if not rows:
        return ""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in cells)


def _cell(value: Any) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def report(result: Result, shown: int = 30) -> str:
    """Summarise a result, with its first labels; for a model with names, one line per variable and its state."""
    if result.names is not None:
        rows = [{"variable": name, "state": state} for name, state in list(result.assignment.items())[:shown]]
        more = f"\n... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
        return f"{result.summary(shown=0)}\n\n{table(rows)}{more}"
    more = f" ... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
    return f"{result.summary()}\nlabels         {' '.join(map(str, result.labels[:shown]))}{more}"


def methods_report(known: Mapping[str, Row]) -> str:
    """List what every method provides, then the options of each."""
    rows = []
    for name, about in known.items():
        exact = "yes" if about["exact"] else "on trees" if about["exact_on_trees"] else "no"
        bound = "yes" if about["gives_bound"] else "no"
        rows.append({"name": name, "bound": bound, "exact": exact, "title": about["title"]})
    options = [f"{name}: " + ", ".join(f"{k}={v}" for k, v in known[name]["options"].items()) for name in known]
    return table(rows) + "\n\nOptions for --set, with their defaults\n" + "\n".join(options)


def tuning_json(tuning: Tuned) -> str:
    """Format the best options, their result and all rows as one JSON object."""
    return strict_json({"best": tuning.best, "result": json.loads(tuning.result.to_json()), "table": tuning.table})


def tuning_report(tuning: Tuned, top: int = 10) -> str:
    """List the best rows, then the best options in the form of `solve`, and the result."""
    best = " ".join(f"--set {key}={value}" for key, value in tuning.best.items())
    rows = sorted(tuning.table, key=lambda row: (-row["value"], row["runtime"]))[:top]
    return f"{table(rows)}\n\nbest           {best}\n{report(tuning.result)}"
