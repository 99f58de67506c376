"""Branch and cut: what cuts and persistency close, honest bounds, and solvers that can be stopped."""

from __future__ import annotations

import itertools
import logging

import numpy as np
import pytest

import mapmrf
from binary_models import complete, spins
from clocks import solver_threads, wait_until
from mapmrf import FactorGraph, Status
from mapmrf.engines.program.solvers import BranchTask, SolverOutcome, SolverReport, scip_failure
from mapmrf.methods import cuts
from mapmrf.methods.cuts import Cuts
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start

needs_scip = pytest.mark.skipif(scip_failure() is not None, reason=str(scip_failure()))
each_solver = pytest.mark.parametrize("solver", ["highs", pytest.param("scip", marks=needs_scip)])


# -- proofs -----------------------------------------------------------------------------------------------------------


def largest_cut(n: int) -> FactorGraph:
    pairs = list(itertools.combinations(range(n), 2))
    return FactorGraph.from_pairwise(np.zeros((n, 2)), pairs, [[0.0, 1.0], [1.0, 0.0]])


@each_solver
def test_the_largest_cut_of_a_complete_graph_needs_the_search(solver: str) -> None:
    """Odd cycles leave a third of the pairs uncut; in truth n/2 times n/2 pairs are cut."""
    n = 9
    result = mapmrf.solve(largest_cut(n), "cuts", solver=solver)
    assert result.status.closes_gap and result.value == n // 2 * (n - n // 2)
    after_cuts = next(point for point in reversed(result.trace) if point.phase == "cuts")
    assert after_cuts.bound == pytest.approx(2 / 3 * (n * (n - 1) / 2), abs=1e-3)
    assert result.trace[-1].phase == "branch" and result.iterations >= 1
    assert result.gap is not None and result.gap <= 1e-6


@pytest.mark.parametrize("graph", [spins(12), complete(16)])
def test_odd_cycles_alone_prove_frustrated_grids_and_dense_models(graph: FactorGraph) -> None:
    result = mapmrf.solve(graph, "cuts")
    assert (result.status, result.trace[-1].phase, result.iterations) == (Status.OPTIMAL, "cuts", 0)
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)
    relaxed = mapmrf.solve(graph, "lp").bound
    assert relaxed is not None and relaxed > 1.01 * result.value
    assert result.details["cuts"] > 0


def test_a_tight_local_polytope_needs_no_program() -> None:
    random = np.random.default_rng(0)
    chain = FactorGraph.from_pairwise(
        random.normal(size=(30, 4)), [[i, i + 1] for i in range(29)], random.normal(size=(29, 4, 4))
    )
    result = mapmrf.solve(chain, "cuts")
    assert (result.status, result.trace[-1].phase) == (Status.OPTIMAL, "start")
    assert "columns" not in result.details
    assert mapmrf.solve(chain, "cuts", lp_iterations=0).value == pytest.approx(result.value)


def test_ferromagnets_are_fixed_whole_by_persistency() -> None:
    random = np.random.default_rng(0)
    graph = spins(5)
    tables = np.abs(graph.theta_t.reshape(-1, 2, 2)) * np.array([[1, -1], [-1, 1]])
    graph = FactorGraph.from_pairwise(random.normal(size=(25, 2)), graph.scope.reshape(-1, 2), tables)
    result = mapmrf.solve(graph, "cuts")
    assert (result.status, "columns" in result.details) == (Status.OPTIMAL, False)
    without = mapmrf.solve(graph, "cuts", persistency=False, local_search=0)
    assert (without.status, without.details["fixed"] >= 25) == (Status.OPTIMAL, True)
    assert without.value == pytest.approx(result.value)


# -- limits and options -----------------------------------------------------------------------------------------------


@each_solver
def test_the_node_limit_leaves_labelling_and_bound(solver: str) -> None:
    graph = complete(26, seed=1)
    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=2, max_iterations=1)
    assert result.status is Status.ITERATION_LIMIT
    assert result.iterations <= 1
    assert result.bound is not None and result.bound > result.value


@each_solver
def test_a_wide_gap_ends_the_search_early(solver: str) -> None:
    graph = complete(20, seed=2)
    result = mapmrf.solve(graph, "cuts", solver=solver, gap=0.2)
    assert result.status is Status.CONVERGED
    assert result.gap is not None and result.gap <= 0.2 + 1e-6
    assert result.value >= 0.8 * mapmrf.solve(graph, "branch").value


@each_solver
def test_answers_between_steps_leave_the_solver_at_work(solver: str) -> None:
    method, problem = Cuts(solver=solver, rounds=1), Problem.compile(complete(60))  # type: ignore[arg-type]
    state = method.start(problem, 0, Start())
    try:
        while not (method.step(problem, state).phase == "branch" and solver_threads()):
            pass
        answers = [method.answer(problem, state) for _ in range(2)]
        assert solver_threads()
        assert method.step(problem, state).finished is None
        later = method.answer(problem, state)
    finally:
        method.close(problem, state)
    for answer in (*answers, later):
        assert answer.labels is not None and answer.bound is not None
        assert problem.graph.value(answer.labels) <= answer.bound
    assert later.bound <= answers[1].bound <= answers[0].bound  # type: ignore[operator]
    wait_until(lambda: not solver_threads())


@needs_scip
def test_several_searches_at_once_do_not_disturb_one_another() -> None:
    graphs = [complete(14, seed) for seed in range(4)]
    alone = [mapmrf.solve(graph, "cuts", solver="scip", rounds=0).value for graph in graphs]
    together = mapmrf.solve_many(graphs, "cuts", jobs=4, solver="scip", rounds=0)
    assert [result.value for result in together] == alone  # type: ignore[union-attr]


def breaks(task: BranchTask, report: SolverReport) -> None:
    raise RuntimeError("out of order")


def denies(task: BranchTask, report: SolverReport) -> None:
    """Call a model infeasible that has a labelling."""
    report.outcome, report.message = SolverOutcome.INFEASIBLE, "infeasible"


@pytest.mark.parametrize(("solver", "said"), [(breaks, "RuntimeError: out of order"), (denies, "infeasible")])
def test_a_solver_that_fails_is_said_to_the_log_and_not_believed(solver, said, monkeypatch, caplog) -> None:
    monkeypatch.setattr(cuts, "solve_by_highs", solver)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(complete(8), "cuts", solver="highs", rounds=0)
    assert f"the solver gave up: {said}" in caplog.text
    assert result.status is Status.ITERATION_LIMIT
    assert result.bound is not None and result.bound >= result.value


def test_a_relaxation_that_is_not_solved_leaves_the_rest_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.engines.program.solvers._solve_relaxation", lambda highs, report: None)
    result = mapmrf.solve(largest_cut(7), "cuts")
    assert result.status.closes_gap and result.trace[-1].phase == "branch"
    assert result.value == pytest.approx(12.0)
