"""Shared by all plots: an empty figure, colours, plain axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mapmrf.plots.pictures import colours

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
INK, MUTED = "#333333", "#777777"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
"""Colours of curves, by Okabe and Ito: safe for colour-blind readers."""
MOST_SQUARES = 12  # number of labels up to which there is a legend; beyond, a colour bar

NO_MATPLOTLIB = "plots need matplotlib: pip install 'mapmrf[plots]'"

Rgb = tuple[float, float, float]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, that is not attached to any window system."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise ImportError(NO_MATPLOTLIB) from None
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def image_axes(shape: tuple[int, int], beside: float) -> Any:
    """Axes for an image of some height and width, its longer side 4.5 inches, with `beside` inches for a legend."""
    scale = 4.5 / max(shape)
    figure = new_figure(max(2.2, shape[1] * scale) + beside, max(1.6, shape[0] * scale) + 0.35)
    axes = figure.add_subplot()
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    return axes


def beside(axes: Any, handles: Sequence[Any], title: str = "") -> None:
    """Add a legend to the right of the axes, where it hides nothing."""
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
    axes.legend(handles=handles, frameon=False, title=title or None, alignment="left", fontsize=9, **place)


def plain_axes(axes: Any) -> None:
    """Draw a faint grid, and no frame on the sides without a scale."""
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def heading(axes: Any, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11)


def literal(name: str) -> str:
    """Escape dollar signs in a name, which matplotlib would read as mathematics."""
    return name.replace("$", r"\$")


def shade(label: int, count: int) -> Rgb:
    red, green, blue = (colours(label, count) / 255.0).tolist()
    return red, green, blue


def squares(axes: Any, entries: dict[str, Rgb | str], title: str = "") -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=face, edgecolor=MUTED, linewidth=0.6, label=text) for text, face in entries.items()]
    beside(axes, handles, title)


def label_bar(axes: Any, count: int) -> None:
    """Add a colour bar for the labels 0 to ``count - 1``, one step for each."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    steps = [k - 0.5 for k in range(count + 1)]
    scale = ScalarMappable(BoundaryNorm(steps, count), ListedColormap([shade(k, count) for k in range(count)]))
    bar = axes.figure.colorbar(scale, ax=axes, fraction=0.046, pad=0.02, label="label")
    bar.set_ticks(list(range(0, count, -(-count // 10))))
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
