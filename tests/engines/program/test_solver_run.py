"""A solver on a thread of its own: it reports, can be stopped, does not outlive its run, and is confirmed."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest

import mapmrf
from constrained_recipes import SUMS, ConstrainedRecipe, random_constrained
from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program import solvers
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.local_polytope import ConstrainedPolytope
from mapmrf.engines.program.program import Program, Rows, SparseMatrix
from mapmrf.engines.program.solvers import (
    BranchTask,
    Confirmation,
    SolverOutcome,
    SolverReport,
    SolverRun,
    scip_failure,
    solve_by_highs,
    solve_by_scip,
)
from mapmrf.model.problem import Problem

Solve = Callable[[BranchTask, SolverReport], None]
needs_scip = pytest.mark.skipif(scip_failure() is not None, reason=str(scip_failure()))
each_solver = pytest.mark.parametrize("solve", [solve_by_highs, pytest.param(solve_by_scip, marks=needs_scip)])


def until_stopped(report: SolverReport) -> None:
    report.stop.wait(60)
    report.outcome = SolverOutcome.STOPPED


def test_a_run_that_nobody_waits_for_is_stopped() -> None:
    stopped = threading.Event()

    def solve(report: SolverReport) -> None:
        until_stopped(report)
        stopped.set()

    run = SolverRun(solve)
    assert not run.wait(0.01)
    del run
    assert stopped.wait(60)


def test_the_interpreter_waits_for_a_solver_that_a_daemon_has_started() -> None:
    """A thread that Python ends while it is in C++ takes the whole process down."""
    runs = []
    starter = threading.Thread(target=lambda: runs.append(SolverRun(until_stopped)), daemon=True)
    starter.start()
    starter.join()
    (solver,) = (thread for thread in threading.enumerate() if thread.name == "mapmrf-solver")
    assert not solver.daemon
    runs[0].close(60)


@pytest.mark.parametrize("reports", [None, 1])
def test_closing_a_run_ends_its_thread(reports: int | None) -> None:
    """At work, and while it waits for its turn."""
    before = set(threading.enumerate())

    def solve(report: SolverReport) -> None:
        until_stopped(report) if reports is None else report.spend()
        report.outcome = SolverOutcome.STOPPED

    run = SolverRun(solve) if reports is None else SolverRun(solve, reports=reports)
    assert reports is None or run.turn_is_over(60)
    assert set(threading.enumerate()) - before and not run.wait(0)
    run.close(60)
    assert set(threading.enumerate()) == before
    assert run.report.outcome is SolverOutcome.STOPPED


def test_closing_does_not_wait_longer_than_asked_for() -> None:
    release = threading.Event()
    run = SolverRun(lambda report: None if release.wait(60) else pytest.fail("hung"))
    run.close(0.01)
    assert not run.wait(0.0)
    release.set()
    assert run.wait(60)


def test_a_solver_that_raises_has_failed_with_what_it_said() -> None:
    def solve(report: SolverReport) -> None:
        raise RuntimeError("out of order")

    run = SolverRun(solve)
    assert run.wait(60)
    assert (run.report.outcome, run.report.message) == (SolverOutcome.FAILED, "RuntimeError: out of order")


def test_only_the_last_point_is_taken_and_only_once() -> None:
    def solve(report: SolverReport) -> None:
        report.found += [np.zeros(2), np.ones(2)]
        report.tighten(3.0)
        report.tighten(5.0)
        report.count(7)
        report.count(4)

    run = SolverRun(solve)
    assert run.wait(60)
    assert run.newest_point().tolist() == [1, 1]  # type: ignore[union-attr]
    assert run.newest_point() is None
    assert (run.report.bound, run.report.iterations) == (3.0, 7)


def test_a_solver_that_offers_an_interrupt_is_called() -> None:
    called, ready = threading.Event(), threading.Event()

    def solve(report: SolverReport) -> None:
        report.interrupt = called.set
        ready.set()
        assert called.wait(60)

    run = SolverRun(solve)
    assert ready.wait(60)
    run.close(60)
    assert called.is_set()


def test_a_solver_waits_when_its_turn_is_over_and_goes_on_with_the_next() -> None:
    done: list[int] = []

    def solve(report: SolverReport) -> None:
        for number in range(7):
            done.append(number)
            report.spend()

    run = SolverRun(solve, reports=3)
    seen = []
    while not run.wait(0):
        assert run.turn_is_over(60)
        seen.append(len(done))
        run.grant(3)
    assert seen[:2] == [3, 6] and len(done) == 7


@cache
def hard_task() -> tuple[Compact, BranchTask, Ints]:
    """A dense model that takes a branch and bound some nodes, and its optimum."""
    random = np.random.default_rng(1)
    n = 17
    edges = np.stack(np.triu_indices(n, 1), 1)
    tables = random.normal(size=(len(edges), 1, 1)) * np.array([[1.0, -1.0], [-1.0, 1.0]])
    graph = mapmrf.FactorGraph.from_pairwise(random.normal(size=(n, 2)), edges, tables)
    compact = Compact.build(Problem.compile(graph))
    best = mapmrf.solve(graph, "branch").labels
    return compact, BranchTask(compact.program, compact.program.rows.n, None, 0.0, 10**6, 0, 1000.0), best


@each_solver
def test_a_branch_and_bound_in_turns_stands_at_the_same_place_every_time(solve: Solve) -> None:
    _, task, _ = hard_task()

    def course() -> list[tuple[int, float, int]]:
        run = SolverRun(partial(solve, task), reports=2)
        stands = []
        while run.turn_is_over(60) and not run.wait(0):
            stands.append((run.report.iterations, run.report.bound, len(run.report.found)))
            run.grant(2)
        assert run.report.outcome is SolverOutcome.OPTIMAL
        return stands

    first = course()
    assert len(first) > 2 and first == course()


@each_solver
def test_a_branch_and_bound_takes_a_point_that_was_found_elsewhere(solve: Solve) -> None:
    compact, task, best = hard_task()
    run = SolverRun(partial(solve, task), reports=1)
    assert run.turn_is_over(60)
    run.report.offered = compact.columns(best)
    run.grant(np.inf)
    assert run.wait(120)
    assert run.report.offered is None
    first = run.newest_point()
    assert first is not None and compact.labels(first).tolist() == best.tolist()


def knapsacks_with_a_total(n: int = 40, m: int = 25) -> Program:
    """Some knapsacks, and a column that is the weighted sum of all others: presolving replaces it by that sum."""
    rng = np.random.default_rng(0)
    weights = (rng.random((m, n)) < 0.4) * rng.integers(1, 30, (m, n)).astype(float)
    total = np.r_[-rng.integers(1, 9, n).astype(float), 1.0]
    dense = np.vstack([np.c_[weights, np.zeros(m)], total])
    row, column = np.nonzero(dense)
    matrix = SparseMatrix.of_entries(dense[row, column], row, column, dense.shape)
    rows = Rows(matrix, np.r_[np.full(m, -np.inf), 0.0], np.r_[0.4 * weights.sum(axis=1), 0.0])
    cost, upper = np.r_[rng.integers(10, 60, n), 1.0].astype(float), np.r_[np.ones(n), 1e6]
    return Program(cost, np.zeros(n + 1), upper, n, rows, offset=0.0, scale=1.0, mass=float(n))


@needs_scip
def test_scip_takes_points_although_presolving_has_removed_columns() -> None:
    program = knapsacks_with_a_total()
    run = SolverRun(partial(solve_by_scip, BranchTask(program, program.rows.n, None, 0.0, 10**6, 0, 1000.0)), reports=1)
    assert run.turn_is_over(60)
    point = np.zeros(len(program.cost))
    point[3] = 1.0
    point[-1] = -(program.rows.matrix @ np.eye(len(point))[3])[-1]
    run.report.offered = point
    run.grant(np.inf)
    assert run.wait(120)
    assert run.report.outcome is SolverOutcome.OPTIMAL and run.report.offered is None


# -- proofs without a solver's tolerances -----------------------------------------------------------------------------


def search(recipe: ConstrainedRecipe, known: float) -> tuple[float, float]:
    """Bound of a model, and best value found on the way, given the value of a known labelling."""
    graph, values = recipe.graph(), [known]
    polytope = ConstrainedPolytope.build(Problem.compile(graph))

    def offer(point: Floats) -> None:
        values.append(graph.value(polytope.labels(point)))

    tree = Confirmation(polytope.program, 0)
    list(tree.run(lambda: max(values) + graph.allowance, offer))
    tree.close(1.0)
    return tree.bound, max(values)


@pytest.mark.parametrize("below", [0.0, 0.5, math.inf])
def test_the_bound_meets_the_optimum(below: float) -> None:
    proven = 0
    for seed in range(30):
        recipe = random_constrained(seed, n_vars=4, kinds=SUMS)
        optimum = recipe.optimum()
        bound, value = search(recipe, optimum - below if optimum > -math.inf else -math.inf)
        assert value <= optimum + 1e-12
        assert max(bound, value) >= optimum - 1e-12
        proven += bound <= optimum + 1e-12
    assert proven >= 20


def test_too_many_nodes_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "WORK", 0)
    assert search(random_constrained(2, n_vars=4, kinds=SUMS), 0.0)[0] == math.inf
