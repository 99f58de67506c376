"""All exact methods and all bounds against each other, toulbar2 and elimination, on random models of medium size.

    python benches/differential.py --models 300                 # a few minutes; exit code 1 if anything disagrees
    python benches/differential.py --models 10000 --jobs 2      # the figures of docs/reliability.md
    python benches/differential.py --only 4711 --methods all    # one model again, by all methods

Model number k has 20 to 100 variables of up to 80 states, factors of up to five variables, forbidden entries,
constraints of every kind, weights, equal numbers in tables of different shapes, and any scale from 1e-9 to 1e9. Most
models are written to a file and read back before they are solved. `auto` and some other methods, in rotation, solve
each model for a short time. Nobody's word is taken for the truth: the value of every labelling is evaluated by numpy
alone, and every bound and every proof must agree with the best labelling that any of the methods has found.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

import mapmrf
import random_models
from mapmrf import FactorGraph, Status, constraints
from mapmrf.errors import UnsupportedModel

Random = np.random.Generator

ALWAYS = ("auto", "branch")
"""Methods that solve every model: search, and elimination where that is possible."""
ROTATED = (
    "wcsp", "toulbar2", "cuts", "trws", "mplp", "ad3", "lslp", "lp", "mplp_c", "adsal", "psdd", "dd_sg", "sdp", "qpbo",
    "maxflow", "trbp",
)  # fmt: skip
PER_MODEL = 4
"""Rotated methods that solve each model."""
SECONDS = 0.3
"""Time limit of each method on each model."""
FORMATS = ("", "LG", "LG", "uai", "cfn", "wcsp", "h5", "fg")


class Disagreement(NamedTuple):
    """What a method said about a model, and the best labelling that contradicts it."""

    model: int
    about: str
    method: str
    status: str
    value: float
    bound: float | None
    best: float

    def __str__(self) -> str:
        said = f"{self.method}: {self.status}, value {self.value!r}, bound {self.bound!r}"
        return f"model {self.model} ({self.about}): {said}; best value {self.best!r}"


class Outcome(NamedTuple):
    """How the methods did on one model: (method, status) of every run, and disagreements."""

    runs: list[tuple[str, str]]
    proven: bool
    wrong: list[Disagreement]


# -- models -----------------------------------------------------------------------------------------------------------


def _sparse_scopes(random: Random, n: int, most: int) -> list[tuple[int, ...]]:
    """A tree of factors with some more that close cycles."""
    scopes = []
    for i in range(1, n):
        others = random.permutation(min(i, 12))[: random.integers(1, most)] + max(0, i - 12)
        scopes.append((*others.tolist(), i))
    for _ in range(int(random.integers(0, max(1, n // 4)))):
        scopes.append(tuple((int(random.integers(0, max(1, n - 8))) + random.permutation(8)[:2]).tolist()))
    return [tuple(random.permutation(scope).tolist()) for scope in scopes if max(scope) < n]


def _filled(random: Random, card: np.ndarray, scopes: list[tuple[int, ...]], hard: float = 0.0) -> FactorGraph:
    """Random tables, half of them alike: the same numbers in all of one size. With `hard`, one labelling is planted."""
    alike: dict[int, np.ndarray] = {}
    planted = random.integers(0, card)
    tables = []
    for scope in scopes:
        shape = tuple(card[list(scope)].tolist())
        size = math.prod(shape)
        table = random.choice([-3.8, -1.0, 0.0], size=size) if random.random() < 0.3 else random.normal(size=size)
        if random.random() < 0.5:
            table = alike.setdefault(size, table)
        table = table.reshape(shape).copy()
        if hard and random.random() < 0.7:
            table[random.random(shape) < hard] = -np.inf
            table[tuple(planted[list(scope)])] = random.normal()
        tables.append(table)
    unary = [(i,) for i in range(len(card))]
    return FactorGraph.from_tables(card, [*scopes, *unary], [*tables, *(random.normal(size=card[i]) for (i,) in unary)])


def wide(random: Random) -> FactorGraph:
    """A sparse pairwise model of up to 80 states, as side chains of proteins have."""
    n = int(random.integers(20, 101))
    card = np.minimum(1 + random.geometric(0.08, n), 81)
    return _filled(random, card, _sparse_scopes(random, n, 2), float(random.choice([0.0, 0.0, 0.2])))


def high(random: Random) -> FactorGraph:
    """Factors of up to five variables of few states."""
    n = int(random.integers(20, 71))
    return _filled(random, random.integers(1, 4, n), _sparse_scopes(random, n, 5), float(random.choice([0.0, 0.3])))


def whole(random: Random) -> FactorGraph:
    """Whole numbers, some of them large: gaps below 1 prove optimality."""
    graph = high(random)
    unit = float(random.choice([1.0, 1000.0, 3.7e9]))
    theta_v, theta_t = (np.where(np.isfinite(x), np.round(3 * x) * unit, x) for x in (graph.theta_v, graph.theta_t))
    return replace(graph, theta_v=theta_v, theta_t=theta_t)


def limited(random: Random) -> FactorGraph:
    """A sparse model with constraints of every kind, hard and soft."""
    n = int(random.integers(20, 51))
    card = random.integers(2, 5, n)
    graph = _filled(random, card, _sparse_scopes(random, n, 3))
    every = [(i, k) for i in range(n) for k in range(card[i])]

    def some() -> list[tuple[int, int]]:
        return [every[at] for at in random.permutation(len(every))[: int(random.integers(2, 9))]]

    def penalty() -> float | None:
        return None if random.random() < 0.5 else float(random.exponential(2.0))

    def counted(kind: Callable[..., constraints.Constraint]) -> constraints.Constraint:
        pairs = some()
        return kind(pairs, int(random.integers(1, len(pairs))), penalty())

    def summed() -> constraints.Constraint:
        pairs = some()
        weights = random.integers(-3, 4, len(pairs)).tolist()
        return constraints.linear(pairs, weights, lower=-2, upper=3, penalty=penalty())

    kinds: list[Callable[[], constraints.Constraint]] = [
        lambda: counted(constraints.at_most_k),
        lambda: counted(constraints.exactly_k),
        lambda: constraints.exactly_one(some(), penalty()),
        lambda: constraints.at_least_one(some(), penalty()),
        lambda: constraints.at_most_one(some(), penalty()),
        lambda: constraints.xor(some(), int(random.integers(2)), penalty()),
        lambda: constraints.or_with_output(some()[1:], every[int(random.integers(len(every)))], penalty()),
        lambda: constraints.all_different(random.permutation(n)[:3].tolist(), penalty()),
        lambda: constraints.label_cost(int(random.integers(2)), float(random.exponential())),
        summed,
    ]
    chosen = []
    for k in random.permutation(len(kinds))[: int(random.integers(1, 4))]:
        try:
            chosen.append(kinds[k]())
            graph.with_constraints(chosen)
        except mapmrf.GraphError:  # an output among its own inputs
            chosen.pop()
    return graph.with_constraints(chosen)


OWN: tuple[Callable[[Random], FactorGraph], ...] = (wide, high, whole, limited)


def draw(number: int) -> tuple[FactorGraph, str]:
    """The model of a number as the methods get it, and what it is."""
    random = np.random.default_rng([number, 26])
    shapes = [*OWN, *OWN, *(shape for shape in random_models.SHAPES if shape != "tiny")]
    shape = shapes[number % len(shapes)]
    if isinstance(shape, str):
        name, graph = shape, random_models.SHAPES[shape](random, 3.0)
    else:
        name, graph = shape.__name__, shape(random)
    scale = float(random.choice([1.0, 1.0, 1.0, 1e-9, 1e9]))
    if graph.constraints is None and scale != 1.0:
        theta_v, theta_t = scale * graph.theta_v, scale * graph.theta_t
        graph = replace(graph, theta_v=theta_v, theta_t=theta_t, constant=scale * graph.constant)
        name += f" x {scale:g}"
    suffix = str(random.choice(FORMATS))
    read = _through_file(graph, suffix)
    return (graph, name) if read is None else (read, f"{name}, from .{suffix}")


def _through_file(graph: FactorGraph, suffix: str) -> FactorGraph | None:
    """The model written and read back; None without a suffix, or where the format cannot hold it."""
    if not suffix:
        return None
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder, f"model.{suffix}")
        try:
            mapmrf.write(graph, path)
        except (mapmrf.FormatError, UnsupportedModel):
            return None
        return mapmrf.read(path)


# -- comparing --------------------------------------------------------------------------------------------------------


def methods_for(number: int) -> tuple[str, ...]:
    """The methods whose turn it is."""
    first = (PER_MODEL * number) % len(ROTATED)
    return (*ALWAYS, *islice(_cycle(first), PER_MODEL))


def _cycle(first: int) -> Iterator[str]:
    while True:
        yield ROTATED[first % len(ROTATED)]
        first += 1


def compare(number: int, methods: tuple[str, ...], seconds: float) -> Outcome:
    """Solve a model by several methods and compare what they say."""
    graph, about = draw(number)
    results: dict[str, mapmrf.Result] = {}
    for method in methods:
        try:
            results[method] = mapmrf.solve(graph, method, time_limit=seconds)
        except UnsupportedModel:
            continue
    best = max((graph.value(result.labels) for result in results.values()), default=-math.inf)
    allowed = graph.allowance
    wrong = []
    for method, result in results.items():
        low = best - allowed if math.isfinite(best) else best
        false = result.bound is not None and result.bound < low
        false |= result.bound is not None and result.bound < result.value
        false |= result.status is Status.OPTIMAL and result.value < low
        false |= result.status is Status.INFEASIBLE and best > -math.inf
        false |= any(name.startswith("refuted_") for name in result.details)
        if false:
            wrong.append(Disagreement(number, about, method, result.status.value, result.value, result.bound, best))
    proven = any(result.status in (Status.OPTIMAL, Status.INFEASIBLE) for result in results.values())
    return Outcome([(method, result.status.value) for method, result in results.items()], proven, wrong)


def _compare_safely(task: tuple[int, tuple[str, ...], float]) -> Outcome | str:
    try:
        return compare(*task)
    except Exception as error:
        return f"model {task[0]}: {type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="number of the first model")
    parser.add_argument("--only", type=int, help="this model alone")
    parser.add_argument("--methods", nargs="+", help="these methods on every model; all: every one of them")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time limit of a run")
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    os.environ.pop("MAPMRF_STRICT", None)
    numbers = range(given.first, given.first + given.models) if given.only is None else [given.only]
    fixed = (*ALWAYS, *ROTATED) if given.methods == ["all"] else tuple(given.methods or ())
    tasks = [(number, fixed or methods_for(number), given.seconds) for number in numbers]
    began = time.perf_counter()
    runs: Counter[tuple[str, str]] = Counter()
    proven, bad = 0, 0
    with ProcessPoolExecutor(given.jobs) as pool:
        for done, outcome in enumerate(pool.map(_compare_safely, tasks, chunksize=4), 1):
            if isinstance(outcome, str):
                bad += 1
                print(outcome, flush=True)
                continue
            runs.update(outcome.runs)
            proven += outcome.proven
            bad += len(outcome.wrong)
            for one in outcome.wrong:
                print(one, flush=True)
            if done % 1000 == 0:
                print(f"# {done} models, {bad} disagreements, {time.perf_counter() - began:.0f} s", flush=True)
    report(runs, len(tasks), proven, bad, time.perf_counter() - began)
    return int(bad > 0)


def report(runs: Counter[tuple[str, str]], n_models: int, proven: int, bad: int, seconds: float) -> None:
    """Print a table of runs by method and status."""
    statuses = [status.value for status in Status if any(of == status.value for _, of in runs)]
    print(f"\n| method | runs | {' | '.join(statuses)} |\n|---|--:|{'--:|' * len(statuses)}")
    for method in (*ALWAYS, *ROTATED):
        counts = [runs[method, status] for status in statuses]
        if sum(counts):
            print(f"| {method} | {sum(counts)} | {' | '.join(map(str, counts))} |")
    total = sum(runs.values())
    print(f"\n{n_models} models, {total} runs, {proven} models proven, {bad} disagreements, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
