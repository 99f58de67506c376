"""Constraints in `branch`: counted during the search, or as tables with auxiliary variables; a Markdown table.

    python benches/branch_constraints.py
    python benches/branch_constraints.py --seconds 20 --only label

The models are those of `benches/constraints.py`, smaller selections, and an image of five labels with a cost each.
Both forms get the same processor time, and as much of it as it takes to stop after the current step. Values and bounds
are log potentials.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import mapmrf
from mapmrf import FactorGraph, constraints
from mapmrf.constraints.as_tables import rewrite

sys.path.insert(0, str(Path(__file__).parent))
from constraints import assignment, budget, segmentation, selection, sudoku


def labelled(side: int, n_labels: int, price: float, seed: int) -> FactorGraph:
    """A noisy picture of four areas, in which every label that is used has a price."""
    random = np.random.default_rng(seed)
    picture = np.zeros((side, side))
    picture[side // 3 :, : side // 2] = 2
    picture[:, side // 2 :] = 4
    picture[side // 2 :, side // 2 :] = 1
    noisy = (picture + random.normal(scale=1.2, size=picture.shape)).ravel()
    place = np.arange(side * side).reshape(side, side)
    edges = np.concatenate([np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], 1),
                            np.stack([place[:-1].ravel(), place[1:].ravel()], 1)])  # fmt: skip
    graph = FactorGraph.from_pairwise(-((noisy[:, None] - np.arange(n_labels)) ** 2), edges, np.eye(n_labels))
    return graph.with_constraints([constraints.label_cost(k, price) for k in range(n_labels)])


FAMILIES: dict[str, Callable[[], FactorGraph]] = {
    "sudoku, 17 clues": lambda: sudoku(0),
    "assignment of 20": lambda: assignment(20, 0),
    "selection: at most 8 of 40, 120 pairs": lambda: selection(40, 120, 8, 0),
    "selection: at most 12 of 300, 2000 pairs": lambda: selection(300, 2000, 12, 0),
    "budget: 60 items": lambda: budget(60, 0),
    "segmentation: 10 x 10 pixels, size given": lambda: segmentation(10, 0),
    "segmentation: 16 x 16 pixels, size given": lambda: segmentation(16, 0),
    "label costs: 8 x 8 pixels": lambda: labelled(8, 5, 4.0, 0),
    "label costs: 12 x 12 pixels": lambda: labelled(12, 5, 4.0, 0),
}


def outcome(graph: FactorGraph, seconds: float) -> str:
    """Value, bound or proof, and processor time."""
    began = time.process_time()
    result = mapmrf.solve(
        graph, "branch", callback=lambda *_: time.process_time() - began > seconds, time_limit=20 * seconds
    )
    spent = time.process_time() - began
    shown = "proven" if result.status.closes_gap else f"bound {result.bound:.3f}" if result.bound is not None else ""
    return f"{result.value:.3f}, {shown}, {spent:.2f} s"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=5.0, help="processor time for each model and form")
    options.add_argument("--only", default="", help="only models whose names contain this")
    args = options.parse_args()
    small = selection(12, 20, 3, 0)
    for graph in (small, rewrite(small).graph):  # compile
        for i_bound in (0, 2):
            mapmrf.solve(graph, "branch", i_bound=i_bound)
    print("| model | counted | as tables |")
    print("|---|---|---|")
    for name, make in FAMILIES.items():
        if args.only in name:
            graph = make()
            cells = [outcome(form, args.seconds) for form in (graph, rewrite(graph).graph)]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
