"""The first minute of a new user: two generated models, then any others, solved, explained and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mapmrf import pictures
from mapmrf.arrays import Ints
from mapmrf.datasets import PottsImage, grid, potts_image
from mapmrf.graph import FactorGraph
from mapmrf.result import Result, Status
from mapmrf.solver import DEFAULT_METHOD, solve

SECONDS = 60.0
"""Time limit for a model that is given."""

PATIENCE = 600.0
"""Time limit for the generated models: they are solved within a second, once the kernels are compiled."""

WORTH_SAYING = 2.0
"""Seconds of compiling that are worth a sentence."""

GRID_TEXT = """\
1. A spin glass: 20 x 20 variables with two states each. Every variable has a preference of its own, and every pair of
   neighbours wants to be equal or wants to differ; not all wishes can come true. Which labelling has the largest
   log potential? There are 2^400 of them."""

IMAGE_TEXT = """\
2. A noisy picture: 72 x 96 pixels, each to be given one of 5 labels. A pixel should look like its label, and
   neighbours should agree; the model weighs the two against each other."""


def tour(draw_to: str, models: Mapping[str, FactorGraph], *, progress: bool = True) -> Iterator[str]:
    """Solve the two generated models and those given; yield the text as it comes.

    The picture is written to the path `draw_to`.
    """
    yield GRID_TEXT
    yield _indented(explain(_solved(grid(20, 20, coupling=2.0, seed=1), DEFAULT_METHOD, PATIENCE, progress)))
    yield IMAGE_TEXT
    image = potts_image(72, 96, 5, noise=0.9, seed=3)
    answers = {name: _solved(image.graph, name, PATIENCE, progress) for name in ("icm", DEFAULT_METHOD)}
    yield _indented(_compared(image, answers))
    pictures.write(draw_to, drawing(image, {name: result.labels for name, result in answers.items()}))
    yield f"   Drawn: {draw_to}"
    for number, (path, graph) in enumerate(models.items(), start=3):
        yield f"{number}. {path}: {graph.n_vars} variables, {graph.n_factors} factors."
        yield _indented(explain(_solved(graph, DEFAULT_METHOD, SECONDS, progress)))


def explain(result: Result) -> str:
    """Say in plain words what a result means."""
    if result.status is Status.INFEASIBLE:
        return "Every labelling breaks a hard constraint: the model has no solution."
    lines = [f"{result.method} found a labelling with log potential {result.value:.4f} in {_seconds(result):.2f} s."]
    if result.compile_time > WORTH_SAYING:
        lines.append(f"Before that its kernels were compiled, in {result.compile_time:.0f} s; they are kept.")
    if result.status is Status.OPTIMAL:
        lines.append("It is proven optimal: no labelling is better.")
    elif result.bound is not None and result.gap is not None:
        lines.append(f"No labelling exceeds {result.bound:.4f}: the best is at most {_percent(result.gap)} better.")
    if result.status in (Status.TIME_LIMIT, Status.ITERATION_LIMIT):
        lines.append(f"The run {result.status.meaning}; a longer one may find more.")
    return "\n".join(lines)


def drawing(image: PottsImage, answers: Mapping[str, Ints]) -> pictures.Pixels:
    """Picture of the observation, the answers and the truth, side by side."""
    labels = int(image.graph.card[0])
    shape = image.truth.shape
    maps = {"noisy": image.observed, **{name: x.reshape(shape) for name, x in answers.items()}, "truth": image.truth}
    return pictures.panels({name: pictures.colours(levels, labels) for name, levels in maps.items()})


def _seconds(result: Result) -> float:
    """How long a run took but for compiling."""
    return max(0.0, result.runtime - result.compile_time)


def _solved(graph: FactorGraph, method: str, seconds: float, progress: bool) -> Result:
    result = solve(graph, method, time_limit=seconds, progress=progress)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt  # a tour has no use for half an answer
    return result


def _compared(image: PottsImage, answers: Mapping[str, Result]) -> str:
    """Values and wrong pixels of every answer, of each pixel on its own, and of the truth."""
    alone = image.graph.theta_v.reshape(image.truth.size, -1).argmax(axis=1)
    rows = [("each pixel alone", alone)]
    rows += [(f"{name}, {_seconds(result):.2f} s", result.labels) for name, result in answers.items()]
    rows.append(("the truth", image.truth.ravel()))
    lines = [f"{'':<20}{'log potential':>14}{'wrong pixels':>14}"]
    for name, labels in rows:
        wrong = 100 * np.mean(labels != image.truth.ravel())
        lines.append(f"{name:<20}{image.graph.value(labels):>14.2f}{wrong:>12.1f} %")
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
