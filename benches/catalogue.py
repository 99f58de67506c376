"""The benchmark models used by the scripts of this folder, with the paper's and the best known values."""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import mapmrf
from mapmrf.datasets import entries, locate, sets
from mapmrf.datasets.catalogue import model_figure

FOLDERS = ("other", "families", "maxcut")
"""Folders of models that do not belong to the paper; their best known values are in reference_values.csv."""


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


@dataclass(frozen=True)
class Target:
    """A model file, the evidence beside it, and its best known value (nan: unknown)."""

    name: str
    path: Path
    best: float
    evidence: Path | None = None

    def read(self) -> mapmrf.FactorGraph:
        """The model with its evidence."""
        return mapmrf.read(self.path, evidence=self.evidence)


def targets(folder: Path, which: str) -> list[Target]:
    """The models of a set of the paper, or of another folder."""
    if which in FOLDERS:
        return list(_others(folder, which))
    return [
        Target(model.name, model.path, math.nan if model.best is None else model.best)
        for model in models(folder, which)
    ]


def _others(folder: Path, which: str) -> Iterator[Target]:
    with open(folder / "reference_values.csv", newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            path = folder / line["file"]
            if path.parent.name == which and path.exists():
                best = float(line["logpot"]) if line["logpot"] else math.nan
                evidence = path.with_suffix(".evid")
                yield Target(path.name, path, best, evidence if evidence.exists() else None)
