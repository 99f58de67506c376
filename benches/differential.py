"""All exact methods and all bounds against each other, toulbar2 and elimination, on random models of medium size.

    python benches/differential.py --models 300                 # a few minutes; exit code 1 if anything disagrees
    python benches/differential.py --models 10000 --jobs 2      # the figures of docs/reliability.md
    python benches/differential.py --first 4711 --models 1 --methods all    # one model again, by all methods

Model number k has 20 to 100 variables of up to 80 states, factors of up to five variables, forbidden entries,
constraints of every kind, weights, equal numbers in tables of different shapes, and any scale from 1e-9 to 1e9. Most
models are written to a file and read back before they are solved. `auto` and some other methods, in rotation, solve
each model for a short time. Nobody's word is taken for the truth: the value of every labelling is evaluated by numpy
alone, and every bound and every proof must agree with the best labelling that any of the methods has found.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.errors import UnsupportedModel
from random_models import MEDIUM, SHAPES

ALWAYS = ("auto", "branch")
"""Methods that solve every model: search, and elimination where that is possible."""
ROTATED = (
    "wcsp", "toulbar2", "cuts", "trws", "mplp", "ad3", "lslp", "lp", "mplp_c", "adsal", "psdd", "dd_sg", "sdp", "qpbo",
    "maxflow", "trbp",
)  # fmt: skip
PER_MODEL = 4
"""Rotated methods that solve each model."""
FORMATS = ("", "LG", "LG", "uai", "cfn", "wcsp", "h5", "fg")

Outcome = tuple[list[tuple[str, str]], bool, list[str]]
"""How the methods did on one model: method and status of every run, whether it is proven, and what is wrong."""


def draw(number: int) -> tuple[FactorGraph, str]:
    """The model of a number as the methods get it, and what it is."""
    random = np.random.default_rng([number, 26])
    names = [*MEDIUM, *MEDIUM, *(shape for shape in SHAPES if shape != "tiny")]
    name = names[number % len(names)]
    graph = MEDIUM[name](random) if name in MEDIUM else SHAPES[name](random, 3.0)
    scale = float(random.choice([1.0, 1.0, 1.0, 1e-9, 1e9]))
    if graph.constraints is None and scale != 1.0:
        theta_v, theta_t = scale * graph.theta_v, scale * graph.theta_t
        graph = replace(graph, theta_v=theta_v, theta_t=theta_t, constant=scale * graph.constant)
        name += f" x {scale:g}"
    suffix = str(random.choice(FORMATS))
    read = through_file(graph, suffix) if suffix else None
    return (graph, name) if read is None else (read, f"{name}, from .{suffix}")


def through_file(graph: FactorGraph, suffix: str) -> FactorGraph | None:
    """The model written and read back; None where the format cannot hold it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, f"model.{suffix}")
        try:
            mapmrf.write(graph, path)
        except (mapmrf.FormatError, UnsupportedModel):
            return None
        return mapmrf.read(path)


def compare(task: tuple[int, tuple[str, ...], float]) -> Outcome:
    """Solve a model by several methods and compare what they say."""
    number, methods, seconds = task
    results: dict[str, mapmrf.Result] = {}
    try:
        graph, about = draw(number)
        for method in methods:
            with contextlib.suppress(UnsupportedModel):
                results[method] = mapmrf.solve(graph, method, time_limit=seconds)
    except Exception as error:
        return [], False, [f"model {number}: {type(error).__name__}: {error}"]
    best = max((graph.value(result.labels) for result in results.values()), default=-math.inf)
    low = best - graph.allowance if math.isfinite(best) else best
    wrong = []
    for method, result in results.items():
        false = result.bound is not None and result.bound < max(low, result.value)
        false |= result.status is Status.OPTIMAL and result.value < low
        false |= result.status is Status.INFEASIBLE and best > -math.inf
        false |= any(name.startswith("refuted_") for name in result.details)
        if false:
            said = f"{method}: {result.status.value}, value {result.value!r}, bound {result.bound!r}"
            wrong.append(f"model {number} ({about}): {said}; best value {best!r}")
    proven = any(result.status in (Status.OPTIMAL, Status.INFEASIBLE) for result in results.values())
    return [(method, result.status.value) for method, result in results.items()], proven, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--methods", nargs="+", help="these methods on every model; all: every one of them")
    parser.add_argument("--seconds", type=float, default=0.3, help="time limit of a run")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    os.environ.pop("MAPMRF_STRICT", None)
    fixed = (*ALWAYS, *ROTATED) if given.methods == ["all"] else tuple(given.methods or ())
    tasks = []
    for number in range(given.first, given.first + given.models):
        turns = range(PER_MODEL * number, PER_MODEL * (number + 1))
        tasks.append((number, fixed or (*ALWAYS, *(ROTATED[k % len(ROTATED)] for k in turns)), given.seconds))
    began = time.perf_counter()
    runs: Counter[tuple[str, str]] = Counter()
    proven, bad = 0, 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for done, (ended, is_proven, wrong) in enumerate(pool.map(compare, tasks, chunksize=4), 1):
            runs.update(ended)
            proven += is_proven
            bad += len(wrong)
            for line in wrong:
                print(line, flush=True)
            if done % 1000 == 0:
                print(f"# {done} models, {bad} disagreements, {time.perf_counter() - began:.0f} s", flush=True)
    statuses = [status.value for status in Status if any(of == status.value for _, of in runs)]
    print(f"\n| method | runs | {' | '.join(statuses)} |\n|---|--:|{'--:|' * len(statuses)}")
    for method in (*ALWAYS, *ROTATED):
        counts = [runs[method, status] for status in statuses]
        if sum(counts):
            print(f"| {method} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    seconds = time.perf_counter() - began
    print(f"\n{len(tasks)} models, {runs.total()} runs, {proven} models proven, {bad} disagreements, {seconds:.0f} s")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
