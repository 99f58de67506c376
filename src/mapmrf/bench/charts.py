"""Figures of a benchmark for papers: those of the page, drawn with matplotlib as vector graphics."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mapmrf.bench.groups import (
    TARGETS,
    TICK,
    TIE,
    Band,
    Curve,
    Group,
    accuracy_profile,
    anytime,
    group,
    loss,
    profiles,
    time_distributions,
    title,
)
from mapmrf.bench.records import TRACE_COLUMNS, Record
from mapmrf.errors import OptionError
from mapmrf.formats.files import write_bytes
from mapmrf.plots.style import CYCLE, MUTED, heading, literal, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 6.3, 3.6
"""Text width of a page in inches."""
DASHES = ("-", "--", "-.", ":")
FORMATS = ("svg", "pdf", "png", "eps")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""No date: the same records give the same file."""
PARTS = {"primal": "consistency", "sphere": "sphere", "rho": "penalty"}
"""Columns of a trace in a figure of convergence."""

Style = Mapping[str, Mapping[str, Any]]
"""Line style of each run, the same in all figures."""


def write_figures(records: Sequence[Record], folder: str | Any, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write every figure to a folder, which is created if necessary, and return the files."""
    for form in formats:
        if form not in FORMATS:
            raise OptionError(f"formats: found {form!r}, expected some of {', '.join(FORMATS)}")
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    written = []
    with _settings():
        for name, figure in figures(records):
            for form in formats:
                path = where / f"{name}.{form}"
                data = io.BytesIO()
                figure.savefig(data, format=form, metadata=UNDATED.get(form))
                write_bytes(path, data.getvalue())
                written.append(path)
    return written


def _settings() -> Any:
    """Fixed ids, so that the same records give the same file, and fonts that publishers accept."""
    new_figure(1, 1)  # a one-line error if matplotlib is missing
    from matplotlib import rc_context

    return rc_context({"svg.hashsalt": "mapmrf", "pdf.fonttype": 42, "ps.fonttype": 42})


def figures(records: Sequence[Record]) -> Iterator[tuple[str, Figure]]:
    """All figures for which the records have data, with their file names."""
    groups = group(records)
    style = _styles(dict.fromkeys(run for mine in groups for _, run in mine.runs))
    pools = [("all", "All sets", groups)] if len(groups) > 1 else []
    pools += [(mine.name, title(mine.name), [mine]) for mine in groups]
    for name, what, some in pools:
        yield from _of_pool(name, what, some, style)
    for mine in groups:
        for _, model in mine.models:
            yield from _of_model(mine, model, style)


def _styles(runs: Mapping[str, None]) -> Style:
    tones, dashes = cycle(CYCLE), [dash for dash in DASHES for _ in CYCLE]
    return {run: {"color": next(tones), "linestyle": dashes[k % len(dashes)]} for k, run in enumerate(runs)}


def _of_pool(name: str, what: str, groups: Sequence[Group], style: Style) -> Iterator[tuple[str, Figure]]:
    for target, distance in TARGETS.items():
        suffix = "" if distance == TIE else f"-within-{distance:g}"
        text = "the best known value" if distance == TIE else f"within {target} of the best known value"
        if curves := profiles(groups, distance):
            head = f"{what}: performance profile, {text}"
            yield f"profile-{_slug(name)}{suffix}", _curves(curves, style, head, "times the fastest run", least=1.0)
        if curves := time_distributions(groups, distance):
            head = f"{what}: time to {text}"
            yield f"target-{_slug(name)}{suffix}", _curves(curves, style, head, "seconds", least=TICK)
    losses = pool_losses(groups)
    if losses:
        curves = {run: accuracy_profile(some) for run, some in losses.items()}
        head = f"{what}: accuracy profile"
        axis = "relative distance to the best known value"
        yield f"accuracy-{_slug(name)}", _curves(curves, style, head, axis, least=TIE, most=1.0)
        yield f"loss-{_slug(name)}", _dots(losses, style, f"{what}: distance to the best known value")


def pool_losses(groups: Sequence[Group]) -> dict[str, list[float]]:
    """Losses of every run on all models that have a best known value; infinite where a run has no labelling."""
    runs = dict.fromkeys(run for mine in groups for _, run in mine.runs)
    problems = [(mine, model) for mine in groups for _, model in mine.models if model in mine.best]
    found = {run: [loss(mine, model, run) for mine, model in problems] for run in runs}
    return {run: losses for run, losses in found.items() if any(map(math.isfinite, losses))}


def _of_model(mine: Group, model: str, style: Style) -> Iterator[tuple[str, Figure]]:
    name = _slug(f"{mine.name}-{model}")
    bands = {run: anytime(mine.cells.get((model, run), [])) for _, run in mine.runs}
    drawn = {run: band for run, band in bands.items() if band is not None}
    if drawn:
        yield f"anytime-{name}", _anytime(drawn, style, f"{title(mine.name)}: {model}", mine.best.get(model))
    for _, run in mine.runs:
        for record in mine.cells.get((model, run), [])[:1]:
            if lines := residuals(record):
                yield f"convergence-{name}-{_slug(run)}", _convergence(lines, f"{model}: convergence of {run}")


def residuals(record: Record) -> dict[str, Curve]:
    """Residuals and penalty over the iterations, for methods that have all of them."""
    rows = [dict(zip(TRACE_COLUMNS, row, strict=False)) for row in record.get("trace") or []]
    if not any(all(row.get(part) is not None for part in PARTS) for row in rows):
        return {}
    return {
        text: [(row["iterations"], row[part]) for row in rows if row.get(part) is not None and row[part] > 0]
        for part, text in PARTS.items()
    }


def _slug(name: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"


# -- drawing ----------------------------------------------------------------------------------------------------------


def _empty(text: str, rows: float = HEIGHT) -> tuple[Figure, Any]:
    figure = new_figure(WIDTH, rows)
    axes = figure.add_subplot()
    plain_axes(axes)
    heading(axes, literal(text))
    return figure, axes


def _curves(
    curves: Mapping[str, Curve], style: Style, head: str, axis: str, *, least: float, most: float | None = None
) -> Figure:
    """Step functions of shares over a logarithmic axis, all as long as the longest."""
    figure, axes = _empty(head)
    ends = [x for curve in curves.values() for x, _ in curve]
    end = most if most is not None else max([2 * least, *(1.05 * x for x in ends)])
    for run, curve in curves.items():
        xs, ys = [max(x, least) for x, _ in curve], [y for _, y in curve]
        axes.step([*xs, end], [*ys, ys[-1]], where="post", label=literal(run), **style[run])
    axes.set(xscale="log", xlim=(least, end), ylim=(-0.02, 1.02), xlabel=axis, ylabel="share of the models")
    _legend(axes)
    return figure


def _dots(losses: Mapping[str, Sequence[float]], style: Style, head: str) -> Figure:
    """A row of dots per run, one for each model, and a marker at the median."""
    figure, axes = _empty(head, 1.2 + 0.28 * len(losses))
    for row, (run, some) in enumerate(losses.items()):
        xs = sorted(max(TIE, x) for x in some if math.isfinite(x))
        axes.plot(xs, [row] * len(xs), "o", color=style[run]["color"], alpha=0.5, markersize=4)
        axes.plot(xs[len(xs) // 2], row, "|", color="black", markersize=12)
    axes.set(xscale="log", xlim=(0.7 * TIE, 1.5), ylim=(len(losses) - 0.5, -0.5))
    axes.set_yticks(range(len(losses)), [literal(run) for run in losses])
    axes.set_xlabel("relative distance to the best known value")
    return figure


def _anytime(bands: Mapping[str, Band], style: Style, head: str, best: float | None) -> Figure:
    """Medians over the seeds, and the interval around each."""
    figure, axes = _empty(head)
    for run, band in bands.items():
        axes.step(band.times, band.middle, where="post", label=literal(run), **style[run])
        if band.seeds > 1:
            tone = style[run]["color"]
            axes.fill_between(band.times, band.low, band.high, step="post", alpha=0.2, linewidth=0, color=tone)
    if best is not None:
        axes.axhline(best, color=MUTED, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="seconds", ylabel="log potential")
    _legend(axes)
    return figure


def _convergence(lines: Mapping[str, Curve], head: str) -> Figure:
    figure, axes = _empty(head)
    for (text, points), tone in zip(lines.items(), CYCLE, strict=False):
        axes.plot([x for x, _ in points], [y for _, y in points], label=text, color=tone)
    axes.set(yscale="log", xlabel="iterations")
    _legend(axes)
    return figure


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
