"""Display of results and models: HTML in notebooks, colour in terminals through `rich`, frames of pandas and xarray."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mapmrf.errors import OptionError, needed
from mapmrf.model.summary import summarise
from mapmrf.run.result import Result, Status, TracePoint

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mapmrf.model.graph import FactorGraph

SHOWN = 12  # number of labels, names and rows of a trace that are shown
LONGEST = 120  # number of characters of a name or an option that are shown

VALUE, BOUND = "#2b8cc4", "#d9722e"
"""Colours of the curves, visible on light and dark backgrounds."""

WIDTH, HEIGHT = 230.0, 60.0
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=*#"

_INKS = {
    Status.OPTIMAL: ("#1f8a4c", "green"),
    Status.WITHIN_TOLERANCE: ("#1f8a4c", "green"),
    Status.INFEASIBLE: ("#c0392b", "red"),
    Status.INTERRUPTED: ("#a86b00", "yellow"),
}
"""Colours of a status, on a page and in a terminal."""

# Inherited colours and half-transparent lines suit a light and a dark page alike.
_BOX = "display:inline-block;max-width:100%;font-family:sans-serif;font-size:13px;line-height:1.45;color:inherit"
_HEAD = "display:flex;align-items:center;gap:0.7em;font-weight:600;margin:0.2em 0 0.4em"
_TABLE = "font-size:inherit;border-collapse:collapse;margin:0;color:inherit;background:transparent"
_CELL = "text-align:left;padding:1px 12px 1px 0;border:0;vertical-align:top;background:transparent;color:inherit"
_RULED = "text-align:right;padding:1px 10px 1px 0;border:0;border-bottom:1px solid rgba(128,128,128,.3);color:inherit"


# -- notebooks -------------------------------------------------------------------------------------------------------


def result_html(result: Result) -> str:
    """A result as self-contained HTML: figures, a sparkline of the run, and collapsed options and trace."""
    colour = _INKS.get(result.status, ("#5f6b73", ""))[0]
    badge = f"background:{colour};color:#fff;border-radius:3px;padding:0 0.5em;font-weight:400"
    head = f'<span>{_safe(result.method)}</span><span style="{badge}">{result.status.value.replace("_", " ")}</span>'
    inside = [
        f'<div style="{_HEAD}">{head}</div>',
        '<div style="display:flex;flex-wrap:wrap;gap:0.6em 2em;align-items:flex-start">',
        f"{_rows_html(_result_rows(result))}{_sparkline(result)}</div>",
        _unfold("options", _rows_html([(name, repr(value)) for name, value in result.options.items()])),
        _unfold(f"trace ({len(result.trace)} points)", _trace_html(result.trace)) if len(result.trace) > 1 else "",
    ]
    return f'<div style="{_BOX}">{"".join(inside)}</div>'


def graph_html(graph: FactorGraph, title: str = "FactorGraph") -> str:
    """The size of a model as an HTML table: variables, factors by arity, zeros, structure, memory."""
    return titled_html(title, _graph_rows(graph))


def titled_html(title: str, rows: Sequence[tuple[str, str]]) -> str:
    return f'<div style="{_BOX}"><div style="{_HEAD}">{_safe(title)}</div>{_rows_html(rows)}</div>'


def _safe(text: str) -> str:
    return escape(text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}...")


def _rows_html(rows: Sequence[tuple[str, str]]) -> str:
    lines = [
        f'<tr style="background:transparent"><td style="{_CELL};opacity:.7;white-space:nowrap">{_safe(name)}</td>'
        f'<td style="{_CELL}">{_safe(text)}</td></tr>'
        for name, text in rows
    ]
    return f'<table style="{_TABLE}">{"".join(lines)}</table>'


def _unfold(title: str, inside: str) -> str:
    style = "cursor:pointer;opacity:.7"
    return f'<details style="margin-top:0.3em"><summary style="{style}">{escape(title)}</summary>{inside}</details>'


def _trace_html(trace: Sequence[TracePoint]) -> str:
    """Some rows of a trace including the first and the last, without empty columns."""
    chosen = sorted({round(k * (len(trace) - 1) / (SHOWN - 1)) for k in range(SHOWN)})  # at most SHOWN, evenly
    rows = [_trace_row(trace[i]) for i in chosen]
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    head = "".join(f'<th style="{_RULED};font-weight:600">{name.replace("_", " ")}</th>' for name in names)
    lines = ["".join(f'<td style="{_RULED}">{_safe(row[name])}</td>' for name in names) for row in rows]
    body = "".join(f'<tr style="background:transparent">{line}</tr>' for line in lines)
    return f'<table style="{_TABLE}"><tr style="background:transparent">{head}</tr>{body}</table>'


def _trace_row(point: TracePoint) -> dict[str, str]:
    numbers = {
        "seconds": point.time,
        "iterations": point.iterations,
        "value": point.value,
        "bound": point.bound,
        "gap": point.gap,
        "relaxed_value": point.relaxed_value,
        "rho": point.figure("rho"),
    }
    texts = {name: "" if x is None else f"{x:.6g}" for name, x in numbers.items()}
    return texts | {"gap": "" if point.gap is None else f"{point.gap:.2g}", "phase": point.phase}


def _sparkline(result: Result) -> str:
    """Value and bound over the run as a small SVG; empty if there is nothing to show."""
    points = points_of(result)
    over = axis_of(points, None)
    curves = {name: column(points, name, over) for name in ("bound", "value")}
    limits = view([numbers for _, numbers in curves.values()])
    places = [x for xs, _ in curves.values() for x in xs]
    if limits is None or len(result.trace) < 2 or max(places) == min(places):
        return ""
    frame = (min(places), max(places), *limits)
    lines = "".join(_polyline(xs, ys, name, frame) for name, (xs, ys) in curves.items() if ys)
    inks = {"value": VALUE, "bound": BOUND}
    keys = [f'<span style="color:{ink}">{name}</span>' for name, ink in inks.items() if curves[name][1]]
    caption = f'<figcaption style="font-size:11px">{" and ".join(keys)} over {over}</figcaption>'
    said = f"value{' and bound' if curves['bound'][1] else ''} over {over}"
    box = f'viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" height="{HEIGHT:g}"'
    style = "display:block;overflow:hidden;border-bottom:1px solid rgba(128,128,128,.4)"
    svg = f'<svg {box} role="img" aria-label="{said}" style="{style}"><title>{said}</title>{lines}</svg>'
    return f'<figure style="margin:0">{svg}{caption}</figure>'


def _polyline(xs: Sequence[float], ys: Sequence[float], name: str, frame: tuple[float, float, float, float]) -> str:
    """A step curve: the best so far is constant until the next point."""
    left, right, low, high = frame
    # Steep starts are clipped far outside the picture, so that renderers need not handle huge numbers.
    place = [
        (WIDTH * (x - left) / (right - left), HEIGHT * (high - y) / (high - low)) for x, y in zip(xs, ys, strict=True)
    ]
    corners = [(x, min(max(y, -10 * HEIGHT), 10 * HEIGHT)) for x, y in place]
    steps = [f"{corners[0][0]:.1f},{corners[0][1]:.1f}"]
    for (_, before), (x, y) in pairwise(corners):
        steps += [f"{x:.1f},{before:.1f}", f"{x:.1f},{y:.1f}"]
    # Repeated corners are dropped, so that a long trace does not make a heavy page.
    kept = [step for k, step in enumerate(steps) if k == 0 or step != steps[k - 1]]
    look = f'stroke="{VALUE}"' if name == "value" else f'stroke="{BOUND}" stroke-dasharray="4 2"'
    return f'<polyline fill="none" stroke-width="1.6" {look} points="{" ".join(kept)}"/>'


# -- terminals -------------------------------------------------------------------------------------------------------


def result_rich(result: Result, *, ascii_only: bool = False) -> Iterator[RenderableType]:
    """A result for `rich.print`, with its value over time as a row of characters."""
    rows = _result_rows(result)
    course = _bars([point.value for point in result.trace], PLAIN_BARS if ascii_only else BARS)
    if course:
        rows.append(("course", course))
    yield _panel(rows, result.method, {"log potential": "bold", "status": _INKS.get(result.status, ("", ""))[1]})


def graph_rich(graph: FactorGraph) -> RenderableType:
    return _panel(_graph_rows(graph), "FactorGraph", {"variables": "bold", "factors": "bold"})


def _panel(rows: Sequence[tuple[str, str]], title: str, inks: Mapping[str, str]) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(Text(name, style="dim"), Text(text, style=inks.get(name, "")))
    return Panel.fit(table, title=Text(title, style="bold"), title_align="left", border_style="dim")


def _bars(values: Sequence[float], bars: str, width: int = 40) -> str:
    """At most `width` characters whose heights show the values; empty if they do not change."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2 or finite[0] == finite[-1]:
        return ""
    low, high = min(finite), max(finite)
    chosen = (
        [finite[round(k * (len(finite) - 1) / (width - 1))] for k in range(width)] if len(finite) > width else finite
    )
    share = [(value / 2 - low / 2) / (high / 2 - low / 2) for value in chosen]  # halves: no overflow
    return "".join(bars[round(x * (len(bars) - 1))] for x in share)


# -- shared by both --------------------------------------------------------------------------------------------------


def _result_rows(result: Result) -> list[tuple[str, str]]:
    """The lines of the summary, then the first labels."""
    rows = _split(result.summary(shown=0))
    if result.names is None:
        answers = [str(k) for k in result.labels[:SHOWN].tolist()]
        return [*rows, ("labels", _listed(answers, len(result.labels), " "))]
    named = list(result.assignment.items())[:SHOWN]
    answers = [f"{_one_line(name)}={_one_line(state)}" for name, state in named]
    return [*rows, ("assignment", _listed(answers, len(result.labels)))]


def _graph_rows(graph: FactorGraph) -> list[tuple[str, str]]:
    """The lines of the summary, then the first names."""
    rows = _split(summarise(graph).text())
    if graph.names is not None:
        names = [_one_line(name) for name in graph.names.variables[:SHOWN]]
        rows.append(("names", _listed(names, graph.n_vars)))
    return rows


def _split(summary: str) -> list[tuple[str, str]]:
    """Name and text of every line, which are separated by at least two blanks."""
    rows = [re.split(r" {2,}", line, maxsplit=1) for line in summary.splitlines()]
    return [(name, text) for name, text in rows]


def _one_line(name: int | str) -> str:
    """A name without control characters, and not too long."""
    text = "".join(letter if letter.isprintable() else " " for letter in str(name))
    return text if len(text) <= LONGEST // 4 else f"{text[: LONGEST // 4 - 3]}..."


def _listed(texts: Sequence[str], count: int, between: str = ", ") -> str:
    more = f" ... ({count} in all)" if count > len(texts) else ""
    return between.join(texts) + more


# -- The trace of a run as columns to draw ----------------------------------------------------------------------------


Run = Result | Sequence[TracePoint]
"""A result with its trace, or a trace such as `mapmrf.run.result.read_trace` returns."""

Over = Literal["iterations", "seconds"]


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
    late = len(points) > 3 and 0.25 * last < first < last  # the first quarter of the axis would be empty
    begins = [first if late else 0.0, *ends]
    return [(group[0].phase, begin, end) for group, begin, end in zip(groups, begins, ends, strict=False)]


def view(columns: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Limits of an axis that shows the ends of the curves and all but a few early outliers."""
    filled = [numbers for numbers in columns if numbers]
    if not filled:
        return None
    ends = [numbers[-1] for numbers in filled]
    # Some points may be outside of the picture, so that a bad start does not flatten the rest.
    low, high = np.quantile(np.concatenate(filled), [0.05, 1 - 0.05])
    low, high = min(low, *ends), max(high, *ends)
    size = max(abs(low), abs(high))
    margin = max(0.06 * (high - low), 1e-9 * size) if high > low else max(1e-3, 0.01 * size)
    return float(low - margin), float(high + margin)


# -- Results as pandas tables and xarray datasets; needs ``pip install 'mapmrf[frames]'`` -----------------------------


Rows = Literal["labels", "trace"]  # meaning of the rows of a table: variables, or points of the trace

POINT = ("time", "iterations", "value", "bound", "gap", "relaxed_value", "phase")
"""Columns of every trace; a method may add its own."""


def check_rows(of: str, choices: Sequence[str]) -> None:
    if of not in choices:
        raise OptionError(f"of is {of!r}, expected one of {', '.join(choices)}")


def result_frame(result: Result, of: Rows) -> Any:
    """A result as a `pandas.DataFrame`: a row per variable or per point of the trace, and the figures in `attrs`."""
    check_rows(of, ("labels", "trace"))
    pandas = needed("pandas", "frames")
    if of == "trace":
        frame = pandas.DataFrame(_trace_columns(result))
    else:
        frame = pandas.DataFrame(_label_columns(result), index=pandas.Index(_variables(result), name="variable"))
    frame.attrs = _figures(result)
    return frame


def result_dataset(result: Result) -> Any:
    """A result as an `xarray.Dataset`: labels by `variable`, the trace by `point`, and the figures in `attrs`."""
    xarray = needed("xarray", "frames")
    data: dict[str, Any] = {name: ("variable", column) for name, column in _label_columns(result).items()}
    data |= {name: ("point", np.asarray(column)) for name, column in _trace_columns(result).items()}
    return xarray.Dataset(data, coords={"variable": _variables(result)}, attrs=_figures(result))


def _variables(result: Result) -> list[Any]:
    return list(range(len(result.labels))) if result.names is None else list(result.names.variables)


def _label_columns(result: Result) -> dict[str, Any]:
    columns: dict[str, Any] = {"label": result.labels}
    if result.names is not None and result.names.states is not None:
        columns["state"] = [some[k] for some, k in zip(result.names.states, result.labels.tolist(), strict=True)]
    if result.margins is not None:
        columns |= {"margin_low": result.margins[:, 0], "margin_high": result.margins[:, 1]}
    return columns


def _trace_columns(result: Result) -> dict[str, list[Any]]:
    """Columns of the trace; missing figures are nan, missing phases empty."""
    extra = dict.fromkeys(name for point in result.trace for name in point.extra)
    return {
        name: [_number(getattr(point, name)) if name != "phase" else point.phase for point in result.trace]
        for name in POINT
    } | {name: [_number(point.figure(name)) for point in result.trace] for name in extra}


def _number(x: float | None) -> float:
    return math.nan if x is None else x


def _figures(result: Result) -> dict[str, Any]:
    """The scalars of a result, as numbers and strings only, so that xarray can write them to a file."""
    numbers = ("value", "bound", "gap", "relaxed_value", "iterations", "compile_time", "runtime", "seed")
    found: dict[str, Any] = {name: _number(getattr(result, name)) for name in numbers}
    found |= {"method": result.method, "status": result.status.value, "version": result.version}
    return found | {"options": json.dumps(dict(result.options), default=str)}
