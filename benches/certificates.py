"""Make and verify certificates of benchmark models: proven bounds and processor seconds, as a Markdown table.

    python benches/certificates.py                             # Seg-2, Seg-21, Scene and Grids
    python benches/certificates.py --folders grids --rows      # also a row for every model
    python benches/certificates.py --folders families maxcut other protein --rows     # also models that need cases
    python benches/certificates.py --folders other --rows --models pedigree           # those with this in their names

A model takes part if `auto` proves its answer within --solve-limit seconds; its certificate is made within --make-limit
seconds. An evidence file next to a model is applied.

Folders are expected below MAPMRF_DATA, or ../shared/data next to the repository.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mapmrf
from mapmrf.certificates import Certificate

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
FOLDERS = ["segmentation2", "segmentation21", "scene", "grids-small", "grids"]
SUFFIXES = (".uai.gz", ".cfn.gz", ".mc.gz", ".wcsp.xz")


class Row(NamedTuple):
    """A model: its status by `auto`, the relative gaps proven, seconds, cycles, nodes, and the file's size in kB."""

    name: str
    status: str
    gap: float
    fast_gap: float
    solve: float
    make: float
    verify: float
    fast: float
    cycles: int
    nodes: int
    size: float

    @property
    def cells(self) -> str:
        """The cells of a Markdown row."""
        seconds = " | ".join(f"{s:.2f}" for s in (self.solve, self.make, self.verify, self.fast))
        gap = "0" if self.gap == 0 else f"{self.gap:.1g}"
        counts = f"{self.cycles} | {self.nodes} | {self.size:.0f}"
        return f"{self.name} | {self.status} | {gap} | {self.fast_gap:.1g} | {seconds} | {counts}"


def main() -> None:
    arguments = _arguments()
    head = "status | gap | gap, --fast | solve s | make s | verify s | verify --fast s | cycles | nodes | kB |"
    print(f"| model or set | {head}\n|---|---|{'---:|' * 9}")
    for folder in arguments.folders:
        rows = []
        for path in sorted((FOLDER / folder).iterdir() if (FOLDER / folder).is_dir() else ()):
            if not path.name.endswith(SUFFIXES) or arguments.models not in path.name:
                continue
            row = _row(path, arguments.solve_limit, arguments.make_limit)
            if row is None:
                print(f"{path.name}: not proven by auto", file=sys.stderr, flush=True)
                continue
            rows.append(row)
            if arguments.rows:
                print(f"| {row.cells} |", flush=True)
        if rows:
            print(f"| {_summary(folder, rows).cells} |", flush=True)


def _row(path: Path, solve_limit: float, make_limit: float) -> Row | None:
    evidence = path.with_name(path.name.removesuffix(".gz") + ".evid")
    graph = mapmrf.read(path, evidence=evidence if evidence.exists() else None)
    result, solve = _timed(lambda: mapmrf.solve(graph, time_limit=solve_limit))
    if result.status.value not in ("optimal", "infeasible"):
        return None
    certificate, make = _timed(lambda: mapmrf.certify(graph, result, time_limit=make_limit))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "proof.npz")
        certificate.write(file)
        size, certificate = file.stat().st_size / 1000, Certificate.read(file)
    found, verify = _timed(lambda: mapmrf.verify(graph, result.labels, certificate))
    fast, seconds = _timed(lambda: mapmrf.verify(graph, result.labels, certificate, exact=False))
    name = path.name.removesuffix(".gz").removesuffix(".xz").removesuffix(".uai")
    gaps = found.relative_gap(), fast.relative_gap()
    counts = certificate.cycles.n, certificate.tree.n
    return Row(name, result.status.value, *gaps, solve, make, verify, seconds, *counts, size)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def _summary(folder: str, rows: list[Row]) -> Row:
    """Largest gaps, medians of the rest."""
    optimal = sum(row.status == "optimal" for row in rows)
    gaps = max(row.gap for row in rows), max(row.fast_gap for row in rows)
    seconds = [statistics.median(row[k] for row in rows) for k in range(4, 8)]
    counts = [int(statistics.median(row[k] for row in rows)) for k in (8, 9)]
    size = statistics.median(row.size for row in rows)
    return Row(folder, f"{optimal} of {len(rows)} optimal", *gaps, *seconds, *counts, size)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders of models")
    parser.add_argument("--rows", action="store_true", help="also print a row for every model")
    parser.add_argument("--models", default="", help="only models whose names contain this")
    parser.add_argument("--solve-limit", type=float, default=60.0, help="seconds for auto")
    parser.add_argument("--make-limit", type=float, default=60.0, help="seconds for a certificate")
    return parser.parse_args()


if __name__ == "__main__":
    main()
