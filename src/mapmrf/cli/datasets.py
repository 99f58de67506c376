"""Commands for the paper's sets of models: `datasets`, `datasets download`, `datasets generate`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mapmrf.cli.output import check_outputs, strict_json, table, write_model
from mapmrf.cli.program import BAD_INPUT, Command, bytes_option, complain, force_option, json_option, main, max_bytes
from mapmrf.errors import OptionError
from mapmrf.run.interrupts import check, raising

if TYPE_CHECKING:
    from pathlib import Path

    from mapmrf.datasets.catalogue import Entry, ModelSet, Statistics

NAMED = 3
"""Number of missing models listed by name; the others are counted."""


def _data_option(command: Command) -> Command:
    text = "Data folder; by default MAPMRF_DATA, otherwise a folder in the user's cache."
    return click.option("--data", metavar="DIR", help=text)(command)


@main.group(invoke_without_command=True)
@_data_option
@click.option("--verify", is_flag=True, help="Verify the files against the checksums of the catalogue.")
@json_option
@bytes_option
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
    click.echo(strict_json({"folders": folders, "sets": found}) if as_json else _listing(folders, found, verify))


def _check_folders(data: str | None) -> None:
    """Reject a data folder that does not exist, and warn about one in MAPMRF_DATA: probably a typo."""
    from pathlib import Path

    from mapmrf.datasets.catalogue import data_folders

    if data is not None and not Path(data).is_dir():
        raise OptionError(f"--data: {data} is not a folder")
    if data is None and os.environ.get("MAPMRF_DATA"):
        for folder in data_folders():
            if not folder.is_dir():
                complain(f"warning: MAPMRF_DATA: {folder} is not a folder")


def _inventory(of: ModelSet, data: str | None, verify: bool) -> dict[str, Any]:
    """Return the catalogue's entry for a set, and which of its files are present."""
    import dataclasses

    from mapmrf.datasets.catalogue import entries, locate, paper_statistics
    from mapmrf.datasets.catalogue import verify as right

    models: list[dict[str, Any]] = []
    for entry in entries(of.name):
        path = locate(entry, data)
        checked = right(entry, path) if verify and path is not None else None
        models.append({**dataclasses.asdict(entry), "path": path and str(path), "verified": checked})
    paths = [model["path"] for model in models if model["path"] is not None and model["verified"] is not False]
    mean, paper = _statistics(paths), vars(paper_statistics(of.name))
    apart = mean and {name: getattr(mean, name) - value for name, value in paper.items()}
    statistics = {"files": mean and vars(mean), "paper": paper, "difference": apart}
    return {**dataclasses.asdict(of), "models": models, "statistics": statistics}


def _statistics(paths: Iterable[str]) -> Statistics | None:
    """The paper's statistics over some files; one that cannot be read is reported and left out."""
    from mapmrf.datasets.catalogue import mean_statistics, model_statistics
    from mapmrf.errors import FormatError
    from mapmrf.formats import read

    found = []
    for path in paths:
        try:
            check()
            found.append(model_statistics(read(path, max_bytes=max_bytes())))
        except FormatError as error:
            complain(f"warning: {error}")
    return mean_statistics(found)


def _listing(folders: Sequence[str], found: dict[str, dict[str, Any]], verified: bool) -> str:
    """Tables of what is present, what is missing, and the statistics beside those of the paper."""
    parts = [f"data folder  {', '.join(folders)}", table([_row(of, verified) for of in found.values()])]
    wrong = [f"{m['path']}: differs from the catalogue" for of in found.values() for m in of["models"] if _wrong(m)]
    missing = [_missing_line(name, of) for name, of in found.items() if len(_there(of)) < of["n_models"]]
    parts += ["\n".join(lines) for lines in (wrong, missing) if lines]
    rows = [
        {"set": name, "of": what, **{key.replace("_", " "): _short(value) for key, value in figures.items()}}
        for name, of in found.items()
        for what, figures in of["statistics"].items()
        if figures is not None
    ]
    return "\n\n".join([*parts, table(rows)])


def _row(of: dict[str, Any], verified: bool) -> dict[str, Any]:
    right = sum(model["verified"] is True for model in of["models"])
    row = {"set": of["name"], "models": of["n_models"], "named": len(of["models"]), "there": len(_there(of))}
    return {**row, **({"verified": right} if verified else {}), "source": of["source"]}


def _there(of: dict[str, Any]) -> list[dict[str, Any]]:
    return [model for model in of["models"] if model["path"] is not None]


def _wrong(model: dict[str, Any]) -> bool:
    return model["verified"] is False


def _missing_line(name: str, of: dict[str, Any]) -> str:
    names = [model["name"] for model in of["models"] if model["path"] is None]
    unnamed = of["n_models"] - len(of["models"])
    known = [_some(names)] if names else []
    known += [f"{unnamed} not named in the catalogue"] if unnamed else []
    return f"missing from {name}: {' and '.join(known)}"


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _short(value: float) -> str:
    return f"{value:.6g}"


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
    from mapmrf.datasets.catalogue import data_folders, entries, model_set, sets
    from mapmrf.datasets.download import download
    from mapmrf.run.progress import TerminalBar

    chosen = [model_set(name) for name in which] or list(sets().values())
    folder = data_folders(context.obj if data is None else data)[0]
    wanted = [entry for of in chosen for entry in entries(of.name)]
    with TerminalBar("{task.description}", "bar", "bytes", total=None) as bar:

        def show(name: str, done: int, total: int | None) -> None:
            bar.draw(completed=done, description=name, total=total)

        with raising():
            report = download(wanted, folder, source=source, listener=show)
    for text in dict.fromkeys(report.failed.values()):
        complain(f"error: {text}")
    for of in chosen:
        _by_hand(of, [entry for entry in report.by_hand if entry.set == of.name], folder)
    return BAD_INPUT if report.failed else 0


def _by_hand(of: ModelSet, missing: Sequence[Entry], folder: Path) -> None:
    """Print where to find the files that have no download address, and where to put them."""
    if missing:
        from mapmrf.datasets.catalogue import plain_file

        names = _some([plain_file(entry).rpartition("/")[2] for entry in missing])
        complain(f"{of.name}: no download address for {names}; see {of.page}, and put them into {folder / of.folder}")


# -- look-alikes -----------------------------------------------------------------------------------------------------


@datasets.command()
@click.argument("which", metavar="SET")
@click.argument("number", type=int)
@click.option("--scale", default=1.0, show_default=True, help="Size relative to the models of the set.")
@click.option("--output", "-o", metavar="FILE", required=True, help="Model file to write.")
@force_option
def generate(which: str, number: int, scale: float, output: str) -> None:
    """Generate the look-alike NUMBER (from 1) of a SET."""
    check_outputs(output)
    from mapmrf.datasets.generate import lookalike

    write_model(lookalike(which, number, scale=scale), output)
