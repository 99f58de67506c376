"""LS-LP in parts: time per iteration and memory by size and ranks, scaling, and a model of the cost.

    python benches/distributed.py sizes --sides 100 400 1000 2000      # linear in the number of variables?
    python benches/distributed.py strong --side 2000 --ranks 1 2       # one model, more ranks
    python benches/distributed.py weak --side 1000 --ranks 1 2         # a slab of this many rows for every rank
    python benches/distributed.py model --side 600 --ranks 1 2 4 8     # fit and check the model of the cost
    python benches/distributed.py whole --side 4000                    # generate, 200 iterations, labels by parts
    python benches/distributed.py same --models A.uai B.uai --ranks 1 2 4   # labels, value and bound, bit for bit
    python benches/distributed.py kill --times 20                      # kill -9 of a rank, resume: the same answer?

Every run is a separate command under mpiexec. Times are wall-clock seconds of the fastest of several stretches of
iterations, processor time is that of all ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import mapmrf
from mapmrf.datasets import grid
from mapmrf.distributed import join_labels, partition
from mapmrf.distributed.lattices import SpinGrid, grid_parts

STRETCH, STRETCHES = 5, 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sizes", "strong", "weak", "model", "whole", "same", "kill", "worker"))
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--side", type=int, default=1000)
    parser.add_argument("--sides", type=int, nargs="+", default=[100, 400, 1000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    if options.what == "worker":
        worker(options.folder)
    else:
        every = {
            "sizes": sizes,
            "strong": strong,
            "weak": weak,
            "model": model,
            "whole": whole,
            "same": same,
            "kill": kill,
        }
        every[options.what](options)


def worker(folder: str) -> None:
    """Measure on this rank; rank 0 prints."""
    from mapmrf.distributed.evaluation import PartedIncumbent
    from mapmrf.distributed.parts import PartFolder
    from mapmrf.distributed.ranks import find_ranks
    from mapmrf.distributed.run import PartedModel, start_run
    from mapmrf.methods.lslp import LSLP
    from mapmrf.run.method import Start

    ranks = find_ranks()
    parted = PartedModel.read(ranks, PartFolder(folder))
    best = PartedIncumbent(ranks, parted.parts, parted.unary_labels(), parted.slices)
    run = start_run(LSLP(lp_phase=False, starts=1), parted, 0, Start(), best)
    engine = run.parted
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
    start = time.perf_counter()
    for _ in range(200):
        engine.start_sums()
        engine.settle()
    latency = (time.perf_counter() - start) / 200
    mine = {
        "seconds": min(times),
        "processor": busy,
        "bytes_sent": 8 * engine.halo.n_sent,
        "latency": latency,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    found = ranks.allgather(mine)
    if ranks.rank == 0:
        figures = {
            "n_vars": parted.n_vars,
            "ranks": ranks.size,
            "seconds": max(one["seconds"] for one in found),
            "processor": sum(one["processor"] for one in found),
            "bytes_sent": max(one["bytes_sent"] for one in found),
            "latency": max(one["latency"] for one in found),
            "peak": sum(one["peak"] for one in found),
        }
        print(json.dumps(figures))


def launch(n: int, *arguments: str) -> str:
    """Run Python on n ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    launcher = [str(beside if beside.exists() else "mpiexec"), "-n", str(n)] if n > 1 else []
    done = subprocess.run([*launcher, sys.executable, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def measured(rows: int, cols: int, parts: int, n: int) -> dict[str, Any]:
    """Figures of a grid on n ranks."""
    with tempfile.TemporaryDirectory() as folder:
        grid_parts(SpinGrid(rows, cols, 1.0, seed=0), folder, parts)
        found: dict[str, Any] = json.loads(launch(n, __file__, "worker", folder).splitlines()[-1])
    return found


def show(found: dict[str, Any]) -> None:
    n = found["n_vars"]
    print(
        f"{n:>10} variables {found['ranks']:>2} ranks  {found['seconds'] * 1e3:9.3f} ms per iteration"
        f"  {found['seconds'] / n * 1e9:7.2f} ns per variable  {found['processor'] / n * 1e9:7.2f} ns of processor"
        f"  {found['peak'] / n:6.0f} bytes per variable  sent {found['bytes_sent']} bytes"
        f"  sum {found['latency'] * 1e6:.0f} us",
        flush=True,
    )


def sizes(options: argparse.Namespace) -> None:
    for side in options.sides:
        show(measured(side, side, min(options.parts, side), options.ranks[0]))


def strong(options: argparse.Namespace) -> None:
    for n in options.ranks:
        show(measured(options.side, options.side, options.parts, n))


def weak(options: argparse.Namespace) -> None:
    for n in options.ranks:
        show(measured(options.side * n, options.side, options.parts * n, n))


def model(options: argparse.Namespace) -> None:
    """Fit processor time per iteration = a variables + b bytes + c ranks log2(ranks), and check it on another run."""
    cores = len(os.sched_getaffinity(0))
    runs = [measured(side, side, 8, n) for side in (options.side // 2, options.side) for n in options.ranks]
    for found in runs:
        show(found)

    def terms(found: dict[str, Any]) -> list[float]:
        n = found["ranks"]
        return [found["n_vars"], found["bytes_sent"] * n, n * (1 + np.log2(n))]

    matrix = np.array([terms(found) for found in runs])
    busy = np.array([found["processor"] for found in runs])
    scale = 1 / busy
    coefficients, _ = nnls(matrix * scale[:, None], busy * scale)
    names = ("ns per variable", "ns per byte", "us per rank and level")
    for value, name, factor in zip(coefficients, names, (1e9, 1e9, 1e6), strict=True):
        print(f"{value * factor:9.3f} {name}")
    other = measured(int(1.4 * options.side), options.side, 6, 3)
    predicted = float(np.dot(terms(other), coefficients))
    show(other)
    busy_ms, predicted_ms = other["processor"] * 1e3, predicted * 1e3
    print(f"not fitted: {busy_ms:.2f} ms of processor, predicted {predicted_ms:.2f} ({cores} cores)")


def whole(options: argparse.Namespace) -> None:
    """A grid from nothing to labels by parts: seconds and memory of every step."""
    folder = Path(tempfile.mkdtemp())
    try:
        side, parts, n = options.side, options.parts, options.ranks[0]
        program = ("-m", "mapmrf")
        steps = {
            "generate": (1, *program, "generate", "grid", side, side, "--parts", parts, "-o", folder / "parts"),
            "solve": (
                n, *program, "solve", folder / "parts", "--set", f"max_iterations={options.iterations}", "-q",
                "-o", folder / "labels",
            ),
        }  # fmt: skip
        for name, (ranks, *arguments) in steps.items():
            start = time.perf_counter()
            launch(int(ranks), *map(str, arguments))
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 * int(ranks)
            print(f"{name:<9} {time.perf_counter() - start:7.1f} s  at most {peak / 1e9:.2f} GB", flush=True)
        size = sum(path.stat().st_size for path in folder.rglob("*.mrf"))
        print(f"files     {size / 1e9:.2f} GB")
    finally:
        shutil.rmtree(folder)


SOLVE = ("-m", "mapmrf", "solve")


def solved(n: int, folder: Path, out: Path, *more: str) -> tuple[str, float, float]:
    """A digest of the labels, the value and the bound of a run on n ranks."""
    text = launch(n, *SOLVE, str(folder), "--json", "-o", str(out), *more)
    found = json.loads(text.splitlines()[-1])
    return hashlib.sha256(join_labels(out).tobytes()).hexdigest()[:12], found["value"], found["bound"]


def same(options: argparse.Namespace) -> None:
    """Return whether the answer is the same on every number of ranks."""
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            evidence = Path(f"{name}.evid")
            graph = mapmrf.read(name, evidence=str(evidence) if evidence.exists() else None)
            partition(graph, place / "parts", options.parts)
            limit = ("--set", f"max_iterations={options.iterations}")
            found = [solved(n, place / "parts", place / str(n), *limit) for n in options.ranks]
        print(
            f"{Path(name).name:<24} {found[0]}  {'same' if len(set(found)) == 1 else found} on {options.ranks}",
            flush=True,
        )


def kill(options: argparse.Namespace) -> None:
    """Kill a random rank at a random time, resume, compare; so many times."""
    rng, good = np.random.default_rng(0), 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        partition(grid(60, 60, 3.0, seed=1), place / "parts", 4)
        limit = ("--set", f"max_iterations={options.iterations}", "--set", "lp_iterations=60", "--set", "starts=2")
        expected = solved(1, place / "parts", place / "whole", *limit)
        for turn in range(options.times):
            saving = ("--checkpoint", str(place / f"state-{turn}"), "--every", "0.05")
            killed = _killed(place, limit + saving, int(rng.integers(2)), float(rng.uniform(0.0, 1.0)))
            found = solved(2, place / "parts", place / "resumed", *limit, *saving, "--resume")
            good += found == expected
            print(f"{turn + 1:>3}: {killed}, {'same answer' if found == expected else found}", flush=True)
    print(f"{good} of {options.times}")


def _killed(place: Path, arguments: tuple[str, ...], rank: int, wait: float) -> str:
    """Start a run on two ranks and kill one of them, some time after the first checkpoint."""
    state = Path(arguments[arguments.index("--checkpoint") + 1])
    beside = Path(sys.executable).parent / "mpiexec"
    command = [str(beside if beside.exists() else "mpiexec"), "-n", "2", sys.executable, *SOLVE, str(place / "parts")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([*command, *arguments, "-q"], text=True, **pipes)
    while process.poll() is None and not (state / "checkpoint.json").exists():
        time.sleep(0.01)
    time.sleep(wait)
    marked = f"PMI_RANK={rank}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                mine = str(place).encode() in (entry / "cmdline").read_bytes()
                if mine and marked in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
    start = time.perf_counter()
    process.communicate()
    return f"rank {rank} killed, all ended after {time.perf_counter() - start:.1f} s with code {process.returncode}"


if __name__ == "__main__":
    main()
