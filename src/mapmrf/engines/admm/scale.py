"""The unit of ADMM's penalties."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.model.problem import Batch, Problem

CHUNK = 1 << 18
"""Table entries processed at a time, which limits temporary memory."""

BLAS_PIECE = 10_000
"""Maximum length of an inner product that BLAS computes in one thread."""

ROUND_OFF = 1e-12
"""Relative residual of a table that still counts as no interaction."""


LEAST = float(np.finfo(np.float64).tiny)
"""The smallest normal floating-point number."""
LEAST_SHARE = 1e-100
"""The smallest scale, relative to the largest unary potential."""


def interaction_scale(problem: Problem) -> float:
    """Return the mean size of the interactions: the root mean square of each table without its main effects.

    It scales with the potentials, so penalties in this unit are scale-free. Without any interaction, it is the spread
    of the unary potentials; without that, 1. Potentials can be divided by it without overflow.
    """
    total = interaction_sum(problem)
    spread = np.abs(problem.graph.theta_v[np.isfinite(problem.graph.theta_v)])
    least = max(LEAST, LEAST_SHARE * float(spread.max(initial=0.0)))
    if total > 0:
        return max(total / problem.n_factors, least)
    return max(float(spread.mean()), least) if spread.sum() > 0 else 1.0


def vertex_penalty(problem: Problem) -> float:
    """Return a rho above which no factor can push a variable's copy on the sphere from its vertex past the centre.

    At a vertex the sphere's multiplier balances the others, so it is at most the sum of the ranges of the potentials at
    the variable. The copy is the projection of mu + lam / rho and mu is 1/2 away from the centre, hence the factor 2.
    """
    graph = problem.graph
    spread = _ranges(graph.theta_v, graph.var_ptr)
    of_factor = _ranges(graph.theta_t, graph.table_ptr)[graph.table_of]
    if graph.weight is not None:
        of_factor = of_factor * np.abs(graph.weight)
    spread += np.bincount(graph.scope, np.repeat(of_factor, graph.arity), problem.n_vars)
    return 2.0 * float(spread.max(initial=0.0))


def _ranges(values: Floats, ptr: Ints) -> Floats:
    """Return the difference of the largest and the smallest finite value of each segment, none of which is empty."""
    if len(values) == 0:
        return np.zeros(0)
    finite = np.isfinite(values)
    high = np.maximum.reduceat(np.where(finite, values, -np.inf), ptr[:-1])
    low = np.minimum.reduceat(np.where(finite, values, np.inf), ptr[:-1])
    return np.where(high >= low, high - low, 0.0)


def interaction_sum(problem: Problem) -> float:
    """Return the sum of the interaction sizes of all factors."""
    total = 0.0
    for batch in problem.batches:
        shared = problem.graph.n_tables < problem.n_factors
        starts, uses = _uses(batch) if shared else (batch.table_at, np.ones(batch.n))
        size = max(1, CHUNK // batch.n_configs)
        for part in range(0, len(starts), size):
            rows = slice(part, part + size)
            if shared:
                tables = problem.graph.theta_t[starts[rows, None] + np.arange(batch.n_configs)]
            else:
                tables = batch.tables(problem.graph.theta_t, rows)
            total += _inner(_interaction(tables.reshape(-1, *batch.shape)), uses[rows])
    return total


def _uses(batch: Batch) -> tuple[Ints, Floats | Ints]:
    """Return the offsets of the distinct tables of a batch, and how often each is used: the sum of absolute weights."""
    if len(batch.weight) == 0:
        return np.unique(batch.table_at, return_counts=True)
    starts, which = np.unique(batch.table_at, return_inverse=True)
    return starts, np.bincount(which, np.abs(batch.weight))


def _inner(sizes: Floats, uses: Floats | Ints) -> float:
    """Return ``<sizes, uses>`` in pieces for which BLAS starts no threads: the sum must not depend on their number."""
    return sum(
        float(sizes[at : at + BLAS_PIECE] @ uses[at : at + BLAS_PIECE]) for at in range(0, len(sizes), BLAS_PIECE)
    )


def _interaction(tables: Floats) -> Floats:
    """Return the root mean square interaction of each table, with forbidden entries at the lowest finite one."""
    if tables.shape[1:] == (2, 2) and np.isfinite(tables).all():
        return np.asarray(np.abs(tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]) / 4)
    axes = tuple(range(1, tables.ndim))
    if not np.isfinite(tables).all():
        low = np.where(np.isfinite(tables), tables, np.inf).min(axis=axes, keepdims=True)
        tables = np.where(np.isfinite(tables), tables, low)
    mean = tables.mean(axis=axes, keepdims=True)
    rest = tables - mean
    for k in axes:
        rest = rest - (tables.mean(axis=tuple(j for j in axes if j != k), keepdims=True) - mean)
    size = np.sqrt((rest * rest).mean(axis=axes))
    return np.where(size > ROUND_OFF * np.abs(tables).max(axis=axes), size, 0.0)
