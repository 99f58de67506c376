"""What each phase of `auto` contributes, compared with other searches at equal wall time, as a Markdown table.

    python benches/ablation.py --seconds 10
    python benches/ablation.py --seconds 10 --rows "ICM, restarted" auto --models grids/grid80x80.f10.uai.gz

A cell is the best value after the given seconds, in percent of the best known: 100 + 100 (value - best) / |best|. Rows
that use third-party packages are omitted if those are not installed. Kernels are compiled beforehand. One seed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import mapmrf
from apart import solve_apart
from catalogue import data_folder, models
from mapmrf.arrays import Ints
from mapmrf.datasets import grid
from mapmrf.methods.auto.search import PoolSearch
from mapmrf.model.problem import Problem

MODELS = (
    "grid40x40.f10", "grid40x40.f15.wrap", "grid80x80.f2", "grid80x80.f10.wrap", "grid80x80.f15", "didNotconverge1",
    "didNotconverge5",
)  # fmt: skip
FOREVER = 10**9
BLOCK_WIDTH = 10.0


@dataclass(frozen=True)
class Task:
    """A model to be solved until a deadline."""

    graph: mapmrf.FactorGraph
    seconds: float

    def solve(self, method: str, **options: object) -> float:
        """The value that a method of this package reaches."""
        return mapmrf.solve(self.graph, method, time_limit=self.seconds, **options).value  # type: ignore[arg-type]


def starts(task: Task, end: float) -> Iterator[Ints]:
    """Labellings of one LS-LP start after another."""
    for seed in itertools.count():
        left = end - time.perf_counter()
        if left <= 0:
            return
        yield mapmrf.solve(task.graph, "lslp", starts=1, lp_phase=False, seed=seed, time_limit=left).labels


def restarted(task: Task, polish: str | None = None, **options: object) -> float:
    """LS-LP from one start after another, each improved by a move."""
    end = time.perf_counter() + task.seconds
    best = -math.inf
    for labels in starts(task, end):
        best = max(best, task.graph.value(labels))
        left = end - time.perf_counter()
        if polish is not None and left > 0:
            best = max(best, mapmrf.solve(task.graph, polish, initial=labels, time_limit=left, **options).value)  # type: ignore[arg-type]
    return best


def crossed(task: Task, restarts: bool) -> float:
    """The same with exact blocks, crossed into a pool; and restarts of regions after five starts."""
    end = time.perf_counter() + task.seconds
    search = PoolSearch(Problem.compile(task.graph), 0, 13.0, 3)
    for number, labels in enumerate(starts(task, end)):
        for _ in search.add(labels):
            if time.perf_counter() > end:
                return search.value if search.values else task.graph.value(labels)
        if restarts and number == 4:
            break
    while restarts and time.perf_counter() < end:
        search.restart_regions()
    return search.value


def peer(name: str) -> Callable[[Task], float]:
    """A third-party package."""
    return lambda task: solve_apart(name, task.graph, task.seconds, 0).value


ROWS: dict[str, Callable[[Task], float]] = {
    "LS-LP, one start": lambda task: task.solve("lslp", starts=1, lp_phase=False),
    "LS-LP, restarted": restarted,
    "... + ICM": lambda task: restarted(task, "icm"),
    "... + flips": lambda task: restarted(task, "flips"),
    "... + chains": lambda task: restarted(task, "chains"),
    "... + exact blocks": lambda task: restarted(task, "blocks", width=BLOCK_WIDTH),
    "... + exact blocks + crossover": lambda task: crossed(task, restarts=False),
    "... + restarts of regions": lambda task: crossed(task, restarts=True),
    "auto without proofs (+ kicks)": lambda task: task.solve("auto", prove=False, max_iterations=FOREVER),
    "auto (+ proofs)": lambda task: task.solve("auto", max_iterations=FOREVER),
    "ICM, restarted": lambda task: task.solve("icm", starts=FOREVER, max_iterations=FOREVER),
    "lazy flipper, depth 4": lambda task: task.solve("flips", depth=4),
    "kicks and chains": lambda task: task.solve("restarts", max_iterations=FOREVER, patience=FOREVER),
    "crossover of random local optima": lambda task: task.solve("fusion", max_iterations=FOREVER),
    "annealing": lambda task: annealed(task),
    "dwave-samplers, annealing": peer("dwave"),
    "toulbar2": peer("toulbar2"),
    "OR-tools CP-SAT": peer("cpsat"),
    "branch (DAOOPT's algorithm)": lambda task: task.solve("branch"),
}


def annealed(task: Task) -> float:
    """Repeated annealing with twice as many sweeps each time, until the deadline."""
    end = time.perf_counter() + task.seconds
    best, sweeps = -math.inf, 500
    while time.perf_counter() < end:
        sweeps *= 2
        left = end - time.perf_counter()
        once = {"max_iterations": sweeps, "reads": 1, "seed": sweeps, "time_limit": left}
        best = max(best, mapmrf.solve(task.graph, "annealing", **once).value)  # type: ignore[arg-type]
    return best


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--seconds", type=float, default=10.0)
    options.add_argument("--models", nargs="+", default=MODELS, help="names from the sets grids and protein")
    options.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    args = options.parse_args()
    folder = data_folder(args.data)
    known = {model.name: model for which in ("grids", "protein") for model in models(folder, which)}
    chosen = [known[name] for name in args.models]
    print(f"| {args.seconds:g} s | " + " | ".join(args.models) + " |\n|---|" + "---:|" * len(chosen), flush=True)
    for row in args.rows:
        cell(ROWS[row], Task(grid(50, 50, coupling=4.0, seed=0), 2.0), None)  # compile
        cells = [cell(ROWS[row], Task(mapmrf.read(model.path), args.seconds), model.best) for model in chosen]
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)


def cell(run: Callable[[Task], float], task: Task, best: float | None) -> str:
    """Solve a model and format the value reached."""
    try:
        value = run(task)
    except mapmrf.UnsupportedModel:
        return "-"
    return f"{100 + 100 * (value - best) / abs(best):.3f}" if best and math.isfinite(value) else "none"


if __name__ == "__main__":
    main()
