"""The benchmark models used by the scripts of this folder, with the paper's and the best known values."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from mapmrf.datasets import entries, locate, sets
from mapmrf.datasets.figures import model_figure


@dataclass(frozen=True)
class Model:
    """A model file with its reference values, where known."""

    name: str
    path: Path
    best: float | None
    paper: float | None


def data_folder(argument: str | None) -> Path:
    """The folder given, else MAPMRF_DATA, else shared/data beside the checkout."""
    folder = Path(argument or os.environ.get("MAPMRF_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        raise SystemExit(f"no benchmark data in {folder}: give --data or set MAPMRF_DATA")
    return folder


def models(folder: Path, which: str) -> list[Model]:
    """All installed models of a set, in the order of the catalogue."""
    found = ((entry, locate(entry, folder)) for entry in entries(which))
    return [
        Model(entry.name, path, entry.best, model_figure(which, entry.name, "lslp")) for entry, path in found if path
    ]


def parser(description: str) -> argparse.ArgumentParser:
    """Command-line options that all scripts share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--data", help="folder of the benchmark models")
    result.add_argument("--sets", nargs="+", default=list(sets()), choices=list(sets()))
    return result
