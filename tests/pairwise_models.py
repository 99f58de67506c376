"""Pairwise models of tests: edges of grids, grids that are easy and hard, a frustrated triangle, other units."""

from __future__ import annotations

import dataclasses

import numpy as np

from mapmrf.model.graph import FactorGraph

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
