"""Whether LS-LP arrives on every structure, and how good its labelling is next to those of simpler methods.

    python benches/lslp_everywhere.py                          # generated families; and those of --data, if given
    python benches/lslp_everywhere.py --data DATA --only dbn triples --seconds 4
    PYTHONPATH=OLDER/src python benches/lslp_everywhere.py     # the same with an older source tree

A row is a model; the figures are values in percent of the best one seen, 100 (1 - (best - value) / |best|), so that a
negative best value reads the same way. Behind them: kind, status, iterations and processor seconds of LS-LP. `--best
FILE` keeps the best values over several calls, so that tables made before and after a change have the same 100.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mapmrf
from mapmrf import FactorGraph

Random = np.random.Generator

METHODS = ("lslp", "icm", "trws", "bp", "ad3", "chains")


def random_factors(random: Random, n: int, degree: float, arity: int, states: int) -> FactorGraph:
    """Different random scopes, `degree` per variable on average; all potentials normal."""
    n_factors = round(n * degree / arity)
    if arity == 2:
        first, second = np.triu_indices(n, 1)
        chosen = np.sort(random.choice(len(first), n_factors, replace=False))
        scope = np.stack([first[chosen], second[chosen]], axis=1)
    else:
        scope = np.array([random.choice(n, arity, replace=False) for _ in range(n_factors)])
    unary, tables = random.normal(size=n * states), random.normal(size=(n_factors, states**arity))
    return made(np.full(n, states), unary, list(scope), tables)


def made(card: np.ndarray, theta_v: np.ndarray, scopes: list[np.ndarray], tables: Any) -> FactorGraph:
    """A model with a table for every factor."""
    size = [len(scope) for scope in scopes]
    tables = [np.ravel(table) for table in tables]
    return FactorGraph(
        card=np.asarray(card),
        theta_v=theta_v,
        scope_ptr=np.concatenate([[0], np.cumsum(size)]),
        scope=np.concatenate(scopes),
        table_of=np.arange(len(scopes)),
        table_ptr=np.concatenate([[0], np.cumsum([len(table) for table in tables])]),
        theta_t=np.concatenate(tables),
    )


def dynamic(random: Random, hidden: int = 20, seen: int = 40, states: int = 2) -> FactorGraph:
    """Two layers and all pairs between them, the structure of the `rus` models of dynamic networks."""
    card = np.full(hidden + seen, states)
    first, second = np.meshgrid(np.arange(hidden), np.arange(hidden, hidden + seen), indexing="ij")
    scope = np.stack([first.ravel(), second.ravel()], axis=1)
    tables = np.log(random.dirichlet(np.ones(states), (len(scope), states)))
    return made(card, np.log(random.dirichlet(np.ones(states), len(card))).ravel(), list(scope), tables)


def soft_constraints(random: Random, n: int = 60, states: int = 8, degree: float = 6) -> FactorGraph:
    """Distances that pairs must keep, as in frequency assignment, with prices of frequencies and soft distances."""
    first, second = np.triu_indices(n, 1)
    chosen = random.choice(len(first), round(n * degree / 2), replace=False)
    apart = np.abs(np.arange(states)[:, None] - np.arange(states))
    tables = []
    for _ in chosen:
        price = float(random.choice([1.0, 10.0, 100.0]))
        hard, soft = random.integers(1, 3), random.integers(2, 5)
        tables.append(np.where(apart < hard, -np.inf, np.where(apart < soft, -price, 0.0)))
    scopes = list(np.stack([first[chosen], second[chosen]], axis=1))
    return made(np.full(n, states), -random.integers(0, 10, n * states).astype(float), scopes, tables)


def bayesian_grid(random: Random, side: int = 14, deterministic: float = 0.5, seen: float = 0.05) -> FactorGraph:
    """A grid whose nodes depend on the upper and the left one, some deterministically; some are observed."""
    n = side * side
    scopes, tables, sample = [], [], np.zeros(n, dtype=np.int64)
    for i in range(n):
        parents = [i - side] * (i >= side) + [i - 1] * (i % side > 0)
        chance = random.dirichlet(np.ones(2), 2 ** len(parents))
        if random.random() < deterministic:
            chance = np.eye(2)[random.integers(0, 2, 2 ** len(parents))]
        row = int(np.ravel_multi_index(sample[parents], [2] * len(parents))) if parents else 0
        sample[i] = random.choice(2, p=chance[row])
        scopes.append(np.array([*parents, i]))
        with np.errstate(divide="ignore"):
            tables.append(np.log(chance))
    theta_v = np.zeros((n, 2))
    observed = random.random(n) < seen
    theta_v[observed, 1 - sample[observed]] = -np.inf
    lone = [k for k, scope in enumerate(scopes) if len(scope) == 1]
    for k in lone:
        theta_v[scopes[k][0]] += np.ravel(tables[k])
    kept = [k for k in range(n) if k not in lone]
    return made(np.full(n, 2), theta_v.ravel(), [scopes[k] for k in kept], [tables[k] for k in kept])


FAMILIES: dict[str, Callable[[Random], FactorGraph]] = {
    "pairs, 2 states, degree 20": lambda random: random_factors(random, 300, 20, 2, 2),
    "pairs, 2 states, degree 199": lambda random: random_factors(random, 200, 199, 2, 2),
    "pairs, 5 states, degree 10": lambda random: random_factors(random, 200, 10, 2, 5),
    "pairs, 5 states, degree 30": lambda random: random_factors(random, 100, 30, 2, 5),
    "triples, degree 6": lambda random: random_factors(random, 400, 6, 3, 2),
    "triples, degree 20": lambda random: random_factors(random, 400, 20, 3, 2),
    "quadruples, degree 12": lambda random: random_factors(random, 200, 12, 4, 2),
    "triples, 3 states, degree 9": lambda random: random_factors(random, 150, 9, 3, 3),
    "dynamic network, 2 states": lambda random: dynamic(random),
    "dynamic network, 4 states": lambda random: dynamic(random, 15, 30, 4),
    "soft constraints": lambda random: soft_constraints(random),
    "soft constraints, denser": lambda random: soft_constraints(random, 80, 12, 10),
    "Bayesian grid, 50 % deterministic": lambda random: bayesian_grid(random),
    "Bayesian grid, 90 % deterministic": lambda random: bayesian_grid(random, deterministic=0.9),
}  # fmt: skip

FILES = (
    "families/dbn-*.uai.gz",
    "families/frequency-*",
    "families/bn-grid-*.uai.gz",
    "families/bayes-*.uai.gz",
    "families/linkage-*.uai.gz",
    "families/diagnosis-*.uai.gz",
    "families/detection-*.uai.gz",
    "families/circuit-*.uai.gz",
    "families/sat-*.uai.gz",
    "wcsp/*",
    "other/*",
)


def model(family: str, seed: int = 0) -> FactorGraph:
    """The model of a family with a seed."""
    return FAMILIES[family](np.random.default_rng([seed, list(FAMILIES).index(family)]))


def models(data: Path | None, only: list[str], seeds: int) -> list[tuple[str, Callable[[], FactorGraph]]]:
    """Names and readers of all models, generated ones first."""
    found: list[tuple[str, Callable[[], FactorGraph]]] = [
        (family if seeds == 1 else f"{family} #{seed}", lambda family=family, seed=seed: model(family, seed))
        for family in FAMILIES
        for seed in range(seeds)
    ]
    if data is not None:
        for pattern in FILES:
            for path in sorted(data.glob(pattern)):
                if not path.name.endswith(".evid"):
                    found.append((path.name.partition(".uai")[0], lambda path=path: read(path)))
    return [(name, build) for name, build in found if not only or any(word in name for word in only)]


def read(path: Path) -> FactorGraph:
    """A model, with its evidence if there is any."""
    evidence = path.with_name(path.name.removesuffix(".gz") + ".evid")
    return mapmrf.read(path, evidence=evidence if evidence.exists() else None)


def percent(value: float, best: float) -> str:
    """A value in percent of the best one."""
    if value == -math.inf:
        return "-inf"
    return f"{100 * (1 - (best - value) / max(abs(best), 1e-9)):.1f}"


def main() -> None:
    """Print the table."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    arguments.add_argument("--data", type=Path)
    arguments.add_argument("--only", nargs="*", default=[])
    arguments.add_argument("--methods", nargs="*", default=METHODS)
    arguments.add_argument("--seconds", type=float, default=4.0)
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--best", type=Path)
    given = arguments.parse_args()
    known: dict[str, float] = {}
    if given.best is not None and given.best.exists():
        known = {name: float(value) for name, value in csv.reader(given.best.open())}
    print(f"| model | {' | '.join(given.methods)} | best | kind | status | iterations | s |")
    print("|---|" + "--:|" * (len(given.methods) + 1) + "---|---|--:|--:|")
    for name, build in models(given.data, given.only, given.seeds):
        graph = build()
        values, told = [], "| | | |"
        for method in given.methods:
            mapmrf.solve(graph, method, max_iterations=1)  # compiles
            began = time.process_time()
            result = mapmrf.solve(graph, method, time_limit=given.seconds)
            spent = time.process_time() - began
            values.append(result.value)
            if method == "lslp":
                kind = "unknown" if result.kind is None else result.kind.value
                told = f"{kind} | {result.status.value} | {result.iterations} | {spent:.1f} |"
        best = known[name] = max(known.get(name, -math.inf), *values)
        shown = " | ".join(percent(value, best) for value in values)
        print(f"| {name} | {shown} | {best:.2f} | {told}", flush=True)
        if given.best is not None:
            csv.writer(given.best.open("w")).writerows(known.items())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
