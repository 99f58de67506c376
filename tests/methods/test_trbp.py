"""Tree-reweighted belief propagation: weights that stand for forests, and a bound that is mostly the LP's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.engines.messages.max_product import ForestWeights, Tour
from mapmrf.methods.trbp import degree_weights, forest_weights, parent_shares, uniform_weights
from mapmrf.model.problem import Problem
from strategies import Recipe, brute_force, random_recipe, recipes, soft_recipes, tree_recipes

WEIGHTINGS = ("forests", "uniform", "degree")


def random_pairwise(seed: int, n_vars: int = 10, states: int = 3, share: float = 0.4) -> FactorGraph:
    random = np.random.default_rng(seed)
    edges = np.array([(i, j) for i in range(n_vars) for j in range(i) if random.random() < share])
    tables = random.normal(size=(len(edges), states, states))
    return FactorGraph.from_pairwise(random.normal(size=(n_vars, states)), edges, tables)


# -- weights ----------------------------------------------------------------------------------------------------------


def root_shares(problem: Problem, weights: ForestWeights) -> np.ndarray:
    """What every variable keeps of its belief in the bound."""
    kept = np.repeat(weights.rho, np.diff(problem.scope_ptr)) - weights.parent
    return 1.0 - np.bincount(problem.scope, weights=kept, minlength=problem.n_vars)


@given(recipe=soft_recipes(max_factors=14), seed=st.integers(0, 99), n_least=st.sampled_from([1, 7]))
def test_forest_weights_are_shares_of_forests(recipe: Recipe, seed: int, n_least: int) -> None:
    problem = Problem.compile(recipe.graph())
    if problem.n_factors == 0:
        return
    weights = forest_weights(problem, n_least, seed)
    assert np.all((weights.rho > 0) & (weights.rho <= 1))
    # Every forest that holds a factor hangs it on one of its variables; every part of it has one root.
    np.testing.assert_allclose(np.add.reduceat(weights.parent, problem.scope_ptr[:-1]), weights.rho)
    shares = root_shares(problem, weights)
    assert shares.min() >= -1e-12
    n_parts = Tour.of(problem).n_parts
    assert shares.sum() >= n_parts - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_forests_of_a_connected_pairwise_model_are_spanning_trees(seed: int) -> None:
    problem = Problem.compile(random_pairwise(seed, n_vars=30, share=0.3))
    weights = forest_weights(problem, 10, seed)
    assert weights.rho.sum() == pytest.approx(29.0)
    assert root_shares(problem, weights).sum() == pytest.approx(1.0)


def test_more_forests_make_more_even_weights() -> None:
    problem = Problem.compile(grid(12, 12))
    few, many = (forest_weights(problem, n, 0) for n in (1, 100))
    assert few is not None and many is not None
    assert np.std(many.rho) < 0.25 * np.std(few.rho)


def test_forests_depend_on_the_seed_alone() -> None:
    first, again, other = (forest_weights(Problem.compile(grid(6, 6)), 5, seed) for seed in (1, 1, 2))
    assert first is not None and again is not None and other is not None
    assert np.array_equal(first.rho, again.rho) and np.array_equal(first.parent, again.parent)
    assert not np.array_equal(first.rho, other.rho)


def test_factors_that_would_take_too_many_forests_are_weighed_by_degree() -> None:
    """Twenty factors on the same two variables: no forest holds two of them."""
    random = np.random.default_rng(0)
    graph = Recipe([2, 2], [(0, 1)] * 20, list(random.normal(size=(20, 2, 2)))).graph()
    problem = Problem.compile(graph)
    weights = forest_weights(problem, 1, 0)
    np.testing.assert_allclose(weights.rho, 0.05)
    np.testing.assert_allclose(forest_weights(problem, 1, 0, max_work=100).rho, 0.1)
    np.testing.assert_allclose(degree_weights(problem), 0.1)


@given(recipe=soft_recipes(max_factors=14))
def test_degree_weights_leave_every_variable_a_share_of_the_roots(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    if problem.n_factors == 0:
        return
    rho = degree_weights(problem)
    assert np.all((rho > 0) & (rho <= 1))
    parent = parent_shares(problem, rho)
    # Shares are balanced by iteration, so some are a little off; the bound holds for any shares.
    np.testing.assert_allclose(np.add.reduceat(parent, problem.scope_ptr[:-1]), rho, rtol=0.25)
    assert root_shares(problem, ForestWeights(rho, parent)).min() >= -1e-12


def test_uniform_weights_are_those_of_a_tree_shared_equally() -> None:
    problem = Problem.compile(grid(9, 7))
    rho = uniform_weights(problem)
    np.testing.assert_allclose(rho, (9 * 7 - 1) / problem.n_factors)
    parent = parent_shares(problem, rho)
    assert parent.min() >= 0
    assert root_shares(problem, ForestWeights(rho, parent)).min() >= -1e-12
    np.testing.assert_allclose(np.add.reduceat(parent, problem.scope_ptr[:-1]), rho, rtol=2e-2)


# -- bounds -----------------------------------------------------------------------------------------------------------


@given(
    recipe=recipes(),
    weights=st.sampled_from(WEIGHTINGS),
    schedule=st.sampled_from(["parallel", "sequential"]),
    damping=st.sampled_from([0.0, 0.5]),
)
def test_the_bound_holds_at_every_step(recipe: Recipe, weights: str, schedule: str, damping: float) -> None:
    graph = recipe.graph()
    optimum = brute_force(graph)[0]
    for limit in (1, 5, 40):
        result = mapmrf.solve(
            graph, "trbp", weights=weights, schedule=schedule, damping=damping, max_iterations=limit, forests=2
        )
        assert result.bound >= optimum - 1e-9 * max(1.0, abs(optimum))


def bounds_above_the_relaxation(graphs: list[FactorGraph], **options: Any) -> np.ndarray:
    """How far the bounds are above the optimum over the local polytope, relatively."""
    relaxed = np.array([mapmrf.solve(graph, "lp").relaxed_value for graph in graphs])
    bounds = np.array([mapmrf.solve(graph, "trbp", max_iterations=3000, **options).bound for graph in graphs])
    return np.asarray((bounds - relaxed) / np.maximum(1.0, np.abs(relaxed)))


@pytest.mark.parametrize("weights", WEIGHTINGS)
def test_the_bound_is_mostly_that_of_the_relaxation(weights: str) -> None:
    """It cannot be less. Where the forests agree it is the same; other fixed points are some per cent off."""
    above = bounds_above_the_relaxation([random_pairwise(seed) for seed in range(12)], weights=weights)
    assert above.min() >= -1e-8
    assert np.median(above) <= 1e-5
    assert above.max() <= 0.06


def test_factors_of_any_arity_mostly_reach_the_relaxation() -> None:
    above = bounds_above_the_relaxation([random_recipe(seed, 7, 12).graph() for seed in range(12)])
    assert above.min() >= -1e-8
    assert np.median(above) <= 1e-6
    assert above.max() <= 0.06


def test_forbidden_states_take_no_part_in_the_bound() -> None:
    """Without state 1 of the second variable, whose tables are worth much there, the model is a tree of one pair."""
    table = np.array([[0.0, 50.0], [1.0, 50.0]])
    graph = FactorGraph.from_pairwise([[0, 0], [0, -np.inf], [0, 0]], [[0, 1], [2, 1], [0, 2]], table)
    result = mapmrf.solve(graph, "trbp")
    assert result.status is Status.OPTIMAL
    assert result.value == brute_force(graph)[0]


@given(recipe=tree_recipes())
def test_on_a_tree_it_is_belief_propagation(recipe: Recipe) -> None:
    graph = recipe.graph()
    result, plain = mapmrf.solve(graph, "trbp"), mapmrf.solve(graph, "bp")
    assert result.labels.tolist() == plain.labels.tolist()
    assert (result.bound, result.status, result.iterations) == (plain.bound, Status.OPTIMAL, plain.iterations)


def test_with_cycles_it_is_not_belief_propagation() -> None:
    graph = random_pairwise(4)
    assert mapmrf.solve(graph, "trbp").details["change"] != mapmrf.solve(graph, "bp").details["change"]
