"""MPLP: messages that change no value, a bound that never rises, orders, trees that hang, and decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.engines.messages.mplp import Dual
from mapmrf.methods.mplp import MPLP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, hard_recipes, random_recipe, recipes, some_labels


def dual_of(graph: FactorGraph, **options: Any) -> Dual:
    method = MPLP(**options)
    return Dual.build(Problem.compile(graph), method.order, method.schedule, 0)


def reparametrised(graph: FactorGraph, dual: Dual, labels: np.ndarray) -> float:
    """Value of a labelling, summed over beliefs and reparametrised tables."""
    regions = dual.regions
    total = graph.constant + sum(regions.belief[regions.var_ptr[i] + k] for i, k in enumerate(labels))
    for a in range(dual.n_factors):
        place, taken = 0, 0.0
        for e in range(regions.scope_ptr[a], regions.scope_ptr[a + 1]):
            k = labels[regions.scope[e]]
            place = place * regions.card_e[e] + k
            taken += regions.lam[regions.edge_ptr[e] + k]
        total += regions.theta[regions.table_at[a] + place] - taken
    return float(total)


@given(recipe=recipes(), passes=st.integers(0, 4), data=st.data())
def test_messages_leave_the_value_of_every_labelling_as_it_is(recipe: Recipe, passes: int, data: st.DataObject) -> None:
    graph = recipe.graph()
    dual = dual_of(graph)
    dual.passes(0, passes)
    labels = some_labels(recipe, data)
    assert reparametrised(graph, dual, labels) == pytest.approx(graph.value(labels), abs=1e-9)


@given(recipe=hard_recipes())
def test_the_bound_never_rises_and_never_falls_below_the_optimum(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    dual = dual_of(graph)
    before = dual.bound()
    for iteration in range(6):
        dual.passes(iteration, iteration + 1)
        after = dual.bound()
        assert optimum - 1e-9 <= after <= before + 1e-9
        before = after


@pytest.mark.parametrize("order", ["variables", "model", "random"])
@pytest.mark.parametrize("schedule", ["alternate", "forward"])
def test_every_order_comes_to_the_same_bound(order: str, schedule: str) -> None:
    graph = grid(7, 7, coupling=2.0, seed=4)
    result = mapmrf.solve(graph, "mplp", order=order, schedule=schedule)
    assert result.bound == pytest.approx(mapmrf.solve(graph, "mplp").bound, rel=2e-3)
    assert result.status is Status.CONVERGED


def test_orders_are_what_they_say() -> None:
    edges = [[2, 3], [0, 1], [0, 3], [1, 2]]
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), edges, np.eye(2))
    assert dual_of(graph, order="model").visit.tolist() == [0, 1, 2, 3]
    assert dual_of(graph, order="variables").visit.tolist() == [1, 3, 2, 0]
    assert sorted(dual_of(graph, order="random").visit.tolist()) == [0, 1, 2, 3]


def test_a_long_chain_is_solved_in_one_iteration() -> None:
    n = 2000
    random = np.random.default_rng(0)
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    edges = edges[random.permutation(n - 1)]
    graph = FactorGraph.from_pairwise(random.normal(size=(n, 3)), edges, random.normal(size=(n - 1, 3, 3)))
    result = mapmrf.solve(graph, "mplp")
    assert (result.status, result.iterations) == (Status.OPTIMAL, 1)


def test_hanging_trees_are_passed_once_and_left_out() -> None:
    """A cycle of three with a tail: the tail's factors are no part of the passes, and its best state is known."""
    edges = [[0, 1], [1, 2], [0, 2], [2, 3], [3, 4]]
    tables = np.random.default_rng(3).normal(size=(5, 2, 2))
    graph = FactorGraph.from_pairwise(np.zeros((5, 2)), edges, tables)
    dual = dual_of(graph)
    assert sorted(dual.visit.tolist()) == [0, 1, 2]
    assert dual.decide.tolist() == [0, 1, 2, 3, 4]
    tail = tables[3][:, :, None] + tables[4][None]
    assert dual.regions.belief[4:6] == pytest.approx(tail.max(axis=(1, 2)))


@pytest.mark.parametrize("seed", range(3))
def test_binary_pairs_have_a_way_of_their_own_with_the_same_result(seed: int) -> None:
    graph = grid(3, 4, seed=seed)
    quick, general = dual_of(graph), dual_of(graph)
    assert quick.quick
    general.quick = False
    for dual in (quick, general):
        dual.passes(0, 7)
    np.testing.assert_allclose(quick.regions.belief, general.regions.belief, atol=1e-12)
    np.testing.assert_allclose(quick.regions.lam, general.regions.lam, atol=1e-12)


def test_labels_are_decoded_as_often_as_asked() -> None:
    graph = grid(10, 10, coupling=2.0, seed=1)
    measured = [
        [point.iterations for point in mapmrf.solve(graph, "mplp", decode_every=n, max_iterations=40, tol=0.0).trace]
        for n in (1, 20)
    ]
    assert measured[0][:4] == [1, 2, 3, 4]
    assert measured[1] == [1, 5, 25, 40]


def test_an_infeasible_cycle_of_hard_constraints_is_proven_where_messages_can() -> None:
    """x0 is fixed, equality carries its state round to a pair that forbids it."""
    never = -np.inf
    same = np.array([[0.0, never], [never, 0.0]])
    graph = Recipe(
        [2, 2, 2], [(0,), (0, 1), (1, 2), (0, 2)], [np.array([0.0, never]), same, same, same[::-1].copy()]
    ).graph()
    problem, method = Problem.compile(graph), MPLP()
    state = method.start(problem, 0, Start())
    while (progress := method.step(problem, state)).finished is None:
        pass
    assert progress.finished is Status.INFEASIBLE
    assert progress.bound == -np.inf


def test_a_looser_tolerance_ends_earlier() -> None:
    graph = random_recipe(11, 7, 14).graph()
    loose, tight = (mapmrf.solve(graph, "mplp", tol=tol, decode_every=1) for tol in (1e-2, 1e-9))
    assert loose.iterations <= tight.iterations
    assert loose.bound >= tight.bound
