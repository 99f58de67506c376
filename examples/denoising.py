"""Remove noise from a photograph: one of a few dozen grey levels per pixel, neighbours alike except at edges.

Then `denoise` and scikit-image's non-local means on several pictures: PSNR and seconds.

Run: python examples/denoising.py --output denoising.png
Needs scikit-image (for the photograph): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import time

import numpy as np
from showing import grey, options, psnr, save, smaller, solved
from skimage import color, data, restoration

from mapmrf import images
from mapmrf.arrays import Floats

NOISE = 25.0
"""Standard deviation of the noise, in grey levels of 255."""
LABELS = 40
"""Grey levels that the answer may take."""


def main() -> None:
    """Add noise, remove it in two ways, measure and plot."""
    given = options(str(__doc__), "denoising.png", shrink=2)
    truth = smaller(data.camera(), given.shrink)
    noisy = truth + np.random.default_rng(0).normal(0.0, NOISE, truth.shape)
    levels = np.linspace(0, 255, LABELS)
    unary = images.unary_from_differences(noisy, levels, weight=1 / (2 * NOISE**2))
    graph = images.grid_model(unary, "linear", weight=0.022, truncation=80, values=levels)
    answers = {}
    for method in ("icm", "trws"):
        labels = images.to_image(solved("truncated linear", graph, method, given), truth.shape)
        answers[method] = levels[labels]
    for name, picture in {"noisy": noisy, **answers}.items():
        print(f"{name}: PSNR {psnr(picture, truth):.2f} dB")
    shown = {"noisy": noisy, "icm": answers["icm"], "trws": answers["trws"], "truth": truth}
    save(given.output, {name: grey(picture) for name, picture in shown.items()})
    photos = {"camera": data.camera(), "coins": data.coins(), "moon": data.moon(), "cat": data.chelsea()}
    for name, photo in {**photos, "text": data.page(), "phantom": 255 * data.shepp_logan_phantom()}.items():
        compare(name, smaller(255 * color.rgb2gray(photo) if photo.ndim == 3 else photo, given.shrink), given.seconds)


def compare(name: str, truth: Floats, seconds: float) -> None:
    """Print what each way makes of a picture with noise, which is told to all."""
    noisy = truth + np.random.default_rng(0).normal(0.0, NOISE, truth.shape)
    ways = {
        "fast": lambda: images.denoise(noisy, noise=NOISE, preset="fast"),
        "default": lambda: images.denoise(noisy, noise=NOISE, solve={"time_limit": seconds}),
        "non-local means": lambda: restoration.denoise_nl_means(noisy, 5, 6, h=0.8 * NOISE, sigma=NOISE),
    }
    for way, call in ways.items():
        began = time.process_time()
        clean = np.asarray(call())
        print(f"{name}, {way}: {psnr(clean, truth):.2f} dB, {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
