"""Named evidence in, named answers out: Result, JSON, the command line and evidence files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import mapmrf
from mapmrf import FactorGraph, FormatError, Names, Result
from mapmrf.cli import main
from refusals import refuses

NAMES = Names(("rain", "grass", "inf"), (("no", "yes"), ("dry", "damp", "wet"), ("nan", "-inf")))
BIF = """network s { }
variable rain { type discrete [ 2 ] { no, yes }; }
variable grass { type discrete [ 2 ] { dry, wet }; }
probability ( rain ) { table 0.8, 0.2; }
probability ( grass | rain ) { (no) 0.9, 0.1; (yes) 0.2, 0.8; }
"""


def model(names: Names | None = NAMES) -> FactorGraph:
    tables = [[0.5, 0.0], [[0, 0, 1], [3, 0, 2.25]], [0, 0.5]]
    return FactorGraph.from_tables([2, 3, 2], [(0,), (0, 1), (2,)], tables, names=names)


@pytest.fixture
def bif(tmp_path: Path) -> str:
    path = tmp_path / "s.bif"
    path.write_text(BIF)
    return str(path)


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


def test_the_assignment_goes_by_the_names_of_the_model_or_by_index() -> None:
    assert mapmrf.solve(model()).assignment == {"rain": "yes", "grass": "dry", "inf": "-inf"}
    result = mapmrf.solve(model().condition({"grass": "wet", "inf": "nan"}), "exhaustive")
    assert result.assignment == {"rain": "yes", "grass": "wet", "inf": "nan"}
    assert result.value == 2.25
    result = mapmrf.solve(model(names=None))
    assert result.assignment == {0: 1, 1: 0, 2: 1}
    assert "assignment" not in result.summary()
    assert "assignment" not in json.loads(result.to_json())
    assert mapmrf.solve(model(Names(("a", "b", "c")))).assignment == {"a": 1, "b": 0, "c": 1}
    graph = model(Names(("a", "b", "a")))
    assert mapmrf.solve(graph).assignment == {0: 1, "b": 0, "a": 1}
    assert mapmrf.solve(graph.condition({"a": 0})).assignment == {0: 1, "b": 0, "a": 0}


@pytest.mark.parametrize("names", [NAMES, Names(("a", "b", "c")), None])
def test_json_keeps_the_names_even_if_they_look_like_numbers(names: Names | None) -> None:
    result = mapmrf.solve(model(names))
    again = Result.from_json(result.to_json())
    assert again.names == result.names
    assert again.assignment == result.assignment


@pytest.mark.parametrize(
    "names",
    [
        {"variables": ["a"], "states": None},
        {"variables": ["a", "b", "c"], "states": [["x"], ["y"], ["z"]]},
        {"variables": ["a", "b", "c"]},
        ["a", "b", "c"],
    ],
)
def test_names_that_do_not_fit_are_no_result(names: object) -> None:
    data = json.loads(mapmrf.solve(model()).to_json()) | {"names": names}
    refuses(FormatError, "not a result written by mapmrf", Result.from_json, json.dumps(data))


def test_every_method_hands_the_names_on_and_the_summary_shows_the_first() -> None:
    lines = mapmrf.solve(model()).summary().splitlines()
    assert lines[-1] == "assignment     rain=yes grass=dry inf=-inf"
    many = FactorGraph.from_tables([2] * 9, [], [], names=Names(tuple("abcdefghi")))
    assert mapmrf.solve(many).summary().endswith("assignment     a=0 b=0 c=0 d=0 e=0 f=0 ... (9 in all)")
    for name in ("icm", "branch", "trws"):
        assert mapmrf.solve(model(), name).names is NAMES


def test_the_command_line_prints_names_and_how_many_there_are(bif: str, tmp_path: Path) -> None:
    code, output = run("solve", bif)
    assert code == 0
    assert output.endswith("variable  state\nrain      no\ngrass     dry\n")
    assert "labels" not in output
    names = Names(tuple(f"v{i}" for i in range(40)), (("no", "yes"),) * 40)
    graph = FactorGraph.from_tables([2] * 40, [(i,) for i in range(40)], [np.log([0.25, 0.75])] * 40, names=names)
    mapmrf.write(graph, tmp_path / "many.bif")
    _, output = run("solve", str(tmp_path / "many.bif"))
    assert output.endswith("v29       yes\n... (40 in all, -o FILE writes them)\n")


def test_json_output_has_the_names(bif: str, tmp_path: Path) -> None:
    target = tmp_path / "answer.json"
    assert run("solve", bif, "--output", str(target), "--quiet") == (0, "")
    data = json.loads(target.read_text())
    assert data["assignment"] == {"rain": "no", "grass": "dry"}
    assert data["names"]["states"] == [["no", "yes"], ["dry", "wet"]]
    assert run("score", bif, str(target))[0] == 0


@pytest.mark.parametrize("text", ['{"grass": "wet"}', '[{"grass": "wet"}]', '\ufeff{"1": 1}', ' {"grass": 1}', "1 1 1"])
def test_evidence_files_take_names(bif: str, tmp_path: Path, text: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(text, encoding="utf-8")
    code, output = run("solve", bif, "--evidence", str(path), "--json", "--quiet")
    assert code == 0
    assert json.loads(output)["assignment"] == {"rain": "yes", "grass": "wet"}
