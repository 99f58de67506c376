"""Branch and cut: exact by every route, honest bounds, valid cuts and fixings, and solvers that can be stopped."""

from __future__ import annotations

import csv
import itertools
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, OptionError, Status, UnsupportedModel
from mapmrf.engines.program import scip as _cuts_scip
from mapmrf.engines.program.compact import Compact, is_compact
from mapmrf.engines.program.cutting_planes import Rounds
from mapmrf.engines.program.highs import Relaxation
from mapmrf.engines.program.local_polytope import Polytope
from mapmrf.engines.program.program import Rows, lagrangian, spread
from mapmrf.engines.program.solver_thread import Board, Outcome, Search, Task
from mapmrf.methods import cuts
from mapmrf.methods.cuts import Cuts
from mapmrf.problem import Problem
from strategies import Recipe, any_recipes, brute_force, recipes

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[3] / "shared" / "data")
REFERENCE = FOLDER / "reference_values.csv"

needs_scip = pytest.mark.skipif(
    not _cuts_scip.has_scip(), reason="needs the optional extra: pip install 'mapmrf[exact]'"
)
each_solver = pytest.mark.parametrize("solver", ["highs", pytest.param("scip", marks=needs_scip)])


def spins(side: int, seed: int = 0, field: float = 0.3, extra: int = 0) -> FactorGraph:
    """A frustrated grid of binary variables, with some more pairs at random places."""
    random = np.random.default_rng(seed)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    more = np.array([random.permutation(side * side)[:2] for _ in range(extra)]).reshape(-1, 2)
    edges = np.concatenate([across, down, more])
    coupling = random.normal(size=len(edges))
    tables = np.empty((len(edges), 2, 2))
    tables[:, 0, 0] = tables[:, 1, 1] = coupling
    tables[:, 0, 1] = tables[:, 1, 0] = -coupling
    return FactorGraph.from_pairwise(field * random.normal(size=(side * side, 2)), edges, tables)


def complete(n: int, seed: int = 0) -> FactorGraph:
    """All pairs of binary variables interact."""
    random = np.random.default_rng(seed)
    edges = np.array(list(itertools.combinations(range(n), 2)))
    return FactorGraph.from_pairwise(random.normal(size=(n, 2)), edges, random.normal(size=(len(edges), 2, 2)))


@st.composite
def binary_graphs(draw: st.DrawFn) -> FactorGraph:
    """Small binary pairwise models, some with a pair given twice or in the other direction, or with no coupling."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 8))
    recipe = Recipe([2] * n)
    for i in range(n):
        recipe.add((i,), draw(st.sampled_from([0.0, 0.3, 2.0])) * random.normal(size=2))
    for i, j in itertools.combinations(range(n), 2):
        if random.random() < 0.6:
            recipe.add((i, j), random.normal(size=(2, 2)))
        if random.random() < 0.2:
            recipe.add((j, i), random.normal(size=2)[:, None] + random.normal(size=2))
    return recipe.graph()


# -- exact by every route ---------------------------------------------------------------------------------------------


@each_solver
@given(recipe=recipes())
@settings(max_examples=25)
def test_the_local_polytope_alone_is_solved_and_proven(solver: str, recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=0, lp_iterations=0, local_search=0)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-6)


@each_solver
@given(recipe=any_recipes())
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
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-6)
    assert all(point.bound is None or point.bound >= optimum - 1e-9 for point in result.trace)


@each_solver
def test_the_largest_cut_of_a_complete_graph_needs_the_search(solver: str) -> None:
    """Odd cycles leave a third of the pairs uncut; in truth n/2 times n/2 pairs are cut."""
    n = 9
    pairs = list(itertools.combinations(range(n), 2))
    graph = FactorGraph.from_pairwise(np.zeros((n, 2)), pairs, [[0.0, 1.0], [1.0, 0.0]])
    result = mapmrf.solve(graph, "cuts", solver=solver)
    assert (result.status, result.value) == (Status.OPTIMAL, n // 2 * (n - n // 2))
    after_cuts = next(point for point in reversed(result.trace) if point.phase == "cuts")
    assert after_cuts.bound == pytest.approx(2 / 3 * len(pairs), abs=1e-3)
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


# -- the compact program ----------------------------------------------------------------------------------------------


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_the_compact_program_is_the_model(graph: FactorGraph) -> None:
    problem = Problem.compile(graph)
    assert is_compact(problem)
    compact = Compact.build(problem)
    program = compact.program
    assert len(np.unique(compact.first * graph.n_vars + compact.second)) == len(compact.first)
    for labels in itertools.product([0, 1], repeat=graph.n_vars):
        x = np.array(labels)
        columns = compact.columns(x)
        assert program.value(float(program.cost @ columns)) == pytest.approx(graph.value(x))
        assert np.all(program.rows.times(columns) <= program.rows.upper)
        assert compact.labels(columns).tolist() == compact.rounded(columns).tolist() == x.tolist()
        assert compact.missing(columns, 1e-9).n == 0


@given(recipe=recipes())
@settings(max_examples=30)
def test_the_polytope_program_is_the_model(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    if problem.n_vars == 0 or not np.isfinite(graph.constant):
        return
    polytope = Polytope.build(problem)
    program = polytope.program
    for labels in itertools.islice(itertools.product(*map(range, graph.card.tolist())), 200):
        x = np.array(labels)
        if graph.value(x) > -math.inf:
            columns = polytope.columns(x)
            assert program.value(float(program.cost @ columns)) == pytest.approx(graph.value(x))
            np.testing.assert_array_equal(program.rows.times(columns), program.rows.upper)
            assert columns.sum() == program.mass
            assert polytope.labels(columns[: program.n_integer]).tolist() == x.tolist()


def test_only_the_rows_that_the_sign_needs_are_in_the_program() -> None:
    like, unlike = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], [like, unlike])
    rows = Compact.build(Problem.compile(graph)).program.rows
    dense = np.zeros((rows.n, 5))
    dense[np.repeat(np.arange(rows.n), np.diff(rows.ptr)), rows.column] = rows.entry
    assert dense.tolist() == [[-1, 0, 0, 1, 0], [0, -1, 0, 1, 0], [0, 1, 1, 0, -1]]
    assert rows.upper.tolist() == [0, 0, 1]


def run_rounds(graph: FactorGraph, n: int) -> tuple[Compact, Rounds]:
    """Some rounds without fixing anything."""
    compact = Compact.build(Problem.compile(graph))
    rounds = Rounds(compact, 0)
    for _ in range(n):
        rounds.relaxation.start()
        assert rounds.relaxation.wait(60) and rounds.relaxation.solved
        rounds.read()
        for _ in rounds.separate():
            pass
    return compact, rounds


def test_no_labelling_violates_a_cut() -> None:
    graph = spins(3, extra=6)
    compact, rounds = run_rounds(graph, 4)
    assert rounds.n_cuts > 0
    cuts_alone = rounds.rows.only(np.arange(rounds.rows.n) >= compact.program.rows.n)
    assert cuts_alone.n > 0
    for labels in itertools.product([0, 1], repeat=9):
        assert np.all(cuts_alone.times(compact.columns(np.array(labels))) <= cuts_alone.upper)


def test_every_round_cuts_its_point_off_and_lowers_the_bound() -> None:
    compact, rounds = run_rounds(spins(8), 1)
    bounds = [rounds.bound]
    for _ in range(4):
        left = rounds.rows.times(rounds.point)[compact.program.rows.n :]
        assert np.any(left > rounds.rows.upper[compact.program.rows.n :] + 1e-6)
        rounds.relaxation.start()
        assert rounds.relaxation.wait(60)
        rounds.read()
        bounds.append(rounds.bound)
        n_before = rounds.n_cuts
        for _ in rounds.separate():
            pass
        if rounds.n_cuts == n_before:
            break
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < 0.99 * bounds[0]


@given(graph=binary_graphs(), seed=st.integers(0, 2**16))
@settings(max_examples=30)
def test_the_bound_of_the_relaxation_holds_for_any_weights(graph: FactorGraph, seed: int) -> None:
    program = Compact.build(Problem.compile(graph)).program
    weights = np.random.default_rng(seed).exponential(size=program.rows.n)
    bound, reduced = lagrangian(program, program.rows, weights)
    assert program.value(bound) >= brute_force(graph)[0] - 1e-9
    assert len(reduced) == len(program.cost)


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_fixed_variables_leave_an_optimum(graph: FactorGraph) -> None:
    """Roof duality on the first relaxation, and reduced costs given the optimum's own value."""
    optimum, _ = brute_force(graph)
    compact = Compact.build(Problem.compile(graph))
    for fix in ("persistent", "cost"):
        rounds = Rounds(compact, 0)
        rounds.relaxation.start()
        assert rounds.relaxation.wait(60)
        rounds.read()
        if fix == "persistent":
            rounds.fix_persistent()
        else:
            rounds.fix_by_cost(optimum)
        low, high = rounds.program.lower, rounds.program.upper
        best = -math.inf
        for labels in itertools.product([0, 1], repeat=graph.n_vars):
            columns = compact.columns(np.array(labels))
            if np.all((low <= columns) & (columns <= high)):
                best = max(best, graph.value(labels))
        assert best == pytest.approx(optimum, abs=1e-9)


def test_ferromagnets_are_fixed_whole_by_persistency() -> None:
    random = np.random.default_rng(0)
    graph = spins(5)
    tables = np.abs(graph.theta_t.reshape(-1, 2, 2)) * np.array([[1, -1], [-1, 1]])
    graph = FactorGraph.from_pairwise(random.normal(size=(25, 2)), graph.scope.reshape(-1, 2), tables)
    result = mapmrf.solve(graph, "cuts")
    assert (result.status, result.details["rounds"], result.details["cuts"]) == (Status.OPTIMAL, 1, 0)
    assert result.details["fixed"] >= 25


def test_rows_are_added_kept_and_multiplied() -> None:
    one = Rows(np.array([0, 2]), np.array([0, 2]), np.array([1.0, -1.0]), np.array([-np.inf]), np.array([3.0]))
    two = Rows(np.array([0, 1, 2]), np.array([1, 2]), np.array([2.0, 5.0]), np.zeros(2), np.array([1.0, 4.0]))
    rows = one.plus(two)
    assert rows.n == 3
    assert rows.times(np.array([1.0, 10.0, 100.0])).tolist() == [-99.0, 20.0, 500.0]
    assert rows.transposed_times(np.array([1.0, 1.0, 2.0]), 3).tolist() == [1.0, 2.0, 9.0]
    last = rows.only(np.array([False, False, True]))
    assert (last.column.tolist(), last.upper.tolist(), last.ptr.tolist()) == ([2], [4.0], [0, 1])


def test_spread_is_the_largest_difference_of_values() -> None:
    table = np.array([[0.0, 5.0], [-np.inf, 1.0]])
    graph = FactorGraph.from_pairwise([[0, 2], [0, 0]], [[0, 1]], [table])
    assert spread(Problem.compile(graph)) == 7.0


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
def test_the_time_limit_and_a_callback_stop_a_solver_at_work(solver: str) -> None:
    graph = complete(60)
    result = mapmrf.solve(graph, "cuts", solver=solver, rounds=1, time_limit=1.0)
    assert result.status is Status.TIME_LIMIT
    assert result.trace[-1].phase == "branch"
    optimum_at_most = result.bound
    assert optimum_at_most is not None and result.value <= optimum_at_most < math.inf
    stopped = mapmrf.solve(graph, "cuts", solver=solver, rounds=1, callback=lambda point, _: point.phase == "branch")
    assert stopped.status is Status.INTERRUPTED
    assert_no_thread_is_left()


def assert_no_thread_is_left() -> None:
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("mapmrf-cuts") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


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
    monkeypatch.setattr(cuts, "has_scip", lambda: False)
    assert mapmrf.solve(complete(8), "cuts", rounds=0).status is Status.OPTIMAL
    with pytest.raises(UnsupportedModel, match=r"needs the optional extra: pip install 'mapmrf\[exact\]'"):
        mapmrf.solve(complete(8), "cuts", solver="scip")


def test_programs_beyond_all_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts, "MAX_ENTRIES", 100)
    with pytest.raises(UnsupportedModel, match="its program would have 224 entries, at most 100 are written down"):
        mapmrf.solve(complete(8), "cuts")


def test_a_solver_that_breaks_is_said_to_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(task: Task, board: Board) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(cuts, "run_highs", broken)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(complete(8), "cuts", solver="highs", rounds=0)
    assert "the solver gave up: RuntimeError: out of order" in caplog.text
    assert result.status is Status.ITERATION_LIMIT
    assert result.bound is not None and result.bound >= result.value


def test_a_solver_that_denies_a_known_labelling_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(task: Task, board: Board) -> None:
        board.outcome, board.message = Outcome.INFEASIBLE, "infeasible"

    monkeypatch.setattr(cuts, "run_highs", wrong)
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(complete(8), "cuts", solver="highs", rounds=0)
    assert "the solver gave up: infeasible" in caplog.text
    assert result.status is Status.ITERATION_LIMIT


def test_a_relaxation_that_is_not_solved_leaves_the_rest_to_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Relaxation, "solved", property(lambda self: False))
    result = mapmrf.solve(spins(4), "cuts")
    assert (result.status, result.trace[-1].phase) == (Status.OPTIMAL, "branch")
    assert result.value == pytest.approx(brute_force(spins(4))[0])


def test_a_search_that_nobody_waits_for_is_told_to_stop() -> None:
    told = threading.Event()

    def run(task: Any, board: Board) -> None:
        board.stop.wait(60)
        told.set()
        board.outcome = Outcome.STOPPED

    search = Search(run, None)  # type: ignore[arg-type]
    assert not search.wait(0.01)
    del search
    assert told.wait(60)


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
@pytest.mark.skipif(not REFERENCE.is_file(), reason=f"no benchmark models in {FOLDER}")
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("grids/grid20x20.f10.uai.gz", "cuts"),
        ("grids/grid20x20.f15.wrap.uai.gz", "cuts"),
        ("grids/grid40x40.f5.uai.gz", "cuts"),
        ("segmentation2/10_14_s.binary.uai.gz", "cuts"),
        ("segmentation21/2_2_s.21.uai.gz", "start"),
        ("scene/0000047.uai.gz", "start"),
        ("other/or_chain_10.fg.uai.gz", "start"),
        ("other/29.wcsp.uai.gz", "branch"),
    ],
)
def test_benchmark_models_are_proven(name: str, phase: str) -> None:
    if not (FOLDER / name).is_file():
        pytest.skip(f"{name} is not there")
    with open(REFERENCE, newline="", encoding="utf-8") as file:
        optimum = next(float(row["logpot"]) for row in csv.DictReader(file) if row["file"] == name)
    result = mapmrf.solve(mapmrf.read(FOLDER / name), "cuts")
    assert (result.status, result.trace[-1].phase) == (Status.OPTIMAL, phase)
    assert result.value == pytest.approx(optimum, abs=1e-3)
    assert result.gap is not None and result.gap <= 1e-6
