"""Shared by the examples: their options, what they print of a result, and the pictures they write."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

import mapmrf
from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.plots import style


def options(description: str, output: str, shrink: int) -> argparse.Namespace:
    """Read the command line of an example."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, default=Path(output), help="picture to write, .png or .webp")
    parser.add_argument("--shrink", type=int, default=shrink, help="factor by which the images are downscaled first")
    parser.add_argument("--seconds", type=float, default=25.0, help="time limit of each solve")
    parser.add_argument("--iterations", type=int, default=1000, help="iteration limit of each solve")
    return parser.parse_args()


def smaller(image: Floats, times: int) -> Floats:
    """Average squares of pixels; incomplete squares at the border are cropped."""
    height, width = (side // times * times for side in image.shape[:2])
    cut = np.asarray(image[:height, :width], dtype=np.float64)
    squares = cut.reshape(height // times, times, width // times, times, *image.shape[2:])
    return np.asarray(squares.mean(axis=(1, 3)))


def solved(name: str, graph: mapmrf.FactorGraph, method: str, given: argparse.Namespace) -> mapmrf.Result:
    """Solve a model and print how it went; the energy is minus the log potential."""
    limits = {"time_limit": given.seconds, "max_iterations": given.iterations}
    result = mapmrf.solve(graph, method, progress=True, **limits)
    print(f"{name}: {graph.n_vars} variables, {graph.n_factors} pairs, {graph.n_tables} tables")
    report(f"  {method}", result)
    return result


def report(name: str, result: mapmrf.Result) -> None:
    """Print energy, bound, status and time of a result."""
    gap = "" if result.bound is None else f", no labelling below {-result.bound:.1f} (gap {100 * result.gap:.3g} %)"
    print(f"{name}: energy {-result.value:.1f}{gap}; {result.status.value}, {result.runtime:.1f} s")


def psnr(image: Floats, truth: Floats, where: Bools | None = None) -> float:
    """Peak signal-to-noise ratio in decibels, for grey levels from 0 to 255."""
    error = (image - truth) ** 2
    return float(10 * np.log10(255**2 / (error.mean() if where is None else error[where].mean())))


def grey(image: Floats) -> style.Pixels:
    """A picture of grey levels from 0 to 255."""
    return np.repeat(np.clip(np.rint(image), 0, 255).astype(np.uint8)[..., None], 3, axis=-1)


def outlined(image: style.Pixels, labels: Ints) -> style.Pixels:
    """A picture with the borders between labels drawn in, two pixels wide."""
    result = image.copy()
    across = np.zeros(labels.shape, dtype=bool)
    for axis in (0, 1):
        change = np.diff(labels, axis=axis) != 0
        for pad in ((0, 1), (1, 0)):
            across |= np.pad(change, [pad if a == axis else (0, 0) for a in (0, 1)])
    result[across] = (255, 240, 60)
    return result


def save(path: Path, images: Mapping[str, style.Pixels], columns: int = 2) -> None:
    """Write captioned pictures of one size, so many in a row."""
    items = list(images.items())
    rows = [style.panels(dict(items[at : at + columns]), scale=1, margin=12) for at in range(0, len(items), columns)]
    width = max(row.shape[1] for row in rows)
    full = [np.pad(row, ((0, 0), (0, width - row.shape[1]), (0, 0)), constant_values=255) for row in rows]
    sheet = Image.fromarray(np.concatenate(full))
    sheet.save(path, optimize=True, quality=60)
    print(f"drawn: {path}")
