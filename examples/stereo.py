"""Depth from two views: the disparity of every pixel of a rectified stereo pair, compared with the ground truth.

Run: python examples/stereo.py --output stereo.png
Needs scikit-image (for the pair, a motorcycle of the Middlebury 2014 data): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import numpy as np
from showing import options, save, smaller, solved
from skimage import data

from mapmrf import images
from mapmrf.arrays import Floats
from mapmrf.plots import style


def stereo_pair(shrink: int) -> tuple[Floats, Floats, Floats]:
    """Left and right image and the true disparities, in pixels of the downscaled images; nan where unknown."""
    left, right, truth = data.stereo_motorcycle()
    small = smaller(left, shrink)
    sampled = np.where(np.isfinite(truth), truth, np.nan)[shrink // 2 :: shrink, shrink // 2 :: shrink] / shrink
    return small, smaller(right, shrink), sampled[: small.shape[0], : small.shape[1]]


def main() -> None:
    """Match, compare with the ground truth, and plot."""
    given = options(str(__doc__), "stereo.png", shrink=2)
    left, right, truth = stereo_pair(given.shrink)
    n_disparities = int(np.nanmax(truth)) + 3
    unary = images.unary_from_stereo(left, right, n_disparities, matching="census", window=5, weight=8.0)
    weights = images.contrast_weights(left, 1.0, floor=0.3, channel_axis=-1)
    graph = images.grid_model(unary, "linear", weight=weights, truncation=4)
    answers = {"each pixel alone": unary.argmax(axis=-1)}
    answers["trws"] = images.to_image(solved("truncated linear", graph, "trws", given), truth.shape)
    known = np.isfinite(truth)
    for name, labels in answers.items():
        off = np.abs(labels - truth)[known]
        bad = [f"{100 * np.mean(off > limit):.1f} % by more than {limit}" for limit in (1, 2)]
        print(f"{name}: wrong disparities: {', '.join(bad)}")
    maps = {**answers, "truth": np.where(known, truth, 0)}
    drawn = {name: style.colours(disparity, n_disparities) for name, disparity in maps.items()}
    drawn["truth"][~known] = 255
    save(given.output, {"left view": np.clip(left, 0, 255).astype(np.uint8), **drawn})


if __name__ == "__main__":
    main()
