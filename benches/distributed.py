"""LS-LP in parts: time per iteration and memory by size and ranks, scaling, and a model of the cost.

    python benches/distributed.py strong --sides 100 400 1000 2000 --ranks 1   # linear in the number of variables?
    python benches/distributed.py strong --sides 2000 --ranks 1 2              # one model, more ranks
    python benches/distributed.py weak --sides 1000 --ranks 1 2                # a slab of this many rows for every rank
    python benches/distributed.py model --sides 600 --ranks 1 2 4 8            # fit and check the model of the cost

Every run is a separate command under mpiexec. Times are wall-clock seconds of the fastest of several stretches of
iterations, processor time is that of all ranks.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from mapmrf.distributed.evaluation import PartedIncumbent
from mapmrf.distributed.lattices import SpinGrid, grid_parts
from mapmrf.distributed.parts import PartFolder, find_ranks
from mapmrf.distributed.run import PartedModel, start_run
from mapmrf.methods.lslp import LSLP
from mapmrf.run.method import Start

STRETCH, STRETCHES = 5, 6


def worker(folder: str) -> None:
    """Measure on this rank; rank 0 prints."""
    ranks = find_ranks()
    parted = PartedModel.read(ranks, PartFolder(folder))
    best = PartedIncumbent(ranks, parted.parts, parted.unary_labels(), parted.slices)
    engine = start_run(LSLP(lp_phase=False, starts=1), parted, 0, Start(), best).parted
    engine.run(2)
    engine.measure()
    times, began = [], time.process_time()
    for _ in range(STRETCHES):
        ranks.allgather(None)
        start = time.perf_counter()
        engine.run(STRETCH)
        engine.settle()
        times.append((time.perf_counter() - start) / STRETCH)
    busy = (time.process_time() - began) / (STRETCH * STRETCHES)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = np.array(ranks.allgather((min(times), 8 * engine.halo.n_sent, busy, peak)))
    if ranks.rank == 0:
        names = ("seconds", "bytes_sent", "processor", "peak")
        figures = dict(zip(names, [*found[:, :2].max(axis=0), *found[:, 2:].sum(axis=0)], strict=True))
        print(json.dumps({"n_vars": parted.n_vars, "ranks": ranks.size, **figures}))


def measured(rows: int, cols: int, parts: int, n: int) -> dict[str, Any]:
    """Figures of a grid on n ranks, which are printed, too."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = [str(beside if beside.exists() else "mpiexec"), "-n", str(n)] if n > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        grid_parts(SpinGrid(rows, cols, 1.0, seed=0), folder, parts)
        command = [*launcher, sys.executable, __file__, "worker", folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    per, seconds, processor = 1e9 / found["n_vars"], found["seconds"], found["processor"]
    print(
        f"{found['n_vars']:>10} variables {found['ranks']:>2} ranks  {seconds * 1e3:9.3f} ms per iteration"
        f"  {seconds * per:7.2f} ns per variable  {processor * per:7.2f} ns of processor"
        f"  {found['peak'] / found['n_vars']:6.0f} bytes per variable  sent {found['bytes_sent']:.0f} bytes",
        flush=True,
    )
    return found


def fit(side: int, ranks: list[int]) -> None:
    """Fit processor time per iteration = a variables + b bytes + c ranks log2(ranks), and check it on another run."""

    def terms(found: dict[str, Any]) -> list[float]:
        n = found["ranks"]
        return [found["n_vars"], found["bytes_sent"] * n, n * (1 + np.log2(n))]

    runs = [measured(size, size, 8, n) for size in (side // 2, side) for n in ranks]
    busy = np.array([found["processor"] for found in runs])
    coefficients, _ = nnls(np.array([terms(found) for found in runs]) / busy[:, None], np.ones(len(runs)))
    names = {"ns per variable": 1e9, "ns per byte": 1e9, "us per rank and level": 1e6}
    for value, (name, factor) in zip(coefficients, names.items(), strict=True):
        print(f"{value * factor:9.3f} {name}")
    other = measured(int(1.4 * side), side, 6, 3)
    took, predicted = 1e3 * other["processor"], 1e3 * float(np.dot(terms(other), coefficients))
    print(f"not fitted: {took:.2f} ms of processor, predicted {predicted:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("strong", "weak", "model", "worker"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--sides", type=int, nargs="+", default=[1000], help="of grids, or rows of a rank (weak)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--parts", type=int, default=8, help="parts of the model, for every rank (weak)")
    given = parser.parse_args()
    if given.what == "worker":
        worker(given.folder)
    for side in given.sides if given.what != "worker" else ():
        if given.what == "model":
            fit(side, given.ranks)
        for n in given.ranks if given.what != "model" else ():
            times = n if given.what == "weak" else 1
            measured(side * times, side, min(given.parts, side) * times, n)


if __name__ == "__main__":
    main()
