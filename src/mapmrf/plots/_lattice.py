"""Pairs of variables that share a factor, and whether they form a lattice."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.model.graph import FactorGraph

WHOLE = 0.75
"""Share of the pairs of neighbours that a lattice must have: some may be removed by conditioning."""


def neighbours(graph: FactorGraph) -> Ints:
    """Pairs of variables that share a factor, each once, the smaller first, (n_pairs, 2)."""
    n = graph.n_vars
    found = [np.zeros(0, dtype=np.int64)]
    for arity in np.unique(graph.arity):
        at = graph.scope_ptr[:-1][graph.arity == arity]
        scopes = np.sort(graph.scope[at[:, None] + np.arange(arity)], axis=1).astype(np.int64)
        first, second = np.triu_indices(arity, 1)
        found.append((scopes[:, first] * n + scopes[:, second]).ravel())
    codes = np.unique(np.concatenate(found))
    return np.stack([codes // max(1, n), codes % max(1, n)], axis=1)


def lattice_shape(graph: FactorGraph) -> tuple[int, int] | None:
    """Height and width, if the variables form a lattice row by row, each joined with its neighbours; otherwise None.

    Diagonal neighbours are allowed, and so are tori.

    Examples
    --------
    >>> from mapmrf.datasets import grid, random_graph
    >>> lattice_shape(grid(4, 5)), lattice_shape(random_graph(20, 30, seed=1))
    ((4, 5), None)
    """
    pairs = neighbours(graph)
    for width in np.unique(pairs[:, 1] - pairs[:, 0]).tolist():
        if 2 <= width <= graph.n_vars // 2 and graph.n_vars % width == 0 and _is_lattice(pairs, graph.n_vars, width):
            return graph.n_vars // width, width
    return None


def _is_lattice(pairs: Ints, n: int, width: int) -> bool:
    """Return whether the pairs join neighbours only, and most of them."""
    height = n // width
    down = pairs[:, 1] // width - pairs[:, 0] // width
    right = pairs[:, 1] % width - pairs[:, 0] % width
    vertical = np.count_nonzero((down == 1) & (right == 0))
    horizontal = np.count_nonzero((down == 0) & (right == 1))
    if vertical < WHOLE * (height - 1) * width or horizontal < WHOLE * height * (width - 1):
        return False
    rows, columns = _steps(down, height), _steps(right, width)
    # Two rows or columns with diagonals are more often a chain of second order.
    diagonal = bool(np.any((rows == 1) & (columns == 1)))
    return bool(np.all((rows <= 1) & (columns <= 1))) and not (diagonal and min(height, width) < 3)


def _steps(difference: Ints, size: int) -> Ints:
    """Steps between two rows or columns, also around the torus; tori have at least four."""
    steps = np.abs(difference)
    return np.minimum(steps, size - steps) if size >= 4 else steps
