"""Memory of every method on models of several shapes, and the rates used for estimates.

    python benches/run.py footprints --json peaks.jsonl               # estimates against peaks, about half an hour
    python benches/footprints.py --fit peaks.jsonl                    # rates, for src/mapmrf/model/memory.py

Every method has a process for every model. A peak is the largest resident memory during a solve, minus that before it:
the model is not part of it. Needs Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import math
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

import mapmrf
from mapmrf import FactorGraph
from mapmrf.bench.worker import peak_memory, reset_peak
from mapmrf.model.memory import Sizes, resident_bytes

ITERATIONS = 3
UNLIMITED = (
    "auto", "branch", "cuts", "lp", "mplp_c", "qpbo", "sdp", "wcsp", "toulbar2", "maxflow", "fusion", "restarts",
)  # fmt: skip
"""Methods whose memory grows on the way: they get all of the time, and no limit of iterations."""


def resident_at_rest() -> float:
    """Bytes of this process once garbage and freed memory are given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def peak_of_solve(graph: FactorGraph, method: str, seconds: float) -> float:
    """Bytes of a solve beside the model, in a second run: the first loads the kernels."""
    # A clock would end the run of a method with few iterations early on a busy machine, before all is allocated.
    options = {"time_limit": seconds} if method in UNLIMITED else {"max_iterations": ITERATIONS}
    mapmrf.solve(graph, method, **options)
    before = resident_at_rest()
    reset_peak()
    mapmrf.solve(graph, method, **options)
    return (peak_memory() or math.nan) - before


def estimate(method: str, graph: FactorGraph) -> float:
    """Bytes of a run by the estimate of the method; not a number if it has none."""
    found = mapmrf.methods()[method]().footprint(graph)
    return math.nan if found is None else found


def fit(rows: list[dict]) -> tuple[tuple[float, ...], np.ndarray]:
    """Rates of at least 0 whose estimates are off by the smallest factors, up or down; and these factors."""
    peaks = np.array([float(row["peak"]) for row in rows])
    matrix = np.array([[*(float(row[name]) for name in Sizes._fields), 1e6] for row in rows])
    scale = peaks
    for _ in range(30):  # least squares of (estimate - peak) / scale, whose scale is between the two
        found, _ = nnls(matrix / scale[:, None], peaks / scale)
        scale = np.sqrt(peaks * np.maximum(matrix @ found, 0.05 * peaks))
    *rates, fixed = found
    return (*(float(f"{rate:.3g}") for rate in rates), float(f"{fixed * 1e6:.2g}")), matrix @ found / peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, required=True, metavar="FILE.jsonl", help="records of the experiment")
    rows = [json.loads(line) for line in parser.parse_args().fit.read_text().splitlines()]
    for method in sorted({row["run"] for row in rows}):
        rates, factors = fit([row for row in rows if row["run"] == method])
        text = ", ".join(f"{value:g}" for value in rates)
        print(f'    "{method}": ({text}),  # {factors.min():.2f} to {factors.max():.2f} of the peaks')


if __name__ == "__main__":
    main()
