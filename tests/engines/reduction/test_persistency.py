"""Dual persistency: bounds per state hold, and what they exclude is in no labelling as good as the incumbent."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.engines.reduction.simplify import belief_bounds, dual_bounds, excluded_states, simplify
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, brute_force, recipes, soft_recipes, with_weights

SEEDS = st.integers(0, 2**32 - 1)


def best_with_each_state(graph: FactorGraph) -> np.ndarray:
    """What the best labelling with each state is worth, by trying all labellings."""
    best = np.full(len(graph.theta_v), -math.inf)
    for labels in itertools.product(*(range(r) for r in graph.card.tolist())):
        at = graph.var_ptr[:-1] + np.array(labels, dtype=np.int64)
        best[at] = np.maximum(best[at], graph.value(labels))
    return best


def messages(problem: Problem, seed: int) -> np.ndarray:
    """Messages of any size, 0 among them."""
    random = np.random.default_rng(seed)
    return random.choice([0.0, 0.3, 3.0]) * random.normal(size=problem.n_edge_states)


@given(recipe=with_weights(recipes() | any_recipes(max_vars=6)), seed=SEEDS)
def test_no_labelling_is_above_the_bound_of_one_of_its_states(recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    lam_e, exact = messages(problem, seed), best_with_each_state(problem.graph)
    bounds = dual_bounds(problem, lam_e)
    assert np.all(bounds >= exact - 1e-9)
    assert np.all(bounds <= dual_bound(problem, lam_e) + 1e-9)


@given(recipe=with_weights(soft_recipes()), seed=SEEDS)
def test_reparametrised_unary_potentials_are_beliefs(recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    lam_e = messages(problem, seed)
    beliefs = problem.graph.theta_v - np.bincount(problem.edge_state_at, lam_e, problem.n_states)
    bounds = belief_bounds(problem, beliefs, dual_bound(problem, lam_e))
    assert np.all(bounds >= best_with_each_state(problem.graph) - 1e-9)
    assert np.all(dual_bounds(problem, lam_e) <= bounds + 1e-9)


@given(recipe=with_weights(recipes()), seed=SEEDS, back=st.integers(0, 3))
def test_excluded_states_are_in_no_labelling_as_good_as_the_incumbent(recipe: Recipe, seed: int, back: int) -> None:
    problem = Problem.compile(recipe.graph())
    exact = best_with_each_state(problem.graph)
    value = float(np.unique(exact[exact > -math.inf])[-1 - back :][0])
    excluded = excluded_states(problem, dual_bounds(problem, messages(problem, seed)), value)
    assert np.all(exact[excluded] < value)
    counts = np.add.reduceat(~excluded, problem.graph.var_ptr[:-1])
    assert np.all(counts >= 1)


@given(recipe=with_weights(recipes()), seed=SEEDS, back=st.integers(0, 3))
def test_the_optimum_stays_without_the_excluded_states(recipe: Recipe, seed: int, back: int) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    exact = best_with_each_state(graph)
    value = float(np.unique(exact[exact > -math.inf])[-1 - back :][0])
    excluded = excluded_states(problem, dual_bounds(problem, messages(problem, seed)), value)
    small = simplify(problem, excluded)
    assert small.feasible
    optimum, labels = brute_force(graph)
    left, best = brute_force(small.problem.graph)
    assert left == pytest.approx(optimum, abs=1e-9)
    assert graph.value(small.lift(np.array(best, dtype=np.int64))) == pytest.approx(optimum, abs=1e-9)
    kept = small.lift(small.project(np.array(labels)))
    assert graph.value(kept) == pytest.approx(optimum, abs=1e-9)


@given(recipe=with_weights(soft_recipes()))
def test_exact_bounds_per_state_leave_the_optimal_states_only(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem, exact = Problem.compile(graph), best_with_each_state(graph)
    excluded = excluded_states(problem, exact, graph.value(brute_force(graph)[1]))
    assert np.array_equal(excluded, exact < exact.max() - 1e-9)


def frustrated(n: int) -> FactorGraph:
    """Pairs on a torus that like to differ: nothing of it can be simplified."""
    place = np.arange(n * n).reshape(n, n)
    edges = np.concatenate([np.stack([place, np.roll(place, 1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)])
    return FactorGraph.from_pairwise(np.zeros((n * n, 3)), edges, 1.0 - np.eye(3))


def test_counts_say_why_states_and_variables_have_gone() -> None:
    problem = Problem.compile(frustrated(4))
    assert simplify(problem).counts.details() == {}
    excluded = np.zeros(problem.n_states, dtype=bool)
    excluded[[1, 2, 3]] = True  # variable 0 is in state 0, and variable 1 is not
    small = simplify(problem, excluded)
    assert small.counts.states_persistent == 3
    assert small.counts.variables_fixed >= 1
    assert small.counts.states_forbidden == 0
    assert small.problem.n_vars == 16 - small.counts.variables_fixed - small.counts.variables_eliminated


def test_nothing_is_excluded_without_an_incumbent_and_hard_states_are_not_counted_as_persistent() -> None:
    graph = FactorGraph.from_tables([3, 2], [(0,), (0, 1)], [[0.0, -math.inf, 1.0], np.zeros((3, 2))])
    problem = Problem.compile(graph)
    bounds = dual_bounds(problem, np.zeros(problem.n_edge_states))
    assert not excluded_states(problem, bounds, -math.inf).any()
    excluded = excluded_states(problem, bounds, 1.0)
    assert excluded.tolist() == [True, True, False, False, False]
    counts = simplify(problem, excluded).counts
    assert (counts.states_persistent, counts.states_forbidden) == (1, 1)
