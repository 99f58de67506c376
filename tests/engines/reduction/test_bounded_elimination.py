"""Bounded elimination: the optimum stays, labels are lifted to it, and tables stay small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf.datasets import grid, random_graph
from mapmrf.engines.reduction.simplify import BoundedElimination, Simplified, simplify
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, assert_reduced, recipes, with_weights


def eliminate_bounded(small: Simplified, largest: int) -> Simplified:
    elimination = BoundedElimination(small, largest)
    while not elimination.advance(1000):
        pass
    return elimination.result()


@given(recipe=with_weights(recipes() | any_recipes()), largest=st.integers(1, 64))
def test_the_optimum_stays_and_is_lifted(recipe: Recipe, largest: int) -> None:
    graph = recipe.graph()
    assert_reduced(graph, eliminate_bounded(Simplified(Problem.compile(graph), ()), largest))


@pytest.mark.parametrize("seed", range(5))
def test_lifting_a_projected_labelling_never_makes_it_worse(seed: int) -> None:
    graph = random_graph(20, 30, states=(2, 3), arity=(2, 3), hard=0.0, seed=seed)
    small = eliminate_bounded(simplify(Problem.compile(graph)), 32)
    labels = np.random.default_rng(seed).integers(0, graph.card)
    assert graph.value(small.lift(small.project(labels))) >= graph.value(labels) - 1e-9


def test_tables_stay_within_the_limit_and_more_goes_than_by_simplification() -> None:
    problem = Problem.compile(grid(8, 8, coupling=2.0, seed=0))
    first = simplify(problem)
    small = eliminate_bounded(first, 16)
    assert 0 < small.problem.n_vars < first.problem.n_vars
    assert all(batch.n_configs <= 16 or batch.arity <= 7 for batch in small.problem.batches)
    assert max(batch.n_configs for batch in small.problem.batches) <= 64
    assert small.counts.variables_eliminated > first.counts.variables_eliminated
    assert mapmrf.solve(small.problem.graph, "branch").value == pytest.approx(
        mapmrf.solve(problem.graph, "branch").value
    )
