"""Tables of two binary variables as couplings: J [[1, -1], [-1, 1]], linear parts for the variables, and a constant."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen
from mapmrf.problem import Batch, Problem

CHUNK = 1 << 18
"""Factors that are looked at together: bounds the memory on the way."""
SAME = 1 << 11
"""Length of the array of strengths where all couplings are the same: kernels work on so many factors at a time."""


class Couplings(NamedTuple):
    """Couplings J = unit * strength: a strength per factor of the problem, or ones that all share; and the constant."""

    strength: Floats
    unit: float
    shared: bool
    constant: float


NO_COUPLINGS = Couplings(frozen(np.zeros(0)), 1.0, False, 0.0)
"""What a model without compact 2x2 factors has."""


def split_pairs(problem: Problem, batch: Batch, theta_v: Floats, owned: int) -> Couplings:
    """The couplings of a batch of 2x2 factors; their linear parts are added to `theta_v`.

    The constant is that of the first `owned` ones. Factors that share one table need no strengths of their own: their
    weights are that, or 1 does for all.
    """
    one = bool(np.all(batch.table_at == batch.table_at[0]))
    strength = np.zeros(0 if one else problem.n_factors)
    linear, constant = np.zeros(problem.n_vars), 0.0
    for begin in range(0, batch.n, CHUNK):
        part = slice(begin, min(begin + CHUNK, batch.n))
        t00, t01, t10, t11 = batch.tables(problem.graph.theta_t, part).T
        if not one:
            strength[batch.factors][part] = (t00 + t11 - t01 - t10) / 4
        first, second = batch.scope[part].T
        _add_sums(linear, first, (t10 + t11 - t00 - t01) / 4)
        _add_sums(linear, second, (t01 + t11 - t00 - t10) / 4)
        constant += float((t00 + t01 + t10 + t11)[: max(0, owned - begin)].sum()) / 4
    _add_linear(problem, linear, theta_v)
    if not one:
        return Couplings(frozen(strength), 1.0, False, constant)
    t00, t01, t10, t11 = problem.graph.theta_t[int(batch.table_at[0]) :][:4].tolist()
    shared = len(batch.weight) == 0
    return Couplings(frozen(np.ones(SAME)) if shared else problem.weight, (t00 + t11 - t01 - t10) / 4, shared, constant)


def _add_linear(problem: Problem, linear: Floats, theta_v: Floats) -> None:
    """Add coefficients of ``mu(1) - mu(0)`` to the binary variables' potentials."""
    if problem.only_binary:
        theta_v[::2] -= linear
        theta_v[1::2] += linear
        return
    graph = problem.graph
    touched = np.flatnonzero(graph.card == 2)
    theta_v[graph.var_ptr[touched]] -= linear[touched]
    theta_v[graph.var_ptr[touched] + 1] += linear[touched]


def _add_sums(total: Floats, places: Ints, terms: Floats) -> None:
    """Add to every entry of `total` the sum of the terms of its place; only between the first and the last place."""
    low, high = int(places.min()), int(places.max()) + 1
    total[low:high] += np.bincount(places - low, terms, high - low)
