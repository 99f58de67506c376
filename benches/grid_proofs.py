"""Time to proof of `auto` with one thread and with two, as a Markdown table; optionally against other sources.

    python benches/grid_proofs.py                                    # the 80x80 Grids, threads 1 and 2
    python benches/grid_proofs.py --against ../before/src --repeats 3
    python benches/grid_proofs.py --sizes 20 40 --threads 1
    python benches/grid_proofs.py --models 'scene/*' --threads 1 --solves 5 --against ../before/src

Every run has its own process, which solves a small model first, so that kernels are loaded, and then the model,
several times with `--solves`. With `--against`, the sources there take turns with these. The smallest time counts:
the machine may be busy with other things.
Folders are expected below MAPMRF_DATA, or ../shared/data next to the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
SOURCES = Path(__file__).parents[1] / "src"

RUN = """
import json, sys, time
import mapmrf
from mapmrf.datasets import grid

path, threads, limit, solves = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
mapmrf.solve(grid(30, 30, coupling=3.0, seed=0), threads=threads)
graph, times = mapmrf.read(path), []
for _ in range(solves):
    began, cpu = time.perf_counter(), time.process_time()
    result = mapmrf.solve(graph, threads=threads, time_limit=limit)
    times.append([time.perf_counter() - began, time.process_time() - cpu])
seconds, cpu = map(min, zip(*times))
print(json.dumps([seconds, cpu, result.value, result.status.value, result.iterations]))
"""


class Proof(NamedTuple):
    """What a run took, and what it found."""

    seconds: float
    cpu: float
    value: float
    status: str
    iterations: int


def main() -> None:
    arguments = _arguments()
    trees = [SOURCES] if arguments.against is None else [arguments.against.resolve(), SOURCES]
    names = ["before", "after"][-len(trees) :]
    columns = [f"{name} {what}" for what in ("s", "CPU s") for name in names]
    ratios = ["ratio s", "ratio CPU s"] if len(trees) == 2 else []
    head = ["model", "threads", "value", "status", *columns, *ratios]
    print("|", " | ".join(head), "|\n|" + "---|" * len(head), flush=True)
    patterns = arguments.models or [f"grids/grid{side}x{side}.*" for side in arguments.sizes]
    for path in (path for pattern in patterns for path in sorted(FOLDER.glob(pattern))):
        for threads in arguments.threads:
            print("|", " | ".join(_row(path, threads, trees, arguments)), "|", flush=True)


def _row(path: Path, threads: int, trees: list[Path], arguments: argparse.Namespace) -> list[str]:
    runs: list[list[Proof]] = [[] for _ in trees]
    for _ in range(arguments.repeats):
        for tree, some in zip(trees, runs, strict=True):
            some.append(_run(path, threads, tree, arguments))
    last = runs[-1][-1]
    cells = [path.name.removesuffix(".uai.gz"), str(threads), f"{last.value:.4f}", last.status]
    seconds = [min(run.seconds for run in some) for some in runs]
    cpu = [min(run.cpu for run in some) for some in runs]
    cells += [f"{figure:.3f}" for figure in (*seconds, *cpu)]
    return cells + ([f"{seconds[1] / seconds[0]:.2f}", f"{cpu[1] / cpu[0]:.2f}"] if len(trees) == 2 else [])


def _run(path: Path, threads: int, tree: Path, arguments: argparse.Namespace) -> Proof:
    numbers = (threads, arguments.time_limit, arguments.solves)
    command = [sys.executable, "-c", RUN, str(path), *map(str, numbers)]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return Proof(*json.loads(done.stdout))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[80])
    parser.add_argument("--models", nargs="+", help="patterns of files below the folder, instead of the Grids")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--against", type=Path, help="folder `src` of other sources")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--solves", type=int, default=1, help="solves in every process")
    parser.add_argument("--time-limit", type=float, default=300.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
