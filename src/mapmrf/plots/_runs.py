"""The course of one run, and of several on one model against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mapmrf.errors import OptionError
from mapmrf.plots.display import Over, Run, axis_of, column, phases, points_of, view
from mapmrf.plots.style import (
    BLUE,
    CYCLE,
    GREEN,
    INK,
    MUTED,
    PURPLE,
    VERMILION,
    beside,
    heading,
    literal,
    new_figure,
    plain_axes,
)
from mapmrf.run.registry import DEFAULT_METHOD
from mapmrf.run.result import Result, TracePoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LineStyles = dict[str, tuple[str, str]]

VALUES: LineStyles = {"bound": (VERMILION, "--"), "relaxed_value": (GREEN, "-."), "value": (BLUE, "-")}
RESIDUALS: LineStyles = {"primal": (PURPLE, "-"), "sphere": (INK, "--")}


def convergence(run: Run, *, over: Over | None = None, title: str | None = None) -> Figure:
    """Draw a run: value, relaxed value and bound at the top; residuals and rho, if the method has them, below.

    Shaded spans are the phases of the method. Points of a bad start may lie outside the figure.

    Parameters
    ----------
    run
        A result, or a trace such as `mapmrf.run.result.read_trace` returns.
    over
        Horizontal axis: ``"iterations"`` or ``"seconds"``. By default iterations, unless they hardly change or count
        different things, as in the phases of `auto`.
    title
        Title of the figure; by default the method, and how the run ended.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> figure = convergence(mapmrf.solve(graph, "lslp"), over="seconds")
    >>> figure.savefig("run.png")  # doctest: +SKIP
    """
    points = points_of(run)
    portfolio = isinstance(run, Result) and run.method == DEFAULT_METHOD
    over = axis_of(points, "seconds" if over is None and portfolio else over)
    panels: list[tuple[LineStyles, str, float]] = [(RESIDUALS, "residual", 1.6), ({"rho": (MUTED, "-")}, "rho", 1.0)]
    below = [panel for panel in panels if any(column(points, name, over, positive=True)[1] for name in panel[0])]
    heights = [2.9, *(height for _, _, height in below)]  # in inches
    figure = new_figure(7.5, sum(heights) + 0.5)
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    _values(axes[0], points, over)
    for panel, (styles, caption, _) in zip(axes[1:], below, strict=True):
        # Draw columns of positive numbers, on a logarithmic scale if they span a decade or more.
        panel.set_yscale("log")
        drawn = [y for name, style in styles.items() for y in _line(panel, points, name, style, over)]
        if max(drawn) < 10 * min(drawn):
            panel.set_yscale("linear")
        if len(panel.lines) > 1 or panel.lines[0].get_label() != "rho":
            beside(panel, panel.lines)
        plain_axes(panel)
        panel.set_ylabel(caption)
    spans = phases(points, over)
    names = list(dict.fromkeys(name for name, _, _ in spans))
    tints = ("#f1f1f1", "#e3edf5", "#f7eedd", "#e4f1e9")
    for panel in axes:  # equal names in equal colours
        for name, left, right in spans if len(names) > 1 else []:
            panel.axvspan(left, right, color=tints[names.index(name) % len(tints)], linewidth=0, zorder=0)
    above = _name(axes[0], spans)
    if title is None and isinstance(run, Result):
        gap = "" if run.gap is None else f", gap {run.gap:.2g}"
        title = f"{run.method}: {run.status.value.replace('_', ' ')}, value {run.value:.6g}{gap}"
    axes[0].set_title(title or "", loc="left", fontsize=11, pad=6 + above)
    axes[-1].set_xlabel(over)
    if spans and spans[-1][2] > spans[0][1]:
        axes[-1].set_xlim(spans[0][1], spans[-1][2] + 0.01 * (spans[-1][2] - spans[0][1]))  # a last step shows
    figure.align_ylabels(list(axes))
    return figure


def _values(axes: Any, points: Sequence[TracePoint], over: Over) -> None:
    """Draw the columns in units of log potential."""
    shown = [_line(axes, points, name, style, over) for name, style in VALUES.items()]
    limits = view(shown)
    if limits is None:
        axes.text(0.5, 0.5, "no finite value", transform=axes.transAxes, ha="center", color=MUTED)
    else:
        axes.set_ylim(*limits)
        beside(axes, axes.lines)
    axes.set_ylabel("log potential")
    axes.ticklabel_format(axis="y", useOffset=False)
    plain_axes(axes)


def _line(axes: Any, points: Sequence[TracePoint], name: str, style: tuple[str, str], over: Over) -> list[float]:
    """Draw a column; return the values drawn."""
    places, numbers = column(points, name, over, positive=axes.get_yscale() == "log")
    if numbers:
        axes.plot(
            places,
            numbers,
            color=style[0],
            linestyle=style[1],
            linewidth=1.4,
            drawstyle="steps-post" if name in ("value", "bound") else "default",  # constant until the next point
            marker="o" if len(numbers) == 1 else None,  # a line through a single point would be invisible
            label=name.replace("_", " "),
        )
    return numbers


def _name(axes: Any, spans: Sequence[tuple[str, float, float]]) -> float:
    """Write the names of the phases above the axes, slanted if there is little room; return their height in points."""
    height = 0.0
    if len({name for name, _, _ in spans}) < 2:
        return height
    begin, end = spans[0][1], spans[-1][2]
    free, line = 0.0, 0.03  # the height of a line, as a share of the axes; a letter is 0.0135 wide
    for name, left, right in spans:
        from_, to = (left - begin) / (end - begin or 1.0), (right - begin) / (end - begin or 1.0)
        middle, half = (from_ + to) / 2, 0.0135 * len(name) / 2
        fits = to - from_ >= 2 * half
        room = free <= middle - (half if fits else line / 3)
        if name and room and (fits or to - from_ >= line / 3):
            style: dict[str, Any] = {"ha": "center" if fits else "left", "rotation": 0 if fits else 40}
            text = axes.text(middle, 1.015, name, transform=axes.transAxes, va="bottom", fontsize=8, color=INK, **style)
            text.set_rotation_mode("anchor")
            free = middle + (half if fits else line)
            height = max(height, 16.0 if fits else 8.0 + 2.9 * len(name))
    return height


def compare(runs: Mapping[str, Run] | Sequence[Result], *, title: str = "") -> Figure:
    """Draw the best value (solid) and the best bound (dashed) of several runs against time.

    The marker at the end of a run is filled if the labelling is proven optimal. The time axis is logarithmic if the
    runs differ much in length.

    Parameters
    ----------
    runs
        Results, or name -> result or trace.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = compare([mapmrf.solve(graph, name) for name in ("icm", "trws")])
    >>> figure.savefig("runs.png")  # doctest: +SKIP
    """
    named = _named(runs)
    if not named:
        raise OptionError("no runs to compare, expected one or more results")
    courses = {name: points_of(run) for name, run in named.items()}
    figure = new_figure(7.5, 4.2)
    axes = figure.add_subplot()
    drawn = [_curves(axes, k, name, courses[name], named[name]) for k, name in enumerate(named)]
    limits = view([numbers for both in drawn for numbers in both])
    if limits is not None:
        axes.set_ylim(*limits)
    ends = [points[-1].time for points in courses.values() if points and points[-1].time > 0]
    if ends and max(ends) > 30 * min(ends):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("seconds")
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_ylabel("log potential")
    heading(axes, title)
    plain_axes(axes)
    handles, _ = axes.get_legend_handles_labels()
    if any(bounds for _, bounds in drawn):
        from matplotlib.lines import Line2D

        handles += [
            Line2D([], [], color=INK, linewidth=1.5, label="value"),
            Line2D([], [], color=INK, linewidth=1.5, linestyle=(0, (4, 2)), label="bound"),
        ]
    beside(axes, handles)
    return figure


def _named(runs: Mapping[str, Run] | Sequence[Result]) -> dict[str, Run]:
    """The runs by name; by default that of their method, numbered if repeated."""
    if isinstance(runs, Mapping):
        return dict(runs)
    named: dict[str, Run] = {}
    for result in runs:
        name, number = result.method, 2
        while name in named:
            name, number = f"{result.method} ({number})", number + 1
        named[name] = result
    return named


def _curves(axes: Any, k: int, name: str, points: Sequence[TracePoint], run: Run) -> tuple[list[float], list[float]]:
    """Draw a run in the k-th colour; return its values and bounds."""
    colour = CYCLE[k % len(CYCLE)]
    marker = "os^Dv"[k // len(CYCLE) % 5]
    proven = isinstance(run, Result) and run.status.closes_gap
    style: dict[str, Any] = {"color": colour, "drawstyle": "steps-post", "linewidth": 1.5}
    times, values = column(points, "value", "seconds")
    end: dict[str, Any] = {"marker": marker, "markevery": [-1], "markerfacecolor": colour if proven else "white"}
    axes.plot(times, values, label=literal(name), **style, **(end if values else {}))
    bounds = column(points, "bound", "seconds")
    # The marker shows the bound of a run that ended immediately.
    end = {"marker": "_", "markevery": [-1], "markersize": 7}
    axes.plot(*bounds, linestyle=(0, (4, 2)), alpha=0.85, **style, **(end if bounds[1] else {}))
    return values, bounds[1]
