"""Time to proof of `wcsp`, `branch` and `toulbar2` on the folders `families` and `other`, in Markdown.

Seconds are those of the processor, of this process and of toulbar2's, so that other work on the machine matters little.
What toulbar2 takes to start its process and to solve a model of two variables is subtracted from its times. A hybrid
and a depth-first run are made, and the faster one counts. `-` is no proof within the limit.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import resource
from pathlib import Path
from typing import Any

import mapmrf
from catalogue import data_folder
from mapmrf.datasets import grid, random_graph

LEAST = 0.005
"""Seconds below which times are not told apart."""


def processor_seconds() -> float:
    """Processor time of this process and of those that it has waited for."""
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime


def seconds_to_proof(graph: mapmrf.FactorGraph, method: str, limit: float, **options: Any) -> float:
    """Seconds until the optimum was proven, inf if it was not."""
    before = processor_seconds()
    result = mapmrf.solve(graph, method, time_limit=limit, **options)
    proven = result.status.closes_gap or result.status is mapmrf.Status.INFEASIBLE
    return processor_seconds() - before if proven else math.inf


def toulbar2(graph: mapmrf.FactorGraph, limit: float, start: float) -> float:
    """Seconds of toulbar2 without its start, the better of two searches."""
    runs = (seconds_to_proof(graph, "toulbar2", limit, search=search) for search in ("hbfs", "dfs"))
    return max(LEAST, min(runs) - start)


def models(folder: Path, pattern: str) -> list[tuple[str, mapmrf.FactorGraph]]:
    """Names and models, with the evidence beside them."""
    found = []
    for path in [*sorted((folder / "families").iterdir()), *sorted((folder / "other").iterdir())]:
        if path.suffix != ".evid" and re.search(pattern, path.name):
            evidence = path.with_suffix(".evid")
            found.append((path.name, mapmrf.read(path, evidence=evidence if evidence.exists() else None)))
    return found


def shown(seconds: float) -> str:
    """A time in a table."""
    return f"{seconds:.3f}" if seconds < math.inf else "-"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--models", default="", help="regular expression for file names")
    options.add_argument("--time-limit", type=float, default=60.0)
    args = options.parse_args()
    logging.disable()
    for graph in (random_graph(60, 140, arity=(2, 4), hard=0.1, seed=1), grid(16, 16, 2.0, seed=1)):
        for method in ("wcsp", "branch"):
            mapmrf.solve(graph, method, time_limit=60)  # kernels are loaded, or compiled
    start = min(seconds_to_proof(grid(1, 2), "toulbar2", 60) for _ in range(3))
    print("| model | `wcsp` | `branch` | toulbar2 | ratio |\n|---|---|---|---|---|")
    ratios = {}
    for name, graph in models(data_folder(args.data), args.models):
        ours = seconds_to_proof(graph, "wcsp", args.time_limit)
        branch = seconds_to_proof(graph, "branch", args.time_limit)
        theirs = toulbar2(graph, args.time_limit, start)
        if min(ours, theirs) < math.inf:
            ratios[name] = max(LEAST, ours) / theirs
        ratio = f"{ratios[name]:.2f}" if name in ratios else ""
        print(f"| {name} | {shown(ours)} | {shown(branch)} | {shown(theirs)} | {ratio} |", flush=True)
    both = [ratio for ratio in ratios.values() if 0 < ratio < math.inf]
    mean = math.exp(sum(map(math.log, both)) / max(1, len(both)))
    print(
        f"\nGeometric mean of the ratios where both have a proof: {mean:.2f}; the worst: {max(both, default=1.0):.2f}."
    )
    alone = sum(ratio == 0 for ratio in ratios.values()), sum(ratio == math.inf for ratio in ratios.values())
    print(f"Proven by wcsp alone: {alone[0]}; by toulbar2 alone: {alone[1]}. Start of toulbar2: {start:.3f} s.")


if __name__ == "__main__":
    main()
