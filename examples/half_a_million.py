"""Half a million pixels with 16 labels: measured memory and time, compared with the estimate.

Run: python examples/half_a_million.py --method trws --seconds 60
Needs a Unix system, which reports the peak memory of a process.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import numpy as np

import mapmrf
from mapmrf import images
from mapmrf.datasets import potts_image


def peak_bytes() -> int:
    """Peak memory of this process so far."""
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def main() -> None:
    """Estimate, build, solve, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--method", default="trws", choices=("trws", "lslp", "icm", "blocks"))
    parser.add_argument("--height", type=int, default=700)
    parser.add_argument("--width", type=int, default=720)
    parser.add_argument("--labels", type=int, default=16)
    parser.add_argument(
        "--contrast", action="store_true", help="a weight for every pair, by the contrast of the picture"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of the solve")
    given = parser.parse_args()
    shape = (given.height, given.width)
    estimate = images.estimate_memory(shape, given.labels, given.method, weighted=given.contrast)
    print(f"estimate: {estimate.summary()}")

    observed = potts_image(*shape, 2, noise=0.4).observed * (given.labels - 1)
    unary = images.unary_from_differences(observed, np.arange(given.labels), difference="absolute", weight=0.3)
    began = time.perf_counter()
    guide = observed if given.contrast else None
    graph = images.grid_model(unary, "linear", weight=0.5, truncation=3, guide=guide)
    print(f"built in {time.perf_counter() - began:.2f} s: {graph}")
    result = mapmrf.solve(graph, given.method, time_limit=given.seconds)
    gap = "" if result.gap is None else f", gap {100 * result.gap:.2g} %"
    print(
        f"{given.method}: log potential {result.value:.1f}{gap}; {result.iterations} iterations, {result.runtime:.1f} s"
    )
    taken = peak_bytes()
    print(f"memory: {taken / 1e6:.0f} MB taken, {estimate.total / 1e6:.0f} MB estimated ({taken / estimate.total:.2f})")


if __name__ == "__main__":
    main()
