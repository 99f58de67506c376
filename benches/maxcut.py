"""Dense binary models: values and bounds after some seconds of processor time, as a Markdown table.

    python benches/maxcut.py                                       # graphs of the benchmark folder, and random ones
    python benches/maxcut.py --methods auto --models be120.3.5 random2000 --seconds 30
    python benches/maxcut.py --peer PYTHON                         # with the tabu search of dwave-samplers, in PYTHON

Graphs are expected in maxcut/ below MAPMRF_DATA, or below ../shared/data next to the repository. Random graphs have
unit weights: random800 and random2000 have 800 and 2000 vertices and 19176 and 20000 edges, sizes of the G-set.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

import mapmrf

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
RANDOM = {"random800": (800, 19176), "random2000": (2000, 20000)}
HEAD = (
    "| graph | method | value after 1 s | value | bound | CPU s | status | reference |\n"
    "|---|---|---:|---:|---:|---:|---|---:|"
)
PEER = """
import sys, time
import dimod
import numpy as np
from dwave.samplers import TabuSampler
rows = np.loadtxt(sys.argv[1], skiprows=1)
i, j, w = rows[:, 0].astype(int) - 1, rows[:, 1].astype(int) - 1, rows[:, 2]
bqm = dimod.BQM.from_numpy_vectors(np.zeros(max(i.max(), j.max()) + 1), (i, j, w / 2), -w.sum() / 2, "SPIN")
began, early, best, state, seed = time.process_time(), None, -np.inf, None, 0
while (spent := time.process_time() - began) < float(sys.argv[2]):
    early = best if early is None and spent > 1 else early
    start = {} if state is None else {"initial_states": state}
    found = TabuSampler().sample(bqm, num_reads=1, timeout=500, seed=seed, **start)
    seed += 1
    if -found.first.energy > best:
        best, state = -found.first.energy, found.first.sample
print(best if early is None else early, best, time.process_time() - began)
"""


def main() -> None:
    arguments = _arguments()
    reference = _reference()
    for method in arguments.methods:
        mapmrf.solve(_random(60, 600), method, max_iterations=30)  # compile
    print(HEAD, flush=True)
    for name in arguments.models or [*sorted(reference), *RANDOM]:
        graph = _random(*RANDOM[name]) if name in RANDOM else mapmrf.read(FOLDER / "maxcut" / f"{name}.mc.gz")
        for method in arguments.methods:
            _row(name, graph, method, arguments.seconds, reference.get(name, ""))
        if arguments.peer:
            _peer_row(name, graph, arguments, reference.get(name, ""))


def _row(name: str, graph: mapmrf.FactorGraph, method: str, seconds: float, reference: str) -> None:
    began, early = time.process_time(), []

    def watch(point: mapmrf.run.trace.TracePoint, _: np.ndarray) -> bool:
        spent = time.process_time() - began
        if spent <= 1:
            early[:] = [point.value]
        return spent > seconds

    result = mapmrf.solve(graph, method, callback=watch, time_limit=20 * seconds)
    status = "limit" if result.status == "interrupted" else result.status.value
    bound = "" if result.bound is None else f"{result.bound:.0f}"
    first = f"{early[0]:.0f}" if early else ""
    spent = f"{time.process_time() - began:.1f}"
    print(
        "|", " | ".join([name, method, first, f"{result.value:.0f}", bound, spent, status, reference]), "|", flush=True
    )


def _peer_row(name: str, graph: mapmrf.FactorGraph, arguments: argparse.Namespace, reference: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.mc")
        mapmrf.write(graph, path)
        command = [arguments.peer, "-c", PEER, str(path), str(arguments.seconds)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, value, spent = map(float, done.stdout.split())
    figures = [name, "dwave tabu", f"{first:.0f}", f"{value:.0f}", "", f"{spent:.1f}", "limit", reference]
    print("|", " | ".join(figures), "|", flush=True)


def _random(n: int, m: int) -> mapmrf.FactorGraph:
    """A random graph of unit weights."""
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    chosen = np.random.default_rng(0).choice(len(pairs), m, replace=False)
    return mapmrf.FactorGraph.from_pairwise(np.zeros((n, 2)), pairs[chosen], [[0.0, 1.0], [1.0, 0.0]])


def _reference() -> dict[str, str]:
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["file"].startswith("maxcut/")]
    return {Path(row["file"]).name.removesuffix(".mc.gz"): row["logpot"] for row in rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["auto", "tabu", "sdp", "cuts"])
    parser.add_argument("--models", nargs="+", help="graphs by name; by default all")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time for every run")
    parser.add_argument("--peer", help="a Python interpreter that has dwave-samplers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
