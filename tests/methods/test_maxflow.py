"""Minimum cuts: the exact optimum with its proof, in steps, and a reason where there is no cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from binary_models import submodular_recipe, submodular_recipes
from mapmrf import FactorGraph, Status
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


def test_the_run_does_not_stop_at_the_tolerance() -> None:
    graph = image()
    assert mapmrf.solve(graph, "maxflow", gap_tolerance=10.0).value == mapmrf.solve(graph, "maxflow").value
