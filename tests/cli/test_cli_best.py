"""The command line's other questions: the m best labellings, labels of some variables, and margins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import command_line
import mapmrf
from mapmrf.cli.solving import parse_query
from mapmrf.datasets import grid
from mapmrf.formats.solution import read_solution, read_solutions


def run(*args: object) -> tuple[int, str, str]:
    result = command_line.run(*args)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "grid.uai"
    mapmrf.write(grid(4, 4, coupling=2.0, seed=1), path)
    return path


def test_the_best_are_printed_and_written_from_the_best_downwards(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "best.MPE"
    code, printed, _ = run("solve", model, "--best", 3, "-o", output)
    best = mapmrf.solve_best(model, 3)
    assert (code, printed) == (0, best.summary() + "\n")
    assert [labels.tolist() for labels in read_solutions(output, 16)] == [r.labels.tolist() for r in best]
    assert read_solution(output, 16).tolist() == best[0].labels.tolist()


def test_json_is_a_list_of_results(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "best.json"
    code, printed, _ = run("solve", model, "--best", 3, "--distance", 4, "--json", "-o", output)
    rows = json.loads(printed)
    assert (code, len(rows)) == (0, 3)
    assert len(json.loads(output.read_text())) == 3
    for n, row in enumerate(rows):
        assert all(np.count_nonzero(np.not_equal(row["labels"], other["labels"])) >= 4 for other in rows[:n])
    assert read_solution(output, 16).tolist() == rows[0]["labels"]


def test_a_query_is_answered_in_the_layout_of_the_competitions(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grid.MMAP"
    code, printed, _ = run("solve", model, "--query", "5, 0", "-o", output)
    result = mapmrf.marginal_map(model, [5, 0])
    assert code == 0
    assert f"log potential  {result.value:.6f}" in printed
    assert output.read_text() == f"MMAP\n2 5 {result.labels[0]} 0 {result.labels[1]}\n"


def test_a_query_by_name(tmp_path: Path) -> None:
    names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[0.4, 0.1], [0.1, 0.4]])], names=names)
    path = tmp_path / "rain.cfn"
    mapmrf.write(graph, path)
    code, printed, _ = run("solve", path, "--query", "Grass", "--json")
    assert code == 0
    assert list(json.loads(printed)["assignment"]) == ["Grass"]
    assert parse_query("7,Rain,3", {"7": 1, "Rain": 0}) == ["7", "Rain", 3]


def test_margins_go_into_the_result_and_the_plot(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "grid.json"
    assert run("solve", model, "--margins", "-q", "-o", output)[0] == 0
    assert np.shape(json.loads(output.read_text())["margins"]) == (16, 2)
    for files in ((output,), (output, model)):
        code, printed, _ = run("plot", *files, "--kind", "margins", "-o", tmp_path / "margins.png")
        assert (code, printed.strip()) == (0, str(tmp_path / "margins.png"))
    plain = tmp_path / "plain.json"
    run("solve", model, "-q", "-o", plain)
    code, _, said = run("plot", plain, "--kind", "margins", "-o", tmp_path / "margins.png")
    assert code == 2
    assert "has no margins" in said


def test_a_sum_that_does_not_fit_is_one_line_with_width_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "dense.uai"
    pairs = [(i, j) for i in range(40) for j in range(i)]
    mapmrf.write(mapmrf.FactorGraph.from_tables([2] * 40, pairs, [np.eye(2)] * len(pairs)), path)
    code, _, said = run("solve", path, "--query", "0")
    assert code == 2
    assert "induced width 39" in said
    assert "bytes" in said
    assert said.count("\n") == 1


def test_infeasible_models_have_their_own_code(tmp_path: Path) -> None:
    path, output = tmp_path / "none.uai", tmp_path / "none.MPE"
    mapmrf.write(mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]), path)
    code, printed, said = run("solve", path, "--best", 2, "-o", output)
    assert code == 3
    assert "no labelling" in printed
    assert "not written" in said
    assert run("solve", path, "--query", "0", "-o", output)[0] == 3
    assert not output.exists()
