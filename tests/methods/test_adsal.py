"""ADSal as a method: the relaxation is closed in from both sides, on models of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.datasets import grid
from mapmrf.methods.adsal import ADSal
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, hard_recipes, random_recipe, soft_recipes

data = pytest.mark.data


def test_a_frustrated_triangle_is_solved_at_a_half() -> None:
    """Three variables of which each pair wants to differ."""
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], 1.0 - np.eye(2))
    result = mapmrf.solve(graph, "adsal")
    assert result.bound == pytest.approx(3.0, abs=1e-5)
    assert result.relaxed_value == pytest.approx(3.0, abs=1e-5)
    assert result.kind is Kind.UNIFORM
    assert result.value == 2.0
    assert result.status is Status.CONVERGED


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


@pytest.mark.parametrize("seed", [2, 5, 53, 56, 77])
def test_hard_constraints_do_not_keep_the_bound_from_the_relaxation(seed: int) -> None:
    recipe = random_recipe(seed, 6, 9, hard=0.3)
    best, _ = brute_force(recipe.graph())
    if best == -np.inf:
        assert mapmrf.solve(recipe.graph(), "adsal").status is Status.INFEASIBLE
        return
    relaxation = mapmrf.solve(recipe.graph(), "lp").bound
    assert mapmrf.solve(recipe.graph(), "adsal").bound == pytest.approx(relaxation, rel=1e-4, abs=1e-4)


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random"}, "order is 'random'"),
        ({"inner_iterations": 0}, "inner_iterations is 0"),
        ({"gap_ratio": 1.0}, "gap_ratio is 1.0"),
        ({"decay": 0.5}, "decay is 0.5"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"presolve_iterations": 0}, "presolve_iterations is 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        ADSal(**options)


# -- benchmark models -------------------------------------------------------------------------------------------------


@data
@pytest.mark.parametrize(
    ("name", "optimum"), [("segmentation21/4_30_s.21.uai.gz", -355.3736), ("scene/0000051.uai.gz", 962.9594)]
)
def test_segmentation_and_scene_models_are_certified(name: str, optimum: float) -> None:
    result = mapmrf.solve(benchmark(name), "adsal")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-3)


@data
@pytest.mark.parametrize(
    ("name", "figure", "relaxation"),
    [("grid20x20.f10", 2605.2, 3736.7), ("grid40x40.f2.wrap", 2370.1, 3231.6), ("grid80x80.f5.wrap", 21730.3, 31996.9)],
)
def test_grids_come_near_the_papers_figures_and_close_in_on_the_relaxation(
    name: str, figure: float, relaxation: float
) -> None:
    result = mapmrf.solve(benchmark(f"grids/{name}.uai.gz"), "adsal")
    assert result.value >= 0.97 * figure
    assert result.bound == pytest.approx(relaxation, rel=1e-4)
    assert result.relaxed_value == pytest.approx(relaxation, rel=1e-4)
    assert result.status is Status.CONVERGED
