"""The trace of a run as columns to draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np

from mapmrf.errors import OptionError
from mapmrf.run.result import Result, TracePoint

Run = Result | Sequence[TracePoint]
"""A result with its trace, or a trace such as `mapmrf.run.result.read_trace` returns."""
Over = Literal["iterations", "seconds"]

LATE, FEW = 0.25, 3
"""A run of more than FEW points is drawn from its first point on if the first LATE of the axis is empty."""
STRAY = 0.05
"""Share of the points that may be outside the picture at either end, so that a bad start does not flatten the rest."""


def points_of(run: Run) -> list[TracePoint]:
    """The points of a run; a result adds its final value and bound."""
    if not isinstance(run, Result):
        return list(run)
    points = list(run.trace)
    last = TracePoint(
        time=max([run.runtime, *(point.time for point in points[-1:])]),
        iterations=max([run.iterations, *(point.iterations for point in points[-1:])]),
        value=run.value,
        bound=run.bound,
        relaxed_value=run.relaxed_value,
        phase=points[-1].phase if points else "",
    )
    return [*points, last]


def place_of(point: TracePoint, over: Over) -> float:
    """Position of a point on the axis."""
    return point.time if over == "seconds" else point.iterations


def axis_of(points: Sequence[TracePoint], over: Over | None) -> Over:
    """The requested axis; by default iterations, or seconds if most points share their iteration with another."""
    if over not in (None, "iterations", "seconds"):
        raise OptionError(f"over={over!r}, expected 'iterations' or 'seconds'")
    if over is not None:
        return over
    distinct = len({point.iterations for point in points})
    return "iterations" if distinct > 1 and 2 * distinct >= len(points) else "seconds"


def column(points: Sequence[TracePoint], name: str, over: Over, positive: bool = False) -> tuple[list[Any], list[Any]]:
    """Positions and finite (for a logarithmic scale: positive) values of a column of the trace."""
    rows = [(place_of(point, over), point.figure(name)) for point in points]
    kept = [(x, y) for x, y in rows if y is not None and math.isfinite(y) and (y > 0 or not positive)]
    return [x for x, _ in kept], [y for _, y in kept]


def phases(points: Sequence[TracePoint], over: Over) -> list[tuple[str, float, float]]:
    """Name, begin and end of every phase; each ends where the next begins, the first starts with the axis."""
    groups = [list(group) for _, group in groupby(points, key=lambda point: point.phase)]
    ends = [place_of(group[-1], over) for group in groups]
    first, last = (place_of(point, over) for point in (points[0], points[-1])) if points else (0.0, 0.0)
    late = len(points) > FEW and LATE * last < first < last
    begins = [first if late else 0.0, *ends]
    return [(group[0].phase, begin, end) for group, begin, end in zip(groups, begins, ends, strict=False)]


def view(columns: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Limits of an axis that shows the ends of the curves and all but a few early outliers."""
    filled = [numbers for numbers in columns if numbers]
    if not filled:
        return None
    ends = [numbers[-1] for numbers in filled]
    low, high = np.quantile(np.concatenate(filled), [STRAY, 1 - STRAY])
    low, high = min(low, *ends), max(high, *ends)
    size = max(abs(low), abs(high))
    margin = max(0.06 * (high - low), 1e-9 * size) if high > low else max(1e-3, 0.01 * size)
    return float(low - margin), float(high + margin)
