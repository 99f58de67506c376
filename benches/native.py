"""The gain of code for this machine's CPU over the shipped code, which runs on any common one.

    python benches/native.py [--repeats N]

Runs some methods on generated models with the code for the baseline (x86-64-v3, or generic aarch64) and with that for
this machine, in turns, each in separate processes, and prints the smallest processor times. Both are compiled first,
in separate folders, so the first call takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mapmrf.compilation.store import baseline

CASES = {
    "lslp, binary grid 300x300": ("lslp", "grid(300, 300, 3.0, seed=0)", {"max_iterations": 100, "starts": 1}),
    "lslp, 21 labels": ("lslp", "lookalike('seg-21', 1)", {"max_iterations": 60, "starts": 1}),
    "ad3, 8 labels": ("ad3", "lookalike('scene', 1)", {"max_iterations": 300}),
    "trws, binary grid 300x300": ("trws", "grid(300, 300, 3.0, seed=0)", {"max_iterations": 60}),
    "trws, 21 labels": ("trws", "lookalike('seg-21', 1)", {"max_iterations": 60}),
    "bp, 21 labels": ("bp", "lookalike('seg-21', 1)", {"max_iterations": 60}),
    "mplp, binary grid 100x100": ("mplp", "grid(100, 100, 3.0, seed=0)", {"max_iterations": 100}),
    "restarts, binary grid 80x80": ("restarts", "grid(80, 80, 3.0, seed=0)", {"max_iterations": 8}),
    "branch, binary grid 20x20": ("branch", "grid(20, 20, 3.0, seed=0)", {"max_iterations": 40}),
}

WORK = """
import json, sys, time
import mapmrf
from mapmrf.datasets import grid, lookalike
method, model, options = json.loads(sys.argv[1])
graph = eval(model)
best = float("inf")
for _ in range(3):
    began = time.process_time()
    value = mapmrf.solve(graph, method, **options).value
    best = min(best, time.process_time() - began)
print(json.dumps([best, value]))
"""


def environment(folder: Path, native: bool) -> dict[str, str]:
    base = baseline()
    assert base is not None
    found = {**os.environ, "NUMBA_CACHE_DIR": str(folder / ("native" if native else "baseline"))}
    found["MAPMRF_KERNELS"] = "compile"
    return found if native else {**found, "NUMBA_CPU_NAME": base.cpu, "NUMBA_CPU_FEATURES": ""}


def measure(case: tuple[str, str, dict[str, object]], env: dict[str, str]) -> tuple[float, float]:
    command = [sys.executable, "-c", WORK, json.dumps(case)]
    seconds, value = json.loads(subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout)
    return seconds, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print("| case | baseline, ms | native, ms | native / baseline | same value |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        both = [environment(Path(name), native) for native in (False, True)]
        for title, case in CASES.items():
            runs = [[measure(case, env) for env in both] for _ in range(1 + repeats)][1:]
            (base, native) = (min(run[k][0] for run in runs) for k in (0, 1))
            same = "yes" if len({run[k][1] for run in runs for k in (0, 1)}) == 1 else "no"
            print(f"| {title} | {1e3 * base:.1f} | {1e3 * native:.1f} | {native / base:.3f} | {same} |", flush=True)


if __name__ == "__main__":
    main()
