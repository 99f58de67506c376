"""Fill in a damaged photograph: writing, scratches and lost pixels.

Run: python examples/inpainting.py --output inpainting.png
Needs scikit-image (for the photograph): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import distance_transform_edt
from showing import grey, options, psnr, save, smaller, solved
from skimage import color, data

from mapmrf import images
from mapmrf.arrays import Bools, Floats

LABELS = 40
"""Grey levels that the answer may take."""


def lettering(text: str, width: int) -> Bools:
    """Where the pixels of a line of text are, centred in a strip of the given width."""
    strip = Image.new("L", (width, 14))
    ImageDraw.Draw(strip).text((width / 2, 12), text, fill=255, font=ImageFont.load_default(16), anchor="ms")
    return np.asarray(strip) > 128


def damage(height: int, width: int) -> Bools:
    """Mask of the lost pixels: lines of writing, scratches, and every fifth pixel in places."""
    rng = np.random.default_rng(1)
    lost = rng.random((height, width)) < 0.2
    for top in range(height // 8, height - 14, height // 6):
        strip = lettering("MAXIMUM A POSTERIORI", width)
        lost[top : top + len(strip)] |= strip
    row, column = np.indices((height, width))
    for _ in range(6):
        angle, at = rng.uniform(0, np.pi), rng.uniform(0.2, 0.8, 2) * (height, width)
        lost |= np.abs((row - at[0]) * np.cos(angle) + (column - at[1]) * np.sin(angle)) < 1.5
    return lost


def nearest_known(image: Floats, lost: Bools) -> Floats:
    """Replace every lost pixel by the nearest known one: the baseline."""
    place = distance_transform_edt(lost, return_distances=False, return_indices=True)
    return np.asarray(image[tuple(place)])


def main() -> None:
    """Damage, repair, measure and plot."""
    given = options(str(__doc__), "inpainting.png", shrink=2)
    truth = smaller(255 * color.rgb2gray(data.astronaut()), given.shrink)
    lost = damage(*truth.shape)
    damaged = np.where(lost, 255.0, truth)
    levels = np.linspace(0, 255, LABELS)
    unary = images.without_data(images.unary_from_differences(truth, levels, weight=0.2), lost)
    graph = images.grid_model(unary, "quadratic", weight=0.01, values=levels)
    labels = images.to_image(solved("quadratic", graph, "trws", given), truth.shape)
    mended = np.where(lost, levels[labels], truth)
    simple = nearest_known(truth, lost)
    print(f"{100 * lost.mean():.1f} % of the pixels are lost")
    for name, picture in {"nearest known pixel": simple, "trws": mended}.items():
        print(f"{name}: PSNR {psnr(picture, truth, lost):.2f} dB on the lost pixels")
    shown = {"damaged": damaged, "nearest": simple, "trws": mended, "truth": truth}
    save(given.output, {name: grey(picture) for name, picture in shown.items()})


if __name__ == "__main__":
    main()
