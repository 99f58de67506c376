"""Memory of every method on models of several shapes, measured, and the rates used for estimates.

    python benches/footprints.py --measure peaks.jsonl                # all methods, about ten minutes
    python benches/footprints.py --measure peaks.jsonl --methods lp
    python benches/footprints.py --fit peaks.jsonl                    # rates, for src/mapmrf/footprints.py
    python benches/footprints.py --compare peaks.jsonl                # estimates against measurements, as a table

A process per method solves one model after another. A peak is the largest resident memory during a solve, minus
that before it: the model is not part of it. Needs Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

import mapmrf
from mapmrf import FactorGraph
from mapmrf.errors import UnsupportedModel
from mapmrf.footprints import Rates, Sizes
from models import GENERATED

SMALL = 0.002
"""Scale of the models that load the kernels."""

ITERATIONS = 3
ROUNDS = 30
SECONDS = 4.0
UNLIMITED = (
    "auto", "branch", "cuts", "lp", "mplp_c", "qpbo", "sdp", "wcsp", "toulbar2", "maxflow", "fusion", "restarts",
)  # fmt: skip
"""Methods whose memory grows on the way: they get all of the time, and no limit of iterations."""


MODELS = (
    "spins 320x320", "Potts 400x400, 2 labels", "Potts 200x200, 8 labels", "Potts 100x100, 32 labels",
    "pairs, 12000, 6 states", "pairs, 600, 2 to 40 states", "pairs, 4000, binary, degree 40", "triples, 30000, binary",
    "mixed, 12000, arity 2 to 5", "forbidden, 20000", "dense, 600, binary", "complete Potts, 300, 16 labels",
    "chains, 20000, 20 states",
)  # fmt: skip
"""Models of `models.toml` that the rates are fitted to."""


# -- measuring --------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def forget_peak() -> None:
    """Let the system count the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Most bytes since the peak was forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def peak_of_solve(graph: FactorGraph, method: str, seconds: float = SECONDS) -> int:
    """Bytes of a solve beside the model, once kernels are loaded."""
    options = {} if method in UNLIMITED else {"max_iterations": ITERATIONS}
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = resident()
    forget_peak()
    mapmrf.solve(graph, method, time_limit=seconds, **options)
    return peak() - before


def measure_method(method: str, seconds: float, models: str) -> None:
    """Print a line of JSON for every model that the method takes."""
    for name in MODELS:
        if models not in name:
            continue
        graph = GENERATED[name](0, 1.0)
        try:
            mapmrf.solve(GENERATED[name](0, SMALL), method, time_limit=1.0)
            found = peak_of_solve(graph, method, seconds)
        except UnsupportedModel:
            continue
        row = {"method": method, "model": name, "peak": found, **Sizes.of(graph)._asdict()}
        print(json.dumps(row), flush=True)


def measure(methods: list[str], path: Path, seconds: float, models: str) -> None:
    """Measure methods one after another; lines of the same methods that the file has already are replaced."""
    kept = (
        [row for row in read(path) if row["method"] not in methods or models not in row["model"]]
        if path.exists()
        else []
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    for method in methods:
        command = [sys.executable, __file__, "--one", method, "--seconds", str(seconds), "--models", models]
        done = subprocess.run(command, capture_output=True, text=True)
        with path.open("a") as out:
            out.write(done.stdout)
        print(f"{method}: {len(done.stdout.splitlines())} models {done.stderr.splitlines()[-1:]}", flush=True)


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# -- fitting ----------------------------------------------------------------------------------------------------------


def features(row: dict) -> list[float]:
    """The sizes of a model, and a constant in megabytes."""
    return [*(float(row[name]) for name in Sizes._fields), 1e6]


def fit(rows: list[dict]) -> Rates:
    """Rates of at least 0 whose estimates are off by the smallest factors, up or down."""
    matrix, peaks = np.array([features(row) for row in rows]), np.array([float(row["peak"]) for row in rows])
    scale = peaks
    for _ in range(ROUNDS):  # least squares of (estimate - peak) / scale, whose scale is between the two
        found, _ = nnls(matrix / scale[:, None], peaks / scale)
        scale = np.sqrt(peaks * np.maximum(matrix @ found, 0.05 * peaks))
    *rates, fixed = found
    return Rates(*(float(f"{rate:.3g}") for rate in rates), fixed=float(f"{fixed * 1e6:.2g}"))


def by_method(rows: list[dict]) -> dict[str, list[dict]]:
    return {method: [row for row in rows if row["method"] == method] for method in sorted({r["method"] for r in rows})}


def print_fit(rows: list[dict]) -> None:
    """Print the rates as lines of Python."""
    for method, mine in by_method(rows).items():
        rates = ", ".join(f"{name}={value:g}" for name, value in fit(mine)._asdict().items() if value)
        print(f'    "{method}": Rates({rates}),')


def print_comparison(rows: list[dict]) -> None:
    """Print measured peaks in MB, and the estimates divided by them."""
    print("| method | models | measured, MB | estimated / measured, least | median | most |\n|---|---|---|---|---|---|")
    for method, mine in by_method(rows).items():
        peaks = [row["peak"] for row in mine]
        ratios = [estimate(method, GENERATED[row["model"]](0, 1.0)) / row["peak"] for row in mine]
        span = f"{min(peaks) / 1e6:.0f} to {max(peaks) / 1e6:.0f}"
        print(
            f"| `{method}` | {len(mine)} | {span} | {min(ratios):.2f} | {np.median(ratios):.2f} | {max(ratios):.2f} |"
        )


def estimate(method: str, graph: FactorGraph) -> float:
    """Bytes of a run by the estimate of the method; not a number if it has none."""
    found = mapmrf.methods()[method]().footprint(graph)
    return math.nan if found is None else found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a solve")
    parser.add_argument("--models", default="", metavar="TEXT", help="only models whose names contain this")
    parser.add_argument("--fit", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--compare", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--one", metavar="METHOD", help="measure one case, in this process")
    given = parser.parse_args()
    if given.one:
        measure_method(given.one, given.seconds, given.models)
    if given.measure:
        measure(given.methods, given.measure, given.seconds, given.models)
    if given.fit:
        print_fit(read(given.fit))
    if given.compare:
        print_comparison(read(given.compare))


if __name__ == "__main__":
    main()
