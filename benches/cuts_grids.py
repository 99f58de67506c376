"""Branch and cut on benchmark models: value, bound, status, seconds and nodes, by solver, as a Markdown table.

    python benches/cuts_grids.py --sizes 20 40 80              # Grids by size
    python benches/cuts_grids.py --solvers highs scip --models other/pedigree20.uai.gz

Folders are expected below MAPMRF_DATA, or ../shared/data next to the repository.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from pathlib import Path

import mapmrf
from mapmrf.datasets import grid

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[2] / "shared" / "data")
HEAD = (
    "| model | solver | value | bound | status | seconds | CPU s | nodes | rounds | cuts | phase | reference |\n"
    "|---|---|---:|---:|---|---:|---:|---:|---:|---:|---|---:|"
)


def main() -> None:
    arguments = _arguments()
    reference = _reference()
    names = arguments.models or [name for side in arguments.sizes for name in _grids(side)]
    mapmrf.solve(grid(12, 12, coupling=3.0, seed=0), "cuts")  # compile
    print(HEAD, flush=True)
    for name in names:
        graph = mapmrf.read(FOLDER / name)
        for solver in arguments.solvers:
            _row(name, graph, solver, arguments, reference.get(name, ""))


def _row(name: str, graph: mapmrf.FactorGraph, solver: str, arguments: argparse.Namespace, reference: str) -> None:
    began, cpu = time.perf_counter(), time.process_time()
    options = {} if arguments.rounds is None else {"rounds": arguments.rounds}
    result = mapmrf.solve(graph, "cuts", solver=solver, time_limit=arguments.time_limit, **options)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    figures = [
        name, solver, f"{result.value:.4f}", f"{result.bound:.4f}", result.status.value, f"{seconds:.2f}", f"{cpu:.2f}",
        result.iterations, f"{result.details.get('rounds', 0):.0f}", f"{result.details.get('cuts', 0):.0f}",
        result.trace[-1].phase, reference,
    ]  # fmt: skip
    print("|", " | ".join(map(str, figures)), "|", flush=True)


def _grids(side: int) -> list[str]:
    """The Grids of one size, by name."""
    return [f"grids/{path.name}" for path in sorted((FOLDER / "grids").glob(f"grid{side}x{side}.*"))]


def _reference() -> dict[str, str]:
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        return {row["file"]: f"{row['logpot']} ({row['status']})" for row in csv.DictReader(file) if row["logpot"]}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20, 40])
    parser.add_argument("--solvers", nargs="+", default=["auto"], choices=["auto", "highs", "scip"])
    parser.add_argument("--models", nargs="+", help="files below the folder of models, instead of the Grids")
    parser.add_argument("--rounds", type=int, help="rounds of odd-cycle inequalities; 0 leaves all cuts to the solver")
    parser.add_argument("--time-limit", type=float, default=300.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
