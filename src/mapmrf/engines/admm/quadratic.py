"""A quadratic program over the local polytope by ADMM: maximise ``<theta, mu> - |mu_v|^2 / 2``, as in LP-SparseMAP."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, ranges
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout, harden, isolated
from mapmrf.engines.admm.penalty import interaction_scale
from mapmrf.model.polytope import dense
from mapmrf.model.problem import Problem
from mapmrf.run.method import DualState


class QuadraticPoint(NamedTuple):
    """The solution of the quadratic program."""

    # mu_v, mu_f: (n_states,), (n_configs,): The point, in the layout of the problem
    mu_v: Floats
    mu_f: Floats
    # iterations, residual: Number of iterations, and the residual: root mean squares of ``M_ia mu_a - mu_i`` and of the
    # last change
    iterations: int
    residual: float
    dual: DualState | None  # Multipliers for a warm start


def solve_quadratic(
    problem: Problem, start: DualState | None = None, *, tol: float = 1e-7, max_iterations: int = 5000
) -> QuadraticPoint:
    """Maximise ``<theta, mu> - |mu_v|^2 / 2`` over the local polytope.

    The factor steps are those of AD3; the square adds 1 to the denominator of the variable step.
    """
    hard = harden(problem)
    engine = Engine(Layout.build(hard, compact=True))
    try:
        rho = max(0.4 * interaction_scale(hard), 0.3)  # the quadratic term has its own scale
        if start is None or not engine.load_dual(start, rho):
            card = problem.graph.card
            engine.begin(engine.layout.compress(np.repeat(1.0 / card, card)), rho)
        engine.penalty[0].denominator += 1.0
        iterations, residual = _run(engine, tol, max_iterations) if problem.n_factors else (0, 0.0)
        mu_v, mu_f = engine.variables(), dense(problem, engine.marginals_of(problem))
        mu_v[~problem.feasible_v] = 0.0
        _project_isolated(problem, mu_v)
        return QuadraticPoint(mu_v, mu_f, iterations, residual, engine.save_dual(1.0))
    finally:
        engine.close()


def _run(engine: Engine, tol: float, max_iterations: int) -> tuple[int, float]:
    """Iterate until the copies agree and mu has converged."""
    size, done, residual = max(1, engine.problem.n_edge_states), 0, math.inf
    while done < max_iterations and residual > tol:
        engine.run(9)
        before = engine.mu.copy()
        engine.run(1)
        done += 10
        moved = float(np.linalg.norm(engine.mu - before)) / math.sqrt(max(1, len(before)))
        residual = max(math.sqrt(engine.measure().primal2 / size), moved)
    return done, residual


def _project_isolated(problem: Problem, mu_v: Floats) -> None:
    """Project the potentials of variables without factors onto the simplex."""
    graph = problem.graph
    for i in isolated(problem).tolist():
        states = slice(graph.var_ptr[i], graph.var_ptr[i + 1])
        falling = np.sort(graph.theta_v[states])[::-1]
        level = (np.cumsum(falling) - 1.0) / np.arange(1, len(falling) + 1)
        mu_v[states] = np.maximum(graph.theta_v[states] - level[falling > level][-1], 0.0)


def table_sums(problem: Problem, mu_f: Floats) -> Floats:
    """Sum mu_f over the factors that share a table, times their weights: laid out like ``theta_t``."""
    sizes = np.diff(problem.config_ptr)
    places = ranges(problem.table_at, sizes)
    shares = np.repeat(problem.weight, sizes) * mu_f if len(problem.weight) else mu_f
    return np.asarray(np.bincount(places, shares, len(problem.graph.theta_t)), dtype=np.float64)
