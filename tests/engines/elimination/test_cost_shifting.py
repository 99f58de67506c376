"""Cost shifting: the model stays the same, the bound falls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from elimination_models import frustrated
from mapmrf.engines.elimination import mini_buckets
from mapmrf.engines.elimination.mini_buckets import CostShifting
from mapmrf.model.problem import Problem
from strategies import Recipe, brute_force, recipes, with_weights


@given(recipe=with_weights(recipes()))
def test_cost_shifting_keeps_every_value_and_never_raises_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    shifting = CostShifting(problem, np.arange(problem.n_vars))
    bounds = [shifting.bound()]
    for _ in range(4):
        list(shifting.sweep())
        bounds.append(shifting.bound())
    assert bounds[-1] >= brute_force(graph)[0] - 1e-9
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    random = np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        total = graph.constant + shifting.theta_v[graph.var_ptr[:-1] + labels].sum()
        for a in range(problem.n_factors):
            scope = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]]
            table = shifting.theta_f[shifting.table_ptr[a] : shifting.table_ptr[a + 1]].reshape(graph.card[scope])
            total += table[tuple(labels[scope])]
        assert total == pytest.approx(graph.value(labels), abs=1e-9)


def test_the_best_states_by_max_marginals_are_a_labelling() -> None:
    """On a tree one pass to and fro makes them optimal."""
    graph = frustrated(1, 12, states=3, seed=2)
    problem = Problem.compile(graph)
    shifting = CostShifting(problem, np.arange(12))
    list(shifting.sweep())
    assert shifting.bound() == pytest.approx(graph.value(shifting.labels))


def test_the_steps_of_a_sweep_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.compile(frustrated(4, 5, states=3, seed=1))
    whole, stepwise = (CostShifting(problem, np.arange(20)) for _ in range(2))
    assert len(list(whole.sweep())) == 2
    monkeypatch.setattr(mini_buckets, "STEP_ENTRIES", 50)
    assert len(list(stepwise.sweep())) > 10
    assert np.array_equal(stepwise.theta_f, whole.theta_f) and np.array_equal(stepwise.theta_v, whole.theta_v)
    assert np.array_equal(stepwise.labels, whole.labels)
