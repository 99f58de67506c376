"""toulbar2 in its process: exact, honest about its rounding, and gone when the run is over."""

import csv
import importlib.util
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, MapMRFError, OptionError, Status, UnsupportedModel
from mapmrf.methods import toulbar2
from mapmrf.methods.toulbar2 import Toulbar2, _Costs
from mapmrf.problem import Problem
from strategies import Recipe, any_recipes, brute_force, recipes

pytest.importorskip("pytoulbar2", reason="needs the optional extra: pip install 'mapmrf[exact]'")

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[3] / "shared" / "data")
REFERENCE = FOLDER / "reference_values.csv"

WAYS = [
    {"search": "hbfs", "eliminate": 0},
    {"search": "dfs"},
    {"search": "vns"},
    {"vac": 1},
    {"vac": 3, "eliminate": 4},
]


def hard_grid(side: int = 30, states: int = 2) -> FactorGraph:
    """A frustrated grid, neighbours agree or differ at random; from a side of 20 it is not solved in a moment."""
    random = np.random.default_rng(1)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    tables = 3 * random.normal(size=(len(edges), 1, 1)) * np.eye(states)
    return FactorGraph.from_pairwise(0.3 * random.normal(size=(side**2, states)), edges, tables)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All processes that a test starts."""
    processes: list[Any] = []
    popen = subprocess.Popen

    def record(*args: Any, **options: Any) -> Any:
        processes.append(popen(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return processes


def all_gone(processes: list[Any]) -> bool:
    """Whether every process has ended and was waited for."""
    return all(process.returncode is not None for process in processes)


# -- exactness --------------------------------------------------------------------------------------------------------


@given(recipe=any_recipes(), options=st.sampled_from(WAYS))
@settings(max_examples=40)
def test_every_way_to_search_finds_the_optimum_or_that_there_is_none(recipe: Recipe, options: dict[str, Any]) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "toulbar2", **options)
    assert result.status is (Status.OPTIMAL if optimum > -math.inf else Status.INFEASIBLE)
    assert result.value == pytest.approx(optimum, abs=1e-9)
    assert result.bound == pytest.approx(optimum, abs=1e-9)


@pytest.mark.parametrize("options", WAYS)
def test_a_grid_with_a_search_tree_agrees_with_variable_elimination(options: dict[str, Any]) -> None:
    """Large enough that preprocessing alone does not find the answer."""
    graph = hard_grid(7, 4)
    result = mapmrf.solve(graph, "toulbar2", **options)
    assert result.status is Status.OPTIMAL
    assert result.iterations > 0
    assert result.value == pytest.approx(variable_by_variable(graph, 7, 4), abs=1e-9)


def variable_by_variable(graph: FactorGraph, side: int, states: int) -> float:
    """The optimum of a grid by dynamic programming along its rows."""
    theta = graph.theta_v.reshape(side, side, states)
    pair = {tuple(graph.scope_of(a).tolist()): graph.table(a) for a in range(graph.n_factors)}
    best = np.zeros([states] * side)  # over the states of the last `side` variables seen
    for i in range(side * side):
        row, column = divmod(i, side)
        table = np.broadcast_to(theta[row, column], (states,) * side + (states,)).copy()
        if column:
            table += pair[i - 1, i].reshape([1] * (side - 1) + [states, states])
        if row:
            table += pair[i - side, i].reshape([states] + [1] * (side - 1) + [states])
        best = (best[..., None] + table).max(axis=0)
    return float(best.max())


def test_tables_of_many_variables_and_shared_tables_are_handed_over_entry_by_entry() -> None:
    random = np.random.default_rng(5)
    shared = random.normal(size=(2, 3))
    five = random.normal(size=(2, 3, 2, 2, 3))
    five[random.random(five.shape) < 0.8] = -np.inf
    card = [2, 3, 2, 2, 3, 2]
    tables = [shared, shared, shared, five, five.copy(), random.normal(size=(3, 2, 2))]
    scopes = [(0, 1), (2, 4), (5, 1), (0, 1, 2, 3, 4), (5, 4, 3, 0, 1), (1, 5, 0)]
    graph = Recipe(card, scopes, tables).graph()
    optimum, labels = brute_force(graph)
    result = mapmrf.solve(graph, "toulbar2")
    assert optimum > -math.inf
    assert (result.value, tuple(result.labels.tolist())) == (pytest.approx(optimum), labels)


def test_a_warm_start_bounds_the_search_from_the_first_node() -> None:
    graph = hard_grid(12)
    cold = mapmrf.solve(graph, "toulbar2")
    warm = mapmrf.solve(graph, "toulbar2", initial=cold)
    assert warm.status is Status.OPTIMAL
    assert warm.labels.tolist() == cold.labels.tolist()
    assert 0 <= warm.iterations < cold.iterations


def test_labellings_that_differ_by_less_than_the_gap_of_the_loop_are_told_apart() -> None:
    graph = hard_grid(6)
    small = FactorGraph.from_pairwise(
        1e-9 * graph.theta_v.reshape(-1, 2),
        graph.scope.reshape(-1, 2),
        1e-9 * graph.theta_t.reshape(-1, 2, 2),
    )
    assert mapmrf.solve(small, "toulbar2").labels.tolist() == mapmrf.solve(graph, "toulbar2").labels.tolist()


# -- whole costs ------------------------------------------------------------------------------------------------------


@given(recipe=recipes(), bits=st.sampled_from([6, 12, 50]), seed=st.integers(0, 2**16))
def test_the_stated_error_covers_every_labelling(recipe: Recipe, bits: int, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toulbar2, "COST_BITS", bits)
        costs = _Costs.of(problem)
    random = np.random.default_rng(seed)
    for _ in range(10):
        labels = random.integers(0, problem.graph.card)
        value, cost = problem.graph.value(labels), costs.cost(problem, labels)
        assert (cost == math.inf) == (value == -math.inf)
        if cost < math.inf:
            assert cost == round(cost) < 2**bits + problem.n_vars + problem.n_factors
            assert abs(costs.offset - cost / costs.scale - value) <= costs.error


@pytest.mark.parametrize("bits", [8, 16])
def test_a_coarse_cost_unit_widens_the_bound_but_never_breaks_it(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hard_grid(5, 3)
    optimum = mapmrf.solve(graph, "toulbar2").value
    monkeypatch.setattr(toulbar2, "COST_BITS", bits)
    result = mapmrf.solve(graph, "toulbar2")
    error = result.details["cost_error"]
    assert optimum <= result.bound <= optimum + 2 * error
    assert optimum - 2 * error <= result.value <= optimum
    assert error == pytest.approx(0.5 * (graph.n_vars + graph.n_factors) * result.details["cost_unit"], rel=1e-3)


def test_the_error_is_far_below_the_gap_that_counts_as_closed() -> None:
    result = mapmrf.solve(hard_grid(5, 3), "toulbar2")
    assert 0 < result.details["cost_error"] < 1e-9
    assert result.gap < 1e-9


# -- limits and ends --------------------------------------------------------------------------------------------------


def test_a_time_limit_leaves_the_best_labelling_and_a_bound(started: list[Any]) -> None:
    graph = hard_grid()
    result = mapmrf.solve(graph, "toulbar2", time_limit=2.0)
    assert result.status is Status.TIME_LIMIT
    assert result.runtime < 5.0
    assert mapmrf.solve(graph, "icm").value < result.value < result.bound
    assert result.bound < mapmrf.solve(graph, "lp", max_iterations=1).bound
    assert len(started) == 1 and all_gone(started)


@pytest.mark.parametrize("search", ["hbfs", "dfs", "vns"])
@pytest.mark.parametrize("limit", [1, 50])
def test_an_iteration_is_a_backtrack(search: str, limit: int) -> None:
    result = mapmrf.solve(hard_grid(), "toulbar2", search=search, max_iterations=limit)
    assert result.status is Status.ITERATION_LIMIT
    assert result.iterations == limit
    assert result.value < result.bound


def test_the_same_messages_come_every_time() -> None:
    graph = hard_grid(14)
    first, second = (mapmrf.solve(graph, "toulbar2", max_iterations=300) for _ in range(2))
    assert first.iterations == second.iterations == 300
    assert (first.value, first.bound) == (second.value, second.bound)
    assert first.labels.tolist() == second.labels.tolist()


def test_ctrl_c_ends_the_process(started: list[Any]) -> None:
    class Interrupted(Toulbar2):
        def step(self, problem: Any, state: Any) -> Any:
            if state.labels is not None:
                raise KeyboardInterrupt
            return super().step(problem, state)

    result = mapmrf.solve(hard_grid(), Interrupted())
    assert result.status is Status.INTERRUPTED
    assert result.value < result.bound
    assert len(started) == 1 and all_gone(started)


def test_ctrl_c_of_a_terminal_does_not_reach_the_process(started: list[Any]) -> None:
    sessions = []

    def look(point: object, labels: object) -> bool:
        sessions.append(os.getsid(started[0].pid))
        return True

    mapmrf.solve(hard_grid(), "toulbar2", callback=look)
    assert sessions and sessions[0] != os.getsid(0)


def test_an_error_in_a_callback_ends_the_process(started: list[Any]) -> None:
    def fail(point: object, labels: object) -> bool:
        raise ZeroDivisionError

    try:
        mapmrf.solve(hard_grid(), "toulbar2", callback=fail)
    except ZeroDivisionError as error:
        assert error.__traceback__ is not None
    assert len(started) == 1 and all_gone(started)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_a_killed_parent_takes_the_process_with_it() -> None:
    script = textwrap.dedent("""
        import subprocess, mapmrf
        from test_toulbar2 import hard_grid
        popen = subprocess.Popen
        def record(*args, **options):
            process = popen(*args, **options)
            print(process.pid, flush=True)
            return process
        subprocess.Popen = record
        def look(point, labels):
            if point.candidate is not None:
                print("at work", flush=True)
        mapmrf.solve(hard_grid(), "toulbar2", callback=look)
    """)
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid = int(lines.readline())
        assert lines.readline().strip() == "at work"
        assert running(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    end = time.perf_counter() + 10
    while running(pid) and time.perf_counter() < end:
        time.sleep(0.01)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether a process is alive; one that has ended and waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_prints_nothing_and_leaves_no_file(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mapmrf.solve(hard_grid(6), "toulbar2")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


# -- what may go wrong ------------------------------------------------------------------------------------------------


def test_without_pytoulbar2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=r"needs the optional extra: pip install 'mapmrf\[exact\]'"):
        mapmrf.solve(hard_grid(3), "toulbar2")


def test_a_process_that_cannot_start_is_an_error_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "worker.py"
    broken.write_text("raise ImportError('no such library')")
    monkeypatch.setattr(toulbar2, "WORKER", broken)
    with pytest.raises(MapMRFError, match=r"did not start: exit status 1, last line 'ImportError: no such library'"):
        mapmrf.solve(hard_grid(3), "toulbar2")


def test_a_process_that_dies_at_work_leaves_what_it_has_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dying = tmp_path / "worker.py"
    labels = " ".join(["1"] * 9)
    dying.write_text(f"print('mapmrf ready')\nprint('New solution: 5 (7 backtracks, 9 nodes)')\nprint(' {labels}')")
    monkeypatch.setattr(toulbar2, "WORKER", dying)
    graph = FactorGraph.from_pairwise(np.tile([0.0, 1.0], (9, 1)), [[0, 1]], [[1.0, 0.0], [0.0, 1.0]])
    with caplog.at_level(logging.WARNING, "mapmrf"):
        result = mapmrf.solve(graph, "toulbar2", gap_tolerance=0.0)
    assert "toulbar2 broke off: exit status 0" in caplog.text
    assert (result.labels.tolist(), result.iterations) == ([1] * 9, 7)
    assert result.status is Status.ITERATION_LIMIT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": "bfs"}, "search is 'bfs', expected one of hbfs, dfs, vns"),
        ({"vac": -1}, "vac is -1, expected at least 0"),
        ({"eliminate": -1}, "eliminate is -1, expected at least 0"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Toulbar2(**options)


# -- benchmark models -------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.skipif(not REFERENCE.is_file(), reason=f"no benchmark models in {FOLDER}")
@pytest.mark.parametrize(
    "name",
    [
        "segmentation2/10_14_s.binary.uai.gz",
        "segmentation2/2_2_s.binary.uai.gz",
        "segmentation21/2_2_s.21.uai.gz",
        "scene/0000047.uai.gz",
        "other/pdb1b7d.uai.gz",
    ],
)
def test_benchmark_models_are_solved(name: str) -> None:
    if not (FOLDER / name).is_file():
        pytest.skip(f"{name} is not there")
    with open(REFERENCE, newline="", encoding="utf-8") as file:
        optimum = next(float(row["logpot"]) for row in csv.DictReader(file) if row["file"] == name)
    result = mapmrf.solve(mapmrf.read(FOLDER / name), "toulbar2")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-3)
