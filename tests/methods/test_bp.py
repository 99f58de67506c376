"""Belief propagation: exact without cycles, even with ties and constraints; with cycles the best of many decodings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.datasets import grid
from mapmrf.methods.bp import BP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, plant, random_recipe, random_tree, soft_recipes, tree_recipes

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
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    unary = np.zeros((n, len(table))) if unary is None else unary
    return FactorGraph.from_pairwise(unary, edges, table)


# -- without cycles ---------------------------------------------------------------------------------------------------


@given(recipe=tree_recipes(), schedule=st.sampled_from(["parallel", "sequential"]))
def test_two_sweeps_solve_a_tree_and_prove_it(recipe: Recipe, schedule: str) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "bp", schedule=schedule)
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)
    assert result.status is Status.OPTIMAL
    assert result.iterations <= 2


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


def test_a_long_chain_of_hard_constraints_is_solved() -> None:
    """Each variable must be one state further than the one before: states die from both ends."""
    n, states = 9, 9
    step = np.full((states, states), -np.inf)
    step[np.arange(states - 1), np.arange(1, states)] = 0.0
    graph = chain(n, step)
    assert last_labels(graph).tolist() == list(range(n))
    assert mapmrf.solve(chain(n + 1, step), "bp").status is Status.INFEASIBLE


def test_a_limit_of_one_iteration_is_kept_on_a_tree_too() -> None:
    result = mapmrf.solve(chain(50, SAME), "bp", max_iterations=1)
    assert result.iterations == 1
    assert result.bound is None or result.bound >= 49.0


# -- with cycles ------------------------------------------------------------------------------------------------------


def attractive(seed: int, side: int = 8, states: int = 2) -> FactorGraph:
    """A grid of neighbours that like to agree, with clear evidence: messages settle, at the optimum."""
    random = np.random.default_rng(seed)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    unary = random.normal(size=(side * side, states))
    return FactorGraph.from_pairwise(unary, np.concatenate([across, down]), 0.3 * np.eye(states))


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("decode", ["sequential", "argmax"])
def test_schedules_and_damping_lead_to_the_same_fixed_point(states: int, decode: str) -> None:
    graph = attractive(1, states=states)
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
    graph = attractive(2, states=states)
    rough, fine = (mapmrf.solve(graph, "bp", tol=tol) for tol in (1e-2, 1e-10))
    assert rough.iterations < fine.iterations
    assert fine.details["change"] < rough.details["change"]


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_the_unit_of_the_potentials_does_not_matter(states: int, unit: float) -> None:
    graph = attractive(3, states=states)
    scaled = FactorGraph(
        graph.card,
        graph.theta_v * unit,
        graph.scope_ptr,
        graph.scope,
        graph.table_of,
        graph.table_ptr,
        graph.theta_t * unit,
    )
    one, other = (mapmrf.solve(model, "bp") for model in (graph, scaled))
    assert one.labels.tolist() == other.labels.tolist()
    assert (one.status, one.iterations) == (other.status, other.iterations)


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


def test_an_answer_between_two_steps_changes_nothing() -> None:
    problem, method = Problem.compile(grid(15, 15, coupling=5.0, seed=3)), BP(damping=0.0, decode="argmax")
    asked, left_alone = (method.start(problem, 0, Start()) for _ in range(2))
    for state in (asked, left_alone):
        state.advance(13)
    best, answers = asked.value, [method.answer(problem, asked) for _ in range(2)]
    assert asked.value == best
    assert answers[0].labels is not None and answers[1].labels is not None
    assert answers[0].labels.tolist() == answers[1].labels.tolist()
    for state in (asked, left_alone):
        state.advance(20)
    assert (asked.value, asked.change) == (left_alone.value, left_alone.change)


def test_there_is_no_bound_with_cycles() -> None:
    assert mapmrf.solve(grid(4, 4), "bp").bound is None


def test_contradicting_constraints_are_proven_infeasible() -> None:
    must_differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    fixed = [np.array([0.0, -np.inf])] * 3
    recipe = Recipe([2, 2, 2], [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], [*fixed, *[must_differ] * 3])
    result = mapmrf.solve(recipe.graph(), "bp")
    assert (result.status, result.bound) == (Status.INFEASIBLE, -np.inf)


def test_a_binary_variable_without_a_state_is_proven_infeasible() -> None:
    graph = FactorGraph.from_pairwise([[0.0, 1.0], [-np.inf, -np.inf], [0.0, 0.0]], [[0, 1], [1, 2], [0, 2]], SAME)
    assert mapmrf.solve(graph, "bp").status is Status.INFEASIBLE


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("damping", 1.0, "damping is 1.0, expected a number from 0.0 to 0.999"),
        ("damping", -0.1, "damping is -0.1"),
        ("tol", -1.0, "tol is -1.0, expected at least 0"),
        ("tol", float("nan"), "tol is nan"),
        ("schedule", "random", "schedule is 'random', expected one of parallel, sequential"),
        ("decode", "best", "decode is 'best', expected one of sequential, argmax"),
        ("max_iterations", 0, "max_iterations is 0"),
    ],
)
def test_impossible_options_are_refused(option: str, value: Any, complaint: str) -> None:
    with pytest.raises(OptionError, match=f"bp: {complaint}"):
        BP(**{option: value})


# -- benchmark models -------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_the_papers_mean_on_binary_segmentation_is_reproduced_without_damping() -> None:
    """The paper's table has -79 for its BP, -137.1 for ICM and -75.5 for the optimum."""
    models = [benchmark(name) for name in references() if name.startswith("segmentation2/")]
    if len(models) < 50:
        pytest.skip("not all of the 50 models are there")
    values = [graph.value(last_labels(graph, damping=0.0, decode="argmax")) for graph in models]
    assert np.mean(values) == pytest.approx(-79.0, abs=0.06)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "share"),
    [("grids/grid20x20.f10.uai.gz", 0.94), ("grids/grid40x40.f2.uai.gz", 0.94), ("scene/0000047.uai.gz", 0.999)],
)
def test_benchmark_models_are_solved_well(name: str, share: float) -> None:
    optimum = references()[name]
    assert share * optimum <= mapmrf.solve(benchmark(name), "bp").value <= optimum + 1e-3


def test_the_seed_does_not_matter() -> None:
    graph = random_recipe(5, 6, 12).graph()
    one, other = (mapmrf.solve(graph, "bp", seed=seed) for seed in (0, 1))
    assert one.labels.tolist() == other.labels.tolist()
