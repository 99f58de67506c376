"""Belief propagation: ties and long chains without cycles; with cycles the best of many decodings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.bp import BP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import attractive, chain_edges
from strategies import Recipe, brute_force, plant, random_recipe, random_tree, soft_recipes

SAME = np.array([[1.0, 0.0], [0.0, 1.0]])
DIFFER = np.array([[0.0, 1.0], [1.0, 0.0]])


def last_labels(graph: FactorGraph, **options: Any) -> np.ndarray:
    """Decoded from the last messages, without the best of earlier measurements and without repair."""
    problem, method = Problem.compile(graph), BP(**options)
    state = method.start(problem, 0, Start())
    while True:
        progress = method.step(problem, state)
        if progress.finished is not None or progress.iterations >= method.max_iterations:
            break
    return state.measure()[0]


def chain(n: int, table: np.ndarray, unary: np.ndarray | None = None) -> FactorGraph:
    unary = np.zeros((n, len(table))) if unary is None else unary
    return FactorGraph.from_pairwise(unary, chain_edges(n), table)


# -- without cycles ---------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), hard=st.sampled_from([0.0, 0.4]))
def test_ties_on_a_tree_are_broken_consistently(seed: int, hard: float) -> None:
    """Tables of few whole numbers have many optimal labellings, which the best states of single beliefs would mix."""
    recipe = random_tree(seed, 8, hard=hard)
    recipe.tables = [np.where(np.isfinite(table), np.round(table / 2), table) for table in recipe.tables]
    plant(recipe, seed)
    recipe.tables = [np.where(np.isfinite(table), np.round(table), table) for table in recipe.tables]
    graph = recipe.graph()
    labels = last_labels(graph)
    assert graph.value(labels) == brute_force(graph)[0]


@pytest.mark.parametrize("table", [SAME, DIFFER])
def test_neighbours_agree_on_one_of_two_equal_labellings(table: np.ndarray) -> None:
    graph = chain(40, table)
    labels = last_labels(graph)
    assert graph.value(labels) == 39.0
    assert labels[0] == 0


def test_a_chain_far_longer_than_the_iteration_limit_is_solved() -> None:
    """The only evidence is at the far end."""
    n = 5000
    unary = np.zeros((n, 2))
    unary[-1, 1] = 0.5
    result = mapmrf.solve(chain(n, SAME, unary), "bp")
    assert result.labels.tolist() == [1] * n
    assert (result.status, result.iterations) == (Status.OPTIMAL, 2)


def test_a_limit_of_one_iteration_is_kept_on_a_tree_too() -> None:
    result = mapmrf.solve(chain(50, SAME), "bp", max_iterations=1)
    assert result.iterations == 1
    assert result.bound is None or result.bound >= 49.0


# -- with cycles ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("decode", ["sequential", "argmax"])
def test_schedules_and_damping_lead_to_the_same_fixed_point(states: int, decode: str) -> None:
    graph = attractive(8, states, coupling=0.3, seed=1)
    results = [
        mapmrf.solve(graph, "bp", schedule=schedule, damping=damping, decode=decode)
        for schedule in ("parallel", "sequential")
        for damping in (0.0, 0.5)
    ]
    assert {result.status for result in results} == {Status.CONVERGED}
    assert {tuple(result.labels) for result in results} == {tuple(results[0].labels)}
    assert results[0].value == pytest.approx(mapmrf.solve(graph, "lp").value)
    assert len({result.iterations for result in results}) > 1  # they are not one and the same run


@pytest.mark.parametrize("states", [2, 3])
def test_the_tolerance_decides_when_messages_have_settled(states: int) -> None:
    graph = attractive(8, states, coupling=0.3, seed=2)
    rough, fine = (mapmrf.solve(graph, "bp", tol=tol) for tol in (1e-2, 1e-10))
    assert rough.iterations < fine.iterations
    assert fine.details["change"] < rough.details["change"]


def test_a_frustrated_model_gives_the_best_of_all_measurements() -> None:
    """Undamped messages go round in circles: the last labelling is not the best."""
    graph = grid(15, 15, coupling=5.0, seed=3)
    options = {"damping": 0.0, "decode": "argmax"}
    result = mapmrf.solve(graph, "bp", **options)
    candidates = [point.candidate for point in result.trace if point.candidate is not None]
    assert result.status is Status.ITERATION_LIMIT
    assert result.value == max(candidates)
    assert candidates == sorted(candidates)
    assert result.value > graph.value(last_labels(graph, **options))


def test_decoding_in_order_beats_the_best_states_of_single_beliefs() -> None:
    graph = grid(15, 15, coupling=5.0, seed=3)
    in_order, single = (mapmrf.solve(graph, "bp", decode=decode) for decode in ("sequential", "argmax"))
    assert in_order.value > single.value


@given(recipe=soft_recipes(), budget=st.sampled_from([1, 7, 100]))
def test_how_the_work_is_cut_into_steps_changes_nothing(recipe: Recipe, budget: int) -> None:
    problem, method = Problem.compile(recipe.graph()), BP(max_iterations=60)
    whole, cut = (method.start(problem, 0, Start()) for _ in range(2))
    whole.advance(60)
    while cut.iterations < whole.iterations:
        cut.advance(budget)
    assert (cut.iterations, cut.change, cut.value) == (whole.iterations, whole.change, whole.value)
    assert cut.measure()[0].tolist() == whole.measure()[0].tolist()


def test_there_is_no_bound_with_cycles() -> None:
    assert mapmrf.solve(grid(4, 4), "bp").bound is None


@pytest.mark.data
def test_the_papers_mean_on_binary_segmentation_is_reproduced_without_damping() -> None:
    """The paper's table has -79 for its BP, -137.1 for ICM and -75.5 for the optimum."""
    models = [benchmark(name) for name in references() if name.startswith("segmentation2/")]
    if len(models) < 50:
        pytest.skip("not all of the 50 models are there")
    values = [graph.value(last_labels(graph, damping=0.0, decode="argmax")) for graph in models]
    assert np.mean(values) == pytest.approx(-79.0, abs=0.06)


def test_the_seed_does_not_matter() -> None:
    graph = random_recipe(5, 6, 12).graph()
    one, other = (mapmrf.solve(graph, "bp", seed=seed) for seed in (0, 1))
    assert one.labels.tolist() == other.labels.tolist()
