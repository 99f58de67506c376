"""Memory of every method on models of several shapes, and the rates used for estimates.

    python benches/run.py footprints --json peaks.jsonl               # measures all methods, about half an hour
    python benches/footprints.py --fit peaks.jsonl                    # rates, for src/mapmrf/run/footprints.py
    python benches/footprints.py --compare peaks.jsonl                # estimates against measurements, as a table

Every method has a process for every model. A peak is the largest resident memory during a solve, minus that before it:
the model is not part of it. Needs Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
import resource
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

import mapmrf
from mapmrf import FactorGraph
from mapmrf.run.footprints import Rates, Sizes
from models import GENERATED

ITERATIONS = 3
ROUNDS = 30
SECONDS = 4.0
UNLIMITED = (
    "auto", "branch", "cuts", "lp", "mplp_c", "qpbo", "sdp", "wcsp", "toulbar2", "maxflow", "fusion", "restarts",
)  # fmt: skip
"""Methods whose memory grows on the way: they get all of the time, and no limit of iterations."""


# -- measuring --------------------------------------------------------------------------------------------------------


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def resident_at_rest() -> int:
    """The same, once garbage and freed memory are given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident()


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
    before = resident_at_rest()
    forget_peak()
    mapmrf.solve(graph, method, time_limit=seconds, **options)
    return peak() - before


def read(path: Path) -> list[dict]:
    """The records of the experiment `footprints`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def sizes(graph: FactorGraph) -> dict[str, int]:
    """What an estimate is linear in."""
    return Sizes.of(graph)._asdict()


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
    return {method: [row for row in rows if row["run"] == method] for method in sorted({r["run"] for r in rows})}


def print_fit(rows: list[dict]) -> None:
    """Print the rates as lines of Python."""
    for method, mine in by_method(rows).items():
        print(f'    "{method}": Rates({", ".join(f"{value:g}" for value in fit(mine))}),')


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
    parser.add_argument("--fit", type=Path, metavar="FILE.jsonl", help="print the rates that fit best")
    parser.add_argument("--compare", type=Path, metavar="FILE.jsonl", help="compare estimates with measurements")
    given = parser.parse_args()
    if given.fit:
        print_fit(read(given.fit))
    if given.compare:
        print_comparison(read(given.compare))


if __name__ == "__main__":
    main()
