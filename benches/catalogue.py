"""The benchmark models that the scripts of this folder measure on, with the paper's and the best known values."""

from __future__ import annotations

import argparse
import csv
import os
from dataclasses import dataclass
from pathlib import Path

SETS = {
    "seg-2": "segmentation2",
    "seg-21": "segmentation21",
    "scene": "scene",
    "grids": "grids",
    "protein": "protein",
}

# The paper's LS-LP column, by file.
PAPER_LSLP = {
    "grid20x20.f10": 2931.8,
    "grid20x20.f10.wrap": 2936.7,
    "grid20x20.f15": 4408.9,
    "grid20x20.f15.wrap": 4446.6,
    "grid20x20.f5.wrap": 1503.2,
    "grid40x40.f10": 12336.1,
    "grid40x40.f10.wrap": 12537.2,
    "grid40x40.f15": 18358.7,
    "grid40x40.f15.wrap": 18785.8,
    "grid40x40.f2": 2659.8,
    "grid40x40.f2.wrap": 2654.9,
    "grid40x40.f5": 6201.2,
    "grid40x40.f5.wrap": 6275.4,
    "grid80x80.f10": 48766.1,
    "grid80x80.f10.wrap": 48657.3,
    "grid80x80.f15": 72993.8,
    "grid80x80.f15.wrap": 73486.0,
    "grid80x80.f2": 10580.8,
    "grid80x80.f2.wrap": 10698.4,
    "grid80x80.f5.wrap": 24532.8,
    "didNotconverge1": -30165.5,
    "didNotconverge2": -29295.4,
    "didNotconverge4": -28952.0,
    "didNotconverge5": -267814.0,
    "didNotconverge6": -30063.4,
    "didNotconverge8": -29334.7,
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
        found.append(Model(name, path, best.get(f"{SETS[which]}/{path.name}"), PAPER_LSLP.get(name)))
    return found


def parser(description: str) -> argparse.ArgumentParser:
    """Command-line options that all scripts share."""
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--data", help="folder of the benchmark models")
    result.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    return result
