"""Models of hard constraints alone."""

from __future__ import annotations

import itertools
import math

import numpy as np

from mapmrf import FactorGraph


def differ(states: int) -> np.ndarray:
    """The table of two variables that must not be equal."""
    return np.where(np.eye(states, dtype=bool), -np.inf, 0.0)


def colouring(n: int, n_edges: int, states: int, seed: int) -> FactorGraph:
    """A random graph whose neighbours must differ."""
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    chosen = pairs[np.sort(rng.permutation(len(pairs))[:n_edges])]
    return FactorGraph.from_pairwise(np.zeros((n, states)), chosen, differ(states))


def pigeons(n: int, n_holes: int) -> FactorGraph:
    """Pigeons that must all be in different holes: a variable each."""
    return FactorGraph.from_pairwise(np.zeros((n, n_holes)), list(itertools.combinations(range(n), 2)), differ(n_holes))


def holes(n: int, n_holes: int) -> FactorGraph:
    """The same with a binary variable for every pigeon and hole."""
    some, both = np.zeros((2,) * n_holes), np.zeros((2, 2))
    some[(0,) * n_holes] = both[1, 1] = -np.inf
    place = np.arange(n * n_holes).reshape(n, n_holes)
    pairs = [tuple(pair) for column in place.T.tolist() for pair in itertools.combinations(column, 2)]
    scopes = [*map(tuple, place.tolist()), *pairs]
    return FactorGraph.from_tables(np.full(place.size, 2), scopes, [some] * n + [both] * len(pairs))


def random_constraints(seed: int, n_vars: int = 7, n_factors: int = 9, arity: int = 4) -> FactorGraph:
    """A small model of any shape, of which each factor forbids a share of its configurations."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, n_vars + 1))
    card = rng.integers(1, 6, n) if n < 6 else rng.integers(1, 5, n)
    share = rng.uniform(0.2, 0.8)
    scopes, tables = [], []
    for _ in range(int(rng.integers(1, n_factors + 1))):
        scope = rng.permutation(n)[: int(rng.integers(1, min(n, arity) + 1))]
        scopes.append(tuple(scope.tolist()))
        tables.append(np.where(rng.random(card[scope]) < share, -np.inf, rng.normal(size=card[scope])))
    return FactorGraph.from_tables(card, scopes, tables)


def sudoku(clues: str) -> FactorGraph:
    """A sudoku of any size, its rows in one string, with 0 for an empty cell."""
    n = math.isqrt(len(clues))
    box = math.isqrt(n)
    unary = np.zeros((n * n, n))
    for cell, clue in enumerate(clues):
        if clue != "0":
            unary[cell] = -np.inf
            unary[cell, int(clue, 36) - 1] = 0.0
    row, column = np.divmod(np.arange(n * n), n)
    block = row // box * box + column // box
    unit = (row[:, None] == row) | (column[:, None] == column) | (block[:, None] == block)
    return FactorGraph.from_pairwise(unary, np.argwhere(np.triu(unit, 1)), differ(n))


def ksat(n: int, n_clauses: int, k: int, seed: int, planted: bool = False) -> FactorGraph:
    """Random clauses of `k` literals; planted: all ones satisfy them."""
    rng = np.random.default_rng(seed)
    scopes, tables = [], []
    for _ in range(n_clauses):
        bad = rng.integers(0, 2, k)
        if planted and bad.all():
            bad[rng.integers(k)] = 0
        table = np.zeros((2,) * k)
        table[tuple(bad)] = -np.inf
        scopes.append(tuple(rng.permutation(n)[:k].tolist()))
        tables.append(table)
    return FactorGraph.from_tables(np.full(n, 2), scopes, tables)
