"""Inference for training loops: quick, by name, or by a method object."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from mapmrf import FactorGraph, OptionError, Status, UnknownName
from mapmrf.datasets import grid, potts_image
from mapmrf.learn.training import DEPTH, ITERATIONS, infer, solve_quickly
from strategies import Recipe, any_recipes, brute_force, with_weights


def random_grid(seed: int) -> FactorGraph:
    """Frustrated: TRW-S proves nothing."""
    return grid(15, 15, coupling=2.0, seed=seed)


@given(with_weights(any_recipes()))
def test_tiny_models_are_solved_exactly(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = solve_quickly(graph)
    best = brute_force(graph)[0]
    assert result.value == (pytest.approx(best) if np.isfinite(best) else best)
    assert result.status in (Status.OPTIMAL, Status.INFEASIBLE)


def test_a_tight_relaxation_is_proven() -> None:
    assert solve_quickly(potts_image(40, 40, labels=5).graph).status is Status.OPTIMAL


@pytest.mark.parametrize("seed", range(3))
def test_no_flip_of_one_or_two_variables_improves_the_answer(seed: int) -> None:
    graph = random_grid(seed)
    result = solve_quickly(graph)
    assert mapmrf.solve(graph, mapmrf.Flips(depth=DEPTH), initial=result.labels).value == result.value
    assert result.value >= mapmrf.solve(graph, "trws", max_iterations=ITERATIONS).value
    assert result.bound is not None and result.bound >= result.value


def test_the_work_is_limited_by_iterations_and_not_by_time() -> None:
    """What keeps a call short is no clock: the same call gives the same answer on any machine."""
    results = [solve_quickly(random_grid(0)) for _ in range(2)]
    assert results[0].labels.tolist() == results[1].labels.tolist()
    assert results[0].method == "trws" and results[0].options["max_iterations"] == ITERATIONS
    assert sum(point.phase == "" for point in results[0].trace) <= ITERATIONS


def test_it_continues_from_an_earlier_result() -> None:
    graph = random_grid(1)
    first = solve_quickly(graph)
    second = solve_quickly(graph, initial=first)
    assert second.value >= first.value
    assert second.bound < first.bound  # type: ignore[operator]


def test_methods_by_name_with_options_and_as_objects() -> None:
    graph = random_grid(2)
    plain = mapmrf.solve(graph, "icm", starts=3, seed=4)
    for inference in (("icm", {"starts": 3}), mapmrf.ICM(starts=3)):
        assert infer(graph, inference, seed=4).labels.tolist() == plain.labels.tolist()
    assert infer(graph).labels.tolist() == solve_quickly(graph).labels.tolist()
    with pytest.raises(UnknownName, match="no method is named 'quickest'"):
        infer(graph, "quickest")
    with pytest.raises(OptionError, match="icm has no option 'tricks'"):
        infer(graph, ("icm", {"tricks": 1}))
