"""Seconds to import the package, print the help, solve tiny models, and begin on a large grid, as a Markdown table.

Every run is a separate process, with compiled kernels and bytecode; the first one fills the caches, uncounted.
Of the others the shortest times are printed, because other work on the machine only adds to them. The commands are
measured from outside, interpreter included; a run on the large grid from the call of `solve`, with the import of numba,
to the report of its first step.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import mapmrf
from mapmrf.datasets import grid

Seconds = tuple[float, float]
"""Wall-clock and processor time."""

METHODS = ("auto", "lslp", "trws", "icm")

FIRST_STEP = """
import sys, time
import mapmrf
graph = mapmrf.datasets.grid({side}, {side}, 3.0, seed=0)
began = time.perf_counter()
used = time.process_time()
def stop(point, labels):
    print(time.perf_counter() - began, time.process_time() - used)
    return True
mapmrf.solve(graph, sys.argv[1], callback=stop)
"""


def pedigree(n_vars: int, states: int = 3) -> mapmrf.FactorGraph:
    """Every variable but the first two has two random parents; some combinations are forbidden."""
    random = np.random.default_rng(0)
    scopes, tables = [], []
    for child in range(2, n_vars):
        table = random.normal(size=(states,) * 3)
        table[1:][random.random((states - 1, states, states)) < 0.2] = -np.inf
        scopes.append((*random.choice(child, 2, replace=False).tolist(), child))
        tables.append(table)
    return mapmrf.FactorGraph.from_tables([states] * n_vars, scopes, tables)


def environment(folder: Path) -> dict[str, str]:
    """The environment of the runs: Python may write bytecode, as it does for an installed package."""
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}


def from_outside(*arguments: str, env: dict[str, str]) -> Seconds:
    """What a Python process takes in all."""
    began, used = time.perf_counter(), processor_time()
    subprocess.run([sys.executable, *arguments], env=env, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, processor_time() - used


def processor_time() -> float:
    """Processor time of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def first_step(method: str, side: int, env: dict[str, str]) -> Seconds:
    """What passes from the call of `solve` to the first report."""
    code = FIRST_STEP.format(side=side)
    done = subprocess.run([sys.executable, "-c", code, method], env=env, capture_output=True, text=True, check=True)
    elapsed, used = map(float, done.stdout.split())
    return elapsed, used


def rows(folder: Path, side: int) -> Iterator[tuple[str, Callable[[], Seconds]]]:
    """What is measured, and how."""
    env = environment(folder)
    yield "python -c pass", lambda: from_outside("-c", "pass", env=env)
    yield "import numpy", lambda: from_outside("-c", "import numpy", env=env)
    yield "import mapmrf", lambda: from_outside("-c", "import mapmrf", env=env)
    yield "import mapmrf; mapmrf.FactorGraph", lambda: from_outside("-c", "import mapmrf; mapmrf.FactorGraph", env=env)
    yield "mapmrf --help", lambda: from_outside("-m", "mapmrf", "--help", env=env)
    tiny = {
        "grid, 4 x 4": grid(4, 4, 3.0),
        "chain, 50 variables": grid(1, 50, 3.0),
        "pedigree, 20 variables": pedigree(20),
    }
    for name, graph in tiny.items():
        path = folder / f"{name.partition(',')[0]}.uai"
        mapmrf.write(graph, path)
        yield f"mapmrf solve ({name})", lambda path=str(path): from_outside("-m", "mapmrf", "solve", path, env=env)
    for method in METHODS:
        yield f"{method}, grid of {side} x {side}", lambda method=method: first_step(method, side, env)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10, help="runs of each, besides the first")
    parser.add_argument("--side", type=int, default=1000, help="side of the large grid")
    options = parser.parse_args()
    print("| what | seconds | processor time |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in rows(Path(folder), options.side):
            measure()
            elapsed, used = map(min, zip(*(measure() for _ in range(options.repeats)), strict=True))
            print(f"| {name} | {elapsed:.2f} | {used:.2f} |", flush=True)


if __name__ == "__main__":
    main()
