"""Commands for models in parts, in one process."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

import command_line
import mapmrf
from mapmrf.datasets import grid
from mapmrf.formats.solution import read_solution

GRAPH = grid(8, 8, 2.0, seed=1)


def run(*arguments: object, code: int = 0) -> Result:
    found = command_line.run(*arguments)
    assert found.exit_code == code, found.output
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    mapmrf.write(GRAPH, tmp_path / "grid.uai")
    return tmp_path / "grid.uai"


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_from_a_file_to_a_solution_file(stream: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    parts, labels = tmp_path / "parts", tmp_path / "labels"
    assert run("partition", model, parts, "--parts", 3, *stream).stdout == f"{parts}: 3 parts of 64 variables\n"
    found = json.loads(run("solve", parts, "-m", "lslp", "--json", "-o", labels, "--trace", tmp_path / "t.csv").stdout)
    run("join", labels, "-o", tmp_path / "grid.MPE")
    assert GRAPH.value(read_solution(tmp_path / "grid.MPE", GRAPH)) == pytest.approx(found["value"], rel=1e-9)
    assert found["ranks"] == 1 and found["n_vars"] == 64 and "labels" not in found
    assert len(mapmrf.result.read_trace(tmp_path / "t.csv")) > 1


def test_a_generated_model_by_parts_is_the_whole_one(tmp_path: Path) -> None:
    run("generate", "grid", 8, 8, "--coupling", 2, "--seed", 1, "--parts", 4, "-o", tmp_path / "parts")
    result = mapmrf.distributed.solve(tmp_path / "parts", max_iterations=100)
    assert GRAPH.value(result.gather()) == pytest.approx(result.value, rel=1e-12)
    assert "combined with --parts" in run("generate", "grid", 8, 8, "--wrap", "--parts", 2, "-o", "x", code=2).stderr


def test_a_run_is_saved_and_resumed(model: Path, tmp_path: Path) -> None:
    run("partition", model, tmp_path / "parts", "--parts", 2)
    options = ("--set", "max_iterations=200", "--json")
    for name in (model, tmp_path / "parts"):
        whole = json.loads(run("solve", name, "-m", "lslp", *options).stdout)
        saving = (*options, "--checkpoint", tmp_path / f"state-{name.name}", "--every", 0)
        run("solve", name, "-m", "lslp", *saving, "--time-limit", 0)
        found = json.loads(run("solve", name, "-m", "lslp", *saving, "--resume").stdout)
        assert [found[key] for key in ("value", "bound", "iterations")] == [
            whole[key] for key in ("value", "bound", "iterations")
        ]


def test_a_start_a_polish_and_a_bound(model: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    run("partition", model, parts, "--parts", 2)
    best = mapmrf.solve(GRAPH)
    mapmrf.formats.solution.write_solution(tmp_path / "best.MPE", best.labels)
    few = ("--set", "max_iterations=20", "--set", "lp_iterations=10", "--json")
    found = json.loads(run("solve", parts, *few, "--initial", tmp_path / "best.MPE").stdout)
    assert found["value"] == pytest.approx(best.value)
    plain = json.loads(run("solve", parts, *few).stdout)
    better = json.loads(run("solve", parts, *few, "--polish", "chains", "--part-bound", 30).stdout)
    assert better["value"] >= plain["value"] and best.value - 1e-9 <= better["bound"] < plain["bound"]


def test_what_does_not_go_with_parts_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    run("partition", model, parts, "--parts", 2)
    for arguments, message in (
        (("--margins",), "--margins does not apply to a model in parts"),
        (("--threads", 2), "--threads does not apply to a model in parts"),
        (("-m", "trws"), "trws does not run on a model in parts, expected lslp"),
    ):
        (line,) = run("solve", parts, *arguments, code=2).stderr.splitlines()
        assert line.startswith("mapmrf: error: ") and message in line
    assert "--evidence cannot be combined with --stream" in (
        run("partition", model, parts, "--parts", 2, "--stream", "--evidence", "x", code=2).stderr
    )
    (parts / "part-00001.mrf").unlink()
    assert "part-00001.mrf: No such file" in run("solve", parts, code=2).stderr


def test_progress_and_summary(model: Path, tmp_path: Path) -> None:
    run("partition", model, tmp_path / "parts", "--parts", 2)
    found = run("solve", tmp_path / "parts", "--progress", "--set", "max_iterations=50")
    assert "64 variables, 112 factors, 2 parts on 1 rank" in found.stdout
    assert np.any(["lp" in line for line in found.stderr.splitlines()])
