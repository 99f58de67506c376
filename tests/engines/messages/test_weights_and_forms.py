"""Message passing with weights is that on expanded tables; through structured pairs it is that on their tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.engines.messages.cluster_search import ClusterSearch
from mapmrf.engines.messages.clusters import Clusters
from mapmrf.engines.messages.max_product import (
    ForestWeights,
    Messages,
    PairMessages,
    TableMessages,
    Tour,
    make_messages,
    potential_scale,
)
from mapmrf.engines.messages.max_product_kernels import MessageSchedule
from mapmrf.engines.messages.mplp import Dual
from mapmrf.model.problem import Problem
from strategies import Recipe, brute_force, recipes
from structured_models import image, structured_graph, with_forms, without_forms

FLOOD = MessageSchedule(flooding=True, damping=0.3, tol=-1.0)
SWEEP = MessageSchedule(flooding=False, damping=0.3, tol=-1.0)


def weighted(recipe: Recipe, seed: int) -> FactorGraph:
    """The recipe's model, every other table multiplied; 0 and negative weights where nothing is forbidden."""
    random = np.random.default_rng(seed)
    weights = [
        float(random.choice([1.0, 0.5, random.exponential(), 0.0, -1.2][: 5 if np.isfinite(table).all() else 3]))
        for table in recipe.tables
    ]
    return FactorGraph.from_tables(recipe.card, recipe.scopes, recipe.tables, weight=weights)


def messages_of(problem: Problem, seed: int, general: bool = True) -> Messages:
    random = np.random.default_rng(seed)
    weights = ForestWeights(random.uniform(0.2, 1.0, problem.n_factors), random.uniform(0.0, 1.0, problem.n_edges))
    tour = Tour.of(problem)
    return TableMessages(problem, tour, weights) if general else make_messages(problem, tour, weights)


def assert_same(one: Messages, two: Messages) -> None:
    """Some iterations, labels, values and bounds are the same."""
    for schedule, begin, end in ((FLOOD, 0, 3), (SWEEP, 3, 5)):
        done, change = one.iterate(schedule, begin, end)
        assert two.iterate(schedule, begin, end) == (done, pytest.approx(change, abs=1e-9))
        for in_order in (True, False):
            labels = one.decode(in_order)
            assert one.value(labels) == pytest.approx(two.value(labels), abs=1e-9)
        assert one.bound() == pytest.approx(two.bound(), abs=1e-9)


# -- weights ----------------------------------------------------------------------------------------------------------


@given(recipe=recipes(), seed=st.integers(0, 99))
def test_messages_with_weights_are_those_of_expanded_tables(recipe: Recipe, seed: int) -> None:
    graph = weighted(recipe, seed)
    one, two = (messages_of(Problem.compile(some), seed) for some in (graph, graph.expanded()))
    if np.array_equal(one.problem.order, two.problem.order):  # a weight of 0 may make another order
        assert_same(one, two)
    labels = one.decode(True)
    assert one.value(labels) == pytest.approx(graph.value(labels), abs=1e-9)
    assert one.bound() >= brute_force(graph)[0] - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_weights_of_binary_pairs_become_couplings(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = np.array([random.permutation(7)[:2] for _ in range(12)])
    unary, tables = random.normal(size=(7, 2)), random.normal(size=(2, 2))
    graph = FactorGraph.from_pairwise(unary, edges, tables, weight=random.normal(size=12))
    one, two = (messages_of(Problem.compile(some), seed, False) for some in (graph, graph.expanded()))
    assert isinstance(one, PairMessages) and isinstance(two, PairMessages)
    assert_same(one, two)
    labels = one.decode(True)
    assert one.value(labels) == pytest.approx(graph.value(labels), abs=1e-9)


def test_the_scale_counts_every_factor_with_its_weight() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], np.eye(2), weight=[2.0, -4.0])
    assert potential_scale(graph) == 3.0


@given(recipe=recipes(), seed=st.integers(0, 99))
def test_mplp_with_weights_is_mplp_on_expanded_tables(recipe: Recipe, seed: int) -> None:
    graph = weighted(recipe, seed)
    one, two = (Dual.build(Problem.compile(some), "model", "alternate", 0) for some in (graph, graph.expanded()))
    for dual in (one, two):
        dual.passes(0, 4)
    np.testing.assert_allclose(one.regions.belief, two.regions.belief, atol=1e-9)
    assert one.bound() == pytest.approx(two.bound(), abs=1e-9)
    assert graph.value(one.decode(False)) == pytest.approx(graph.value(two.decode(False)), abs=1e-9)


@given(recipe=recipes(), seed=st.integers(0, 99))
def test_clusters_own_the_tables_that_they_change_weights_included(recipe: Recipe, seed: int) -> None:
    graph = weighted(recipe, seed)
    optimum, bounds = brute_force(graph)[0], []
    for some in (graph, graph.expanded()):
        clusters = Clusters(Dual.build(Problem.compile(some), "model", "alternate", 0), 10**7)
        for k in range(3):
            search = ClusterSearch(clusters, triplets=True, cycles=True, projections=2, max_length=6)
            list(search.run(20, -1.0, 10**6))
            clusters.add(search.found)
            clusters.passes(k, k + 1)
            assert clusters.bound() >= optimum - 1e-8
        bounds.append(clusters.bound())
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-7)


# -- structured pairs -------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 999), states=st.integers(4, 9), hard=st.booleans())
def test_messages_through_structured_pairs_are_those_of_tables(seed: int, states: int, hard: bool) -> None:
    graph = structured_graph(seed, states=states, hard=hard)
    one, two = messages_of(with_forms(graph), seed), messages_of(without_forms(graph), seed)
    assert_same(one, two)
    assert isinstance(one, TableMessages) and isinstance(two, TableMessages)
    np.testing.assert_allclose(one.beliefs.b, two.beliefs.b, atol=1e-9)


@given(seed=st.integers(0, 999), states=st.integers(4, 9), hard=st.booleans())
def test_mplp_on_structured_pairs_is_mplp_on_tables(seed: int, states: int, hard: bool) -> None:
    graph = structured_graph(seed, states=states, hard=hard)
    one, two = (Dual.build(some(graph), "variables", "alternate", 0) for some in (with_forms, without_forms))
    assert len(two.pairs.forms.of) == 0
    for dual in (one, two):
        dual.passes(0, 5)
    np.testing.assert_allclose(one.regions.belief, two.regions.belief, atol=1e-9)
    assert one.bound() == pytest.approx(two.bound(), abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_hanging_trees_of_structured_pairs_are_solved_at_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    apart = np.abs(np.arange(9)[:, None] - np.arange(9))
    edges = [[random.integers(i), i] for i in range(1, 12)]
    graph = FactorGraph.from_pairwise(
        random.normal(size=(12, 9)), edges, -np.minimum(apart, 3.0), weight=random.exponential(size=11)
    )
    dual = Dual.build(Problem.compile(graph), "variables", "alternate", 0)
    assert len(dual.pairs.forms.of) and len(dual.visit) == 0
    assert graph.value(dual.decode(False)) == pytest.approx(dual.bound(), abs=1e-9)
    assert dual.bound() == pytest.approx(mapmrf.solve(graph.expanded(), "branch").value, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_pairs_with_clusters_are_tables_from_then_on(seed: int) -> None:
    graph = structured_graph(seed, n_vars=8)
    bounds = []
    for some in (with_forms, without_forms):
        problem = some(graph)
        before = problem.forms.of.copy()
        clusters = Clusters(Dual.build(problem, "model", "alternate", 0), 10**7)
        for k in range(3):
            search = ClusterSearch(clusters, triplets=True, cycles=True, projections=2, max_length=6)
            list(search.run(20, -1.0, 10**6))
            assert clusters.add(search.found) > 0 or k > 0
            clusters.passes(k, k + 1)
        bounds.append(clusters.bound())
        assert np.array_equal(problem.forms.of, before)
    assert bounds[0] == pytest.approx(bounds[1], abs=1e-8)


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bp", "trbp"])
@pytest.mark.parametrize("states", [2, 9])
def test_threads_change_no_bit_of_the_answer(method: str, states: int) -> None:
    graph = image(230, states).graph
    results = [mapmrf.solve(graph, method, threads=threads, max_iterations=3) for threads in (1, 2, 3)]
    for result in results[1:]:
        assert np.array_equal(result.labels, results[0].labels)
        assert (result.bound, result.details) == (results[0].bound, results[0].details)
