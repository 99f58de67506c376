"""Memory of LS-LP and AD3: bytes per variable, each figure from a separate process.

    python benches/admm_memory.py [--sides 316 1000] [--methods lslp ad3]

The model alone, and the peak while it is solved, minus the memory of the process after a small solve.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import subprocess
import sys
from pathlib import Path

import numpy as np

import mapmrf
from mapmrf.datasets.generate import grid

MODELS = ("grid", "image2", "image8")
ITERATIONS = 12


def image(side: int, labels: int) -> mapmrf.FactorGraph:
    """A Potts image with a weight for every pair."""
    rng = np.random.default_rng(0)
    place = np.arange(side * side, dtype=np.int32).reshape(side, side)
    across, down = np.stack([place[:, :-1], place[:, 1:]], axis=-1), np.stack([place[:-1], place[1:]], axis=-1)
    edges = np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)])
    unary = rng.normal(size=(side * side, labels))
    return mapmrf.FactorGraph.from_pairwise(unary, edges, 0.8 * np.eye(labels), weight=rng.random(len(edges)))


def build(model: str, side: int) -> mapmrf.FactorGraph:
    return grid(side, side, coupling=5.0, seed=0) if model == "grid" else image(side, int(model[5:]))


def status(name: str) -> int:
    """A figure of the process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def settled() -> int:
    """Give free memory back, begin a new peak, and return the memory in use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def one(method: str, model: str, side: int) -> None:
    options = {"lp_phase": False} if method == "lslp" else {}
    mapmrf.solve(build(model, 60), method, max_iterations=ITERATIONS, **options)
    before = settled()
    graph = build(model, side)
    alone = settled()
    mapmrf.solve(graph, method, max_iterations=ITERATIONS, **options)
    peak = status("VmHWM")
    print(
        f"| {method} | {model} | {side}x{side} | {(alone - before) / side**2:.0f} | {(peak - before) / side**2:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sides", nargs="+", type=int, default=[316, 1000])
    parser.add_argument("--methods", nargs="+", default=["lslp", "ad3"])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], args.one[1], int(args.one[2]))
        return
    print("| method | model | variables | bytes per variable: model | in all |")
    print("|---|---|---|---|---|", flush=True)
    for method in args.methods:
        for model in args.models:
            for side in args.sides:
                subprocess.run([sys.executable, __file__, "--one", method, model, str(side)], check=True)


if __name__ == "__main__":
    main()
