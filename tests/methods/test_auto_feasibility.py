"""The first phase of auto on models that forbid something."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mapmrf
from constraint_models import colouring, differ, ksat, pigeons
from mapmrf import FactorGraph, Status
from mapmrf.methods.auto.feasibility import FeasibilityPhase, largest_sum
from mapmrf.methods.auto.state import SharedState
from mapmrf.model.problem import Problem
from mapmrf.run.repair import shortfall
from strategies import Recipe, brute_force, random_recipe, weighted


def phases(result: mapmrf.Result) -> set[str]:
    return {point.phase for point in result.trace}


def test_a_soft_model_has_no_such_phase() -> None:
    graph = mapmrf.datasets.grid(20, 20, coupling=2.0, seed=1)
    assert "feasible" not in phases(mapmrf.solve(graph))


def test_a_feasible_labelling_given_by_the_user_is_enough() -> None:
    graph = colouring(100, 300, 4, 0)
    labels = mapmrf.solve(graph).labels
    assert "feasible" in phases(mapmrf.solve(graph))
    assert "feasible" not in phases(mapmrf.solve(graph, initial=labels))


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_entries_of_all_tables_are_a_bound(seed: int) -> None:
    recipe = weighted(random_recipe(seed, 5, 8, hard=0.2), seed)
    graph = recipe.graph()
    rng = np.random.default_rng(seed)
    for _ in range(50):
        assert graph.value(rng.integers(0, graph.card)) <= largest_sum(graph) + 1e-9


def test_a_proof_of_infeasibility_ends_the_run() -> None:
    result = mapmrf.solve(colouring(100, 487, 4, 0))
    assert (result.status, result.bound) == (Status.INFEASIBLE, -math.inf)
    assert result.trace[-1].phase == "feasible"
    assert result.details["conflicts"] > 0


def test_the_labelling_prefers_what_is_worth_more() -> None:
    """A sparse colouring with strong preferences: the first labelling follows them where it can."""
    rng, graph = np.random.default_rng(0), colouring(80, 60, 4, 0)
    unary = rng.normal(size=(80, 4))
    soft = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), differ(4))
    shared = SharedState(Problem.compile(soft), soft.unary_labels)
    for _ in FeasibilityPhase(shared, 0).first():
        pass
    assert shared.incumbent.value > 0.5 * unary.max(axis=1).sum()


def test_steps_end_when_another_phase_finds_a_labelling() -> None:
    graph = ksat(300, 1278, 3, 1, planted=True)
    shared = SharedState(Problem.compile(graph), np.zeros(300, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    assert len(list(phase.steps(1))) == 1
    shared.incumbent.offer(np.ones(300, dtype=np.int64))
    assert shared.incumbent.value == 0.0
    assert list(phase.steps(5)) == [] and not phase.is_needed


def test_a_model_with_too_many_forbidden_entries_is_repaired_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.repair.MOST_CLAUSES", 399)
    graph = colouring(60, 100, 4, 0)
    shared = SharedState(Problem.compile(graph), np.zeros(60, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    steps = list(phase.first())
    assert {step.phase for step in steps} == {"repair", "feasible"} and phase.search is None
    assert shared.incumbent.value == 0.0


def test_states_that_the_search_excludes_are_those_of_no_feasible_labelling() -> None:
    recipe = Recipe([2, 2], [(0,), (0, 1)], [np.array([0.0, -np.inf]), np.array([[-np.inf, 0.0], [0.0, 0.0]])])
    shared = SharedState(Problem.compile(recipe.graph()), np.zeros(2, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    for _ in phase.first():
        pass
    assert phase.excluded().tolist() == [False, True, True, False]


def test_the_same_answer_for_one_and_two_threads() -> None:
    graph = ksat(150, 639, 3, 1)
    first, second = (mapmrf.solve(graph, threads=threads) for threads in (1, 2))
    assert first.status == second.status
    assert first.labels.tolist() == second.labels.tolist()


def test_pigeons_with_preferences_are_infeasible_too() -> None:
    graph = pigeons(10, 9)
    unary = np.random.default_rng(0).normal(size=(10, 9))
    soft = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), differ(9))
    result = mapmrf.solve(soft)
    assert result.status is Status.INFEASIBLE and len(result.violated) == 1


@pytest.mark.parametrize("seed", range(40))
def test_the_optimum_is_that_of_exhaustive_search(seed: int) -> None:
    """Without elimination, so that tiny models come here: half of them are infeasible."""
    recipe = weighted(random_recipe(seed, 6, 10, hard=0.15 + 0.3 * (seed % 2)), seed)
    graph = recipe.graph()
    result = mapmrf.solve(graph, elimination_entries=0, max_iterations=300)
    value, _ = brute_force(graph)
    if value == -math.inf:
        assert result.status is Status.INFEASIBLE
        fewest = min(
            shortfall(graph, np.array(labels)).n_violated for labels in itertools.product(*map(range, graph.card))
        )
        assert len(result.violated) == fewest
    else:
        assert result.value == pytest.approx(value, abs=1e-9)
        assert result.violated == ()
