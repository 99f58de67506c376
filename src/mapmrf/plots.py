"""Figures, drawn with matplotlib: ``pip install 'mapmrf[plots]'``. Every function returns a Figure to be saved.

No window is opened and no global state of matplotlib is touched, so this works on a machine without a display.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.errors import GraphError
from mapmrf.png import colours
from mapmrf.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VALUE, BOUND, MUTED = "#14709c", "#c8442b", "#777777"


def label_map(labels: ArrayLike, *, n_labels: int | None = None, title: str = "") -> Figure:
    """Draw a labelling of pixels as a picture with a legend.

    Parameters
    ----------
    labels : (height, width)
        The labels, such as ``result.labels.reshape(height, width)``.
    n_labels
        Number of labels the colours are spread over; the largest label plus one if not given.
    title
        Text above the picture.

    Examples
    --------
    >>> figure = label_map([[0, 1], [2, 1]], title="four pixels")
    >>> figure.savefig("labels.png")  # doctest: +SKIP
    """
    picture = np.asarray(labels)
    if picture.ndim != 2 or picture.size == 0:
        raise GraphError(f"labels have shape {picture.shape}, expected (height, width)")
    count = int(picture.max()) + 1 if n_labels is None else n_labels
    figure = _figure(5.5, 4.0)
    axes = figure.add_subplot()
    axes.imshow(colours(picture, count), interpolation="nearest")
    axes.set(title=title, xticks=[], yticks=[])
    _legend(axes, [int(k) for k in np.unique(picture)], count)
    return figure


def convergence(result: Result) -> Figure:
    """Draw a run: value and bound above; residuals and rho, where the method has them, below.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> figure = convergence(mapmrf.solve(graph))
    >>> figure.savefig("run.png")  # doctest: +SKIP
    """
    figure = _figure(7.0, 5.5)
    upper, lower = figure.subplots(2, 1, sharex=True)
    _lines(upper, result, {"bound": BOUND, "relaxed_value": MUTED, "value": VALUE})
    upper.set(ylabel="log potential", title=f"{result.method}: {result.status.value}")
    lower.set(xlabel="iterations", ylabel="residuals, rho", yscale="log")
    _lines(lower, result, {"primal": VALUE, "sphere": BOUND, "rho": MUTED})
    return figure


def _figure(width: float, height: float) -> Figure:
    """An empty figure that belongs to no window system."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'mapmrf[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _legend(axes: Any, labels: list[int], count: int) -> None:
    """Squares of colour beside the picture; too many would only hide it."""
    if len(labels) > 12:
        return
    from matplotlib.patches import Patch

    shades = {k: tuple((colours(k, count) / 255.0).tolist()) for k in labels}
    handles = [Patch(facecolor=shade, edgecolor=MUTED, label=str(k)) for k, shade in shades.items()]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, title="label")


def _lines(axes: Any, result: Result, columns: dict[str, str]) -> None:
    """Draw columns of the trace over the iterations, those that hold a finite number anywhere."""
    for name, colour in columns.items():
        numbers = [(point.iterations, getattr(point, name)) for point in result.trace]
        positive = axes.get_yscale() == "log"
        finite = [(x, y) for x, y in numbers if y is not None and np.isfinite(y) and (y > 0 or not positive)]
        if finite:
            marker = "o" if len(finite) == 1 else None
            axes.plot(*zip(*finite, strict=True), color=colour, label=name.replace("_", " "), marker=marker)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(frameon=False)
