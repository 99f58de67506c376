"""The trace of a run: a point for every step, and traces as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from mapmrf.errors import FormatError
from mapmrf.run.atomic_files import whole_file
from mapmrf.run.options import relative_gap

FINITE = ("time", "iterations", "compile_time", "runtime", "seed", "unit")  # figures that are finite for every model


@dataclass(frozen=True)
class TracePoint:
    """One row of a trace: the state of a run at one moment.

    `value` and `bound` are the best so far; `candidate` and `bound_now` are those of this step. `extra` holds
    further figures of the method, such as the residuals of LS-LP.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> point = mapmrf.solve(graph, "icm").trace[-1]
    >>> point.value, point.bound, point.gap
    (2.0, None, None)
    """

    time: float
    iterations: int
    value: float
    bound: float | None = None
    candidate: float | None = None
    bound_now: float | None = None
    relaxed_value: float | None = None
    phase: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Relative gap between the best bound and the best value."""
        return relative_gap(self.value, self.bound)

    def figure(self, name: str) -> Any:
        """An attribute or a figure in `extra` by name; None if this point has no such figure."""
        return getattr(self, name, None) if name in _COLUMNS else self.extra.get(name)


_COLUMNS = [item.name for item in fields(TracePoint) if item.name != "extra"]
"""The columns of a trace as CSV; `gap` and the figures in `extra` follow."""

_REQUIRED = {"time", "iterations", "value"}  # columns that every trace must have

Read = TypeVar("Read")


def write_trace(points: Iterable[TracePoint], path: str | Path) -> None:
    """Write a trace as CSV, one row per point; the figures in `extra` become columns."""
    points = list(points)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    extra = list(dict.fromkeys(name for point in points for name in point.extra))
    writer.writerow([*_COLUMNS, "gap", *extra])
    for point in points:
        row = [*(getattr(point, name) for name in _COLUMNS), point.gap, *(point.extra.get(name) for name in extra)]
        writer.writerow(["" if cell is None else cell for cell in row])
    with whole_file(path) as file:
        file.write(text.getvalue().encode())


def read_trace(path: str | Path) -> tuple[TracePoint, ...]:
    """Read a trace written by `Result.write_trace` or `mapmrf solve --trace`.

    Raises
    ------
    FormatError
        If the file cannot be read, or is not a trace.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.0]]), "icm")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.write_trace(pathlib.Path(folder, "run.csv"))
    ...     read_trace(pathlib.Path(folder, "run.csv")) == result.trace
    True
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = _REQUIRED - set(rows.fieldnames or ())
            if missing:
                raise FormatError(f"{path}: line 1: no column {min(missing)!r}, expected the trace of a run")
            return tuple(_trace_point(row, f"{path}: line {rows.line_num}") for row in rows)
    except OSError as error:
        raise FormatError(f"{path}: cannot read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path}: not a CSV file: {error}") from None


def _trace_point(row: Mapping[str, str | None], place: str) -> TracePoint:
    cells: dict[str, Any] = {"phase": row.get("phase") or "", "extra": {}}
    for name, text in row.items():
        if name in (None, "phase", "gap") or not (text or name in _REQUIRED):
            continue
        try:
            number = int(text or "") if name == "iterations" else float(text or "")
        except (ValueError, TypeError):
            raise FormatError(f"{place}: {name} is {text or ''!r}, expected a number") from None
        (cells if name in _COLUMNS else cells["extra"])[name] = number
    try:
        return checked_numbers(TracePoint(**cells))
    except ValueError as error:
        raise FormatError(f"{place}: {error}") from None


def point_from(data: Mapping[str, Any]) -> TracePoint:
    """A point of a trace from JSON; earlier versions had the figures of `extra` next to the others."""
    cells = {name: cell for name, cell in data.items() if name in _COLUMNS}
    old = {name: cell for name, cell in data.items() if name not in (*_COLUMNS, "extra") and cell is not None}
    return checked_numbers(TracePoint(**cells, extra={**old, **data.get("extra", {})}))


def checked_numbers(found: Read) -> Read:
    """Return an object read from a file; raise unless its numeric fields are numbers, finite where required."""
    for item in fields(found):  # type: ignore[arg-type]
        kind, optional, _ = str(item.type).partition(" | None")
        value = getattr(found, item.name)
        if kind not in ("int", "float") or (optional and value is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{item.name} is {value!r}, expected a number")
        try:
            size = float(value)
        except OverflowError:
            raise ValueError(f"{item.name} is a number that is too large for a float") from None
        if item.name in FINITE and not math.isfinite(size):
            raise ValueError(f"{item.name} is {value!r}, expected a finite number")
    return found
