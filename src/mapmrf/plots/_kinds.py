"""The kind of a relaxed solution at each variable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import TOLERANCE, Kind, KindFractions, describe
from mapmrf.plots._label_map import lattice_shape
from mapmrf.plots.display import Run, column, points_of, view
from mapmrf.plots.style import (
    BLUE,
    CYCLE,
    INK,
    ORANGE,
    beside,
    heading,
    image_axes,
    literal,
    new_figure,
    plain_axes,
    squares,
)
from mapmrf.run.result import Result, TracePoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {Kind.VALID: "integer", Kind.UNIFORM: "uniform", Kind.FRACTIONAL: "fractional"}

COLOURS = {Kind.VALID: "#dbe6ec", Kind.UNIFORM: ORANGE, Kind.FRACTIONAL: BLUE}
"""Light, medium and dark, so that they also differ in greyscale."""


def kinds(
    result: Result, graph: FactorGraph | None = None, *, shape: tuple[int, int] | None = None, title: str | None = None
) -> Figure:
    """Draw which variables of a relaxed solution are integer, uniform, or otherwise fractional.

    For the model of a lattice this is a map, otherwise a bar with the fractions. Whether the solution is approximate,
    that is, outside the local polytope, depends on all variables together: this is stated in the title, with the
    largest violation of a constraint.

    Parameters
    ----------
    result
        A result with a relaxed solution.
    graph
        The model that was solved; a map needs it and `result.mu_v`.
    shape
        Height and width of the map, if the model is not a lattice or not recognised as one.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = kinds(mapmrf.solve(graph, "lp"), graph)
    >>> figure.savefig("kinds.png")  # doctest: +SKIP
    """
    if result.kind is None or result.kind_fractions is None:
        raise GraphError(f"the result of {result.method} has no relaxed solution, so there are no kinds to draw")
    text = _title(result, result.kind, result.kind_fractions) if title is None else title
    if graph is None or result.mu_v is None:
        if shape is not None:
            raise GraphError(f"a map needs {'the model' if graph is None else 'result.mu_v'}, which is missing")
        return _bar(result.kind_fractions, text)
    shape = shape or lattice_shape(graph)
    found = kinds_of(graph, result.mu_v)
    return _bar(result.kind_fractions, text) if shape is None else _map(found, shape, text)


def kinds_of(graph: FactorGraph, mu_v: Floats) -> Ints:
    """The index in `NAMES` of every variable's kind, by the tolerance of `mapmrf.model.polytope`."""
    if mu_v.shape != graph.theta_v.shape:
        raise GraphError(f"mu_v has {mu_v.size} entries, expected {graph.theta_v.size}: it belongs to another model")
    if graph.n_vars == 0:
        return np.zeros(0, dtype=np.int64)
    starts = graph.var_ptr[:-1]
    from_integer = np.maximum.reduceat(np.minimum(np.abs(mu_v), np.abs(mu_v - 1)), starts)
    from_uniform = np.maximum.reduceat(np.abs(mu_v - np.repeat(1 / graph.card, graph.card)), starts)
    return np.where(from_integer <= TOLERANCE, 0, np.where(from_uniform <= TOLERANCE, 1, 2))


def _title(result: Result, kind: Kind, fractions: KindFractions) -> str:
    text = f"{result.method}: {kind.value} ({describe(kind, fractions)})"
    if kind is Kind.APPROXIMATE and result.residuals is not None:
        text += f", violated by {result.residuals.largest:.2g}"
    return text


def _entries(fractions: Floats) -> dict[str, Any]:
    """Legend entries with percentages, and colours, of the kinds that occur."""
    rows = zip(NAMES, NAMES.values(), fractions.tolist(), strict=True)
    return {f"{name}  {_percent(share)}": COLOURS[kind] for kind, name, share in rows if share > 0}


def _percent(share: float) -> str:
    rounded = f"{100 * share:.2f}".rstrip("0").rstrip(".")
    return "<0.01 %" if rounded == "0" else f"{rounded} %"


def _map(found: Ints, shape: tuple[int, int], title: str) -> Figure:
    from matplotlib.colors import ListedColormap

    if len(found) != shape[0] * shape[1]:
        raise GraphError(f"{len(found)} variables do not fill {shape[0]} x {shape[1]} pixels")
    axes = image_axes(shape, 2.5)
    axes.imshow(
        found.reshape(shape), cmap=ListedColormap(list(COLOURS.values())), vmin=0, vmax=2, interpolation="nearest"
    )
    heading(axes, title)
    squares(axes, _entries(np.bincount(found, minlength=3) / len(found)))
    return axes.figure  # type: ignore[no-any-return]


def _bar(fractions: KindFractions, title: str) -> Figure:
    figure = new_figure(7.0, 1.5)
    axes = figure.add_subplot()
    shares = np.array([fractions.valid, fractions.uniform, fractions.fractional])
    left = 0.0
    for share, colour in zip(shares.tolist(), COLOURS.values(), strict=True):
        axes.barh(0, 100 * share, left=left, color=colour, height=0.8)
        left += 100 * share
    axes.set(xlim=(0, 100), yticks=[], xlabel="% of the variables")
    axes.spines[["top", "right", "left"]].set_visible(False)
    heading(axes, title)
    squares(axes, _entries(shares))
    return figure


# -- Several runs on one model, against time --------------------------------------------------------------------------


MARKERS = ("o", "s", "^", "D", "v")

DECADES = 30.0  # ratio of the longest to the shortest run from which the time axis is logarithmic


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
