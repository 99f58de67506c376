"""Several runs on one model, against time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mapmrf.errors import OptionError
from mapmrf.plots.curves import Run, column, points_of, view
from mapmrf.plots.style import CYCLE, INK, beside, heading, literal, new_figure, plain_axes
from mapmrf.run.result import Result, TracePoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = ("o", "s", "^", "D", "v")
DECADES = 30.0
"""Ratio of the longest to the shortest run from which the time axis is logarithmic."""


def compare(runs: Mapping[str, Run] | Sequence[Result], *, title: str = "") -> Figure:
    """Draw the best value (solid) and the best bound (dashed) of several runs against time.

    The marker at the end of a run is filled if the labelling is proven optimal. The time axis is logarithmic if the
    runs differ much in length.

    Parameters
    ----------
    runs
        Results, or name -> result or trace.
    title
        Title of the figure.

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
    _time_axis(axes, list(courses.values()))
    axes.ticklabel_format(axis="y", useOffset=False)
    axes.set_ylabel("log potential")
    heading(axes, title)
    plain_axes(axes)
    _legend(axes, any(bounds for _, bounds in drawn))
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
    marker = MARKERS[k // len(CYCLE) % len(MARKERS)]
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


def _time_axis(axes: Any, courses: Sequence[Sequence[TracePoint]]) -> None:
    ends = [points[-1].time for points in courses if points and points[-1].time > 0]
    if ends and max(ends) > DECADES * min(ends):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel("seconds")


def _legend(axes: Any, with_bounds: bool) -> None:
    from matplotlib.lines import Line2D

    handles, _ = axes.get_legend_handles_labels()
    if with_bounds:
        handles += [
            Line2D([], [], color=INK, linewidth=1.5, label="value"),
            Line2D([], [], color=INK, linewidth=1.5, linestyle=(0, (4, 2)), label="bound"),
        ]
    beside(axes, handles)
