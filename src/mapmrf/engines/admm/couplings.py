"""2x2 tables as couplings J [[1, -1], [-1, 1]], linear parts for the variables, and a constant."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen
from mapmrf.model.problem import Batch, Problem

CHUNK = 1 << 18
"""Factors processed at a time, which limits temporary memory."""
SAME = 1 << 11
"""Length of the array of strengths if all couplings are equal: the number of factors a kernel processes at a time."""


class Couplings(NamedTuple):
    """Couplings J = unit * strength, with a strength per factor of the problem or shared ones; and the constant."""

    strength: Floats
    unit: float
    shared: bool
    constant: float


NO_COUPLINGS = Couplings(frozen(np.zeros(0)), 1.0, False, 0.0)
"""The couplings of a model without compact 2x2 factors."""


def split_pairs(problem: Problem, batch: Batch, theta_v: Floats, owned: int) -> Couplings:
    """Split a batch of 2x2 factors into couplings and linear parts, which are added to `theta_v`.

    The constant is that of the first `owned` ones. Factors that share one table need no separate strengths: these are
    their weights, or 1 for all.
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
    """Add the terms to the entries of `total` at their places; only touches the range of places."""
    low, high = int(places.min()), int(places.max()) + 1
    total[low:high] += np.bincount(places - low, terms, high - low)
