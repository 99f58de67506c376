"""The command `demo`, a tour for new users: two generated models, then any others, solved and explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from mapmrf.cli import check_outputs, force_option, main, memory_option, read_model

if TYPE_CHECKING:
    from mapmrf.datasets import PottsImage
    from mapmrf.model.graph import FactorGraph
    from mapmrf.run.result import Result

PATIENCE = 600.0  # time limit for the generated models, which need a second once the kernels are compiled

GRID_TEXT = """\
1. A spin glass: 20 x 20 variables with two states each. Every variable prefers one state, and every pair of neighbours
   prefers to be equal or to differ; not all preferences can be satisfied. Which of the 2^400 labellings has the
   largest log potential?"""

IMAGE_TEXT = """\
2. A noisy picture: 72 x 96 pixels, each to be assigned one of 5 labels. A pixel should look like its label, and
   neighbours should agree; the model balances the two."""


@main.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option("--output", "-o", metavar="FILE.png", default="mapmrf-demo.png", show_default=True, help="Picture file.")
@memory_option()
@force_option
def demo(models: Sequence[str], output: str) -> None:
    """Solve, explain and draw two example models.

    Each MODEL given is then solved and explained as well.
    """
    check_outputs(output)
    for paragraph in _tour(output, {model: read_model(model) for model in models}):
        click.echo(f"{paragraph}\n")


def _tour(output: str, models: Mapping[str, FactorGraph]) -> Iterator[str]:
    """Solve the two generated models and those given; yield the text paragraph by paragraph."""
    from mapmrf.datasets import grid, potts_image
    from mapmrf.plots import style
    from mapmrf.run.registry import DEFAULT_METHOD

    yield GRID_TEXT
    yield _indented(explain(_solved(grid(20, 20, coupling=2.0, seed=1), DEFAULT_METHOD, PATIENCE)))
    yield IMAGE_TEXT
    image = potts_image(72, 96, 5, noise=0.9, seed=3)
    answers = {name: _solved(image.graph, name, PATIENCE) for name in ("icm", DEFAULT_METHOD)}
    yield _indented(_compared(image, answers))
    labels = {name: result.labels.reshape(image.truth.shape) for name, result in answers.items()}
    panels = {"noisy": image.observed, **labels, "truth": image.truth}
    n_labels = int(image.graph.card[0])
    style.write(output, style.panels({name: style.colours(x, n_labels) for name, x in panels.items()}))
    yield f"   Picture: {output}"
    for number, (path, graph) in enumerate(models.items(), start=3):
        yield f"{number}. {path}: {graph.n_vars} variables, {graph.n_factors} factors."
        yield _indented(explain(_solved(graph, DEFAULT_METHOD, seconds=60.0)))


def explain(result: Result) -> str:
    from mapmrf.run.result import Status

    if result.status is Status.INFEASIBLE:
        return "Every labelling violates a hard constraint: the model has no solution."
    lines = [f"{result.method} found a labelling with log potential {result.value:.4f} in {_seconds(result):.2f} s."]
    if result.compile_time > 2.0:  # worth mentioning
        lines.append(f"Loading or compiling its kernels took another {result.compile_time:.0f} s.")
    if result.status is Status.OPTIMAL:
        lines.append("It is proven optimal: no labelling is better.")
    elif result.status is Status.WITHIN_TOLERANCE:
        lines.append(
            f"It is optimal within the tolerance: no labelling is better by more than {result.gap:.1g} of its value."
        )
    elif result.bound is not None and result.gap is not None:
        percent = f"{100 * result.gap:.0f} %" if result.gap >= 0.1 else f"{100 * result.gap:.2g} %"
        lines.append(f"No labelling exceeds {result.bound:.4f}: the best is at most {percent} better.")
    if result.status in (Status.TIME_LIMIT, Status.ITERATION_LIMIT):
        lines.append(f"The run {result.status.meaning}; a longer one may find more.")
    return "\n".join(lines)


def _seconds(result: Result) -> float:
    return max(0.0, result.runtime - result.compile_time)


def _solved(graph: FactorGraph, method: str, seconds: float) -> Result:
    from mapmrf.run.result import Status
    from mapmrf.run.solve import solve

    result = solve(graph, method, time_limit=seconds, progress=True)
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt  # the tour ends here
    return result


def _compared(image: PottsImage, answers: Mapping[str, Result]) -> str:
    """Values and wrong pixels of every answer, of each pixel on its own, and of the truth."""
    alone = image.graph.theta_v.reshape(image.truth.size, -1).argmax(axis=1)
    rows = [("each pixel alone", alone)]
    rows += [(f"{name}, {_seconds(result):.2f} s", result.labels) for name, result in answers.items()]
    rows.append(("the truth", image.truth.ravel()))
    lines = [f"{'':<22}{'log potential':>14}{'wrong pixels':>14}"]
    for name, labels in rows:
        wrong = 100 * (labels != image.truth.ravel()).mean()
        lines.append(f"{name:<22}{image.graph.value(labels):>14.2f}{wrong:>12.1f} %")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return "\n".join(f"   {line}" for line in text.splitlines())
