"""The benchmark models, which are not part of the repository: tests that use them are marked `data`."""

from __future__ import annotations

import csv
import functools
import os
from pathlib import Path

import pytest

import mapmrf

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
REFERENCE = FOLDER / "reference_values.csv"


def benchmark_path(name: str) -> Path:
    """The file of a model; the test is skipped if that is not there."""
    if not (FOLDER / name).is_file():
        pytest.skip(f"no {name} in {FOLDER}")
    return FOLDER / name


def benchmark(name: str) -> mapmrf.FactorGraph:
    return mapmrf.read(benchmark_path(name))


@functools.cache
def references() -> dict[str, float]:
    """The best values known, by file."""
    with open(REFERENCE, newline="", encoding="utf-8") as file:
        return {row["file"]: float(row["logpot"]) for row in csv.DictReader(file) if row["logpot"]}
