"""ADSal as a method: the relaxation is closed in from both sides, on models of any kind."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.adsal import ADSal
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, hard_recipes, random_recipe, soft_recipes


def stalls() -> FactorGraph:
    """A model on which plain passes rest far above the relaxation."""
    return random_recipe(45, 7, 12).graph()


def test_smoothing_goes_on_where_plain_passes_rest() -> None:
    graph = stalls()
    relaxation = mapmrf.solve(graph, "lp").bound
    plain, smoothed = mapmrf.solve(graph, "trws").bound, mapmrf.solve(graph, "adsal").bound
    assert relaxation is not None and plain is not None and smoothed is not None
    assert plain > relaxation + 1e-3
    assert smoothed == pytest.approx(relaxation, rel=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_bound_and_relaxed_value_meet_at_the_relaxation(seed: int) -> None:
    graph = random_recipe(seed, 7, 12).graph()
    relaxation = mapmrf.solve(graph, "lp").bound
    result = mapmrf.solve(graph, "adsal")
    assert result.bound == pytest.approx(relaxation, rel=2e-5, abs=2e-5)
    assert result.relaxed_value == pytest.approx(relaxation, rel=2e-5, abs=2e-5)
    assert result.status in (Status.OPTIMAL, Status.CONVERGED)


@given(recipe=soft_recipes() | hard_recipes())
def test_the_relaxed_solution_lies_in_the_local_polytope_below_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "adsal", max_iterations=60)
    assert result.kind in (Kind.VALID, Kind.FRACTIONAL, Kind.UNIFORM)
    assert result.residuals is not None and result.residuals.largest <= 1e-6
    assert result.relaxed_value is not None and result.bound is not None
    assert result.relaxed_value >= result.value - 1e-9
    assert result.relaxed_value <= result.bound + 1e-5 * max(1.0, abs(result.bound))


@given(seed=st.integers(0, 2**16))
def test_every_bound_of_the_trace_holds_and_relaxed_values_only_rise(seed: int) -> None:
    graph = random_recipe(seed, 6, 10).graph()
    result = mapmrf.solve(graph, "adsal", presolve_iterations=1, max_iterations=100)
    optimum = brute_force(graph)[0]
    assert all(point.bound_now is not None and point.bound_now >= optimum - 1e-9 for point in result.trace)
    relaxed = [point.relaxed_value for point in result.trace if point.relaxed_value is not None]
    assert relaxed == sorted(relaxed)


def test_the_temperature_falls_and_begins_after_the_plain_iterations() -> None:
    graph = grid(10, 10, coupling=2.0, seed=2)
    result = mapmrf.solve(graph, "adsal", presolve_iterations=4, presolve_tol=0.0)
    phases = [(point.iterations, point.phase) for point in result.trace]
    assert next(n for n, phase in phases if phase == "smooth") == 4
    temperatures = [point.extra["temperature"] for point in result.trace if "temperature" in point.extra]
    assert len(set(temperatures)) > 3
    assert temperatures == sorted(temperatures, reverse=True)
    assert result.details["temperature"] == temperatures[-1]
    without = mapmrf.solve(graph, "adsal", presolve_iterations=1)
    assert [point.iterations for point in without.trace][:2] == [1, 4]
    assert without.bound == pytest.approx(result.bound, rel=1e-5)


def test_iterations_are_counted_between_two_measurements_and_limits_are_kept() -> None:
    graph = grid(6, 6, coupling=2.0, seed=1)
    method = ADSal(presolve_iterations=1, inner_iterations=4, max_iterations=6)
    problem = Problem.compile(graph)
    state = method.start(problem, 0, Start())
    counts = [method.step(problem, state).iterations for _ in range(3)]
    assert counts == [1, 5, 6]


def test_a_looser_tolerance_stops_earlier_and_the_temperature_falls_by_the_decay() -> None:
    graph = grid(10, 10, coupling=2.0, seed=2)
    tight, loose = mapmrf.solve(graph, "adsal", tol=1e-7), mapmrf.solve(graph, "adsal", tol=1e-2)
    assert loose.iterations < tight.iterations
    assert loose.status is Status.CONVERGED
    fast = mapmrf.solve(graph, "adsal", tol=1e-2, decay=8.0)
    temperatures = sorted({point.extra["temperature"] for point in fast.trace if "temperature" in point.extra})
    assert len(temperatures) > 1
    np.testing.assert_allclose(np.divide(temperatures[1:], temperatures[:-1]), 8.0)
    for result in (tight, loose, fast):
        assert result.bound is not None and result.relaxed_value is not None
        assert result.bound - result.relaxed_value <= result.options["tol"] * result.bound * 1.001
