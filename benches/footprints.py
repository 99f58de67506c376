"""Memory of every method on models of several shapes, measured, and the rates used for estimates.

    python benches/footprints.py --measure peaks.jsonl                # all methods, about ten minutes
    python benches/footprints.py --measure peaks.jsonl --methods lp
    python benches/footprints.py --fit peaks.jsonl                    # rates, for src/mapmrf/run/footprints.py
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
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

import mapmrf
from mapmrf import FactorGraph, datasets, images
from mapmrf.errors import UnsupportedModel
from mapmrf.run.footprints import Rates, Sizes

SCALE, SMALL = 2.0, 0.05
"""Scale of the models, and of those that load the kernels."""

ITERATIONS = 3
ROUNDS = 30
SECONDS = 4.0
UNLIMITED = (
    "auto",
    "branch",
    "cuts",
    "lp",
    "mplp_c",
    "qpbo",
    "sdp",
    "wcsp",
    "toulbar2",
    "maxflow",
    "fusion",
    "restarts",
)
"""Methods whose memory grows on the way: they get all of the time, and no limit of iterations."""


def _weighted(side: int, labels: int, seed: int = 0) -> FactorGraph:
    random = np.random.default_rng(seed)
    return images.grid_model(random.random((side, side, labels)), guide=random.random((side, side)), weight=0.4)


def _pairs(n: int, degree: float, states: tuple[int, int], seed: int = 0) -> FactorGraph:
    return datasets.random_graph(n, int(n * degree / 2), states=states, arity=2, seed=seed)


MODELS: dict[str, Callable[[float], FactorGraph]] = {
    "spins 320x320": lambda f: datasets.grid(int(160 * f), int(160 * f), 2.0),
    "Potts 400x400, 2 labels": lambda f: _weighted(int(200 * f), 2),
    "Potts 200x200, 8 labels": lambda f: _weighted(int(100 * f), 8),
    "Potts 100x100, 32 labels": lambda f: _weighted(int(50 * f), 32),
    "pairs, 12000, 6 states": lambda f: _pairs(int(6000 * f), 6.0, (6, 6)),
    "pairs, 600, 2 to 40 states": lambda f: _pairs(int(300 * f) + 1, 12.0, (2, 40)),
    "pairs, 4000, binary, degree 40": lambda f: _pairs(int(2000 * f), 40.0, (2, 2)),
    "triples, 30000, binary": lambda f: datasets.random_graph(int(15_000 * f), int(22_000 * f), states=2, arity=3),
    "mixed, 12000, arity 2 to 5": lambda f: datasets.random_graph(int(6000 * f), int(7000 * f), (1, 5), (2, 5)),
    "forbidden, 20000": lambda f: datasets.random_graph(int(10_000 * f), int(12_000 * f), (2, 5), (2, 3), hard=0.2),
    "dense, 600, binary": lambda f: _dense(int(300 * f)),
    "complete Potts, 300, 16 labels": lambda f: _complete_potts(int(150 * f), 16),
    "chains, 20000, 20 states": lambda f: _pairs(int(10_000 * f), 1.0, (20, 20)),
}
"""Models that the rates are fitted to."""


def _complete_potts(n: int, labels: int, seed: int = 0) -> FactorGraph:
    random = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    weight = random.exponential(size=len(pairs))
    return FactorGraph.from_pairwise(random.normal(size=(n, labels)), pairs, np.eye(labels), weight=weight)


def _dense(n: int, seed: int = 0) -> FactorGraph:
    random = np.random.default_rng(seed)
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    return FactorGraph.from_pairwise(random.normal(size=(n, 2)), pairs, random.normal(size=(len(pairs), 2, 2)))


# -- measuring --------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


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
    Path("/proc/self/clear_refs").write_text("5")
    mapmrf.solve(graph, method, time_limit=seconds, **options)
    return peak() - before


def measure_method(method: str, seconds: float, models: str) -> None:
    """Print a line of JSON for every model that the method takes."""
    for name, make in MODELS.items():
        if models not in name:
            continue
        graph = make(SCALE)
        try:
            mapmrf.solve(make(SMALL), method, time_limit=1.0)
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
        print(f'    "{method}": Rates({", ".join(f"{value:g}" for value in fit(mine))}),')


def print_comparison(rows: list[dict]) -> None:
    """Print measured peaks in MB, and the estimates divided by them."""
    print("| method | models | measured, MB | estimated / measured, least | median | most |\n|---|---|---|---|---|---|")
    for method, mine in by_method(rows).items():
        peaks = [row["peak"] for row in mine]
        ratios = [estimate(method, MODELS[row["model"]](SCALE)) / row["peak"] for row in mine]
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
