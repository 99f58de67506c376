"""Shared by all plots: an empty figure, colours, plain axes; and small pictures, captioned, as PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.run.atomic_files import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
INK, MUTED = "#333333", "#777777"
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)
"""Colours of curves, by Okabe and Ito: safe for colour-blind readers."""
NO_MATPLOTLIB = "plots need matplotlib: pip install 'mapmrf[plots]' ('.[plots]' in a checkout)"
MOST_SQUARES = 12  # number of labels up to which there is a legend; beyond, a colour bar

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


# -- Small pictures: the colours of labels, captioned panels side by side, PNG files ----------------------------------


Pixels = NDArray[np.uint8]  # a picture, (height, width, 3): red, green, blue

# From dark to light in steps that also differ in hue, so that labels differ in print and for colour-blind readers.
PALETTE = np.array(
    [(38, 24, 74), (38, 92, 140), (20, 153, 136), (122, 199, 79), (250, 222, 65), (255, 250, 225)], dtype=np.float64
)


def colours(levels: ArrayLike, n_levels: int) -> Pixels:
    """Colour of every number from 0 to ``n_levels - 1``, interpolated on the palette; numbers beyond are clipped."""
    share = np.clip(np.asarray(levels, dtype=np.float64) / max(1, n_levels - 1), 0.0, 1.0)
    place = share * (len(PALETTE) - 1)
    steps = np.arange(len(PALETTE))
    channels = [np.interp(place, steps, PALETTE[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def panels(pictures: Mapping[str, Pixels], *, scale: int = 4, margin: int = 16) -> Pixels:
    """Captioned pictures of one height side by side, every pixel enlarged to a square of `scale`."""
    from PIL import Image, ImageDraw, ImageFont

    sizes = [(scale * picture.shape[1], scale * picture.shape[0]) for picture in pictures.values()]
    letters = 15  # font size of a caption in pixels
    top = margin + letters + margin // 2
    width = margin + sum(wide + margin for wide, _ in sizes)
    sheet = Image.new("RGB", (width, top + max(tall for _, tall in sizes) + margin), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(letters)
    left = margin
    for (text, picture), size in zip(pictures.items(), sizes, strict=True):
        draw.text((left + size[0] / 2, margin + letters), text, font=font, fill=(60, 60, 60), anchor="ms")
        sheet.paste(Image.fromarray(picture).resize(size, Image.Resampling.NEAREST), (left, top))
        left += size[0] + margin
    return np.asarray(sheet)


def encode(picture: Pixels) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="png", optimize=True)
    return data.getvalue()


def write(path: str | Path, picture: Pixels) -> None:
    with whole_file(path) as file:
        file.write(encode(picture))
