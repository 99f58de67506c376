"""Models with weights and structured pairs for tests, and problems that are told to use the structure, or not to."""

from __future__ import annotations

import numpy as np

from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import worthwhile
from pairwise_models import grid_edges

KINDS = ("potts", "linear", "quadratic")


def loss(kind: str, n: int, slope: float, limit: float) -> np.ndarray:
    """A loss by the distance of two labels, (n, n)."""
    apart = np.abs(np.arange(n)[:, None] - np.arange(n)).astype(float)
    if kind == "potts":
        return slope * (apart > 0)
    return np.minimum(slope * (apart if kind == "linear" else apart**2), limit)


def structured_graph(seed: int, *, n_vars: int = 6, states: int = 5, hard: bool = False) -> FactorGraph:
    """Pairs of every form, with and without row and column parts and limits, and pairs of none; with weights.

    Some weights are 0, and those of Potts tables may be negative. `hard` forbids some states of variables.
    """
    random = np.random.default_rng(seed)
    tables, weights = [], []
    pairs = [(i, (i + 1) % n_vars) for i in range(n_vars)] + [(i, (i + 2) % n_vars) for i in range(0, n_vars, 2)]
    for kind in random.choice([*KINDS, "none"], len(pairs)):
        table = random.normal(size=(states, states))
        weight = float(random.choice([0.0, 1.0, random.exponential()]))
        if kind != "none":
            table = random.normal() - loss(kind, states, random.exponential(), random.choice([np.inf, 2.0]))
            if random.random() < 0.5:
                table = table + random.normal(size=(states, 1)) + random.normal(size=states)
        if kind in ("potts", "none"):
            weight *= random.choice([-1.0, 1.0])
        tables.append(table)
        weights.append(weight)
    unary = random.normal(size=(n_vars, states))
    if hard:
        unary[random.random(unary.shape) < 0.3] = -np.inf
        unary[:, 1] = 0.0
    scopes = [*[(i,) for i in range(n_vars)], *pairs]
    return FactorGraph.from_tables([states] * n_vars, scopes, [*unary, *tables], weight=[1.0] * n_vars + weights)


def with_forms(graph: FactorGraph) -> Problem:
    """The problem, compiled to use every form, even where a table would be quicker."""
    problem = Problem.compile(graph)
    vars(problem)["quick_forms"] = problem.forms
    return problem


def without_forms(graph: FactorGraph) -> Problem:
    """The problem, compiled to use the tables alone."""
    problem = Problem.compile(graph)
    most = (2**30,) * 3
    vars(problem)["quick_forms"] = worthwhile(problem.forms, np.zeros(problem.n_factors, dtype=int), most)
    return problem


def image(side: int, states: int, *, threads: int = 1, seed: int = 0) -> Problem:
    """A square image with one Potts table and a weight per pair."""
    random = np.random.default_rng(seed)
    edges = grid_edges(side)
    unary = random.normal(size=(side * side, states))
    graph = FactorGraph.from_pairwise(unary, edges, np.eye(states), weight=random.uniform(0.2, 1.5, len(edges)))
    return Problem.compile(graph, threads=threads)
