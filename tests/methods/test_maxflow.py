"""Minimum cuts: the exact optimum with its proof, in steps, and a reason where there is no cut."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from binary_models import submodular_recipe
from mapmrf import FactorGraph, Status
from mapmrf.datasets import potts_image


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


def test_the_run_does_not_stop_at_the_tolerance() -> None:
    graph = image()
    assert mapmrf.solve(graph, "maxflow", gap_tolerance=10.0).value == mapmrf.solve(graph, "maxflow").value
