"""WCSP: the optimum by search, limits, better labellings from elsewhere, and known values of real models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status, constraints
from mapmrf.datasets import random_graph
from mapmrf.engines.soft_consistency import search as soft_search
from strategies import Recipe, any_recipes, brute_force, recipes, with_weights


@given(recipe=with_weights(recipes() | any_recipes()), sweeps=st.integers(0, 3), effort=st.integers(0, 2))
def test_the_optimum_is_found_and_proven(recipe: Recipe, sweeps: int, effort: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "wcsp", sweeps=sweeps, local_search=effort)
    if optimum == -math.inf:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-9)
    assert result.bound is not None and result.bound >= optimum - 1e-9


@pytest.mark.parametrize("seed", range(3))
def test_elimination_agrees(seed: int) -> None:
    graph = random_graph(24, 48, states=(2, 4), arity=(2, 4), hard=0.05, seed=seed)
    expected = mapmrf.solve(graph, "branch")
    result = mapmrf.solve(graph, "wcsp", local_search=0)
    assert result.status == expected.status
    if expected.status is Status.OPTIMAL:
        assert result.value == pytest.approx(expected.value)


def colouring(n_colours: int) -> FactorGraph:
    """Five variables, all of which must differ."""
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    differ = np.where(np.eye(n_colours, dtype=bool), -np.inf, 0.0)
    return FactorGraph.from_pairwise(np.zeros((5, n_colours)), pairs, differ)


def test_infeasible_models_are_proven_so() -> None:
    assert mapmrf.solve(colouring(4), "wcsp").status is Status.INFEASIBLE
    assert mapmrf.solve(colouring(5), "wcsp").status is Status.OPTIMAL


def dense(seed: int) -> FactorGraph:
    """Binary variables with random potentials on all pairs: too wide for elimination."""
    rng = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(26) for j in range(i + 1, 26)]
    return FactorGraph.from_pairwise(rng.normal(size=(26, 2)), pairs, rng.normal(size=(len(pairs), 2, 2)))


def test_nodes_are_the_iterations_and_limit_the_search() -> None:
    graph = dense(2)
    whole = mapmrf.solve(graph, "wcsp", local_search=0)
    short = mapmrf.solve(graph, "wcsp", local_search=0, max_iterations=10)
    assert whole.status is Status.OPTIMAL and whole.iterations > 10
    assert short.status is Status.ITERATION_LIMIT and short.iterations == 10
    assert short.bound is not None and short.value <= whole.value <= short.bound


def test_the_bound_moves_during_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soft_search, "STEP_WORK", 20_000)
    graph = dense(4)
    result = mapmrf.solve(graph, "wcsp")
    bounds = [point.bound for point in result.trace if point.phase == "search" and point.bound is not None]
    assert len(set(bounds)) > 3 and bounds == sorted(bounds, reverse=True)


def beside(*graphs: FactorGraph) -> FactorGraph:
    """Binary models of pairs side by side, with nothing between them."""
    unary = np.concatenate([graph.theta_v.reshape(-1, 2) for graph in graphs])
    first = np.cumsum([0] + [graph.n_vars for graph in graphs])
    pairs = np.concatenate([graph.scope.reshape(-1, 2) + begin for graph, begin in zip(graphs, first, strict=False)])
    return FactorGraph.from_pairwise(
        unary, pairs, np.concatenate([graph.theta_t.reshape(-1, 2, 2) for graph in graphs])
    )


def test_components_are_solved_one_by_one() -> None:
    graphs = dense(0), dense(1), dense(2)
    alone = [mapmrf.solve(graph, "wcsp") for graph in graphs]
    result = mapmrf.solve(beside(*graphs), "wcsp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(sum(one.value for one in alone))
    assert result.iterations <= 2 * sum(one.iterations for one in alone)
    short = mapmrf.solve(beside(*graphs), "wcsp", max_iterations=50, local_search=0)
    assert short.status is Status.ITERATION_LIMIT and short.iterations == 50
    assert short.bound is not None and short.bound >= result.value


def test_one_infeasible_component_is_enough() -> None:
    differ = np.where(np.eye(2, dtype=bool), -np.inf, 0.0)
    triangle = FactorGraph.from_pairwise(np.zeros((3, 2)), [(0, 1), (1, 2), (0, 2)], differ[None].repeat(3, axis=0))
    assert mapmrf.solve(beside(dense(0), triangle), "wcsp").status is Status.INFEASIBLE


def test_a_penalty_of_nothing_leaves_the_bound_as_it_is() -> None:
    graph = FactorGraph.from_tables([2, 2], [], []).with_constraints([constraints.at_most_k([0, (0, 0)], 0, penalty=0)])
    result = mapmrf.solve(graph, "wcsp")
    assert (result.value, result.bound, result.status) == (0.0, 0.0, Status.OPTIMAL)
