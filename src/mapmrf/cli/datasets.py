"""Commands that generate models, `generate`, or handle the paper's sets of models: `datasets`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mapmrf import cli
from mapmrf.errors import OptionError
from mapmrf.run.interrupts import check, reacting

if TYPE_CHECKING:
    from mapmrf.datasets.catalogue import ModelSet


def _span(text: str) -> int | tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        return (int(low), int(high)) if dash else int(low)
    except ValueError:
        raise click.BadParameter(f"found {text!r}, expected a count such as 3 or a range such as 2-4") from None


_output_option = click.option("--output", "-o", metavar="FILE", required=True, help="Model file to write.")
_parts_option = click.option(
    "--parts", type=cli.AtLeast(1), metavar="N", help="Write N parts to the folder FILE, one by one."
)
_data_option = click.option(
    "--data", metavar="DIR", help="Data folder; by default MAPMRF_DATA, otherwise a folder in the user's cache."
)


@cli.main.group()
def generate() -> None:
    """Generate a model: a grid, a random graph, or a noisy picture."""


@generate.command("grid")
@click.argument("rows", type=int)
@click.argument("cols", type=int)
@click.option("--coupling", default=1.0, show_default=True, help="Strength of the pair potentials.")
@click.option("--field", default=1.0, show_default=True, help="Strength of the unary potentials.")
@click.option("--wrap", is_flag=True, help="Connect opposite borders into a torus.")
@cli.seed_option
@_parts_option
@_output_option
@cli.force_option
def generate_grid(
    rows: int, cols: int, coupling: float, field: float, wrap: bool, seed: int, parts: int | None, output: str
) -> None:
    """Generate a spin glass on a grid of ROWS x COLS, as in PIC-2011."""
    if parts is not None:
        if wrap:
            raise click.UsageError(
                "--wrap cannot be combined with --parts: cut the whole model with `mapmrf partition`"
            )
        cli.check_parts(output)
        from mapmrf.distributed.lattices import SpinGrid, grid_parts

        grid_parts(SpinGrid(rows, cols, coupling, field, seed), output, parts)
        return
    cli.check_outputs(output)
    from mapmrf.datasets import grid

    cli.write_model(grid(rows, cols, coupling, field=field, wrap=wrap, seed=seed), output)


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
@cli.seed_option
@_output_option
@cli.force_option
def generate_random(n_vars: int, n_factors: int, states: Any, arity: Any, hard: float, seed: int, output: str) -> None:
    """Generate a feasible random factor graph with N_VARS variables and N_FACTORS factors."""
    cli.check_outputs(output)
    from mapmrf.datasets import random_graph

    cli.write_model(random_graph(n_vars, n_factors, states=states, arity=arity, hard=hard, seed=seed), output)


@generate.command("potts")
@click.argument("height", type=int)
@click.argument("width", type=int)
@click.option("--labels", default=4, show_default=True, help="Number of labels.")
@click.option("--noise", default=0.8, show_default=True, help="Standard deviation of the noise.")
@click.option("--smoothness", default=1.2, show_default=True, help="Cost of a label change between neighbours.")
@cli.seed_option
@_parts_option
@_output_option
@cli.force_option
def generate_potts(
    height: int, width: int, labels: int, noise: float, smoothness: float, seed: int, parts: int | None, output: str
) -> None:
    """Generate a segmentation model for a noisy picture of HEIGHT x WIDTH pixels."""
    if parts is not None:
        cli.check_parts(output)
        from mapmrf.distributed.lattices import PottsPicture, potts_parts

        potts_parts(PottsPicture(height, width, labels, noise, smoothness, seed), output, parts)
        return
    cli.check_outputs(output)
    from mapmrf.datasets import potts_image

    cli.write_model(potts_image(height, width, labels, noise=noise, smoothness=smoothness, seed=seed).graph, output)


# -- the paper's sets --------------------------------------------------------------------------------------------------


@cli.main.group(invoke_without_command=True)
@_data_option
@click.option("--verify", is_flag=True, help="Verify the files against the checksums of the catalogue.")
@cli.json_option
@cli.memory_option()
@click.pass_context
def datasets(context: click.Context, data: str | None, verify: bool, as_json: bool) -> None:
    """List or download the paper's models, or generate look-alikes."""
    context.obj = data
    if context.invoked_subcommand is not None:
        return
    from mapmrf.datasets.catalogue import data_folders, sets

    _check_folders(data)
    found = {name: _inventory(of, data, verify) for name, of in sets().items()}
    folders = [str(folder) for folder in data_folders(data)]
    click.echo(cli.strict_json({"folders": folders, "sets": found}) if as_json else _listing(folders, found, verify))


def _check_folders(data: str | None) -> None:
    """Reject a data folder that does not exist, and warn about one in MAPMRF_DATA: probably a typo."""
    from mapmrf.datasets.catalogue import data_folders

    if data is not None and not Path(data).is_dir():
        raise OptionError(f"--data: {data} is not a folder")
    if data is None and os.environ.get("MAPMRF_DATA"):
        for folder in data_folders():
            if not folder.is_dir():
                cli.complain(f"warning: MAPMRF_DATA: {folder} is not a folder")


def _inventory(of: ModelSet, data: str | None, verify: bool) -> dict[str, Any]:
    from mapmrf.datasets.catalogue import entries, locate, paper_statistics
    from mapmrf.datasets.catalogue import verify as right

    models: list[dict[str, Any]] = []
    for entry in entries(of.name):
        path = locate(entry, data)
        checked = right(entry, path) if verify and path is not None else None
        models.append({**dataclasses.asdict(entry), "path": path and str(path), "verified": checked})
    paths = [model["path"] for model in models if model["path"] is not None and model["verified"] is not False]
    # The paper's statistics over some files; one that cannot be read is reported and left out.
    from mapmrf.datasets.catalogue import mean_statistics, model_statistics
    from mapmrf.errors import FormatError
    from mapmrf.formats import read

    found = []
    for path in paths:
        try:
            check()
            found.append(model_statistics(read(path, memory_limit=cli.memory_limit())))
        except FormatError as error:
            cli.complain(f"warning: {error}")
    mean, paper = mean_statistics(found), vars(paper_statistics(of.name))
    apart = mean and {name: getattr(mean, name) - value for name, value in paper.items()}
    statistics = {"files": mean and vars(mean), "paper": paper, "difference": apart}
    return {**dataclasses.asdict(of), "models": models, "statistics": statistics}


def _listing(folders: Sequence[str], found: dict[str, dict[str, Any]], verified: bool) -> str:
    """Tables of what is present, what is missing, and the statistics beside those of the paper."""
    rows: list[dict[str, Any]] = []
    statistics: list[dict[str, Any]] = []
    wrong, missing = [], []
    for name, of in found.items():
        models, n_models = of["models"], of["n_models"]
        absent = [model["name"] for model in models if model["path"] is None]
        there = len(models) - len(absent)
        row = {"set": of["name"], "models": n_models, "named": len(models), "there": there}
        right = {"verified": sum(model["verified"] is True for model in models)} if verified else {}
        rows.append({**row, **right, "source": of["source"]})
        wrong += [f"{model['path']}: differs from the catalogue" for model in models if model["verified"] is False]
        if there < n_models:
            unnamed = n_models - len(models)
            parts = [_some(absent)] if absent else []
            parts += [f"{unnamed} not named in the catalogue"] if unnamed else []
            missing.append(f"missing from {name}: {' and '.join(parts)}")
        for what, figures in of["statistics"].items():
            if figures is not None:
                shown = {key.replace("_", " "): f"{value:.6g}" for key, value in figures.items()}
                statistics.append({"set": name, "of": what, **shown})
    lines = ["\n".join(some) for some in (wrong, missing) if some]
    return "\n\n".join([f"data folder  {', '.join(folders)}", cli.table(rows), *lines, cli.table(statistics)])


def _some(names: Sequence[str]) -> str:
    """The first three by name; the others are counted."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


# -- download --------------------------------------------------------------------------------------------------------


@datasets.command()
@click.argument("which", nargs=-1, metavar="[SET]...")
@_data_option
@click.option("--source", metavar="URL", help="Mirror with the same layout as a data folder.")
@click.pass_context
def download(context: click.Context, which: Sequence[str], data: str | None, source: str | None) -> int:
    """Download the models of the given SETs, by default of all.

    Files that are present are not downloaded again, and an interrupted download is resumed.
    """
    from mapmrf.datasets.catalogue import data_folders, entries, model_set, plain_file, sets
    from mapmrf.datasets.download import download
    from mapmrf.run.progress import TerminalBar

    chosen = [model_set(name) for name in which] or list(sets().values())
    folder = data_folders(context.obj if data is None else data)[0]
    wanted = [entry for of in chosen for entry in entries(of.name)]
    with TerminalBar("{task.description}", "bar", "bytes", total=None) as bar:

        def show(name: str, done: int, total: int | None) -> None:
            bar.draw(completed=done, description=name, total=total)

        with reacting("raise"):
            report = download(wanted, folder, source=source, listener=show)
    for text in dict.fromkeys(report.failed.values()):
        cli.complain(f"error: {text}")
    for of in chosen:
        if files := [plain_file(entry).rpartition("/")[2] for entry in report.by_hand if entry.set == of.name]:
            place = folder / of.folder
            cli.complain(f"{of.name}: no download address for {_some(files)}; see {of.page}, and put them into {place}")
    return cli.Exit.BAD_INPUT if report.failed else 0


# -- look-alikes -----------------------------------------------------------------------------------------------------


@datasets.command("generate")
@click.argument("which", metavar="SET")
@click.argument("number", type=int)
@click.option("--scale", default=1.0, show_default=True, help="Size relative to the models of the set.")
@_output_option
@cli.force_option
def generate_lookalike(which: str, number: int, scale: float, output: str) -> None:
    """Generate the look-alike NUMBER (from 1) of a SET."""
    cli.check_outputs(output)
    from mapmrf.datasets.generate import lookalike

    cli.write_model(lookalike(which, number, scale=scale), output)
