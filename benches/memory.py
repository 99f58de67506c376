"""Memory of every method on grids with a weight per pair: bytes per variable, as a Markdown table.

    python benches/memory.py                              # 10^5 and 10^6 variables, some minutes
    python benches/memory.py --sizes 1e7 --methods trws
    python benches/memory.py --sizes 1e4 --methods icm trws --seconds 1
    python benches/memory.py --one trws 1000000 16        # one, in this process; `process` is its peak in MB

Every figure is from a fresh process. After imports and a tiny solve, which loads the kernels, the resident memory is
noted, the model is built, the array that it was built from dropped, and the model solved with few iterations.
*model* is the memory of the model's arrays, every other column the peak of resident memory during the solve, less what
was noted, divided by the number of variables; the model is part of it. *estimated* is by `images.estimate_memory`.
A dash means that the method does not support this model, or that its first step was not finished in time. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import mapmrf
from mapmrf import images
from mapmrf.errors import MapMRFError
from mapmrf.images.memory import RATES

ITERATIONS = 3
NOT_FOR_GRIDS = ("exhaustive", "lp", "cuts", "branch", "toulbar2", "mplp_c", "l2box", "psdd")
"""Methods that are made for smaller models; they are measured if they are asked for."""


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def forget_peak() -> None:
    """Let the system count the peak from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Most bytes since the peak was forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def weighted_grid(n: int, n_labels: int) -> mapmrf.FactorGraph:
    """A square Potts model of about n variables, contrast-sensitive."""
    side = max(2, round(math.sqrt(n)))
    random = np.random.default_rng(0)
    return images.grid_model(random.random((side, side, n_labels)), guide=random.random((side, side)), weight=0.4)


def measure(method: str, n: int, n_labels: int, given: argparse.Namespace) -> dict[str, float]:
    """Bytes per variable of the model and of a solve on it, in this process."""
    limits = {"time_limit": given.seconds, "threads": given.threads, "max_iterations": ITERATIONS}
    mapmrf.solve(weighted_grid(400, n_labels), method, **{**limits, "time_limit": None})
    before = resident()
    graph = weighted_grid(n, n_labels)
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.theta_t, graph.weight)
    forget_peak()
    result = mapmrf.solve(graph, method, **limits)
    most = peak()
    found = {"model": sum(array.nbytes for array in arrays if array is not None), "solve": most - before}
    per_variable = {name: size / graph.n_vars for name, size in found.items()}
    return {**per_variable, "process": most / 1e6, "iterations": result.iterations, "steps": len(result.trace)}


def measured_apart(method: str, n: int, n_labels: int, given: argparse.Namespace) -> dict[str, float] | None:
    """The same in a fresh process."""
    command = [sys.executable, __file__, "--one", method, str(n), str(n_labels)]
    command += ["--seconds", str(given.seconds), "--threads", str(given.threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=given.timeout)
    except subprocess.TimeoutExpired:
        return None
    found: dict[str, float] | None = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
    return found if found is None or found["iterations"] > 0 or found["steps"] > 1 else None


def cell(found: dict[str, float] | None, what: str) -> str:
    return "–" if found is None else f"{found[what]:.0f}"  # noqa: RUF001


def estimated(method: str, n: int, n_labels: int) -> str:
    side = max(2, round(math.sqrt(n)))
    if method not in RATES:
        return ""
    estimate = images.estimate_memory((side, side), n_labels, method, weighted=True, memory_limit=math.inf)
    return f"{estimate.solve / side**2:.0f}"


def table(methods: Sequence[str], given: argparse.Namespace) -> None:
    """Print the table, line by line."""
    sizes = [int(float(size)) for size in given.sizes]
    heads = [f"{labels} labels, 10^{math.log10(n):.3g}" for labels in given.labels for n in sizes]
    ends = [f"{labels} labels, estimated" for labels in given.labels]
    print(f"| bytes per variable | {' | '.join([*heads, *ends])} |\n|---|{'---|' * len([*heads, *ends])}", flush=True)
    model: dict[int, str] = {}
    for method in methods:
        cells = []
        for labels in given.labels:
            for n in sizes:
                found = measured_apart(method, n, labels, given)
                cells.append(cell(found, "solve"))
                if found is not None:
                    model[labels] = cell(found, "model")
        ends = [estimated(method, sizes[-1], labels) for labels in given.labels]
        print(f"| `{method}` | {' | '.join([*cells, *ends])} |", flush=True)
    print(f"\nThe model alone: {', '.join(f'{size} with {labels} labels' for labels, size in model.items())}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["1e5", "1e6"], help="numbers of variables")
    parser.add_argument("--labels", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--methods", nargs="+", help="by default, all that are suited to such models")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of a solve")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which a process is killed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "N", "LABELS"), help="measure one case, in this process")
    given = parser.parse_args()
    if given.one:
        method, n, labels = given.one
        try:
            print(json.dumps(measure(method, int(n), int(labels), given)))
        except MapMRFError as error:
            sys.exit(str(error))
        return
    table(given.methods or [name for name in mapmrf.methods() if name not in NOT_FOR_GRIDS], given)


if __name__ == "__main__":
    main()
