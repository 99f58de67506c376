"""`auto` compared with other solvers after 1, 10 and 60 seconds of wall time, as Markdown tables.

    python benches/versus.py
    python benches/versus.py --sets grids other --marks 1 10
    python benches/versus.py --sets families maxcut --rivals toulbar2 toulbar2-dfs cpsat highs scip --whole

Rivals are the peers of `mapmrf.bench.peers`, and toulbar2's depth-first search, HiGHS and SCIP alone on the 0/1 program
of the model. With `--whole` every rival runs on every model, and a table compares the times to proof; otherwise a
rival is not run where `auto` has proven its labelling optimal before a mark: it can then be equal, but not ahead.
Imports, translation of the model and compilation are not counted. One seed, one run at a time; HiGHS and SCIP get a
process for every model, because a large program leaves them with much memory.

CP-SAT needs integers: the times after which it has solved the model with rounded potentials are in parentheses.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import mapmrf
from mapmrf.bench import peers
from mapmrf.datasets import grid, sets
from mapmrf.run.repair import REPAIR_SECONDS
from models import FOLDERS, Model, select
from rivals import solve_apart, toulbar2_start

EQUAL = 1e-9
"""Relative difference of values that counts as none."""
ALONE = {"local_search": 0, "lp_iterations": 0, "rounds": 0}
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "toulbar2-dfs": ("toulbar2", {"search": "dfs"}),
    "highs": ("cuts", {"solver": "highs", **ALONE}),
    "scip": ("cuts", {"solver": "scip", **ALONE}),
}
"""Solvers that a method of this package runs: its name and options."""
ALLOWED, ALLOWANCE = 3.0, 0.5
"""A proof is late if it takes longer than so many times the rival's seconds, and this many more."""


@dataclass(frozen=True)
class Run:
    """A run and its improvements over time; `start_up` seconds of a process are taken off."""

    result: mapmrf.Result
    start_up: float = 0.0

    def value(self, seconds: float) -> float:
        end = seconds + self.start_up
        return max((point.value for point in self.result.trace if point.time <= end), default=-math.inf)

    def ended_at(self, *statuses: mapmrf.Status) -> float:
        """When the run came to one of these ends, inf if it did not."""
        trace = self.result.trace if self.result.status in statuses else ()
        return max(0.0, trace[-1].time - self.start_up) if trace else math.inf

    @property
    def proven_at(self) -> float:
        """When the labelling was proven optimal, or the model infeasible, if ever."""
        return self.ended_at(mapmrf.Status.INFEASIBLE, *(one for one in mapmrf.Status if one.closes_gap))

    @property
    def rounded_at(self) -> float:
        """When a peer was done, but without a proof for the potentials as they are, if ever."""
        return self.ended_at(mapmrf.Status.CONVERGED)

    def shown(self, title: str, marks: Sequence[float]) -> str:
        values = ", ".join(f"{self.value(mark):.4f} ({mark:g} s)" for mark in marks)
        proof = f"proven after {self.proven_at:.2f} s" if self.proven_at < math.inf else "not proven"
        proof += f" (rounded: {self.rounded_at:.2f} s)" if self.rounded_at < math.inf else ""
        bound = f"bound {self.result.bound:.4f}, " if self.result.bound is not None else ""
        return f"{title} {values}, {bound}{proof}"


class Contest:
    def __init__(self, rivals: Sequence[str], marks: Sequence[float], threads: int, whole: bool) -> None:
        self.rivals, self.marks, self.threads, self.whole = rivals, marks, threads, whole
        self.behind: dict[tuple[str, float], list[str]] = {(name, mark): [] for name in rivals for mark in marks}
        self.proven: dict[str, dict[str, float]] = {}
        self.rounded: dict[tuple[str, str], float] = {}

    def compare(self, model: Model) -> None:
        """Run all on a model, and print their values over time."""
        graph = model.build(1.0)
        limits = {"time_limit": max(self.marks), "max_iterations": 10**9, "threads": self.threads}
        ours = Run(mapmrf.solve(graph, "auto", **limits))
        marks = [mark for mark in self.marks if self.whole or mark < ours.proven_at]
        self.proven[model.name] = {"auto": ours.proven_at}
        print(ours.shown(f"{model.name}: auto", self.marks), flush=True)
        for name in self.rivals if marks else ():
            try:
                theirs = run_rival(name, graph, max(marks))
            except mapmrf.UnsupportedModel:
                continue
            # What a run of this package finds at its end, a feasible labelling for instance, is not the rival's.
            search_end = max(marks) - REPAIR_SECONDS
            own = theirs.value(search_end) > -math.inf or theirs.proven_at < search_end
            self.proven[model.name][name] = theirs.proven_at if own else math.inf
            self.rounded[model.name, name] = theirs.rounded_at if name in peers.installed() else math.inf
            print(theirs.shown(f"{model.name}: {name}", marks), flush=True)
            for mark in marks:
                mine, other = ours.value(mark), theirs.value(mark)
                if other > mine and not math.isclose(other, mine, rel_tol=EQUAL, abs_tol=EQUAL):
                    self.behind[name, mark].append(model.name)

    def summary(self) -> Iterator[str]:
        n_models = len(self.proven)
        yield f"\n| rival | {' | '.join(f'ahead or equal after {mark:g} s' for mark in self.marks)} | behind on |"
        yield "|---|" + "---:|" * len(self.marks) + "---|"
        for name in self.rivals:
            lost = {mark: self.behind[name, mark] for mark in self.marks}
            shares = " | ".join(f"{n_models - len(models)} of {n_models}" for models in lost.values())
            said = "; ".join(f"{mark:g} s: {', '.join(models)}" for mark, models in lost.items() if models)
            yield f"| {name} | {shares} | {said} |"

    def proofs(self) -> Iterator[str]:
        """The seconds to proof of all, and how `auto` compares where both have one."""
        names = ["auto", *self.rivals]
        yield f"\n| model | {' | '.join(names)} |\n|---|" + "---:|" * len(names)
        for model, seconds in self.proven.items():
            cells = (seconds_shown(seconds.get(name, math.nan), self.rounded.get((model, name))) for name in names)
            yield f"| {model} | {' | '.join(cells)} |"
        yield "\n| rival | proven by both | geometric mean of auto / rival | late | only auto | only the rival |"
        yield "|---|---:|---:|---|---:|---|"
        for name in self.rivals:
            pairs = {model: (found["auto"], found[name]) for model, found in self.proven.items() if name in found}
            both = [max(a, 1e-3) / max(b, 1e-3) for a, b in pairs.values() if max(a, b) < math.inf]
            mean = statistics.geometric_mean(both) if both else math.nan
            late = [m for m, (a, b) in pairs.items() if a > ALLOWED * b + ALLOWANCE]
            alone = sum(a < math.inf == b for a, b in pairs.values())
            theirs = [m for m, (a, b) in pairs.items() if b < math.inf == a]
            yield f"| {name} | {len(both)} | {mean:.2f} | {', '.join(late)} | {alone} | {', '.join(theirs)} |"


def seconds_shown(proven: float, rounded: float | None) -> str:
    """A time to proof: nan for a model that the solver cannot take, inf for none."""
    if math.isnan(proven):
        return "-"
    if proven < math.inf:
        return f"{proven:.2f}"
    return f"({rounded:.2f})" if rounded is not None and rounded < math.inf else ""


def run_rival(name: str, graph: mapmrf.FactorGraph, seconds: float) -> Run:
    if name not in METHODS:
        return Run(solve_apart(name, graph, seconds, 0))
    method, options = METHODS[name]
    if method == "toulbar2":
        start_up, _ = toulbar2_start()
        return Run(mapmrf.solve(graph, method, time_limit=seconds + start_up, **options), start_up)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        small = grid(5, 5, coupling=1.0, seed=0)
        process.submit(partial(mapmrf.solve, small, method, **options)).result()  # loads what the method needs
        return Run(process.submit(partial(mapmrf.solve, graph, method, time_limit=seconds, **options)).result())


def main() -> None:
    rivals = [*peers.installed(), *METHODS]
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--sets", nargs="+", default=[*sets(), "other"], choices=[*sets(), *FOLDERS])
    options.add_argument("--only", default="", help="only models whose names contain this")
    options.add_argument("--marks", nargs="+", type=float, default=[1.0, 10.0, 60.0], help="seconds")
    options.add_argument("--rivals", nargs="+", default=peers.installed(), choices=rivals)
    options.add_argument("--threads", type=int, default=1, help="threads of `auto`")
    options.add_argument("--whole", action="store_true", help="run every rival on every model")
    args = options.parse_args()
    mapmrf.solve(grid(50, 50, coupling=4.0, seed=0), max_iterations=150)  # compile
    contest = Contest(args.rivals, args.marks, args.threads, args.whole)
    for which in args.sets:
        for model in select(f"{which}/{args.only}", args.data):
            contest.compare(model)
    print("\n".join([*contest.summary(), *(contest.proofs() if args.whole else ())]))


if __name__ == "__main__":
    main()
