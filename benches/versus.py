"""`auto` compared with other packages on PyPI after 1, 10 and 60 seconds of wall time, as Markdown tables.

    python benches/versus.py
    python benches/versus.py --sets grids other --marks 1 10

A peer is not run where `auto` has proven its labelling optimal before a mark: it can then be equal, but not ahead.
Imports, translation of the model and compilation are not counted. One seed, one process, one run at a time.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass

import mapmrf
from apart import solve_apart
from auto_quality import Target, targets
from catalogue import data_folder
from mapmrf.bench import peers
from mapmrf.datasets import grid, sets

FOREVER = 10**9
EQUAL = 1e-9
"""Relative difference of values that counts as none."""


@dataclass(frozen=True)
class Run:
    """A run and its improvements over time."""

    result: mapmrf.Result

    def value(self, seconds: float) -> float:
        """The best value after the given seconds."""
        return max((point.value for point in self.result.trace if point.time <= seconds), default=-math.inf)

    @property
    def proven_at(self) -> float:
        """When the labelling was proven optimal, if ever."""
        return self.result.trace[-1].time if self.result.status is mapmrf.Status.OPTIMAL else math.inf


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--sets", nargs="+", default=[*sets(), "other"], choices=[*sets(), "other"])
    options.add_argument("--only", default="", help="part of the names of the models")
    options.add_argument("--marks", nargs="+", type=float, default=[1.0, 10.0, 60.0], help="seconds")
    options.add_argument("--peers", nargs="+", default=peers.installed(), choices=peers.installed())
    args = options.parse_args()
    folder = data_folder(args.data)
    mapmrf.solve(grid(50, 50, coupling=4.0, seed=0), max_iterations=150)  # compile
    behind: dict[tuple[str, float], list[str]] = {(name, mark): [] for name in args.peers for mark in args.marks}
    n_models = 0
    for which in args.sets:
        for target in targets(folder, which):
            if args.only in target.name:
                n_models += 1
                compare(target, args.peers, args.marks, behind)
    print(f"\n| peer | {' | '.join(f'ahead or equal after {mark:g} s' for mark in args.marks)} | behind on |")
    print("|---|" + "---:|" * len(args.marks) + "---|")
    for name in args.peers:
        lost = [behind[name, mark] for mark in args.marks]
        shares = " | ".join(f"{n_models - len(models)} of {n_models}" for models in lost)
        said = "; ".join(f"{mark:g} s: {', '.join(m)}" for mark, m in zip(args.marks, lost, strict=True) if m)
        print(f"| {name} | {shares} | {said} |")


def compare(
    target: Target, names: Sequence[str], marks: Sequence[float], behind: dict[tuple[str, float], list[str]]
) -> None:
    """Run `auto` and the peers on a model, and print their values over time."""
    graph = mapmrf.read(target.path)
    ours = Run(mapmrf.solve(graph, "auto", time_limit=max(marks), max_iterations=FOREVER))
    open_marks = [mark for mark in marks if mark < ours.proven_at]
    proof = f"proven after {ours.proven_at:.2f} s" if ours.proven_at < math.inf else "not proven"
    print(f"{target.name}: auto {shown(ours, marks)}, {proof}", flush=True)
    for name in names if open_marks else ():
        try:
            theirs = Run(solve_apart(name, graph, max(open_marks), 0))
        except mapmrf.UnsupportedModel:
            continue
        print(f"{target.name}: {name} {shown(theirs, open_marks)}", flush=True)
        for mark in open_marks:
            mine = ours.value(mark)
            if theirs.value(mark) > mine + EQUAL * max(1.0, abs(mine)):
                behind[name, mark].append(target.name)


def shown(run: Run, marks: Sequence[float]) -> str:
    """The values at the marks."""
    return ", ".join(f"{run.value(mark):.4f} ({mark:g} s)" for mark in marks)


if __name__ == "__main__":
    main()
