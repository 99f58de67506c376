"""Pictures without a plotting library: a palette, panels side by side, and a PNG encoder."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pixels = NDArray[np.uint8]
"""A picture, (height, width, 3): red, green, blue."""

# From dark to light in steps that differ in hue as well, so that labels are told apart in print and by everybody.
PALETTE = np.array(
    [(38, 24, 74), (38, 92, 140), (20, 153, 136), (122, 199, 79), (250, 222, 65), (255, 250, 225)], dtype=np.float64
)


def colours(levels: ArrayLike, n_levels: int) -> Pixels:
    """Colour of every number from 0 to ``n_levels - 1`` on the palette; what lies between is mixed, beyond is cut.

    Examples
    --------
    >>> colours([[0, 1]], 2).tolist()
    [[[38, 24, 74], [255, 250, 225]]]
    """
    share = np.clip(np.asarray(levels, dtype=np.float64) / max(1, n_levels - 1), 0.0, 1.0)
    place = share * (len(PALETTE) - 1)
    steps = np.arange(len(PALETTE))
    channels = [np.interp(place, steps, PALETTE[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def panels(pictures: Mapping[str, Pixels], *, scale: int = 4, margin: int = 16, paper: int = 255) -> Pixels:
    """Captioned pictures of one height side by side, every pixel enlarged to a square of `scale`."""

    def blank(height: int, width: int) -> Pixels:
        return np.full((height, width, 3), paper, dtype=np.uint8)

    row = []
    for text, picture in pictures.items():
        large = picture.repeat(scale, axis=0).repeat(scale, axis=1)
        head = [
            blank(margin, large.shape[1]),
            caption(text, large.shape[1], paper=paper),
            blank(margin // 2, large.shape[1]),
        ]
        panel = np.concatenate([*head, large, blank(margin, large.shape[1])])
        row += [panel, blank(panel.shape[0], margin)]
    return np.concatenate([row[-1], *row], axis=1)


# Five columns of seven dots for each letter, the lowest bit on top.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ-0123456789"
_FONT = np.frombuffer(
    bytes.fromhex(
        "7e1111117e7f494949363e414141227f4141221c7f494949417f090909013e4149497a7f0808087f00417f41002040413f01"
        "7f081422417f404040407f020c027f7f0408107f3e4141413e7f090909063e4151215e7f09192946464949493101017f0101"
        "3f4040403f1f2040201f3f4038403f631408146307087008076151494543"
        "0808080808"
        "3e5149453e00427f400042615149462141454b311814127f1027454545393c4a4949300171090503364949493606494929"
        "1e"
    ),
    dtype=np.uint8,
).reshape(-1, 5)


def caption(text: str, width: int, *, scale: int = 2, ink: int = 60, paper: int = 255) -> Pixels:
    """Write text in capitals, centred on a strip of the given width; what does not fit is cut off."""
    columns = np.zeros(6 * len(text), dtype=np.uint8)
    for place, letter in enumerate(text.upper()):
        if letter in _LETTERS:
            columns[6 * place : 6 * place + 5] = _FONT[_LETTERS.index(letter)]
    dots = (columns[:, None] >> np.arange(7) & 1).T.repeat(scale, axis=0).repeat(scale, axis=1)[:, :width]
    strip = np.full((7 * scale, width, 3), paper, dtype=np.uint8)
    left = (width - dots.shape[1]) // 2
    strip[:, left : left + dots.shape[1]][dots == 1] = ink
    return strip


def encode(picture: Pixels) -> bytes:
    r"""The picture as the bytes of a PNG file.

    Examples
    --------
    >>> encode(colours([[0, 1]], 2))[:8]
    b'\x89PNG\r\n\x1a\n'
    """
    height, width, _ = picture.shape
    # Every row begins with its filter; 0 means that the bytes stand as they are.
    rows = np.concatenate([np.zeros((height, 1), dtype=np.uint8), picture.reshape(height, -1)], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def write(path: str | Path, picture: Pixels) -> None:
    """Write the picture as a PNG file."""
    Path(path).write_bytes(encode(picture))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
