"""WCSP: nodes limit the search, bounds move, and components are solved one by one."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from binary_models import complete
from constraint_models import differ, pigeons
from mapmrf import FactorGraph, Status, constraints
from mapmrf.datasets import random_graph
from mapmrf.run import pace
from pairwise_models import triangle


@pytest.mark.parametrize("seed", range(3))
def test_elimination_agrees(seed: int) -> None:
    graph = random_graph(24, 48, states=(2, 4), arity=(2, 4), hard=0.05, seed=seed)
    expected = mapmrf.solve(graph, "branch")
    result = mapmrf.solve(graph, "wcsp", local_search=0)
    assert result.status == expected.status
    if expected.status is Status.OPTIMAL:
        assert result.value == pytest.approx(expected.value)


def test_infeasible_models_are_proven_so() -> None:
    assert mapmrf.solve(pigeons(5, 4), "wcsp").status is Status.INFEASIBLE
    assert mapmrf.solve(pigeons(5, 5), "wcsp").status is Status.OPTIMAL


def test_nodes_are_the_iterations_and_limit_the_search() -> None:
    graph = complete(26, 2)
    whole = mapmrf.solve(graph, "wcsp", local_search=0)
    short = mapmrf.solve(graph, "wcsp", local_search=0, max_iterations=10)
    assert whole.status is Status.OPTIMAL and whole.iterations > 10
    assert short.status is Status.ITERATION_LIMIT and short.iterations == 10
    assert short.bound is not None and short.value <= whole.value <= short.bound


def test_the_bound_moves_during_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "CONSISTENCY", 20_000)
    graph = complete(26, 4)
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
    graphs = complete(26, 0), complete(26, 1), complete(26, 2)
    alone = [mapmrf.solve(graph, "wcsp") for graph in graphs]
    result = mapmrf.solve(beside(*graphs), "wcsp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(sum(one.value for one in alone))
    assert result.iterations <= 2 * sum(one.iterations for one in alone)
    short = mapmrf.solve(beside(*graphs), "wcsp", max_iterations=50, local_search=0)
    assert short.status is Status.ITERATION_LIMIT and short.iterations == 50
    assert short.bound is not None and short.bound >= result.value


def test_one_infeasible_component_is_enough() -> None:
    odd = triangle(differ(2)[None].repeat(3, axis=0))
    assert mapmrf.solve(beside(complete(26, 0), odd), "wcsp").status is Status.INFEASIBLE


def test_a_penalty_of_nothing_leaves_the_bound_as_it_is() -> None:
    graph = FactorGraph.from_tables([2, 2], [], []).with_constraints([constraints.at_most_k([0, (0, 0)], 0, penalty=0)])
    result = mapmrf.solve(graph, "wcsp")
    assert (result.value, result.bound, result.status) == (0.0, 0.0, Status.OPTIMAL)
