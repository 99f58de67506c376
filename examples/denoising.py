"""Remove noise from a photograph: one of a few dozen grey levels per pixel, neighbours alike except at edges.

Run: python examples/denoising.py --output denoising.png
Needs scikit-image (for the photograph): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import numpy as np
from showing import grey, options, psnr, save, smaller, solved
from skimage import data

from mapmrf import images

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


if __name__ == "__main__":
    main()
