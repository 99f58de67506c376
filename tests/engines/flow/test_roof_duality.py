"""Roof duality: its bound, the states that it fixes, and labellings improved by it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from binary_models import binary_graphs, spins, submodular_recipes
from mapmrf import FactorGraph
from mapmrf.engines.flow import cut_model
from mapmrf.engines.flow.cut_model import UNDECIDED, Improvement, RoofDual, binary_pairs, persistent_states
from mapmrf.model.problem import Problem
from plain_python import plain_kernels
from strategies import Recipe, brute_force


@st.composite
def frustrated_recipes(draw: st.DrawFn) -> Recipe:
    """Small binary models: whole numbers, which tie, or not; some entries forbidden; some variables of one state."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, hard, whole = draw(st.integers(2, 8)), draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])), draw(st.booleans())
    recipe = Recipe([2 if random.random() < 0.9 else 1 for _ in range(n)], [()], [np.array(random.normal())])

    def potentials(*shape: int) -> np.ndarray:
        return random.integers(-2, 3, shape).astype(float) if whole else random.normal(size=shape)

    for i in range(n):
        unary = potentials(recipe.card[i]) * draw(st.sampled_from([0.0, 0.3, 2.0]))
        recipe.add((i,), np.where(random.random(len(unary)) < hard / 3, -np.inf, unary))
    for i, j in itertools.permutations(range(n), 2):
        if random.random() < 0.3:
            table = np.where(random.random((2, 2)) < hard, -np.inf, potentials(2, 2))
            recipe.add((i, j), table[: recipe.card[i], : recipe.card[j]].copy())
    return recipe


def roof_of(graph: FactorGraph) -> RoofDual:
    """The dual with two nodes per variable, even where a cut would do."""
    roof = RoofDual(binary_pairs(Problem.compile(graph)), graph.constant)
    assert roof.flow.run()
    return roof


def labellings(card: list[int]) -> list[np.ndarray]:
    return [np.array(labels) for labels in itertools.product(*(range(r) for r in card))]


@given(recipe=frustrated_recipes())
def test_some_optimum_has_all_persistent_states_and_none_is_above_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum = brute_force(graph)[0]
    found = persistent_states(Problem.compile(graph))
    assert found.bound >= optimum - 1e-9
    assert np.all((found.states >= UNDECIDED) & (found.states < graph.card))
    if optimum > -math.inf:
        left = [x for x in labellings(recipe.card) if np.all((found.states == UNDECIDED) | (x == found.states))]
        assert max(graph.value(x) for x in left) == pytest.approx(optimum, rel=1e-9, abs=1e-9)


@given(recipe=frustrated_recipes())
@settings(max_examples=30)
def test_persistent_states_make_no_labelling_worse(recipe: Recipe) -> None:
    graph = recipe.graph()
    states = roof_of(graph).states
    for labels in labellings(recipe.card):
        fixed = np.where(states == UNDECIDED, labels, states)
        assert graph.value(fixed) >= graph.value(labels) - 1e-9


@given(graph=binary_graphs())
@settings(max_examples=25)
def test_the_bound_is_that_of_the_local_polytope(graph: FactorGraph) -> None:
    relaxed = mapmrf.solve(graph, "lp").relaxed_value
    assert roof_of(graph).bound == pytest.approx(relaxed, rel=1e-6, abs=1e-6)


@given(recipe=submodular_recipes())
def test_all_variables_of_a_model_that_is_a_cut_are_fixed_at_the_optimum(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum = brute_force(graph)[0]
    found = persistent_states(Problem.compile(graph))
    if optimum > -math.inf:
        assert graph.value(found.states) == pytest.approx(optimum, rel=1e-12, abs=1e-12)
    assert found.bound == pytest.approx(optimum, rel=1e-12, abs=1e-12)


def test_nothing_is_fixed_in_an_infeasible_model() -> None:
    """0 is fixed, 1 must be equal to it, 2 different, and 1 and 2 equal; 3, 4 and 5 are frustrated, so it is no cut."""
    equal = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    differ = equal[::-1].copy()
    scopes = [(0,), (0, 1), (0, 2), (1, 2), (3, 4), (4, 5), (5, 3)]
    tables = [np.array([0.0, -np.inf]), equal, differ, equal, *[1.0 - np.eye(2)] * 3]
    found = persistent_states(Problem.compile(Recipe([2] * 6, scopes, tables).graph()))
    assert found.bound == -math.inf and found.states.tolist() == [UNDECIDED] * 6


@pytest.mark.parametrize("seed", range(3))
def test_weights_are_those_of_the_expanded_model(seed: int) -> None:
    graph = weighted_spins(seed)
    with_weights, expanded = (persistent_states(Problem.compile(each)) for each in (graph, graph.expanded()))
    assert with_weights.bound == pytest.approx(expanded.bound, rel=1e-12)
    assert with_weights.states.tolist() == expanded.states.tolist()


def weighted_spins(seed: int) -> FactorGraph:
    """A frustrated grid of one table, with weights of both signs."""
    random, plain = np.random.default_rng(seed), spins(6, seed)
    edges = plain.scope.reshape(-1, 2)
    unary = 1.5 * random.normal(size=(36, 2))
    table, weight = np.array([[1.0, 0.0], [0.1, 0.8]]), random.normal(size=len(edges))
    return FactorGraph.from_pairwise(unary, edges, table, weight=weight)


@pytest.mark.parametrize("field", [0.3, 1.0, 3.0])
def test_bound_and_number_of_fixed_variables_are_those_of_thinqpbo(field: float) -> None:
    thinqpbo = pytest.importorskip("thinqpbo")
    graph = spins(20, seed=4, field=field)
    peer = thinqpbo.QPBODouble(graph.n_vars, graph.n_factors)
    peer.add_node(graph.n_vars)
    for i, (low, high) in enumerate((-graph.theta_v.reshape(-1, 2)).tolist()):
        peer.add_unary_term(i, low, high)
    for a in range(graph.n_factors):
        peer.add_pairwise_term(*graph.scope_of(a).tolist(), *(-graph.table(a)).ravel().tolist())
    peer.solve()
    labels = [peer.get_label(i) for i in range(graph.n_vars)]
    found = persistent_states(Problem.compile(graph))
    assert found.bound == pytest.approx(-peer.compute_twice_lower_bound() / 2, rel=1e-9)
    assert found.states.tolist() == [max(label, UNDECIDED) for label in labels]


@given(graph=binary_graphs(), seed=st.integers(0, 100), work=st.sampled_from([1, 50, 10**9]))
def test_a_round_of_improvement_never_makes_a_labelling_worse(graph: FactorGraph, seed: int, work: int) -> None:
    random = np.random.default_rng(seed)
    roof = roof_of(graph)
    states = roof.states
    rounds = Improvement(roof, random)
    labels = np.where(states == UNDECIDED, random.integers(0, 2, graph.n_vars), states)
    for _ in range(3):
        rounds.begin(labels)
        while not rounds.run(work):
            pass
        improved = rounds.improved()
        assert graph.value(improved) >= graph.value(labels) - 1e-9
        assert np.all(improved[states != UNDECIDED] == states[states != UNDECIDED])
        labels = improved


def test_rounds_improve_a_random_labelling_of_a_frustrated_grid() -> None:
    graph = spins(12, seed=2)
    random = np.random.default_rng(0)
    rounds = Improvement(roof_of(graph), random)
    labels = random.integers(0, 2, graph.n_vars)
    before = graph.value(labels)
    rounds.begin(labels)
    assert rounds.run(10**9)
    assert graph.value(rounds.improved()) > before + 10.0


@given(recipe=frustrated_recipes())
def test_the_kernels_run_as_plain_python(recipe: Recipe) -> None:
    graph = recipe.graph()
    with plain_kernels(cut_model):
        plain = roof_of(graph)
    compiled = roof_of(graph)
    assert plain.bound == compiled.bound
    assert plain.states.tolist() == compiled.states.tolist()
