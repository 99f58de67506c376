"""`auto` compared with other solvers after 1, 10 and 60 seconds of wall time, as Markdown tables.

    python benches/versus.py
    python benches/versus.py --sets grids other --marks 1 10
    python benches/versus.py --sets families maxcut --rivals toulbar2 toulbar2-dfs cpsat highs scip --whole

Rivals are the peers of `mapmrf.bench.peers`, and toulbar2's depth-first search, HiGHS and SCIP alone on the 0/1 program
of the model. With `--whole` every rival runs on every model, and a table compares the times to proof; otherwise rivals
are not run where `auto` has proven its labelling optimal before the first mark: they can then be equal, but not ahead.
Imports, translation of the model and compilation are not counted. HiGHS and SCIP get a process for every model, because
a large program leaves them with much memory. CP-SAT needs integers: the times after which it has solved the model with
rounded potentials are in parentheses.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Iterator, Sequence

import mapmrf
from mapmrf.bench import peers
from mapmrf.datasets import grid, sets
from mapmrf.run.clock import REPAIR_SECONDS
from models import FOLDERS
from run import Case, Experiment, run_all

EQUAL = 1e-9
"""Relative difference of values that counts as none."""
ALLOWED, ALLOWANCE = 3.0, 0.5
"""A proof is late if it takes longer than so many times the rival's seconds, and this many more."""
ALONE = {"run": "fresh", "method": "cuts", "local_search": 0, "lp_iterations": 0, "rounds": 0}
SOLVERS = {
    "toulbar2-dfs": {"run": "toulbar2_dfs"},
    "highs": {**ALONE, "solver": "highs"},
    "scip": {**ALONE, "solver": "scip"},
}
"""Runs of solvers that are no peers."""

Contest = dict[str, dict[str, Case]]
"""The runs of `auto` and its rivals by model."""


def value(case: Case, seconds: float) -> float:
    return max((value for time, value, _ in case.record["trace"] if time <= seconds), default=-math.inf)


def ended(case: Case) -> float:
    return case.record["trace"][-1][0] if case.record["trace"] else math.inf


def proven(case: Case, limit: float) -> float:
    """When the labelling was proven optimal, or the model infeasible, inf if never."""
    # What a run of this package finds at its end, a feasible labelling for instance, is not the rival's.
    search_end = limit - REPAIR_SECONDS
    own = case.run == "auto" or value(case, search_end) > -math.inf or ended(case) < search_end
    return ended(case) if case.record["proven"] and own else math.inf


def summary(contest: Contest, rivals: Sequence[str], marks: Sequence[float]) -> Iterator[str]:
    """On how many models `auto` is ahead or equal."""
    yield f"\n| rival | {' | '.join(f'ahead or equal after {mark:g} s' for mark in marks)} | behind on |"
    yield "|---|" + "---:|" * len(marks) + "---|"
    for name in rivals:
        lost: dict[float, list[str]] = {mark: [] for mark in marks}
        for model, runs in contest.items():
            for mark in marks if name in runs else ():
                mine, other = value(runs["auto"], mark), value(runs[name], mark)
                if other > mine and not math.isclose(other, mine, rel_tol=EQUAL, abs_tol=EQUAL):
                    lost[mark].append(model)
        shares = " | ".join(f"{len(contest) - len(models)} of {len(contest)}" for models in lost.values())
        said = "; ".join(f"{mark:g} s: {', '.join(models)}" for mark, models in lost.items() if models)
        yield f"| {name} | {shares} | {said} |"


def proofs(contest: Contest, rivals: Sequence[str], limit: float) -> Iterator[str]:
    """The seconds to proof of all, and how `auto` compares where both have one."""
    names = ["auto", *rivals]
    yield f"\n| model | {' | '.join(names)} |\n|---|" + "---:|" * len(names)
    for model, runs in contest.items():
        yield f"| {model} | {' | '.join(shown(runs.get(name), limit) for name in names)} |"
    yield "\n| rival | proven by both | geometric mean of auto / rival | late | only auto | only the rival |"
    yield "|---|---:|---:|---|---:|---|"
    for name in rivals:
        entered = {model: (runs["auto"], runs[name]) for model, runs in contest.items() if name in runs}
        pairs = {model: [proven(case, limit) for case in cases] for model, cases in entered.items()}
        both = [max(a, 1e-3) / max(b, 1e-3) for a, b in pairs.values() if max(a, b) < math.inf]
        mean = statistics.geometric_mean(both) if both else math.nan
        late = [m for m, (a, b) in pairs.items() if a > ALLOWED * b + ALLOWANCE]
        alone = sum(a < math.inf == b for a, b in pairs.values())
        theirs = [m for m, (a, b) in pairs.items() if b < math.inf == a]
        yield f"| {name} | {len(both)} | {mean:.2f} | {', '.join(late)} | {alone} | {', '.join(theirs)} |"


def shown(case: Case | None, limit: float) -> str:
    """A time to proof; in parentheses that of a peer for rounded potentials."""
    if case is None:
        return "-"
    if proven(case, limit) < math.inf:
        return f"{ended(case):.2f}"
    rounded = case.run in peers.installed() and case.record["status"] == "converged"
    return f"({ended(case):.2f})" if rounded else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", help="folder of the benchmark models")
    options.add_argument("--sets", nargs="+", default=[*sets(), "other"], choices=[*sets(), *FOLDERS])
    options.add_argument("--only", default="", help="only models whose names contain this")
    options.add_argument("--marks", nargs="+", type=float, default=[1.0, 10.0, 60.0], help="seconds")
    options.add_argument("--rivals", nargs="+", default=peers.installed(), choices=[*peers.installed(), *SOLVERS])
    options.add_argument("--threads", type=int, default=1, help="threads of `auto`")
    options.add_argument("--whole", action="store_true", help="run every rival on every model")
    args = options.parse_args()
    warnings.simplefilter("ignore")
    mapmrf.solve(grid(50, 50, coupling=4.0, seed=0), max_iterations=150)  # compiles what `auto` needs
    experiment = Experiment(
        about="`auto` and other solvers",
        models=[f"{which}/{args.only}" for which in args.sets],
        runs={
            "auto": {"method": "auto", "max_iterations": 10**9, "threads": args.threads},
            **{name: SOLVERS.get(name, {"run": "peer", "name": name}) for name in args.rivals},
        },
        figures=["bound", "status", "seconds"],
        time_limit=max(args.marks),
        unless_proven=0.0 if args.whole else min(args.marks),
        data=args.data,
    )
    contest: Contest = {}
    for case in run_all(experiment):
        contest.setdefault(case.model.name, {})[case.run] = case
    print("\n".join(summary(contest, args.rivals, args.marks)))
    if args.whole:
        print("\n".join(proofs(contest, args.rivals, max(args.marks))))


if __name__ == "__main__":
    main()
