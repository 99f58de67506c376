"""Commands that generate models: `generate grid`, `random`, `potts`."""

from __future__ import annotations

from typing import Any

import click

from mapmrf.cli.output import check_outputs, check_parts, write_model
from mapmrf.cli.program import Command, force_option, main, seed_option


def _span(text: str) -> int | tuple[int, int]:
    """Read a count such as 3 or a range such as 2-4."""
    low, dash, high = text.partition("-")
    try:
        return (int(low), int(high)) if dash else int(low)
    except ValueError:
        raise click.BadParameter(f"found {text!r}, expected a count such as 3 or a range such as 2-4") from None


def _output_option(command: Command) -> Command:
    command = force_option(command)
    return click.option("--output", "-o", metavar="FILE", required=True, help="Model file to write.")(command)


def _parts_option(command: Command) -> Command:
    text = "Write N parts to the folder FILE, one by one."
    return click.option("--parts", type=click.IntRange(min=1), metavar="N", help=text)(command)


@main.group()
def generate() -> None:
    """Generate a model: a grid, a random graph, or a noisy picture."""


@generate.command("grid")
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.option("--coupling", default=1.0, show_default=True, help="Strength of the pair potentials.")
@click.option("--field", default=1.0, show_default=True, help="Strength of the unary potentials.")
@click.option("--wrap", is_flag=True, help="Connect opposite borders into a torus.")
@seed_option
@_parts_option
@_output_option
def generate_grid(
    rows: int, cols: int, coupling: float, field: float, wrap: bool, seed: int, parts: int | None, output: str
) -> None:
    """Generate a spin glass on a grid of ROWS x COLS, as in PIC-2011."""
    if parts is not None:
        if wrap:
            raise click.UsageError(
                "--wrap cannot be combined with --parts: cut the whole model with `mapmrf partition`"
            )
        check_parts(output)
        from mapmrf.distributed.lattices import SpinGrid, grid_parts

        grid_parts(SpinGrid(rows, cols, coupling, field, seed), output, parts)
        return
    check_outputs(output)
    from mapmrf.datasets import grid

    write_model(grid(rows, cols, coupling, field=field, wrap=wrap, seed=seed), output)


@generate.command("random")
@click.argument("n_vars", type=int)
@click.argument("n_factors", type=int)
@click.option(
    "--states",
    type=_span,
    metavar="N|MIN-MAX",
    default="2-4",
    show_default=True,
    help="Number of states of a variable.",
)
@click.option(
    "--arity",
    type=_span,
    metavar="N|MIN-MAX",
    default="2-3",
    show_default=True,
    help="Number of variables of a factor.",
)
@click.option("--hard", default=0.0, show_default=True, help="Fraction of forbidden configurations.")
@seed_option
@_output_option
def generate_random(n_vars: int, n_factors: int, states: Any, arity: Any, hard: float, seed: int, output: str) -> None:
    """Generate a feasible random factor graph with N_VARS variables and N_FACTORS factors."""
    check_outputs(output)
    from mapmrf.datasets import random_graph

    write_model(random_graph(n_vars, n_factors, states=states, arity=arity, hard=hard, seed=seed), output)


@generate.command("potts")
@click.argument("height", type=int)
@click.argument("width", type=int)
@click.option("--labels", default=4, show_default=True, help="Number of labels.")
@click.option("--noise", default=0.8, show_default=True, help="Standard deviation of the noise.")
@click.option("--smoothness", default=1.2, show_default=True, help="Cost of a label change between neighbours.")
@seed_option
@_parts_option
@_output_option
def generate_potts(
    height: int, width: int, labels: int, noise: float, smoothness: float, seed: int, parts: int | None, output: str
) -> None:
    """Generate a segmentation model for a noisy picture of HEIGHT x WIDTH pixels."""
    if parts is not None:
        check_parts(output)
        from mapmrf.distributed.lattices import PottsPicture, potts_parts

        potts_parts(PottsPicture(height, width, labels, noise, smoothness, seed), output, parts)
        return
    check_outputs(output)
    from mapmrf.datasets import potts_image

    write_model(potts_image(height, width, labels, noise=noise, smoothness=smoothness, seed=seed).graph, output)
