"""The quadratic program over the local polytope, against one that scipy solves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import optimize

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.admm.quadratic import solve_quadratic, table_sums
from mapmrf.model.polytope import residuals
from mapmrf.model.problem import Problem
from strategies import random_recipe


def by_scipy(problem: Problem) -> np.ndarray:
    """mu_v by SLSQP over mu_v and mu_f, with a row for each consistency constraint."""
    graph, n, m = problem.graph, problem.n_states, problem.n_configs
    rows, right = [], []
    for i in range(graph.n_vars):
        row = np.zeros(n + m)
        row[graph.var_ptr[i] : graph.var_ptr[i + 1]] = 1.0
        rows.append(row)
        right.append(1.0)
    for batch in problem.batches:
        for a in range(batch.n):
            at = n + batch.configs.start + a * batch.n_configs
            for k in range(batch.arity):
                for state in range(batch.shape[k]):
                    row = np.zeros(n + m)
                    row[graph.var_ptr[batch.scope[a, k]] + state] = -1.0
                    row[at + np.flatnonzero(batch.config[:, k] == state)] = 1.0
                    rows.append(row)
                    right.append(0.0)
    matrix, bound, theta = np.array(rows), np.array(right), np.concatenate([graph.theta_v, problem.theta_f])
    theta = np.where(np.isfinite(theta), theta, 0.0)
    limits = [(0.0, 1.0 if np.isfinite(t) else 0.0) for t in np.concatenate([graph.theta_v, problem.theta_f])]
    # Rows are dependent: SLSQP wants them independent.
    keep = independent(matrix)
    found = optimize.minimize(
        lambda x: 0.5 * x[:n] @ x[:n] - theta @ x,
        np.full(n + m, 0.3),
        jac=lambda x: np.concatenate([x[:n], np.zeros(m)]) - theta,
        bounds=limits,
        constraints={"type": "eq", "fun": lambda x: (matrix @ x - bound)[keep], "jac": lambda x: matrix[keep]},
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )
    assert found.success, found.message
    return np.asarray(found.x[:n])


def independent(matrix: np.ndarray) -> list[int]:
    kept: list[int] = []
    for i in range(len(matrix)):
        if np.linalg.matrix_rank(matrix[[*kept, i]]) > len(kept):
            kept.append(i)
    return kept


MODELS: dict[str, Any] = {
    "binary pairs": lambda: grid(2, 3, coupling=1.0, seed=0),
    "pairs": lambda: random_recipe(1, 4, 6, max_arity=2, max_card=3).graph(),
    "triples": lambda: random_recipe(4, 4, 5, max_arity=3, max_card=2).graph(),
    "weights": lambda: FactorGraph.from_pairwise(
        np.array([[0.1, 0.5], [0.3, 0.0], [0.0, 0.2]]), [[0, 1], [1, 2]], np.eye(2), weight=[0.7, -0.4]
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_point_is_that_of_scipy(name: str) -> None:
    problem = Problem.compile(MODELS[name]())
    found = solve_quadratic(problem)
    assert found.residual <= 1e-7
    assert residuals(problem, found.mu_v, found.mu_f).largest < 1e-5
    assert found.mu_v == pytest.approx(by_scipy(problem), abs=1e-4)


def test_forbidden_entries_have_no_share() -> None:
    table = np.array([[0.0, -np.inf], [0.0, 0.0]])
    problem = Problem.compile(FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [[1.0, 0.0], table]))
    found = solve_quadratic(problem)
    assert found.mu_f[1] == 0.0
    assert found.mu_v == pytest.approx(by_scipy(problem), abs=1e-4)


def test_a_start_from_the_multipliers_saves_iterations() -> None:
    graph = grid(8, 8, coupling=1.0, seed=1)
    first = solve_quadratic(Problem.compile(graph))
    moved = dataclasses.replace(graph, theta_v=graph.theta_v + 1e-3)
    again = solve_quadratic(Problem.compile(moved), first.dual)
    assert again.iterations < first.iterations
    assert again.mu_v == pytest.approx(solve_quadratic(Problem.compile(moved)).mu_v, abs=1e-5)


def test_shares_are_added_up_by_table() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], np.eye(2), weight=[1.0, 3.0])
    found = table_sums(Problem.compile(graph), np.array([0.1, 0.2, 0.3, 0.4, 0.4, 0.3, 0.2, 0.1]))
    assert found == pytest.approx([1.3, 1.1, 0.9, 0.7])
