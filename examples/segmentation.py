"""Cut a cup of coffee out of a photograph, from a few scribbles: pixel by pixel, and with superpixels.

Run: python examples/segmentation.py --output segmentation.png
Needs scikit-image (for the photograph and its superpixels): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import numpy as np
from showing import options, outlined, save, smaller, solved
from skimage import data, segmentation

from mapmrf import images
from mapmrf.arrays import Bools, Floats, Ints

SCRIBBLES = {
    0: [((50, 440), (260, 585)), ((120, 20), (60, 130)), ((250, 20), (385, 120)), ((385, 390), (300, 560)),
        ((15, 180), (150, 50)), ((372, 150), (396, 300))],
    1: [((30, 290), (113, 398)), ((60, 220), (110, 195)), ((55, 330), (100, 370)), ((75, 240), (80, 320)),
        ((150, 290), (140, 240)), ((180, 120), (330, 220)), ((360, 300), (150, 440)), ((250, 210), (290, 215)),
        ((225, 280), (262, 270)), ((270, 360), (85, 410)), ((112, 230), (108, 340))],
    2: [((10, 10), (60, 20)), ((8, 20), (8, 110))],
}  # fmt: skip
"""Strokes (row, column) -> (row, column) on the photograph: table, crockery, the dark corner."""


def scribbled(shape: tuple[int, int], shrink: int) -> Ints:
    """The strokes as a picture: a label where one is, -1 elsewhere."""
    seeds = np.full(shape, -1)
    row, column = np.indices(shape) * shrink
    for label, strokes in SCRIBBLES.items():
        for (r0, c0), (r1, c1) in strokes:
            along = ((row - r0) * (r1 - r0) + (column - c0) * (c1 - c0)) / ((r1 - r0) ** 2 + (c1 - c0) ** 2)
            along = np.clip(along, 0, 1)
            away = np.hypot(row - r0 - along * (r1 - r0), column - c0 - along * (c1 - c0))
            seeds[away <= 2.5] = label
    return seeds


def drawn_truth(height: int, width: int) -> Ints:
    """What a person would draw: ellipses around saucer and cup, the spoon's handle, and the corner of the table.

    Drawn by hand on the photograph; its outline is good to two or three pixels.
    """
    row, column = np.indices((height, width)).astype(float)

    def ellipse(r: float, c: float, half_height: float, half_width: float, tilt: float) -> Bools:
        cos, sin = np.cos(np.radians(tilt)), np.sin(np.radians(tilt))
        along, across = (column - c) * cos + (row - r) * sin, (row - r) * cos - (column - c) * sin
        return np.asarray((along / half_width) ** 2 + (across / half_height) ** 2 <= 1)

    truth = np.where(row * 150 + column * 105 < 105 * 150, 2, 0)
    saucer, cup = ellipse(223, 278.5, 164.5, 201.5, 3), ellipse(113, 290.5, 95, 118, 3)
    handle = np.hypot(row - 78, column - 411) < 13
    truth[saucer | cup | handle] = 1
    return truth


def main() -> None:
    """Segment, compare with the drawn outline, and plot."""
    given = options(str(__doc__), "segmentation.png", shrink=1)
    photo = data.coffee()
    truth = drawn_truth(*photo.shape[:2])[:: given.shrink, :: given.shrink]
    photo = smaller(photo, given.shrink)
    truth = truth[: photo.shape[0], : photo.shape[1]]
    shape = truth.shape
    seeds = scribbled(shape, given.shrink)
    unary = images.unary_from_seeds(photo, seeds, components=6)

    weights = images.contrast_weights(photo, 30.0, neighbours=8, floor=0.05, channel_axis=-1)
    graph = images.grid_model(unary, weight=weights, neighbours=8)
    pixels = images.to_image(solved("every pixel", graph, "trws", given), shape)

    segments = segmentation.slic(photo / 255, n_segments=photo[..., 0].size // 300, compactness=8, start_label=0)
    sums = images.region_sums(unary_without_seeds(unary), segments)
    graph = images.superpixel_model(segments, sums, weight=30.0, neighbours=8, guide=photo)
    regions = images.label_image(solved("superpixels", graph, "trws", given), segments)

    answers = {"each pixel alone": unary.argmax(axis=-1), "every pixel": pixels, "superpixels": regions}
    for name, labels in answers.items():
        print(f"{name}: {100 * np.mean(labels != truth):.2f} % of the pixels differ from the outline drawn by hand")
    picture = np.clip(photo, 0, 255).astype(np.uint8)
    marked = picture.copy()
    for label, colour in enumerate([(60, 200, 255), (90, 255, 90), (255, 120, 255)]):
        marked[seeds == label] = colour
    shown = {"scribbles": marked, **{name: outlined(picture, labels) for name, labels in answers.items()}}
    save(given.output, shown)


def unary_without_seeds(unary: Floats) -> Floats:
    """Scribbles that forbid labels in single pixels would forbid them in whole regions: use a large weight instead."""
    return np.maximum(unary, -100.0)


if __name__ == "__main__":
    main()
