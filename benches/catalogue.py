"""The benchmark models that the scripts of this folder measure on, with the paper's and the best known values."""

from __future__ import annotations

import argparse
import csv
import os
from dataclasses import dataclass
from pathlib import Path

from mapmrf.datasets.figures import model_figure

SETS = {
    "seg-2": "segmentation2",
    "seg-21": "segmentation21",
    "scene": "scene",
    "grids": "grids",
    "protein": "protein",
}


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
    if not (folder / "reference_values.csv").exists():
        raise SystemExit(f"no benchmark data in {folder}: give --data or set MAPMRF_DATA")
    return folder


def models(folder: Path, which: str) -> list[Model]:
    """All models of a set, sorted by name."""
    with open(folder / "reference_values.csv", newline="") as file:
        best = {row["file"]: float(row["logpot"]) for row in csv.DictReader(file) if row["logpot"]}
    found = []
    for path in sorted((folder / SETS[which]).glob("*.uai.gz")):
        name = path.name.removesuffix(".uai.gz")
        found.append(Model(name, path, best.get(f"{SETS[which]}/{path.name}"), model_figure(which, name, "lslp")))
    return found


def parser(description: str) -> argparse.ArgumentParser:
    """Command-line options that all scripts share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--data", help="folder of the benchmark models")
    result.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    return result
