"""Whole costs: what their rounding may amount to is stated, and covers every labelling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.program.toulbar2_process import WholeCosts
from mapmrf.model.problem import Problem
from strategies import Recipe, brute_force, recipes, with_weights


@given(recipe=with_weights(recipes()), bits=st.sampled_from([6, 12, 50]), seed=st.integers(0, 2**16))
def test_the_stated_error_covers_every_labelling(recipe: Recipe, bits: int, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    costs = WholeCosts.of(problem, bits)
    random = np.random.default_rng(seed)
    for _ in range(10):
        labels = random.integers(0, problem.graph.card)
        value, cost = problem.graph.value(labels), costs.cost(problem, labels)
        assert (cost == math.inf) == (value == -math.inf)
        if cost < math.inf:
            assert cost == round(cost) < 2**bits + problem.n_vars + problem.n_factors
            assert abs(costs.offset - cost / costs.scale - value) <= costs.error


@pytest.mark.parametrize("bits", [8, 16])
def test_a_coarse_cost_unit_widens_the_bound_but_never_breaks_it(bits: int) -> None:
    random = np.random.default_rng(1)
    edges = [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4], [1, 3]]
    graph = FactorGraph.from_pairwise(random.normal(size=(5, 3)), edges, random.normal(size=(len(edges), 3, 3)))
    problem = Problem.compile(graph)
    costs = WholeCosts.of(problem, bits)
    optimum, _ = brute_force(graph)
    cheapest = min(costs.cost(problem, np.array(labels)) for labels in np.ndindex(3, 3, 3, 3, 3))
    assert optimum <= costs.bound(int(cheapest)) <= optimum + 2 * costs.error
    assert costs.error == pytest.approx(0.5 * (graph.n_vars + graph.n_factors) / costs.scale, rel=1e-3)
