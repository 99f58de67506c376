"""The quadratic program over the local polytope, by its optimality condition."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.admm.quadratic import QuadraticPoint, solve_quadratic, table_sums
from mapmrf.model.polytope import residuals
from mapmrf.model.problem import Problem
from strategies import random_recipe


def assert_optimal(problem: Problem, found: QuadraticPoint) -> None:
    """No point of the polytope gains on the linear program whose gradient is that of the point found."""
    assert residuals(problem, found.mu_v, found.mu_f).largest < 1e-5
    tangent = dataclasses.replace(problem.graph, theta_v=problem.graph.theta_v - found.mu_v)
    used, theta_f = found.mu_f > 0, Problem.compile(tangent).theta_f
    here = tangent.constant + tangent.theta_v @ found.mu_v + theta_f[used] @ found.mu_f[used]
    assert mapmrf.solve(tangent, "lp").bound == pytest.approx(here, abs=1e-5)


MODELS: dict[str, Any] = {
    "binary pairs": lambda: grid(2, 3, coupling=1.0, seed=0),
    "pairs": lambda: random_recipe(1, 4, 6, max_arity=2, max_card=3).graph(),
    "triples": lambda: random_recipe(4, 4, 5, max_arity=3, max_card=2).graph(),
    "weights": lambda: FactorGraph.from_pairwise(
        np.array([[0.1, 0.5], [0.3, 0.0], [0.0, 0.2]]), [[0, 1], [1, 2]], np.eye(2), weight=[0.7, -0.4]
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_point_is_optimal(name: str) -> None:
    problem = Problem.compile(MODELS[name]())
    found = solve_quadratic(problem)
    assert found.residual <= 1e-7
    assert_optimal(problem, found)


def test_forbidden_entries_have_no_share() -> None:
    table = np.array([[0.0, -np.inf], [0.0, 0.0]])
    problem = Problem.compile(FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [[1.0, 0.0], table]))
    found = solve_quadratic(problem)
    assert found.mu_f[1] == 0.0
    assert_optimal(problem, found)


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
