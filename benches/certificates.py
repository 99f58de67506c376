"""Make and verify certificates of benchmark models: what they prove, and processor seconds, as a Markdown table.

    python benches/certificates.py                             # Seg-2, Seg-21, Scene and Grids
    python benches/certificates.py --folders grids --rows      # a row for every model, too

Folders are expected below MAPMRF_DATA, or ../shared/data beside the repository.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mapmrf
from mapmrf.certificates import Certificate

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
FOLDERS = ["segmentation2", "segmentation21", "scene", "grids-small", "grids"]


class Row(NamedTuple):
    """A model: its status by `auto`, the relative gaps proven, seconds, cycles and the size of the file in kB."""

    name: str
    status: str
    gap: float
    fast_gap: float
    solve: float
    make: float
    verify: float
    fast: float
    cycles: int
    size: float

    @property
    def cells(self) -> str:
        """The cells of a Markdown row."""
        seconds = " | ".join(f"{s:.2f}" for s in (self.solve, self.make, self.verify, self.fast))
        gap = "0" if self.gap == 0 else f"{self.gap:.1g}"
        return (
            f"{self.name} | {self.status} | {gap} | {self.fast_gap:.1g} | {seconds} | {self.cycles} | {self.size:.0f}"
        )


def main() -> None:
    arguments = _arguments()
    head = "status | gap | gap, --fast | solve s | make s | verify s | verify --fast s | cycles | kB |"
    print(f"| model or set | {head}\n|---|---|{'---:|' * 8}")
    for folder in arguments.folders:
        rows = []
        for path in sorted((FOLDER / folder).glob("*.uai.gz")):
            rows.append(_row(path))
            if arguments.rows:
                print(f"| {rows[-1].cells} |", flush=True)
        if rows:
            print(f"| {_summary(folder, rows).cells} |", flush=True)


def _row(path: Path) -> Row:
    graph = mapmrf.read(path)
    result, solve = _timed(lambda: mapmrf.solve(graph))
    certificate, make = _timed(lambda: mapmrf.certify(graph, result))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "proof.npz")
        certificate.write(file)
        size, certificate = file.stat().st_size / 1000, Certificate.read(file)
    found, verify = _timed(lambda: mapmrf.verify(graph, result.labels, certificate))
    fast, seconds = _timed(lambda: mapmrf.verify(graph, result.labels, certificate, exact=False))
    name = path.name.removesuffix(".uai.gz")
    gaps = found.relative_gap(), fast.relative_gap()
    return Row(name, result.status.value, *gaps, solve, make, verify, seconds, certificate.cycles.n, size)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def _summary(folder: str, rows: list[Row]) -> Row:
    """Largest gaps, medians of the rest."""
    optimal = sum(row.status == "optimal" for row in rows)
    gaps = max(row.gap for row in rows), max(row.fast_gap for row in rows)
    seconds = [statistics.median(row[k] for row in rows) for k in range(4, 8)]
    cycles, size = int(statistics.median(row.cycles for row in rows)), statistics.median(row.size for row in rows)
    return Row(folder, f"{optimal} of {len(rows)} optimal", *gaps, *seconds, cycles, size)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders of models")
    parser.add_argument("--rows", action="store_true", help="a row for every model, too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
