"""Coins on an uneven background: two labels by brightness in one call, compared with scikit-image's random walker.

Run: python examples/coins.py --output coins.png
Needs scikit-image (for the photograph and the random walker): pip install 'mapmrf[images]'
"""

from __future__ import annotations

import time
import warnings

import numpy as np
from scipy import ndimage
from showing import grey, options, outlined, report, save, smaller
from skimage import data, segmentation

from mapmrf import images
from mapmrf.arrays import Floats, Ints


def flattened(picture: Floats, size: int) -> Floats:
    """A picture less its background, which is the darkest in a window, smoothed."""
    darkest = ndimage.minimum_filter(ndimage.gaussian_filter(picture, 2), size)
    return np.asarray(picture - ndimage.gaussian_filter(darkest, size / 3))


def n_coins(labels: Ints, least: float) -> int:
    """Connected regions of coins of at least so many pixels."""
    regions, count = ndimage.label(labels == 2)
    return int(np.sum(ndimage.sum_labels(labels == 2, regions, range(1, count + 1)) >= least))


def main() -> None:
    """Mark, segment in two ways, count and plot."""
    given = options(str(__doc__), "coins.png", shrink=1)
    picture = smaller(data.coins()[:, :-6], given.shrink)  # without the dark edge on the right
    flat = flattened(picture, 60 // given.shrink)
    calm = ndimage.gaussian_filter(flat, 3 / given.shrink)
    markers = np.select([calm < 20, calm > 80], [1, 2], 0)  # as in scikit-image: 0 is not marked
    answer = images.segment(
        flat, 2, weight=10.0, floor=0.3, neighbours=8, solve={"time_limit": given.seconds}
    )  # two brightnesses
    report("segment", answer.result)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        walked = segmentation.random_walker(flat / 255, markers, beta=1000, mode="cg_j")
    print(f"random walker: {time.perf_counter() - began:.1f} s")
    answers = {"brightness alone": np.where(flat > 44, 2, 1), "random walker": walked, "segment": answer.image + 1}
    for name, labels in answers.items():
        specks = ndimage.label(labels == 2)[1] + ndimage.label(labels == 1)[1]
        print(f"{name}: {n_coins(labels, 400 / given.shrink**2)} coins, {specks} regions in all")
    shown = {"photograph": grey(picture), **{name: outlined(grey(picture), x) for name, x in answers.items()}}
    save(given.output, shown)


if __name__ == "__main__":
    main()
