"""The course of one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import GraphError
from mapmrf.model.graph import FactorGraph
from mapmrf.plots._label_map import lattice_shape
from mapmrf.plots.display import Over, Run, axis_of, column, phases, points_of, view
from mapmrf.plots.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    PURPLE,
    SKY,
    VERMILION,
    beside,
    heading,
    image_axes,
    new_figure,
    plain_axes,
)
from mapmrf.run.result import Result, TracePoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mapmrf.questions.max_marginals import MaxMarginals

Styles = dict[str, tuple[str, str]]

VALUES: Styles = {"bound": (VERMILION, "--"), "relaxed_value": (GREEN, "-."), "value": (BLUE, "-")}
RESIDUALS: Styles = {"primal": (PURPLE, "-"), "sphere": (INK, "--")}
RHO: Styles = {"rho": (MUTED, "-")}

PANELS = ((RESIDUALS, "residual", 1.6), (RHO, "rho", 1.0))
"""The panels below the values: columns, label and height in inches."""

TINTS = ("#f1f1f1", "#e3edf5", "#f7eedd", "#e4f1e9")

LETTER, LINE = 0.0135, 0.03  # width of a letter and height of a line of a phase's name, as shares of the axes


def convergence(run: Run, *, over: Over | None = None, title: str | None = None) -> Figure:
    """Draw a run: value, relaxed value and bound at the top; residuals and rho, if the method has them, below.

    Shaded spans are the phases of the method. Points of a bad start may lie outside the figure.

    Parameters
    ----------
    run
        A result, or a trace such as `mapmrf.run.result.read_trace` returns.
    over
        Horizontal axis: ``"iterations"`` or ``"seconds"``. By default iterations, unless they hardly change.
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
    over = axis_of(points, over)
    below = [panel for panel in PANELS if any(column(points, name, over, positive=True)[1] for name in panel[0])]
    heights = [2.9, *(height for _, _, height in below)]
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
    for panel in axes:
        _shade(panel, spans)
    named = _name(axes[0], spans)
    axes[0].set_title(_title(run) if title is None else title, loc="left", fontsize=11, pad=22 if named else 6)
    axes[-1].set_xlabel(over)
    if spans and spans[-1][2] > spans[0][1]:
        axes[-1].set_xlim(spans[0][1], spans[-1][2])
    figure.align_ylabels(list(axes))
    return figure


def _title(run: Run) -> str:
    if not isinstance(run, Result):
        return ""
    gap = "" if run.gap is None else f", gap {run.gap:.2g}"
    return f"{run.method}: {run.status.value.replace('_', ' ')}, value {run.value:.6g}{gap}"


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


def _shade(axes: Any, spans: Sequence[tuple[str, float, float]]) -> None:
    """Tint the phases, equal names in equal colours, if there is more than one."""
    tints = {name: TINTS[k % len(TINTS)] for k, name in enumerate(dict.fromkeys(name for name, _, _ in spans))}
    if len(tints) > 1:
        for name, left, right in spans:
            axes.axvspan(left, right, color=tints[name], linewidth=0, zorder=0)


def _name(axes: Any, spans: Sequence[tuple[str, float, float]]) -> bool:
    """Write the names of the phases above the axes, slanted if there is little room; return whether there are any."""
    if len({name for name, _, _ in spans}) < 2:
        return False
    begin, end = spans[0][1], spans[-1][2]
    free = 0.0
    for name, left, right in spans:
        from_, to = (left - begin) / (end - begin or 1.0), (right - begin) / (end - begin or 1.0)
        middle, half = (from_ + to) / 2, LETTER * len(name) / 2
        fits = to - from_ >= 2 * half
        room = free <= middle - (half if fits else LINE / 3)
        if name and room and (fits or to - from_ >= LINE / 3):
            style: dict[str, Any] = {"ha": "center" if fits else "left", "rotation": 0 if fits else 40}
            text = axes.text(middle, 1.015, name, transform=axes.transAxes, va="bottom", fontsize=8, color=INK, **style)
            text.set_rotation_mode("anchor")
            free = middle + (half if fits else LINE)
    return free > 0


# -- The certainty of labels ------------------------------------------------------------------------------------------


CLIP = 98.0  # percentile of the finite margins at which the colour scale of a map ends: a few pixels would stretch it


def margins(
    found: Result | MaxMarginals,
    graph: FactorGraph | None = None,
    *,
    shape: tuple[int, int] | None = None,
    title: str = "",
) -> Figure:
    """Draw how certain each label is: its margin over the best other state of the variable.

    With a shape, or the model of a lattice, this is a map of the lower ends: dark where a label is uncertain. Otherwise
    the margins are drawn in ascending order, as a band where they are intervals.

    Parameters
    ----------
    found
        A Result of ``solve(..., margins=True)``, or max-marginals.
    graph
        The model that was solved; a lattice gives a map.
    shape
        Height and width of the map, if the model is not recognised as a lattice or not given.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(4, 4)
    >>> figure = margins(mapmrf.solve(graph, margins=True), graph)
    >>> figure.savefig("margins.png")  # doctest: +SKIP
    """
    ends = found.margins if isinstance(found, Result) else found.margins()
    if ends is None:
        raise GraphError("the result has no margins: call solve(..., margins=True), or `mapmrf solve --margins`")
    shape = shape if shape is not None or graph is None else lattice_shape(graph)
    return _curve(ends, title) if shape is None else _map(ends, shape, title)


def _map(ends: Floats, shape: tuple[int, int], title: str) -> Figure:
    if len(ends) != shape[0] * shape[1]:
        raise GraphError(f"{len(ends)} margins do not fill {shape[0]} x {shape[1]} pixels")
    low = ends[:, 0]
    finite = low[np.isfinite(low) & (low > 0)]
    most = float(np.percentile(finite, CLIP)) if len(finite) else 1.0
    axes = image_axes(shape, 1.1)
    image = axes.imshow(
        np.clip(low, 0.0, most).reshape(shape), cmap="cividis", vmin=0.0, vmax=most, interpolation="nearest"
    )
    heading(axes, title)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, label="margin", extend="max")
    bar.outline.set_visible(False)
    return axes.figure  # type: ignore[no-any-return]


def _curve(ends: Floats, title: str) -> Figure:
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    low, high = (np.where(np.isfinite(column[order]), column[order], np.nan) for column in ends.T)
    figure = new_figure(7.0, 3.2)
    axes = figure.add_subplot()
    places = np.arange(1, len(ends) + 1)
    if not np.array_equal(low, high, equal_nan=True):
        axes.fill_between(places, low, high, color=SKY, alpha=0.4, linewidth=0, label="margin, as far as known")
        axes.plot(places, low, color=BLUE, linewidth=1.4, label="at least")
        axes.legend(frameon=False, fontsize=9)
    else:
        axes.plot(places, low, color=BLUE, linewidth=1.4, label="margin")
    axes.axhline(0.0, color=VERMILION, linewidth=0.8, linestyle="--")
    axes.set(xlabel="variables, the least certain first", ylabel="margin of the label")
    plain_axes(axes)
    heading(axes, title)
    return figure
