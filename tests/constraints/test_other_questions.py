"""M best, max-marginals and marginal MAP of models with constraints, against exhaustive search."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mapmrf
from constrained_recipes import ConstrainedRecipe, random_constrained
from mapmrf import FactorGraph, Status, constraints
from mapmrf.constraints import as_tables as rewriting
from refusals import refuses


def recipe_of(seed: int) -> ConstrainedRecipe:
    return random_constrained(seed, n_vars=2 + seed % 4, n_constraints=1 + seed % 4)


@pytest.mark.parametrize("method", ["wcsp", "cuts"])
@pytest.mark.parametrize("seed", range(6))
def test_labellings_that_are_excluded_by_constraints_are_the_best(seed: int, method: str) -> None:
    recipe = recipe_of(seed)
    values = sorted((value for _, value in recipe.values() if value > -math.inf), reverse=True)
    best = mapmrf.solve_best(recipe.graph(), 3, method)
    assert [result.value for result in best] == pytest.approx(values[:3])
    assert all(result.status.closes_gap for result in best)


@pytest.mark.parametrize("seed", range(6))
def test_lawlers_partition_agrees(seed: int) -> None:
    recipe = recipe_of(seed)
    values = sorted((value for _, value in recipe.values() if value > -math.inf), reverse=True)
    best = mapmrf.solve_best(recipe.graph(), 3, "mplp_c")
    for place, result in enumerate(best):
        assert result.value <= values[place] + 1e-9
        assert result.bound >= values[place] - 1e-6
        if best[place].status is Status.OPTIMAL:
            assert result.value == pytest.approx(values[place])


N_ITEMS = 12
Budget = tuple[FactorGraph, np.ndarray, np.ndarray]


@pytest.fixture
def real_budget(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Items under a budget whose sums have too many values for tables, all labellings, and their values."""
    monkeypatch.setattr("mapmrf.constraints.kinds.linear.MOST_COUNTS", 100)
    n = N_ITEMS
    random = np.random.default_rng(3)
    gains, prices = random.uniform(1.0, 5.0, n), random.uniform(1.0, 5.0, n)
    graph = FactorGraph.from_tables([2] * n, [(i,) for i in range(n)], [[0.0, gain] for gain in gains])
    limit = float(prices.sum()) / 2
    graph = graph.with_constraints([constraints.linear(range(n), prices, upper=limit)])
    refuses(mapmrf.UnsupportedModel, "too many for tables", rewriting.rewrite, graph)
    every = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return graph, every, np.where(every @ prices <= limit, every @ gains, -np.inf)


def test_sums_that_no_table_can_hold_do_not_keep_labellings_from_being_ranked(real_budget: Budget) -> None:
    graph, every, values = real_budget
    best = mapmrf.solve_best(graph, 4)
    assert best.status.closes_gap
    assert [result.value for result in best] == pytest.approx(np.sort(values)[::-1][:4])
    apart = mapmrf.solve_best(graph, 2, diverse=5)
    far = (every != apart[0].labels).sum(axis=1) >= 5
    assert [result.value for result in apart] == pytest.approx([values.max(), values[far].max()])
    assert apart.status.closes_gap
    refuses(mapmrf.UnsupportedModel, "too many for tables", mapmrf.solve_best, graph, 2, "trws")


@pytest.mark.parametrize("seed", range(12))
def test_diverse_labellings_keep_their_distance_on_the_variables_of_the_model(seed: int) -> None:
    recipe = recipe_of(seed)
    feasible = {labels: value for labels, value in recipe.values() if value > -math.inf}
    best = mapmrf.solve_best(recipe.graph(), 2, diverse=2)
    if not feasible:
        assert len(best) == 0
        return
    first = tuple(best[0].labels)
    assert feasible[first] == pytest.approx(max(feasible.values()))
    others = [value for labels, value in feasible.items() if sum(np.array(labels) != first) >= 2]
    assert [result.value for result in best[1:]] == pytest.approx([max(others)] if others else [])


def test_intervals_hold_the_max_marginals() -> None:
    for seed in range(8):
        recipe = recipe_of(seed)
        graph = recipe.graph()
        exact = mapmrf.max_marginals(graph)
        found = mapmrf.max_marginals(graph, memory=0, refine=2)
        assert found.lower.shape == exact.lower.shape
        assert np.all(found.lower <= exact.lower + 1e-6)
        assert np.all(found.upper >= exact.upper - 1e-6)
        margins = mapmrf.solve(graph, margins=True).margins
        assert margins.shape == (graph.n_vars, 2)


def test_sums_that_no_table_can_hold_have_intervals(real_budget: Budget) -> None:
    graph, every, values = real_budget
    best = np.array([values[every[:, i] == k].max() for i in range(N_ITEMS) for k in range(2)])
    found = mapmrf.max_marginals(graph)
    assert np.all(found.lower <= best + 1e-9) and np.all(found.upper >= best - 1e-9)
    assert np.all(found.lower > -math.inf)
    refined = mapmrf.max_marginals(graph, refine=100)
    assert refined.lower == pytest.approx(best) and refined.upper == pytest.approx(best)
    assert mapmrf.solve(graph, margins=True).margins.shape == (N_ITEMS, 2)


def test_intervals_start_from_the_labelling_that_constraints_give() -> None:
    """The model with tables cannot be eliminated, and a run on it would find a worse labelling."""
    random = np.random.default_rng(0)
    n, unary = 60, random.normal(size=(60, 2))
    edges = np.argwhere(np.triu(random.random((n, n)) < 0.15, 1))
    graph = FactorGraph.from_pairwise(unary, edges, random.normal(size=(len(edges), 2, 2)))
    graph = graph.with_constraints([constraints.at_most_k(range(n), 6)])
    found = mapmrf.max_marginals(graph, memory=0, time_limit=30)
    assert found.value == pytest.approx(mapmrf.solve(graph, time_limit=30).value)
    assert graph.value(found.labels) == pytest.approx(found.value)
    assert np.all(found.lower > -math.inf)  # any item may be one of six
