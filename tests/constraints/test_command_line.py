"""Constraints in files on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import mapmrf
from mapmrf.cli import main

LATIN = """latin 4 4 2 50
4 4 4 4
1 0 0 1
0 3
4 0 1 2 3 -1 salldiff var 50
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "latin.wcsp"
    path.write_text(LATIN)
    return path


def run(*arguments: object) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_file_with_a_global_function_is_solved(model: Path) -> None:
    found = json.loads(run("solve", model, "--json"))
    assert found["value"] == 0.0
    assert sorted(found["labels"]) == [0, 1, 2, 3]
    assert found["status"] == "optimal"


def test_info_and_check_tell_the_constraints(model: Path) -> None:
    assert "constraints  1  (1 all_different)" in run("info", model)
    assert json.loads(run("info", model, "--json"))["constraints"] == {"all_different": 1}
    assert "1 constraints" in run("check", model)


def test_convert_writes_tables_on_request(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "latin.uai"
    done = CliRunner().invoke(main, ["convert", str(model), str(target)])
    assert done.exit_code == 2
    assert "the format has no constraints" in done.output
    run("convert", model, target, "--tables")
    graph = mapmrf.read(target)
    assert graph.constraints is None
    assert graph.n_factors == 6


def test_several_labellings_of_a_file_with_constraints(model: Path) -> None:
    found = json.loads(run("solve", model, "--best", 3, "--json"))
    assert [each["value"] for each in found] == [0.0, 0.0, 0.0]
