"""The linear relaxation: its value, its kinds, a bound that always holds, and a HiGHS that stops when told."""

import logging
import math
from typing import Any

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import mapmrf
from clocks import solver_threads
from mapmrf import LP, FactorGraph, Kind, Status
from mapmrf.datasets import grid
from mapmrf.engines.program.local_polytope import LocalPolytope
from mapmrf.methods import lp
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Start, running
from pairwise_models import random_grid, triangle
from strategies import Recipe, any_recipes, brute_force, hard_recipes, recipes, with_weights


def hard_to_solve(side: int = 120) -> FactorGraph:
    """A grid that keeps HiGHS busy for many seconds."""
    return random_grid(side, side, 3, seed=1)


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


@given(recipe=with_weights(recipes()))
@settings(max_examples=20)
def test_the_bound_is_the_optimum_of_the_relaxation(recipe: Recipe) -> None:
    graph = recipe.graph()
    expected = dense_relaxation(graph)
    result = mapmrf.solve(graph, "lp")
    assert result.bound == pytest.approx(expected, abs=1e-6)
    assert result.relaxed_value == pytest.approx(expected, abs=1e-6)
    assert result.kind is not Kind.APPROXIMATE
    assert result.residuals is not None and result.residuals.largest < 1e-6


def answer_of(graph: FactorGraph, method: LP) -> tuple[LocalPolytope, Answer]:
    """The program, and the answer where a method ends."""
    problem = Problem.compile(graph)
    with running(method, problem, 0, Start()) as state:
        while method.step(problem, state).finished is None:
            pass
        return state.polytope, method.answer(problem, state)


def relaxed_point(graph: FactorGraph, method: LP) -> tuple[LocalPolytope, np.ndarray]:
    """The program and the columns where a method ends."""
    polytope, answer = answer_of(graph, method)
    assert answer.mu_v is not None and answer.mu_f is not None
    return polytope, np.concatenate([answer.mu_v, answer.mu_f])[polytope.entries]


def is_vertex(polytope: LocalPolytope, columns: np.ndarray) -> bool:
    """Whether the columns that are positive are linearly independent."""
    matrix = polytope.program.rows.matrix
    of_columns = np.array([matrix @ unit for unit in np.eye(len(columns))]).reshape(len(columns), matrix.n_rows)
    support = of_columns[columns > 1e-7].T
    return np.linalg.matrix_rank(support) == support.shape[1]


@given(recipe=with_weights(hard_recipes()), solver=st.sampled_from(["simplex", "ipm"]))
@settings(max_examples=20)
def test_the_solution_is_a_vertex_of_the_relaxation(recipe: Recipe, solver: str) -> None:
    if len(recipe.scopes) == 0:
        return
    assert is_vertex(*relaxed_point(recipe.graph(), LP(solver=solver)))  # type: ignore[arg-type]


@pytest.mark.parametrize(("options", "vertex"), [({"solver": "ipm", "crossover": False}, False), ({}, True)])
def test_without_crossover_the_interior_point_method_ends_inside_the_optimal_face(
    options: dict[str, Any], vertex: bool
) -> None:
    """Everything is optimal here, so that the face is L_G itself."""
    graph = FactorGraph.from_pairwise(np.zeros((3, 3)), [[0, 1], [1, 2]], np.zeros((3, 3)))
    assert is_vertex(*relaxed_point(graph, LP(**options))) == vertex


@given(
    recipe=with_weights(any_recipes()),
    options=st.sampled_from([{"solver": "ipm"}, {"solver": "choose", "presolve": True}]),
)
@settings(max_examples=20)
def test_all_ways_to_solve_it_agree(recipe: Recipe, options: dict[str, Any]) -> None:
    graph = recipe.graph()
    simplex, other = mapmrf.solve(graph, "lp"), mapmrf.solve(graph, "lp", **options)
    assert other.bound == pytest.approx(simplex.bound, abs=1e-6)
    assert other.status is simplex.status or Status.INFEASIBLE not in (other.status, simplex.status)


@given(recipe=with_weights(hard_recipes()), seed=st.integers(0, 2**16), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_any_multipliers_give_an_upper_bound(recipe: Recipe, seed: int, scale: float) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    lam_e = scale * np.random.default_rng(seed).normal(size=problem.n_edge_states)
    assert dual_bound(problem, lam_e) >= brute_force(graph)[0] - 1e-9


def test_ties_of_the_relaxed_solution_go_to_the_smallest_state() -> None:
    answer = answer_of(triangle(), LP())[1]
    assert answer.labels is not None and answer.labels.tolist() == [0, 0, 0]


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


def test_an_answer_has_the_point_where_highs_stands() -> None:
    method, problem = LP(), Problem.compile(hard_to_solve(60))
    state = method.start(problem, 0, Start())
    first = state.bound
    while state.iterations < 12_000:  # of some 34 000; the first bring nothing
        assert method.step(problem, state).finished is None
    answer = method.answer(problem, state)
    assert answer.bound is not None and answer.bound < first
    assert answer.labels is not None and answer.mu_v is not None
    before = state.iterations
    while state.iterations == before:  # it goes on
        assert method.step(problem, state).finished is None
    method.close(problem, state)
    assert not solver_threads()


def test_answers_between_steps_do_not_raise_the_limit() -> None:
    method, problem = LP(max_iterations=4000), Problem.compile(hard_to_solve(60))
    state = method.start(problem, 0, Start())
    finished = None
    while finished is None:
        finished = method.step(problem, state).finished
        method.answer(problem, state)
    method.close(problem, state)
    assert (finished, state.iterations) == (Status.ITERATION_LIMIT, 4000)


def test_a_program_that_uses_highs_with_other_threads_is_no_obstacle() -> None:
    mine = highspy.Highs()
    mine.setOptionValue("output_flag", False)
    mine.setOptionValue("threads", 2)
    mine.maximize(mine.addVariable(0, 1))
    assert mapmrf.solve(triangle(), "lp").bound == pytest.approx(3.0)


def test_a_highs_that_gives_up_is_reported(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highspy.Highs, "getModelStatus", lambda self: highspy.HighsModelStatus.kUnknown)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(triangle(), "lp")
    assert "HiGHS gave up" in caplog.text
    assert result.status is Status.ITERATION_LIMIT


def test_a_large_program_is_announced_and_one_that_does_not_fit_is_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = grid(6, 6)
    n_nonzeros = lp.count_nonzeros(Problem.compile(graph))
    built = LocalPolytope.build(Problem.compile(graph)).program.rows.matrix
    assert n_nonzeros == len(built.data)
    monkeypatch.setattr(lp, "LARGE", n_nonzeros)
    mapmrf.solve(graph, "lp")
    assert f"{n_nonzeros:.2g} non-zeros" in caplog.text
    with pytest.raises(mapmrf.UnsupportedModel, match=r"lp cannot solve this model: it takes .*, the limit is 1 kB"):
        mapmrf.solve(graph, "lp", memory_limit=1000)
