"""Small pictures: the colours of labels, captioned panels side by side, PNG files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.run.atomic_files import whole_file

Pixels = NDArray[np.uint8]  # a picture, (height, width, 3): red, green, blue
LETTERS = 15  # font size of a caption in pixels
INK = (60, 60, 60)

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
    top = margin + LETTERS + margin // 2
    width = margin + sum(wide + margin for wide, _ in sizes)
    sheet = Image.new("RGB", (width, top + max(tall for _, tall in sizes) + margin), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(LETTERS)
    left = margin
    for (text, picture), size in zip(pictures.items(), sizes, strict=True):
        draw.text((left + size[0] / 2, margin + LETTERS), text, font=font, fill=INK, anchor="ms")
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
