"""Values of `auto` on the benchmark models over time: one Markdown table per set.

    python benches/auto_quality.py --sets grids --seeds 0 1 2 3 4 --time-limit 30
    python benches/auto_quality.py --sets protein other --time-limit 60
    python benches/auto_quality.py --sets families maxcut --time-limit 20
    python benches/auto_quality.py --sets seg-2 seg-21 scene

Columns: the value, the same in percent of the best known (after 1 and 5 seconds, and at the end), the bound in percent
of it, when the best known value was reached and by which phase, status, total seconds. Kernels are compiled beforehand.
"""

from __future__ import annotations

import argparse
import math
import statistics

import mapmrf
from catalogue import FOLDERS, Target, data_folder, targets
from mapmrf.datasets import grid, sets

HEAD = (
    "| model | seed | value | after 1 s | after 5 s | at the end | bound | best known after | by | status | s |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---|---|---:|"
)
REACHED = 1e-7
"""Relative difference to the best known value that counts as none: reference values are rounded."""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--sets", nargs="+", default=[*sets(), "other"], choices=[*sets(), *FOLDERS])
    options.add_argument("--only", default="", help="only models whose names contain this")
    options.add_argument("--seeds", nargs="+", type=int, default=[0])
    options.add_argument("--time-limit", type=float, default=60.0)
    args = options.parse_args()
    folder = data_folder(args.data)
    mapmrf.solve(grid(50, 50, coupling=4.0, seed=0), max_iterations=150)  # compile
    for which in args.sets:
        print(f"\n### {which}\n\n{HEAD}", flush=True)
        found = [target for target in targets(folder, which) if args.only in target.name]
        runs = [row(target, seed, args.time_limit) for target in found for seed in args.seeds]
        seconds = [result.runtime - result.compile_time for result in runs]
        proven = sum(result.status is mapmrf.Status.OPTIMAL for result in runs)
        print(
            f"\n{proven} of {len(runs)} proven optimal; median {1000 * statistics.median(seconds):.1f} ms", flush=True
        )


def row(target: Target, seed: int, limit: float) -> mapmrf.Result:
    """Solve a model and print its improvements over time."""
    result = mapmrf.solve(target.read(), "auto", time_limit=limit, seed=seed)
    best, size = target.best, abs(target.best)
    hit = next((point for point in result.trace if point.value >= best - max(REACHED * size, 6e-5)), None)
    cells = [target.name, seed, f"{result.value:.4f}"]
    cells += [percent(max((p.value for p in result.trace if p.time <= t), default=-math.inf), best) for t in (1, 5)]
    cells += [percent(result.value, best), percent(result.bound, best)]
    cells += ["", ""] if hit is None else [f"{hit.time:.2f} s", hit.phase]
    cells += [result.status.value, f"{result.runtime - result.compile_time:.2f}"]
    print("|", " | ".join(map(str, cells)), "|", flush=True)
    return result


def percent(value: float | None, best: float) -> str:
    """A value in percent of the best known one; for negative values by the same relative distance."""
    if value is None or not math.isfinite(value) or math.isnan(best) or best == 0:
        return ""
    return f"{100 + 100 * (value - best) / abs(best):.3f} %"


if __name__ == "__main__":
    main()
