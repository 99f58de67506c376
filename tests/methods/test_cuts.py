"""Branch and cut: exact by every route, honest bounds, valid cuts and fixings, and solvers that can be stopped."""

from __future__ import annotations

import itertools
import logging
import math
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from binary_models import binary_graphs, complete, spins
from clocks import LIMIT, Clock, wait_until
from mapmrf import FactorGraph, OptionError, Status, UnsupportedModel
from mapmrf.engines.program.solvers import BranchTask, SolverOutcome, SolverReport, scip_failure
from mapmrf.methods import cuts
from mapmrf.methods.cuts import Cuts, CutsRun
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from mapmrf.run.result import TracePoint
from strategies import Recipe, any_recipes, brute_force, recipes, with_weights

needs_scip = pytest.mark.skipif(scip_failure() is not None, reason=str(scip_failure()))
each_solver = pytest.mark.parametrize("solver", ["highs", pytest.param("scip", marks=needs_scip)])


# -- exact by every route ---------------------------------------------------------------------------------------------


@each_solver
@given(recipe=with_weights(recipes()))
@settings(max_examples=25)
def test_the_local_polytope_alone_is_solved_and_proven(solver: str, recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=0, lp_iterations=0, local_search=0)
    assert result.status.closes_gap
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-6)


@each_solver
@given(recipe=with_weights(any_recipes()))
@settings(max_examples=25)
def test_infeasible_models_are_told_by_the_solver_too(solver: str, recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "cuts", solver=solver, lp_iterations=0, local_search=0)
    assert (result.status is Status.INFEASIBLE) == (optimum == -math.inf)
    assert result.value == pytest.approx(optimum, abs=1e-6)


@each_solver
@pytest.mark.parametrize("rounds", [0, 1, 2, 100])
@given(graph=binary_graphs(), persistency=st.booleans())
@settings(max_examples=20)
def test_binary_models_are_exact_with_any_number_of_rounds(
    solver: str, rounds: int, graph: FactorGraph, persistency: bool
) -> None:
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=rounds, persistency=persistency, local_search=0)
    assert result.status.closes_gap
    assert result.value == pytest.approx(optimum, abs=1e-6)
    assert all(point.bound is None or point.bound >= optimum - 1e-9 for point in result.trace)


def largest_cut(n: int) -> FactorGraph:
    """The largest cut of a complete graph."""
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


def test_odd_cycles_solve_many_dense_models() -> None:
    graph = complete(16)
    result = mapmrf.solve(graph, "cuts")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)


def test_odd_cycles_alone_prove_a_frustrated_grid() -> None:
    graph = spins(12)
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


def test_models_without_coupling_are_solved_by_the_first_relaxation() -> None:
    table = np.array([0.0, 1.0])[:, None] + np.array([0.5, 0.0])
    result = mapmrf.solve(FactorGraph.from_pairwise([[0, 0], [0, 0]], [[0, 1]], [table]), "cuts")
    assert (result.labels.tolist(), result.value, result.status) == ([1, 0], 1.5, Status.OPTIMAL)


@pytest.mark.parametrize("factor", [1e-7, 1e7])
def test_the_unit_does_not_matter(factor: float) -> None:
    plain = spins(6, extra=6)
    scaled = FactorGraph.from_pairwise(
        factor * plain.theta_v.reshape(-1, 2),
        plain.scope.reshape(-1, 2),
        factor * plain.theta_t.reshape(-1, 2, 2)[plain.table_of],
    )
    first, second = mapmrf.solve(plain, "cuts"), mapmrf.solve(scaled, "cuts")
    assert second.labels.tolist() == first.labels.tolist()
    assert (second.iterations, second.details["rounds"]) == (first.iterations, first.details["rounds"])
    assert second.bound == pytest.approx(factor * first.bound, rel=1e-5)


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
def test_the_time_limit_and_a_callback_stop_a_solver_at_work(solver: str, clock: Clock) -> None:
    graph = complete(60)

    def look(point: TracePoint, labels: np.ndarray) -> None:
        if point.phase == "branch":
            clock.pass_limit()

    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=1, time_limit=LIMIT, callback=look)
    assert result.status is Status.TIME_LIMIT
    assert result.trace[-1].phase == "branch"
    optimum_at_most = result.bound
    assert optimum_at_most is not None and result.value <= optimum_at_most < math.inf
    stopped = mapmrf.solve(graph, "cuts", solver=solver, rounds=1, callback=lambda point, _: point.phase == "branch")
    assert stopped.status is Status.INTERRUPTED
    wait_until(lambda: not solver_threads())


def solver_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "mapmrf-solver"]


def step_to(phase: str, method: Cuts, problem: Problem, state: CutsRun) -> Progress:
    """Step until a solver is at work in a phase, or the phase is over because it was too quick to be seen at work."""
    seen = False
    while True:
        progress = method.step(problem, state)
        assert progress.finished is None
        if (progress.phase == phase and solver_threads()) or (seen and progress.phase != phase):
            return progress
        seen |= progress.phase == phase


@each_solver
def test_answers_between_steps_leave_the_solver_at_work(solver: str) -> None:
    method, problem = Cuts(solver=solver, rounds=1), Problem.compile(complete(60))  # type: ignore[arg-type]
    state = method.start(problem, 0, Start())
    try:
        step_to("branch", method, problem, state)
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


def test_a_run_closed_in_any_phase_leaves_no_thread() -> None:
    method, problem = Cuts(rounds=1), Problem.compile(complete(60))
    for phase in ("cuts", "branch"):
        state = method.start(problem, 0, Start())
        step_to(phase, method, problem, state)
        method.close(problem, state)
        assert not solver_threads()


def test_answers_between_all_steps_change_nothing() -> None:
    graph = complete(20, seed=2)
    method, problem = Cuts(), Problem.compile(graph)
    state = method.start(problem, 0, Start())
    finished = None
    while finished is None:
        finished = method.step(problem, state).finished
        answer = method.answer(problem, state)
    method.close(problem, state)
    plain = mapmrf.solve(graph, "cuts")
    assert (finished, answer.details) == (plain.status, plain.details)
    assert answer.labels is not None and answer.labels.tolist() == plain.labels.tolist()
    assert answer.bound == plain.bound


def test_a_better_labelling_from_elsewhere_is_taken_over() -> None:
    graph = complete(16)
    optimum = mapmrf.solve(graph, "cuts")
    method, problem = Cuts(local_search=0), Problem.compile(graph)
    state = method.start(problem, 0, Start())
    before = graph.value(method.answer(problem, state).labels)
    state.inform(optimum.labels)
    after = method.answer(problem, state)
    assert before < graph.value(after.labels) == optimum.value
    state.inform(np.zeros(16, dtype=np.int64))  # no better
    assert method.answer(problem, state).labels.tolist() == after.labels.tolist()  # type: ignore[union-attr]
    assert method.step(problem, state).labels.tolist() == optimum.labels.tolist()  # type: ignore[union-attr]
    method.close(problem, state)


def test_rounds_of_cutting_planes_are_counted() -> None:
    graph = spins(8)
    method, problem = Cuts(), Problem.compile(graph)
    state = method.start(problem, 0, Start())
    assert state.n_turns == 0
    while method.step(problem, state).finished is None:
        pass
    method.close(problem, state)
    assert state.n_turns == mapmrf.solve(graph, "cuts").details["rounds"] > 0


@each_solver
def test_ctrl_c_gives_the_best_labelling_and_the_process_ends(solver: str) -> None:
    if not hasattr(signal, "SIGALRM"):
        pytest.skip("needs signals")
    code = f"""
        import itertools, signal
        import numpy as np, mapmrf
        random = np.random.default_rng(0)
        edges = np.array(list(itertools.combinations(range(60), 2)))
        graph = mapmrf.FactorGraph.from_pairwise(
            random.normal(size=(60, 2)), edges, random.normal(size=(len(edges), 2, 2)))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this with it ignored
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        def callback(point, labels):
            if point.phase == "branch" and not alarms:
                alarms.append(signal.setitimer(signal.ITIMER_REAL, 0.3))
        alarms = []
        result = mapmrf.solve(graph, "cuts", solver={solver!r}, rounds=1, callback=callback)
        print(result.status.value, result.value == graph.value(result.labels))
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted", "True"]), done.stderr


@needs_scip
def test_several_searches_at_once_do_not_disturb_one_another() -> None:
    graphs = [complete(14, seed) for seed in range(4)]
    alone = [mapmrf.solve(graph, "cuts", solver="scip", rounds=0).value for graph in graphs]
    together = mapmrf.solve_many(graphs, "cuts", jobs=4, solver="scip", rounds=0)
    assert [result.value for result in together] == alone  # type: ignore[union-attr]


def test_without_the_extra_highs_is_taken_and_scip_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "SCIP needs the optional extra: pip install 'mapmrf[exact]'"
    monkeypatch.setattr(cuts, "scip_failure", lambda: reason)
    assert mapmrf.solve(complete(8), "cuts", rounds=0).status.closes_gap
    with pytest.raises(UnsupportedModel, match=r"SCIP needs the optional extra: pip install 'mapmrf\[exact\]'"):
        mapmrf.solve(complete(8), "cuts", solver="scip")


def test_programs_beyond_all_memory_are_refused() -> None:
    """A hundred factors share a table of a million entries: the model is small, its program is not."""
    edges = [[i, i + 1] for i in range(101)]
    graph = FactorGraph.from_pairwise(np.zeros((102, 1000)), edges, np.zeros((1000, 1000)))
    reason = "its program would have 202000000 entries, expected at most 200000000"
    assert Cuts().supports(Problem.compile(graph)) == reason


def test_a_solver_that_breaks_is_said_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(task: BranchTask, report: SolverReport) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(cuts, "solve_by_highs", broken)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(complete(8), "cuts", solver="highs", rounds=0)
    assert "the solver gave up: RuntimeError: out of order" in caplog.text
    assert result.status is Status.ITERATION_LIMIT
    assert result.bound is not None and result.bound >= result.value


def test_a_solver_that_denies_a_known_labelling_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(task: BranchTask, report: SolverReport) -> None:
        report.outcome, report.message = SolverOutcome.INFEASIBLE, "infeasible"

    monkeypatch.setattr(cuts, "solve_by_highs", wrong)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(complete(8), "cuts", solver="highs", rounds=0)
    assert "the solver gave up: infeasible" in caplog.text
    assert result.status is Status.ITERATION_LIMIT


def test_a_relaxation_that_is_not_solved_leaves_the_rest_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.engines.program.solvers._solve_relaxation", lambda highs, report: None)
    result = mapmrf.solve(largest_cut(7), "cuts")
    assert result.status.closes_gap and result.trace[-1].phase == "branch"
    assert result.value == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"solver": "cplex"}, "solver is 'cplex', expected one of auto, highs, scip"),
        ({"rounds": -1}, "rounds is -1, expected at least 0"),
        ({"local_search": -1}, "local_search is -1, expected at least 0"),
        ({"lp_iterations": -1}, "lp_iterations is -1, expected at least 0"),
        ({"gap": -0.1}, "gap is -0.1, expected at least 0"),
        ({"memory": 0.0}, "memory is 0.0, expected a number above 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Cuts(**options)


# -- benchmark models -------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("grids/grid20x20.f10.uai.gz", "cuts"),
        ("grids/grid20x20.f15.wrap.uai.gz", "cuts"),
        ("grids/grid40x40.f5.uai.gz", "cuts"),
        ("segmentation2/10_14_s.binary.uai.gz", "start"),
        ("segmentation21/2_2_s.21.uai.gz", "start"),
        ("scene/0000047.uai.gz", "start"),
        ("other/or_chain_10.fg.uai.gz", "start"),
        ("other/29.wcsp.uai.gz", "branch"),
    ],
)
def test_benchmark_models_are_proven(name: str, phase: str) -> None:
    result = mapmrf.solve(benchmark(name), "cuts")
    assert result.status.closes_gap and result.trace[-1].phase == phase
    assert result.value == pytest.approx(references()[name], abs=1e-3)
    assert result.gap is not None and result.gap <= 1e-6
