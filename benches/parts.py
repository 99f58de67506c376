"""Is `auto` ever behind one of the methods that it is made of? Values after 0.3, 1 and 5 seconds, row by row.

    python benches/parts.py                                # generated families
    python benches/parts.py --data DATA --only dbn triples

A row is a model. A figure is how much better (+) or worse (-) the value of `auto` is than the best of the other methods
alone after the same time, in percent of that best value, with the name of the method. Every method runs once, for as
long as the last mark; its value at a mark is the best in its trace by then. Kernels are compiled beforehand. At the end
come the rows in which `auto` is behind by more than 0.1 %, and the values of all methods at the last mark in percent of
the best, for choosing a single method.
"""

from __future__ import annotations

import argparse
import math
import warnings
from pathlib import Path

import mapmrf
from lslp_everywhere import models, percent

PARTS = ("icm", "bp", "trws", "lslp", "chains", "tabu", "expansion")
BEHIND = 0.1
"""Percent by which `auto` may be behind."""
LATE = 0.02
"""Seconds that a step may end after a mark, so that both sides have what they were about to report."""


def values_of(graph: mapmrf.FactorGraph, method: str, marks: list[float]) -> list[float] | None:
    """The best value at every mark; None if the method does not take the model."""
    try:
        mapmrf.solve(graph, method, max_iterations=150 if method == "auto" else 2)  # compiles
        result = mapmrf.solve(graph, method, time_limit=marks[-1])
    except mapmrf.UnsupportedModel:
        return None
    early = [max((p.value for p in result.trace if p.time <= t + LATE), default=-math.inf) for t in marks[:-1]]
    return [*early, result.value]


def ahead(value: float, other: float) -> float:
    """How much better a value is than another one, in percent of the latter."""
    if value == other:
        return 0.0
    if not math.isfinite(other):
        return math.inf
    return 100.0 * (value - other) / max(abs(other), 1e-9)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path)
    options.add_argument("--only", nargs="*", default=[])
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--marks", nargs="+", type=float, default=[0.3, 1.0, 5.0])
    options.add_argument("--parts", nargs="+", default=PARTS)
    given = options.parse_args()
    behind, table = [], []
    print(f"| model | {' | '.join(f'{mark:g} s' for mark in given.marks)} |\n|---|{'--:|' * len(given.marks)}")
    for name, build in models(given.data, given.only, given.seeds):
        graph = build()
        found = {method: values_of(graph, method, given.marks) for method in ("auto", *given.parts)}
        auto = found.pop("auto")
        others = {method: values for method, values in found.items() if values is not None}
        cells = []
        assert auto is not None
        for k, mark in enumerate(given.marks):
            best = max(others, key=lambda method: others[method][k])
            by = ahead(auto[k], others[best][k])
            cells.append(f"{by:+.2f} {best}")
            if by < -BEHIND:
                behind.append(f"{name} after {mark:g} s: {by:.2f} % behind {best}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        top = max(auto[-1], *(values[-1] for values in others.values()))
        shown = [percent(values[-1], top) if values else "" for values in (auto, *(found[m] for m in given.parts))]
        table.append(f"| {name} | {' | '.join(shown)} |")
    print("\nbehind by more than 0.1 %:", *(behind or ["none"]), sep="\n- ")
    print(
        f"\n| after {given.marks[-1]:g} s | auto | {' | '.join(given.parts)} |\n|---|{'--:|' * (1 + len(given.parts))}"
    )
    print("\n".join(table))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
