"""Minimum cuts: the exact optimum with its proof, in steps, and a reason where there is no cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from binary_models import submodular_recipe, submodular_recipes
from mapmrf import FactorGraph, MaxFlow, OptionError, Status, UnsupportedModel
from mapmrf.datasets import potts_image
from mapmrf.methods import maxflow
from strategies import Recipe, brute_force


@given(recipe=submodular_recipes())
def test_the_optimum_is_found_and_proven(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "maxflow")
    if optimum == -math.inf:
        assert (result.status, result.bound) == (Status.INFEASIBLE, -math.inf)
        return
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, rel=1e-12, abs=1e-12)
    assert result.bound == pytest.approx(result.value, rel=1e-12, abs=1e-12)


@given(recipe=submodular_recipes())
@settings(max_examples=10)
def test_the_relaxation_is_tight(recipe: Recipe) -> None:
    graph = recipe.graph()
    cut, relaxed, exact = (mapmrf.solve(graph, name) for name in ("maxflow", "lp", "branch"))
    assert cut.status is exact.status
    if cut.status is Status.OPTIMAL:
        assert relaxed.bound == pytest.approx(cut.value, rel=1e-7, abs=1e-7)
        assert exact.value == pytest.approx(cut.value, rel=1e-9, abs=1e-9)


def test_labels_of_an_infeasible_model_are_legal() -> None:
    tables = [np.array([-np.inf]), np.array([[2.0, 3.0]])]
    result = mapmrf.solve(FactorGraph.from_tables([1, 2], [(0,), (0, 1)], tables), "maxflow")
    assert result.status is Status.INFEASIBLE and result.labels[0] == 0 and result.violated


def image(side: int = 60) -> FactorGraph:
    return potts_image(side, side, labels=2, noise=1.2, smoothness=0.8, seed=0).graph


def test_an_image_is_solved_to_round_off() -> None:
    """The gap is far below the tolerance at which other methods may stop."""
    graph = image()
    result = mapmrf.solve(graph, "maxflow")
    assert result.status is Status.OPTIMAL
    assert result.gap is not None and result.gap < 1e-13
    assert mapmrf.solve(graph, "trws").value <= result.value + 1e-9
    assert result.kind is not None and result.relaxed_value == pytest.approx(result.value)


def test_a_medium_model_with_flips_and_hard_constraints_agrees_with_branch_and_bound() -> None:
    graph = submodular_recipe(np.random.default_rng(1), 22, 0.15, 0.05).graph()
    cut, exact = mapmrf.solve(graph, "maxflow"), mapmrf.solve(graph, "branch")
    assert cut.status is exact.status is Status.OPTIMAL
    assert cut.value == pytest.approx(exact.value, rel=1e-12)
    assert cut.details["flipped"] > 0


def test_the_bound_falls_step_by_step_to_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = image()
    at_once = mapmrf.solve(graph, "maxflow")
    monkeypatch.setattr(maxflow, "STEP_WORK", 2000)
    result = mapmrf.solve(graph, "maxflow")
    bounds = [point.bound_now for point in result.trace]
    assert len(bounds) > 10
    assert bounds == sorted(bounds, reverse=True)
    assert (result.value, result.bound, result.iterations) == (at_once.value, at_once.bound, at_once.iterations)
    assert result.labels.tolist() == at_once.labels.tolist()


def test_a_run_cut_short_has_a_bound_and_a_labelling() -> None:
    graph = image()
    best = mapmrf.solve(graph, "maxflow")
    result = mapmrf.solve(graph, "maxflow", max_iterations=10)
    assert (result.status, result.iterations) == (Status.ITERATION_LIMIT, 10)
    assert result.bound is not None and result.value <= best.value <= result.bound


def test_the_run_does_not_stop_at_the_tolerance() -> None:
    graph = image()
    assert mapmrf.solve(graph, "maxflow", gap_tolerance=10.0).value == mapmrf.solve(graph, "maxflow").value


def test_a_model_without_a_cut_is_refused_in_one_line() -> None:
    differ = np.array([[0.0, 1.0], [1.0, 0.0]])
    graph = Recipe([2] * 3, [(0, 1), (1, 2), (2, 0)], [differ] * 3).graph()
    with pytest.raises(UnsupportedModel, match=r"^maxflow cannot solve this model: factor 2 on variables 2 and 0 is"):
        mapmrf.solve(graph, "maxflow")


def test_an_iteration_limit_below_one_is_refused() -> None:
    with pytest.raises(OptionError, match="max_iterations is 0"):
        MaxFlow(max_iterations=0)
