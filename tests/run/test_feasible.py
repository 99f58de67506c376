"""The search for a labelling of finite value, against brute force."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from constraint_models import pigeons
from mapmrf import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.repair import climb, fewest_violated, find_by_branching, find_feasible, fits_clauses, violations
from strategies import Recipe, any_recipes, brute_force, hard_recipes, plant, with_weights


@given(recipe=with_weights(any_recipes()), data=st.data())
def test_a_feasible_labelling_is_found_exactly_if_there_is_one(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    labels = np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)
    search = find_feasible(Problem.compile(graph), labels)
    assert search.complete
    if brute_force(graph)[0] == -math.inf:
        assert search.labels is None
    else:
        assert search.labels is not None
        assert graph.value(search.labels) > -math.inf


@given(recipe=with_weights(hard_recipes()), seed=st.integers(0, 2**16))
def test_a_labelling_that_is_feasible_already_is_kept(recipe: Recipe, seed: int) -> None:
    labels = plant(recipe, seed)
    search = find_feasible(Problem.compile(recipe.graph()), labels)
    assert search.labels is not None
    assert search.labels.tolist() == labels.tolist()


@given(recipe=with_weights(hard_recipes()), seed=st.integers(0, 2**16))
def test_from_a_feasible_labelling_no_single_change_helps_in_the_end(recipe: Recipe, seed: int) -> None:
    labels = plant(recipe, seed)
    graph = recipe.graph()
    found = climb(Problem.compile(graph), labels)
    best = graph.value(found)
    assert best >= graph.value(labels) > -math.inf
    for i, n_states in enumerate(recipe.card):
        for k in range(n_states):
            changed = found.copy()
            changed[i] = k
            assert graph.value(changed) <= best + 1e-9


def test_what_a_run_finds_at_its_end_has_been_climbed_from() -> None:
    """Three states in a row of which neighbours differ: after one iteration of `lp` there is only what repairs it."""
    n = 20
    differ = np.where(np.eye(3) > 0, -np.inf, 0.0)
    unary = np.random.default_rng(0).normal(size=(n, 3))
    graph = FactorGraph.from_pairwise(unary, [[i, i + 1] for i in range(n - 1)], differ)
    result = mapmrf.solve(graph, "lp", max_iterations=1)
    assert result.value > -math.inf
    assert graph.value(climb(Problem.compile(graph), result.labels)) == pytest.approx(result.value)


def test_giving_up_is_not_taken_for_a_proof() -> None:
    problem = Problem.compile(pigeons(6, 5))
    start = np.zeros(6, dtype=np.int64)
    assert find_feasible(problem, start).complete
    assert not find_by_branching(problem, start, max_nodes=3).complete
    assert not find_feasible(problem, start, seconds=0.0).complete


def test_a_constant_of_minus_infinity_leaves_nothing() -> None:
    graph = Recipe([2], [()], [np.array(-np.inf)]).graph()
    search = find_feasible(Problem.compile(graph), np.zeros(1, dtype=np.int64))
    assert search.labels is None and search.complete


def test_forbidden_entries_are_counted_once_for_every_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.compile(pigeons(5, 4))
    for most, fits in ((40, True), (39, False)):
        monkeypatch.setattr("mapmrf.run.repair.MOST_CLAUSES", most)
        assert fits_clauses(problem) == fits
    monkeypatch.setattr("mapmrf.run.repair.MOST_STATES", 19)
    assert not fits_clauses(problem)


def test_a_model_too_large_for_clauses_is_still_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.repair.MOST_CLAUSES", 0)
    monkeypatch.setattr("mapmrf.run.repair.FEW_STATES", 0)
    search = find_feasible(Problem.compile(pigeons(5, 4)), np.zeros(5, dtype=np.int64))
    assert search.complete and search.labels is None


def test_what_violates_least_is_found_near_any_labelling() -> None:
    problem = Problem.compile(pigeons(8, 7))
    labels = fewest_violated(problem, np.zeros(8, dtype=np.int64), least=1)
    assert len(violations(problem.graph, labels)) == 1
