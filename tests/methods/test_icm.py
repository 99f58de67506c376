"""ICM: a local optimum, found step by step, with hard constraints first."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark
from mapmrf import ICM, FactorGraph, Status
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import (
    Recipe,
    assert_no_flip_helps,
    at_rest,
    brute_force,
    cost,
    hard_recipes,
    random_recipe,
    recipes,
    soft_recipes,
    some_labels,
    with_weights,
)


def alone(graph: FactorGraph, labels: np.ndarray | None = None, **options: Any) -> np.ndarray:
    return at_rest(ICM(**options), graph, labels)


@given(recipe=with_weights(recipes()), data=st.data())
def test_at_rest_no_single_flip_helps(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    rest = alone(graph, start)
    assert_no_flip_helps(graph, start, rest)


def test_broken_constraints_are_mended_one_by_one_against_any_finite_gain() -> None:
    """Every pair forbids state 1 of its first variable, which the unary potentials love."""
    n = 6
    unary = np.tile([0.0, 100.0], (n, 1))
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    graph = FactorGraph.from_pairwise(unary, edges, np.array([[0.0, 0.0], [-np.inf, -np.inf]]))
    assert alone(graph, np.ones(n, dtype=np.int64)).tolist() == [0] * (n - 1) + [1]


@given(recipe=with_weights(soft_recipes()))
def test_the_first_start_is_the_best_unary_labelling(recipe: Recipe) -> None:
    graph = recipe.graph()
    best = [int(graph.theta_v[b:e].argmax()) for b, e in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True)]
    assert alone(graph).tolist() == alone(graph, np.array(best, dtype=np.int64)).tolist()


def test_more_starts_find_more() -> None:
    """A model whose best unary labelling is a poor local optimum."""
    graph = FactorGraph.from_pairwise([[0.1, 0.0], [0.1, 0.0]], [[0, 1]], [[0.0, -5.0], [-5.0, 3.0]])
    one = mapmrf.solve(graph, "icm")
    many = mapmrf.solve(graph, "icm", starts=20)
    assert one.labels.tolist() == [0, 0]
    assert many.value == brute_force(graph)[0]
    assert (one.details["starts"], many.details["starts"]) == (1, 20)


def test_random_starts_depend_on_the_seed_alone() -> None:
    graph = random_recipe(8, 7, 12).graph()
    first, again, other = (mapmrf.solve(graph, "icm", starts=5, seed=seed) for seed in (1, 1, 2))
    assert [point.candidate for point in first.trace] == [point.candidate for point in again.trace]
    assert [point.candidate for point in first.trace] != [point.candidate for point in other.trace]


def test_an_iteration_is_as_many_visits_as_there_are_variables() -> None:
    """A chain along which a single change travels backwards, one variable in each round."""
    n = 50
    unary = np.zeros((n, 2))
    unary[-1] = [0.0, 10.0]
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    graph = FactorGraph.from_pairwise(unary, edges, [[0.0, -1.0], [-1.0, 0.5]])
    problem, method = Problem.compile(graph), ICM(max_iterations=1)
    state = method.start(problem, 0, Start(np.zeros(n, dtype=np.int64)))
    progress = method.step(problem, state)
    assert (state.ascent.visits, progress.iterations, progress.finished) == (n, 1, None)
    assert mapmrf.solve(graph, method, initial=np.zeros(n, dtype=np.int64)).status is Status.ITERATION_LIMIT
    assert mapmrf.solve(graph, "icm", initial=np.zeros(n, dtype=np.int64)).status is Status.CONVERGED


@given(recipe=with_weights(hard_recipes()), data=st.data())
def test_the_order_is_that_of_sweeps_which_skip_what_cannot_have_changed(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    assert alone(graph, start).tolist() == sweeps(graph, start).tolist()


def sweeps(graph: FactorGraph, labels: np.ndarray) -> np.ndarray:
    """ICM as anybody would write it: full sweeps, every labelling evaluated from scratch."""
    labels = labels.copy()
    changed = True
    while changed:
        changed = False
        for i in range(graph.n_vars):
            trials = [np.concatenate([labels[:i], [k], labels[i + 1 :]]) for k in range(graph.card[i])]
            costs = [cost(graph, trial) for trial in trials]
            best = min(costs)
            if (best[0], best[1] + 1e-9) < costs[labels[i]]:
                labels[i] = costs.index(best)
                changed = True
    return labels


@pytest.mark.data
@pytest.mark.parametrize(
    ("model", "figure"),
    [("grid20x20.f10", 2708.9), ("grid20x20.f15.wrap", 3837.12), ("grid40x40.f2", 2255.38), ("grid80x80.f10", 43538.9)],
)
def test_the_papers_figures_for_icm_are_reproduced(model: str, figure: float) -> None:
    graph = benchmark(f"grids/{model}.uai.gz")
    assert graph.value(alone(graph, np.zeros(graph.n_vars, dtype=np.int64))) == pytest.approx(
        figure, rel=1e-5, abs=0.06
    )


def test_the_first_start_can_be_zeros() -> None:
    graph = random_recipe(8, 7, 12).graph()
    assert alone(graph, init="zeros").tolist() == alone(graph, np.zeros(7, dtype=np.int64)).tolist()
