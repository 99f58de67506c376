"""QPBO: bound, persistent variables, and rounds of improvement."""

from __future__ import annotations

import pytest
from hypothesis import given

import mapmrf
from binary_models import binary_graphs, spins
from mapmrf import FactorGraph, Status
from mapmrf.datasets import potts_image
from strategies import brute_force


@given(graph=binary_graphs())
def test_value_and_bound_enclose_the_optimum(graph: FactorGraph) -> None:
    optimum = brute_force(graph)[0]
    result = mapmrf.solve(graph, "qpbo")
    assert result.bound is not None
    assert result.value - 1e-9 <= optimum <= result.bound + 1e-9
    fixed = result.details.get("fixed_by_roof_duality", result.details.get("fixed_by_cut"))
    if fixed == graph.n_vars:
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(optimum, rel=1e-12, abs=1e-12)


def test_a_submodular_model_is_solved_as_by_maxflow() -> None:
    graph = potts_image(30, 30, labels=2, noise=1.2, smoothness=0.8, seed=0).graph
    result, cut = mapmrf.solve(graph, "qpbo"), mapmrf.solve(graph, "maxflow")
    assert result.status is Status.OPTIMAL
    assert (result.value, result.bound) == (cut.value, cut.bound)
    assert result.details["fixed_by_cut"] == graph.n_vars


def test_a_model_with_strong_fields_is_solved_by_persistency() -> None:
    graph = spins(15, seed=1, field=3.0)
    result = mapmrf.solve(graph, "qpbo", rounds=0)
    assert 0 < result.details["fixed_by_roof_duality"] <= graph.n_vars
    assert result.bound == pytest.approx(mapmrf.solve(graph, "lp").bound, rel=1e-6)
    assert result.bound is not None and result.bound >= mapmrf.solve(graph, "cuts").value - 1e-6


def test_rounds_improve_what_ascent_finds() -> None:
    graph = spins(20, seed=3)
    none, some = (mapmrf.solve(graph, "qpbo", rounds=rounds) for rounds in (0, 3))
    assert none.status is some.status is Status.CONVERGED
    assert mapmrf.solve(graph, "icm").value <= none.value < some.value
    assert (none.iterations, some.iterations, some.details["rounds"]) == (1, 4, 3.0)
    assert none.bound == some.bound
