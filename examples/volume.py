"""A noisy volume of thick slices, seen through a round window: mask, spacing and 26 neighbours, in surfaces.

Run: python examples/volume.py --output volume.png
Needs scikit-image (which generates the volume) and matplotlib: pip install 'mapmrf[images]'
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from showing import options, report
from skimage import data, measure

import mapmrf
from mapmrf import images
from mapmrf.arrays import Bools, Floats

SIDE, THICK, NOISE = 96, 3, 1.0
"""Voxels of a slice's side, distance of slices in such voxels, standard deviation of the noise."""


def scan(side: int) -> tuple[Bools, Floats]:
    """Blobs in thick slices, (side / THICK, side, side), and a noisy scan of them."""
    blobs = data.binary_blobs(side, blob_size_fraction=0.22, n_dim=3, volume_fraction=0.35, rng=4)
    truth = np.asarray(blobs[::THICK], dtype=bool)
    return truth, truth + np.random.default_rng(0).normal(0.0, NOISE, truth.shape)


def window(shape: tuple[int, ...]) -> Bools:
    """The round field of view of a scanner: the same disc in every slice."""
    row, column = (np.indices(shape[1:]) + 0.5) / shape[1] - 0.5
    return np.broadcast_to(np.hypot(row, column) < 0.48, shape)


def main() -> None:
    """Segment, compare with the truth, and draw surfaces."""
    given = options(str(__doc__), "volume.png", shrink=1)
    truth, noisy = scan(SIDE // given.shrink)
    mask = window(truth.shape)
    unary = images.unary_from_differences(noisy, [0.0, 1.0], weight=1 / (2 * NOISE**2))
    graph = images.grid_model(unary, weight=0.25, neighbours=26, mask=mask, spacing=(THICK, 1, 1))
    result = mapmrf.solve(graph, time_limit=given.seconds)
    report("26 neighbours", result)
    found = images.to_image(result, mask=mask, fill=0)
    answers = {"each voxel alone": (noisy > 0.5) & mask, "26 neighbours": found > 0, "truth": truth & mask}
    for name, labels in answers.items():
        print(f"{name}: {100 * np.mean(labels[mask] != truth[mask]):.2f} % of {mask.sum()} voxels are wrong")
    draw(noisy, mask, answers).savefig(given.output, dpi=100)
    print(f"drawn: {given.output}")


def draw(noisy: Floats, mask: Bools, answers: dict[str, Bools]) -> Figure:
    """A slice of the scan, and the surfaces of some labellings."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    axes = figure.add_subplot(1, 4, 1)
    axes.imshow(np.where(mask, noisy, np.nan)[len(noisy) // 2], cmap="gray", vmin=-2, vmax=3)
    axes.set_title("a slice of the scan")
    axes.set_axis_off()
    for place, (name, labels) in enumerate(answers.items(), start=2):
        space = figure.add_subplot(1, 4, place, projection="3d")
        padded = np.pad(labels, 1).astype(float)
        points, faces, _, _ = measure.marching_cubes(padded, 0.5, spacing=(THICK, 1, 1))
        z, y, x = points.T
        space.plot_trisurf(x, y, z, triangles=faces, color="#c9a15b", linewidth=0, antialiased=False)
        space.set_box_aspect((1, 1, 1), zoom=1.35)
        space.set_title(name)
        space.set_axis_off()
    return figure


if __name__ == "__main__":
    main()
