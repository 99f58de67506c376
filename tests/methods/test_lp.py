"""The linear relaxation: its value, its kinds, a bound that always holds, and a HiGHS that stops when told."""

import logging
import math
import threading
import time
from typing import Any

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import mapmrf
from mapmrf import LP, FactorGraph, Kind, OptionError, Status
from mapmrf.polytope import dual_bound
from mapmrf.problem import Problem
from strategies import Recipe, any_recipes, brute_force, hard_recipes, recipes, tree_recipes

NOT_EQUAL = np.array([[0.0, 1.0], [1.0, 0.0]])


def triangle(table: np.ndarray = NOT_EQUAL) -> FactorGraph:
    """Three binary variables that all want to differ: the relaxation takes 1/2 everywhere."""
    return FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], table)


def hard_to_solve(side: int = 120) -> FactorGraph:
    """A grid that keeps HiGHS busy for many seconds."""
    random = np.random.default_rng(1)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    return FactorGraph.from_pairwise(random.normal(size=(side**2, 3)), edges, random.normal(size=(len(edges), 3, 3)))


def dense_relaxation(graph: FactorGraph) -> float:
    """The optimum over L_G from a dense matrix that is written down row by row; -inf if L_G is empty."""
    n_states = len(graph.theta_v)
    tables = [graph.table(a) for a in range(graph.n_factors)]
    starts = n_states + np.cumsum([0, *(table.size for table in tables)])
    theta = np.concatenate([graph.theta_v, *(table.ravel() for table in tables)])
    rows, rhs = [], []
    for i in range(graph.n_vars):
        row = np.zeros(len(theta))
        row[graph.var_ptr[i] : graph.var_ptr[i + 1]] = 1
        rows.append(row)
        rhs.append(1.0)
    for a, table in enumerate(tables):
        for axis, i in enumerate(graph.scope_of(a)):
            for k in range(graph.card[i]):
                row = np.zeros(len(theta))
                row[graph.var_ptr[i] + k] = 1
                row[starts[a] : starts[a + 1]] = -1.0 * (np.indices(table.shape)[axis] == k).ravel()
                rows.append(row)
                rhs.append(0.0)
    upper = np.where(np.isfinite(theta), 1.0, 0.0)
    cost = np.where(np.isfinite(theta), -theta, 0.0)
    answer = linprog(cost, A_eq=np.array(rows), b_eq=rhs, bounds=np.stack([0 * upper, upper], axis=1))
    return graph.constant - answer.fun if answer.status == 0 else -math.inf


@given(recipe=recipes())
@settings(max_examples=20)
def test_the_bound_is_the_optimum_of_the_relaxation(recipe: Recipe) -> None:
    graph = recipe.graph()
    expected = dense_relaxation(graph)
    result = mapmrf.solve(graph, "lp")
    assert result.bound == pytest.approx(expected, abs=1e-6)
    assert result.relaxed_value == pytest.approx(expected, abs=1e-6)
    assert result.kind is not Kind.APPROXIMATE
    assert result.residuals is not None and result.residuals.largest < 1e-6


@given(recipe=any_recipes(), options=st.sampled_from([{"solver": "ipm"}, {"solver": "choose", "presolve": True}]))
@settings(max_examples=20)
def test_all_ways_to_solve_it_agree(recipe: Recipe, options: dict[str, Any]) -> None:
    graph = recipe.graph()
    simplex, other = mapmrf.solve(graph, "lp"), mapmrf.solve(graph, "lp", **options)
    assert other.bound == pytest.approx(simplex.bound, abs=1e-6)
    assert other.status is simplex.status or Status.INFEASIBLE not in (other.status, simplex.status)


@given(recipe=hard_recipes(), seed=st.integers(0, 2**16), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_any_multipliers_give_an_upper_bound(recipe: Recipe, seed: int, scale: float) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    lam_e = scale * np.random.default_rng(seed).normal(size=problem.n_edge_states)
    assert dual_bound(problem, lam_e) >= brute_force(graph)[0] - 1e-9


@given(recipe=tree_recipes())
def test_an_integer_solution_is_an_optimal_labelling(recipe: Recipe) -> None:
    result = mapmrf.solve(recipe.graph(), "lp")
    assert (result.kind, result.status) == (Kind.VALID, Status.OPTIMAL)
    assert result.relaxed_value == pytest.approx(result.value)


def test_a_frustrated_triangle_is_uniform_and_its_bound_is_not_tight() -> None:
    result = mapmrf.solve(triangle(), "lp")
    assert (result.kind, result.status) == (Kind.UNIFORM, Status.CONVERGED)
    assert (result.bound, result.relaxed_value) == pytest.approx((3.0, 3.0))
    assert result.value == 0.0  # the rounding of a point that says nothing
    assert result.mu_v == pytest.approx(np.full(6, 0.5))


def test_ties_of_the_relaxed_solution_go_to_the_smallest_state() -> None:
    method, problem = LP(), Problem.compile(triangle())
    state = method.start(problem, 0, mapmrf.solver.Start())
    while method.step(problem, state).finished is None:
        pass
    answer = method.answer(problem, state)
    assert answer.labels is not None and answer.labels.tolist() == [0, 0, 0]


def test_forbidden_configurations_get_no_mass_at_all() -> None:
    graph = triangle(np.array([[-np.inf, 1.0], [1.0, -np.inf]]))
    method, problem = LP(), Problem.compile(graph)
    state = method.start(problem, 0, mapmrf.solver.Start())
    while method.step(problem, state).finished is None:
        pass
    answer = method.answer(problem, state)
    assert answer.mu_f is not None
    assert np.all(answer.mu_f[problem.theta_f == -np.inf] == 0)
    assert mapmrf.solve(graph, "lp").status is Status.INFEASIBLE  # the relaxation is not empty, but the model is


def test_an_empty_relaxation_is_infeasible() -> None:
    """Each table alone allows something; together they allow nothing."""
    same, differ = np.array([[0.0, -np.inf], [-np.inf, 0.0]]), np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    graph = Recipe([2, 2], [(0, 1), (0, 1)], [same, differ]).graph()
    result = mapmrf.solve(graph, "lp")
    assert (result.status, result.bound) == (Status.INFEASIBLE, -math.inf)


def test_variables_without_factors_take_their_best_state() -> None:
    unary = np.array([0.0, 2.0, 1.0])
    result = mapmrf.solve(Recipe([2, 3, 2], [(0, 2), (1,)], [NOT_EQUAL, unary]).graph(), "lp")
    assert result.labels[1] == 1
    assert (result.value, result.kind) == (3.0, Kind.VALID)


@pytest.mark.parametrize("options", [{"solver": "simplex"}, {"solver": "ipm"}])
def test_a_run_cut_short_still_has_a_true_bound(options: dict[str, Any]) -> None:
    graph = hard_to_solve(12)
    full = mapmrf.solve(graph, "lp")
    assert full.bound is not None
    bounds = []
    for limit in (1, 5):
        short = mapmrf.solve(graph, "lp", max_iterations=limit, **options)
        assert short.status is Status.ITERATION_LIMIT
        assert short.iterations <= limit
        assert short.bound is not None and short.bound >= full.bound - 1e-6
        bounds.append(short.bound)
    assert bounds[1] <= bounds[0]


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mapmrf-highs"]


def gone(seconds: float = 5.0) -> bool:
    """Whether all workers end within some seconds."""
    end = time.perf_counter() + seconds
    while workers() and time.perf_counter() < end:
        time.sleep(0.01)
    return not workers()


def test_a_time_limit_stops_highs_as_well() -> None:
    result = mapmrf.solve(hard_to_solve(), "lp", time_limit=0.1)
    assert result.status is Status.TIME_LIMIT
    assert result.runtime < 3.0
    assert gone(2.0)


def test_an_error_in_a_callback_stops_highs_as_well() -> None:
    def fail(point: object, labels: object) -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mapmrf.solve(hard_to_solve(), "lp", callback=fail)
    assert gone()


def test_steps_stay_short_while_highs_works() -> None:
    result = mapmrf.solve(hard_to_solve(), "lp", time_limit=0.5)
    times = [point.time for point in result.trace]
    assert len(times) >= 4
    assert max(np.diff(times)) < 1.0


def test_a_program_that_uses_highs_with_other_threads_is_no_obstacle() -> None:
    mine = highspy.Highs()
    mine.setOptionValue("output_flag", False)
    mine.setOptionValue("threads", 2)
    mine.maximize(mine.addVariable(0, 1))
    assert mapmrf.solve(triangle(), "lp").bound == pytest.approx(3.0)


def test_highs_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    mapmrf.solve(triangle(), "lp")
    assert capfd.readouterr() == ("", "")


def test_a_highs_that_gives_up_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highspy.Highs, "getModelStatus", lambda self: highspy.HighsModelStatus.kUnknown)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(triangle(), "lp")
    assert "HiGHS gave up" in caplog.text
    assert result.status is Status.ITERATION_LIMIT


def test_an_unknown_solver_is_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match="'barrier', expected one of simplex, ipm, choose"):
        LP(solver="barrier")  # type: ignore[arg-type]
