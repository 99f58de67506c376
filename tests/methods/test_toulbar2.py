"""toulbar2 in its process: exact, honest about its rounding, and gone when the run is over."""

import importlib.util
import logging
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from clocks import wait_until
from mapmrf import FactorGraph, MapMRFError, Status, UnsupportedModel
from mapmrf.engines.program.toulbar2_process import Toulbar2Process, WholeCosts
from mapmrf.methods.toulbar2 import Toulbar2, Toulbar2Run
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from pairwise_models import grid_edges, scaled

pytest.importorskip("pytoulbar2", reason="needs the optional extra: pip install 'mapmrf[exact]'")


def hard_grid(side: int = 30, states: int = 2) -> FactorGraph:
    """A frustrated grid, neighbours agree or differ at random; from a side of 20 it is not solved in a moment."""
    random = np.random.default_rng(1)
    edges = grid_edges(side)
    tables = 3 * random.normal(size=(len(edges), 1, 1)) * np.eye(states)
    return FactorGraph.from_pairwise(0.3 * random.normal(size=(side**2, states)), edges, tables)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    processes: list[Any] = []
    popen = subprocess.Popen

    def record(*args: Any, **options: Any) -> Any:
        processes.append(popen(*args, **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", record)
    return processes


# -- exactness --------------------------------------------------------------------------------------------------------


def test_a_warm_start_bounds_the_search_from_the_first_node() -> None:
    graph = hard_grid(12)
    cold = mapmrf.solve(graph, "toulbar2")
    warm = mapmrf.solve(graph, "toulbar2", initial=cold)
    assert warm.status is Status.OPTIMAL
    assert warm.labels.tolist() == cold.labels.tolist()
    assert 0 <= warm.iterations < cold.iterations


def test_labellings_that_differ_by_less_than_the_gap_of_the_loop_are_told_apart() -> None:
    graph = hard_grid(6)
    one, other = (mapmrf.solve(each, "toulbar2").labels.tolist() for each in (graph, scaled(graph, 1e-9)))
    assert one == other


def test_the_error_is_far_below_the_gap_that_counts_as_closed() -> None:
    result = mapmrf.solve(hard_grid(5, 3), "toulbar2")
    assert 0 < result.details["cost_error"] < 1e-9
    assert result.gap < 1e-9


# -- limits and ends --------------------------------------------------------------------------------------------------


def test_an_answer_has_what_no_step_has_taken_yet() -> None:
    graph = hard_grid(6)
    method, problem = Toulbar2(), Problem.compile(graph)
    run = method.start(problem, 0, Start())

    def solved() -> bool:
        answer = method.answer(problem, run)
        return answer.labels is not None and graph.value(answer.labels) >= answer.bound - 1e-9

    wait_until(solved)
    answer = method.answer(problem, run)
    assert run.labels is None
    while method.step(problem, run).finished is None:
        pass
    assert run.labels is not None and run.labels.tolist() == answer.labels.tolist()
    method.close(problem, run)


@pytest.mark.parametrize("search", ["hbfs", "dfs", "vns"])
@pytest.mark.parametrize("limit", [1, 50])
def test_an_iteration_is_a_backtrack(search: str, limit: int) -> None:
    result = mapmrf.solve(hard_grid(), "toulbar2", search=search, max_iterations=limit)
    assert result.status is Status.ITERATION_LIMIT
    assert result.iterations == limit
    assert result.value < result.bound


def test_ctrl_c_of_a_terminal_does_not_reach_the_process(started: list[Any]) -> None:
    sessions = []

    def look(point: object, labels: object) -> bool:
        sessions.append(os.getsid(started[0].pid))
        return True

    mapmrf.solve(hard_grid(), "toulbar2", callback=look)
    assert sessions and sessions[0] != os.getsid(0)


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
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid = int(lines.readline())
        assert lines.readline().strip() == "at work"
        assert running(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not running(pid))


def running(pid: int) -> bool:
    """Whether a process is alive; one that has ended and waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# -- what may go wrong ------------------------------------------------------------------------------------------------


def test_without_pytoulbar2_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModel, match=r"needs the optional extra: pip install 'mapmrf\[exact\]'"):
        mapmrf.solve(hard_grid(3), "toulbar2")


def run_with(worker: Path, script: str, graph: FactorGraph) -> tuple[Toulbar2, Problem, Toulbar2Run]:
    """A run whose process executes a script instead of toulbar2."""
    worker.write_text(script)
    problem = Problem.compile(graph)
    return Toulbar2(), problem, Toulbar2Run(WholeCosts.of(problem), Toulbar2Process(b"", worker))


def last_step(method: Toulbar2, problem: Problem, run: Toulbar2Run) -> Progress:
    while True:
        progress = method.step(problem, run)
        if progress.finished is not None:
            return progress


def test_a_process_that_cannot_start_is_an_error_with_its_last_line(tmp_path: Path) -> None:
    method, problem, run = run_with(tmp_path / "worker.py", "raise ImportError('no such library')", hard_grid(3))
    with pytest.raises(MapMRFError, match=r"did not start: exit status 1, last line 'ImportError: no such library'"):
        last_step(method, problem, run)
    method.close(problem, run)


def test_a_process_that_dies_at_work_leaves_what_it_has_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    labels = " ".join(["1"] * 9)
    dying = f"print('mapmrf ready')\nprint('New solution: 5 (7 backtracks, 9 nodes)')\nprint(' {labels}')"
    method, problem, run = run_with(tmp_path / "worker.py", dying, hard_grid(3))
    with caplog.at_level(logging.WARNING, "mapmrf"):
        progress = last_step(method, problem, run)
    answer = method.answer(problem, run)
    method.close(problem, run)
    assert "toulbar2 failed: exit status 0" in caplog.text
    assert answer.labels is not None and answer.labels.tolist() == [1] * 9
    assert (progress.iterations, progress.finished) == (7, Status.ITERATION_LIMIT)


def test_after_a_crash_the_search_starts_again_and_eliminates_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crash = "import os, signal, sys\nprint('mapmrf ready')\nsys.stdout.flush()\nos.kill(os.getpid(), signal.SIGSEGV)"
    graph = hard_grid(6)
    method, problem, run = run_with(tmp_path / "worker.py", crash, graph)
    run.degree = 5
    with caplog.at_level(logging.WARNING, "mapmrf"):
        progress = last_step(method, problem, run)
    answer = method.answer(problem, run)
    method.close(problem, run)
    assert "restarting with variables of at most 2 neighbours eliminated" in caplog.text
    assert progress.finished is Status.OPTIMAL and answer.labels is not None
    assert graph.value(answer.labels) == pytest.approx(mapmrf.solve(graph, "branch").value)


def test_toulbar2_takes_further_options_by_its_own_names() -> None:
    graph = hard_grid(6)
    result = mapmrf.solve(graph, "toulbar2", settings="DEE=0, elimDegree = 1, lastConflict=0")
    assert result.status is Status.OPTIMAL
    with pytest.raises(MapMRFError, match="it has no option 'noSuchOption'"):
        mapmrf.solve(graph, "toulbar2", settings="noSuchOption=1")
