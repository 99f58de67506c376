"""Pairwise models of tests: grids that are easy and hard, a frustrated triangle, other units, structured pairs."""

from __future__ import annotations

import dataclasses

import numpy as np

from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

DIFFER = np.array([[0.0, 1.0], [1.0, 0.0]])
"""Two binary variables that want to differ."""


def grid_edges(rows: int, columns: int | None = None) -> np.ndarray:
    """Pairs of neighbours in a grid, a square one without `columns`."""
    place = np.arange(rows * (columns or rows)).reshape(rows, -1)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)])


def chain_edges(n: int) -> np.ndarray:
    return np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)


def triangle(table: np.ndarray = DIFFER) -> FactorGraph:
    """Three binary variables that all want to differ: the LP is worth 3 at 1/2 everywhere, a labelling at most 2."""
    return FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], table)


def random_grid(rows: int, columns: int, states: int, *, coupling: float = 1.0, seed: int = 0) -> FactorGraph:
    """A grid of random potentials, with a table of its own for every pair."""
    random, edges = np.random.default_rng(seed), grid_edges(rows, columns)
    unary = random.normal(size=(rows * columns, states))
    return FactorGraph.from_pairwise(unary, edges, coupling * random.normal(size=(len(edges), states, states)))


def attractive(side: int, states: int, *, coupling: float | None = None, seed: int = 0) -> FactorGraph:
    """A grid whose neighbours like to be equal, by `coupling` or at random; binary ones have a tight LP."""
    random, edges = np.random.default_rng(seed), grid_edges(side)
    strength = random.random((len(edges), 1, 1)) if coupling is None else coupling
    return FactorGraph.from_pairwise(random.normal(size=(side**2, states)), edges, strength * np.eye(states))


def grid_optimum(graph: FactorGraph, columns: int) -> float:
    """The optimum of a grid of equal variables, by dynamic programming from variable to variable along its rows."""
    states = int(graph.card[0])
    theta = graph.theta_v.reshape(-1, states)
    pair = {tuple(graph.scope_of(a).tolist()): graph.table(a) for a in range(graph.n_factors)}
    best = np.zeros([states] * columns)  # over the states of the last `columns` variables seen
    for i in range(graph.n_vars):
        table = np.broadcast_to(theta[i], (states,) * columns + (states,)).copy()
        if i % columns:
            table += pair[i - 1, i].reshape([1] * (columns - 1) + [states, states])
        if i >= columns:
            table += pair[i - columns, i].reshape([states] + [1] * (columns - 1) + [states])
        best = (best[..., None] + table).max(axis=0)
    return float(best.max() + graph.constant)


def scaled(graph: FactorGraph, factor: float) -> FactorGraph:
    """The same model in another unit."""
    changed = {name: factor * getattr(graph, name) for name in ("theta_v", "theta_t", "constant")}
    return dataclasses.replace(graph, **changed)


# -- weights and structured pairs -------------------------------------------------------------------------------------


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
    pairs = [pairs[p] for p in random.permutation(len(pairs))]
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


def image(side: int, states: int, *, threads: int = 1, seed: int = 0) -> Problem:
    """A square image with one Potts table and a weight per pair."""
    random = np.random.default_rng(seed)
    edges = grid_edges(side)
    unary = random.normal(size=(side * side, states))
    graph = FactorGraph.from_pairwise(unary, edges, np.eye(states), weight=random.uniform(0.2, 1.5, len(edges)))
    return Problem.compile(graph, threads=threads)
