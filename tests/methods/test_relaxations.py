"""Methods that bound by the LP relaxation: they come down to its value, which HiGHS knows, and never below it."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from mapmrf import FactorGraph, Kind, Status
from mapmrf.datasets import grid
from pairwise_models import attractive, chain_edges, triangle
from strategies import Recipe, brute_force, planted_graph, tree_recipes, with_weights


@functools.cache
def relaxed(seed: int) -> tuple[FactorGraph, float]:
    """A model and the value of its relaxation."""
    graph = planted_graph(seed)
    bound = mapmrf.solve(graph, "lp").bound
    assert bound is not None
    return graph, bound


@pytest.mark.parametrize(
    ("method", "options", "tol"),
    [
        ("ad3", {}, 1e-4),
        ("adsal", {}, 1e-3),
        ("dd_sg", {"max_iterations": 6000, "patience": 200}, 5e-4),
        ("dd_sg", {"max_iterations": 6000, "patience": 200, "decomposition": "factors"}, 5e-4),
        ("lslp", {"sphere": "off", "eta": 1.0, "tol": 1e-7, "max_iterations": 20_000}, 2e-6),
        ("mplp", {}, math.inf),
        ("psdd", {"max_iterations": 8000, "rule": "sqrt", "patience": 1000}, 1e-2),
        ("psdd", {"max_iterations": 8000, "rule": "level", "step_size": 1.0, "patience": 200}, 1e-4),
        ("trws", {}, math.inf),
    ],
)
def test_the_bound_comes_down_to_the_value_of_the_lp(method: str, options: dict[str, Any], tol: float) -> None:
    for seed in range(24):
        graph, value = relaxed(seed)
        scale = max(1.0, abs(value))
        result = mapmrf.solve(graph, method, **options)
        assert result.bound is not None
        assert value - 1e-6 * scale <= result.bound <= value + tol * scale, seed
        if method == "ad3" or (method == "lslp" and result.status is Status.CONVERGED):
            assert result.relaxed_value == pytest.approx(value, abs=1e-4 * scale), seed


@pytest.mark.parametrize(
    ("method", "close", "primal", "kind", "status"),
    [
        ("ad3", 1e-4, 1e-4, Kind.UNIFORM, Status.CONVERGED),
        ("adsal", 1e-5, 1e-5, Kind.UNIFORM, Status.CONVERGED),
        ("dd_sg", 1e-5, 0.15, None, None),
        ("lp", 1e-9, 1e-9, Kind.UNIFORM, Status.CONVERGED),
        ("psdd", 1e-2, 0.05, Kind.APPROXIMATE, Status.ITERATION_LIMIT),
        ("trbp", 1e-6, None, None, Status.CONVERGED),
    ],
)
def test_a_frustrated_triangle_has_the_bound_and_the_point_of_the_lp(
    method: str, close: float, primal: float | None, kind: Kind | None, status: Status | None
) -> None:
    result = mapmrf.solve(triangle(), method)
    assert result.bound == pytest.approx(3.0, abs=close)
    assert result.value == (0.0 if method in ("ad3", "lp") else 2.0)  # the rounding of a point that says nothing
    assert status is None or result.status is status
    if primal is not None:
        assert result.relaxed_value == pytest.approx(3.0, abs=primal)
        assert result.mu_v == pytest.approx(np.full(6, 0.5), abs=max(0.05, primal) if kind is None else 0.05)
        assert result.residuals is not None
        assert result.residuals.simplex < 1e-3 and result.residuals.consistency < 0.05
    assert kind is None or result.kind is kind


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("trws", {}),
        ("ad3", {}),
        *(("lslp", {"sphere": sphere}) for sphere in ("variables", "affine", "factors", "off")),
        *(("dd_sg", {"decode": decode}) for decode in ("all", "majority", "average", "subproblems")),
    ],
)
def test_binary_attractive_models_are_certified(method: str, options: dict[str, Any]) -> None:
    """Their relaxation has no fractional vertex."""
    for seed in range(2):
        graph = attractive(8, 2, seed=seed)
        result = mapmrf.solve(graph, method, **options)
        assert result.status.closes_gap and result.bound == pytest.approx(result.value, rel=1e-6)
        assert result.value == pytest.approx(mapmrf.solve(graph, "lp").value, rel=1e-6)
        assert result.relaxed_value is None or result.relaxed_value == pytest.approx(result.value, rel=1e-4)
        assert result.kind in (None, Kind.VALID)
        if method == "lslp":  # proven before any sphere, whichever it would be
            assert {(point.phase, point.extra["sphere"]) for point in result.trace} == {("lp", 0.0)}


@pytest.mark.parametrize(("method", "tol"), [("trws", 1e-2), ("mplp", 1e-3)])
def test_the_bound_comes_near_the_relaxation_of_frustrated_grids(method: str, tol: float) -> None:
    for seed in range(3):
        graph = grid(8, 8, coupling=2.0, seed=seed)
        value = mapmrf.solve(graph, "lp").bound
        bound = mapmrf.solve(graph, method).bound
        assert value is not None and bound is not None
        assert value - 1e-6 <= bound <= value * (1 + tol)


@pytest.mark.parametrize(
    ("method", "options", "most"),
    [
        ("bp", {"schedule": "parallel"}, 2),
        ("bp", {"schedule": "sequential"}, 2),
        ("dd_sg", {"max_iterations": 1}, 1),
        ("mplp", {}, 1),
        ("trws", {}, 2),
    ],
)
@given(recipe=tree_recipes())
def test_trees_are_solved_and_proven_in_one_or_two_iterations(
    method: str, options: dict[str, Any], most: int, recipe: Recipe
) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, method, **options)
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)
    assert result.status is Status.OPTIMAL
    assert result.bound == pytest.approx(result.value, abs=1e-9)
    assert result.iterations <= most or result.value == 0.0


@pytest.mark.parametrize("method", ["ad3", "lp", "lslp"])
@given(recipe=with_weights(tree_recipes()))
def test_trees_have_an_integer_solution(method: str, recipe: Recipe) -> None:
    result = mapmrf.solve(recipe.graph(), method)
    assert (result.kind, result.status) == (Kind.VALID, Status.OPTIMAL)
    assert result.value == pytest.approx(brute_force(recipe.graph())[0], abs=1e-6)
    assert result.relaxed_value == pytest.approx(result.value)


@pytest.mark.parametrize("method", ["bp", "dd_sg", "mplp", "trws"])
def test_impossible_states_are_found_down_a_chain(method: str) -> None:
    """Each variable must be one state further than the one before: states die from both ends, and one way is left."""
    n = 6
    step = np.full((n, n), -np.inf)
    step[np.arange(n - 1), np.arange(1, n)] = 0.0
    unary = np.tile(np.linspace(1.0, 0.0, n), (n, 1))
    result = mapmrf.solve(FactorGraph.from_pairwise(unary, chain_edges(n), step), method)
    assert (result.labels.tolist(), result.status) == (list(range(n)), Status.OPTIMAL)
    longer = FactorGraph.from_pairwise(np.zeros((n + 1, n)), chain_edges(n + 1), step)
    assert mapmrf.solve(longer, method).status is Status.INFEASIBLE
