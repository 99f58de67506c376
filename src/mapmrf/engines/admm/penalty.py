"""The penalty of ADMM: rho, its schedule, and all coefficients derived from it.

A run stores them in a structured array of length one, which kernels read as ``penalty[0].rho`` and change in place: a
tuple of twenty numbers would cost more per call than an iteration on a small model.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints, segment_ends
from mapmrf.compilation.jit import compiled
from mapmrf.model.problem import Batch, Problem

NEVER = 2**62  # an iteration that is never reached


class SphereKind(IntEnum):
    """The kind of sphere in an iteration."""

    OFF = 0
    VARIABLES = 1
    AFFINE = 2


class PenaltyOptions(NamedTuple):
    """The options that are fixed during a phase, under the names of LS-LP."""

    sphere: int = SphereKind.OFF  # A `SphereKind`
    sphere_weight: float = 1.0  # Penalty of the sphere's rows relative to that of the edge rows
    # epsilon, free: The paper's perturbation, and whether its x-bar is free (else tied to mu)
    epsilon: float = 0.0
    free: bool = False
    relaxation: float = 1.0  # Over-relaxation of the copies; 1 for none
    # eta, rho_upper, update_every: Growth factor of rho, its upper limit, and the iterations between increases
    eta: float = 1.0
    rho_upper: float = math.inf
    update_every: int = 1
    freeze_after: int = NEVER  # Iterations after which the sphere's multiplier is frozen


Penalty = NDArray[np.record]  # a structured array of length one, of type `PENALTY`

PENALTY = np.dtype(
    (
        np.record,
        [(name, np.int64) for name in ("sphere", "update_every", "freeze_after", "k")]
        + [(name, np.float64) for name in ("sphere_weight", "epsilon", "relaxation", "eta", "rho_upper")]
        + [(name, np.float64) for name in ("rho", "rho_v", "c", "target_lam", "target_lam_v", "leak", "leak_v")]
        + [(name, np.float64) for name in ("q_weight", "q_weight_v", "denominator", "denominator_edge")]
        + [("last_leak", np.float64), ("last_rho_c", np.float64), ("free", np.bool_)],
    )
)
"""The fields of `PenaltyOptions`, and

k                number of the iteration
rho, rho_v       penalty of the edges' rows and of the sphere's rows
c                1 + epsilon if tied, 1 if free
target_lam       weight of lam in the targets: t = c mu + target_lam lam; `_v` for the sphere's rows
leak             lam = leak (rho c mu - q) after the variable step
q_weight         weight of q in mu_i = (theta_i + q_weight_v q_i + q_weight sum_a q_ia) / below,
denominator      with below = denominator + denominator_edge d_i
last_leak, last_rho_c   leak and rho c of the last iteration, with which its multipliers are read off q
"""


def new_penalty(options: PenaltyOptions) -> Penalty:
    """Create the record of a new phase; `set_rho` completes it."""
    penalty: Penalty = np.zeros(1, dtype=PENALTY)
    for name, value in options._asdict().items():
        penalty[name] = value
    return penalty


@compiled
def set_rho(penalty: Penalty, rho: float) -> None:
    """Set rho and the derived coefficients, for the tied or the free variant."""
    p = penalty[0]
    epsilon = p.epsilon
    p.rho = rho
    p.rho_v = p.sphere_weight * rho
    p.target_lam, p.target_lam_v = target_weight(penalty, rho), target_weight(penalty, p.rho_v)
    if p.free:
        p.c = 1.0
        p.leak, p.leak_v = 1.0 / (1.0 + epsilon * rho), 1.0 / (1.0 + epsilon * p.rho_v)
        p.q_weight, p.q_weight_v = p.leak, p.leak_v
        p.denominator, p.denominator_edge = epsilon, rho * p.leak
        if p.sphere != SphereKind.OFF:
            p.denominator += p.rho_v * p.leak_v
    else:
        c = 1.0 + epsilon
        p.c = c
        p.leak, p.leak_v = 1.0, 1.0
        p.q_weight, p.q_weight_v = c, c
        p.denominator, p.denominator_edge = epsilon, epsilon + c * c * rho
        if p.sphere != SphereKind.OFF:
            p.denominator += epsilon + c * c * p.rho_v


@compiled
def target_weight(penalty: Penalty, rho: float) -> float:
    """Return the weight of lam in the target of a row with this penalty: 1 / rho, minus epsilon if x-bar is free."""
    return 1.0 / rho - penalty[0].epsilon if penalty[0].free else 1.0 / rho


@compiled
def next_rho(penalty: Penalty) -> float:
    """Return the rho of the next iteration: min(eta rho, rho_upper) if an increase is due."""
    p = penalty[0]
    rho: float = min(p.eta * p.rho, max(p.rho_upper, p.rho)) if (p.k + 1) % p.update_every == 0 else p.rho
    return rho


@compiled
def update_lam(penalty: Penalty) -> None:
    """Algorithm 1, lam_ia += rho (c mu_i - M_ia mu_a).

    With q = rho M_ia mu_a - lam_ia this is lam_ia = rho c mu_i - q, which is formed where it is needed, so only rho c
    is stored; the free variant leaks, see `PENALTY`. The variable step has updated lam_i.
    """
    p = penalty[0]
    p.last_leak, p.last_rho_c = p.leak, p.rho * p.c


@compiled
def update_rho(penalty: Penalty) -> None:
    """Algorithm 1, rho = min(eta rho, rho_upper), every `update_every` iterations; ends the iteration."""
    p = penalty[0]
    rho = next_rho(penalty)
    p.k += 1
    if rho != p.rho:
        set_rho(penalty, rho)


# -- The unit of ADMM's penalties -------------------------------------------------------------------------------------


CHUNK = 1 << 18  # table entries processed at a time, which limits temporary memory


def interaction_scale(problem: Problem) -> float:
    """Return the mean size of the interactions: the root mean square of each table without its main effects.

    It scales with the potentials, so penalties in this unit are scale-free. Without any interaction, it is the spread
    of the unary potentials; without that, 1. Potentials can be divided by it without overflow.
    """
    total = interaction_sum(problem)
    spread = np.abs(problem.graph.theta_v[np.isfinite(problem.graph.theta_v)])
    least = max(float(np.finfo(np.float64).tiny), 1e-100 * float(spread.max(initial=0.0)))
    if total > 0:
        return max(total / problem.n_factors, least)
    return max(float(spread.mean()), least) if spread.sum() > 0 else 1.0


def vertex_penalty(problem: Problem) -> float:
    """Return a rho above which no factor can push a variable's copy on the sphere from its vertex past the centre.

    At a vertex the sphere's multiplier balances the others, so it is at most the sum of the ranges of the potentials at
    the variable. The copy is the projection of mu + lam / rho and mu is 1/2 away from the centre, hence the factor 2.
    """
    graph = problem.graph
    unary, tables = segment_ends(graph.theta_v, graph.var_ptr), segment_ends(graph.theta_t, graph.table_ptr)
    spread, of_factor = unary[1] - unary[0], (tables[1] - tables[0])[graph.table_of]
    if graph.weight is not None:
        of_factor = of_factor * np.abs(graph.weight)
    spread += np.bincount(graph.scope, np.repeat(of_factor, graph.arity), problem.n_vars)
    return 2.0 * float(spread.max(initial=0.0))


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
    size = 10_000
    return sum(float(sizes[at : at + size] @ uses[at : at + size]) for at in range(0, len(sizes), size))


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
    return np.where(size > 1e-12 * np.abs(tables).max(axis=axes), size, 0.0)  # less than that is round-off
