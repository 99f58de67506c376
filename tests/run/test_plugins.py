"""Methods, formats and bridges of other packages and of files are found and used like our own."""

from __future__ import annotations

import copy
import json
import logging
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import mapmrf
from mapmrf import FactorGraph, MapMRFError, OptionError, UnknownName, formats
from mapmrf.bench.groups import group
from mapmrf.bench.records import read_records
from mapmrf.cli import main
from mapmrf.run.registry import declared, method_class, method_names
from refusals import refuses

GREEDY = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mapmrf
from mapmrf.run.method import Answer, Progress


@dataclass(frozen=True)
class Greedy(mapmrf.Method):
    """The best state of every variable, or the last one.

    Attributes
    ----------
    max_iterations
        Limit.
    last
        Whether to take the last state instead.
    """

    name: ClassVar[str] = "greedy"
    title: ClassVar[str] = "best state of every variable"

    max_iterations: int = 1
    last: bool = False

    def start(self, problem, seed, initial):
        return None

    def step(self, problem, state):
        labels = problem.graph.card - 1 if self.last else problem.graph.unary_labels
        return Progress(1, labels=np.array(labels), finished=mapmrf.Status.CONVERGED)

    def answer(self, problem, state):
        return Answer()
'''

FORMAT = """
from pathlib import Path

from mapmrf import FactorGraph

SUFFIXES = (".onevar",)


def read(path, *, values=None):
    numbers = [float(word) for word in Path(path).read_text().split()]
    return FactorGraph.from_tables([len(numbers)], [(0,)], [numbers])


def write(graph, path, *, values=None):
    Path(path).write_text(" ".join(map(str, graph.theta_v.tolist())))
"""

ENTRIES = """
[mapmrf.methods]
greedy = somebody_else:Greedy
broken = somebody_else:NoSuchClass

[mapmrf.formats]
onevar = somebody_elses_format

[mapmrf.bridges]
from_somebody = somebody_else:from_somebody
"""


@pytest.fixture
def graph() -> FactorGraph:
    return FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    bridge = "\n\ndef from_somebody(number):\n    return mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, number]])\n"
    (tmp_path / "somebody_else.py").write_text(GREEDY + bridge)
    (tmp_path / "somebody_elses_format.py").write_text(FORMAT)
    info = tmp_path / "somebody_else-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (declared, formats._register):
        cached.cache_clear()
    yield
    for cached in (declared, formats._register):
        cached.cache_clear()


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("package")
def test_a_method_of_another_package_is_used_by_its_name(graph: FactorGraph) -> None:
    assert "greedy" in method_names()
    result = mapmrf.solve(graph, "greedy", last=True)
    assert (result.method, result.labels.tolist(), result.value) == ("greedy", [1, 1], 2.0)
    refuses(OptionError, "greedy has no option 'lst', did you mean 'last'", mapmrf.solve, graph, "greedy", lst=True)


@pytest.mark.usefixtures("package")
def test_a_broken_plugin_is_named_and_stops_nobody_else(graph: FactorGraph, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(MapMRFError, match=r"broken of somebody-else \(somebody_else:NoSuchClass\) cannot be loaded"):
        mapmrf.solve(graph, "broken")
    with caplog.at_level(logging.WARNING, "mapmrf"):
        known = mapmrf.methods()
    assert "greedy" in known and "lslp" in known and "broken" not in known
    assert "cannot be loaded" in caplog.text


@pytest.mark.usefixtures("package")
def test_a_format_of_another_package_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "model.onevar"
    mapmrf.write(FactorGraph.from_tables([3], [(0,)], [[0.0, 2.0, 1.0]]), path)
    assert mapmrf.read(path).theta_v.tolist() == [0.0, 2.0, 1.0]
    assert ".onevar" in formats.suffixes()


@pytest.mark.usefixtures("package")
def test_a_bridge_of_another_package_is_among_ours() -> None:
    assert mapmrf.bridges.from_somebody(2.5).theta_v.tolist() == [0.0, 2.5]
    assert "from_somebody" in dir(mapmrf.bridges)


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GREEDY)
    return path


def test_a_method_is_named_by_its_file(graph: FactorGraph, mine: Path) -> None:
    for name in (f"{mine}:Greedy", str(mine)):
        assert mapmrf.solve(graph, name).labels.tolist() == [1, 0]
    assert method_class(f"{mine}:Greedy") is method_class(str(mine))  # it is run once


def test_a_file_that_has_changed_is_run_again(graph: FactorGraph, mine: Path) -> None:
    assert mapmrf.solve(graph, f"{mine}:Greedy").labels.tolist() == [1, 0]
    mine.write_text(GREEDY.replace("last: bool = False", "last: bool = True"))
    assert mapmrf.solve(graph, f"{mine}:Greedy").labels.tolist() == [1, 1]


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_workers_import_the_file_of_a_method(graph: FactorGraph, mine: Path, backend: str) -> None:
    for method in (f"{mine}:Greedy", method_class(str(mine))()):
        results = mapmrf.solve_many([graph, graph], method, jobs=2, backend=backend, last=True, polish=f"{mine}:Greedy")
        assert [result.labels.tolist() for result in results] == [[1, 1], [1, 1]]


def test_a_method_of_a_file_is_pickled_by_its_file(graph: FactorGraph, mine: Path) -> None:
    method = method_class(f"{mine}:Greedy")(last=True)  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(method)) == method == copy.copy(method)
    path = mine.with_suffix(".pickle")
    path.write_bytes(pickle.dumps(method))
    code = f"import pickle; print(pickle.load(open({str(path)!r}, 'rb')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Greedy(max_iterations=1, last=True)\n"


def test_solve_bench_and_tune_take_a_method_from_a_file(graph, mine, tmp_path, monkeypatch) -> None:
    mapmrf.write(graph, tmp_path / "model.uai")
    name, model = f"{mine}:Greedy", str(tmp_path / "model.uai")
    solved = CliRunner().invoke(main, ["solve", model, "--method", name, "--set", "last=true", "--json"])
    assert json.loads(solved.stdout)["labels"] == [1, 1]
    many = ["solve", model, model, "--method", name, "--backend", "processes", "--json"]
    assert [json.loads(line)["method"] for line in CliRunner().invoke(main, many).stdout.splitlines()] == ["greedy"] * 2
    tuned = CliRunner().invoke(main, ["tune", model, "--method", name, "--grid", "last=false,true", "--json"])
    assert json.loads(tuned.stdout)["best"] == {"last": True, "seed": 0}
    monkeypatch.chdir(tmp_path)
    records = tmp_path / "records.jsonl"
    arguments = ["bench", model, "--methods", "mine.py:Greedy,icm", "--output", str(records), "--time-limit", "60"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    found = {record["run"]: record for record in map(json.loads, records.read_text().splitlines())}
    assert {run: record["outcome"] for run, record in found.items()} == {"greedy": "done", "icm": "done"}
    assert found["greedy"]["method"] == "mine.py:Greedy" and len(found["greedy"]["source"]) == 12
    assert found["icm"]["source"] == ""
    assert "2 done before, 0 left" in CliRunner().invoke(main, arguments).output
    mine.write_text(GREEDY.replace("last: bool = False", "last: bool = True"))
    assert "1 runs recorded, 1 done before, 0 left" in CliRunner().invoke(main, arguments).output
    assert {run for part in group(read_records(records)) for _, run in part.runs} == {
        "icm", *(f"greedy @{record['source'][:6]}" for record in read_records(records) if record["source"])
    }  # fmt: skip


ABSTRACT = """
import mapmrf

def greedy(problem):
    return None

class Helper:
    pass

class Greedy(mapmrf.Method):
    name = "greedy"
    def start(self, problem, seed, initial):
        return None
"""


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (GREEDY, "mine.py:Gready", r"mine\.py: found no Method named 'Gready'; the file defines: Greedy"),
        ("x = 1", "mine.py", "found 0 methods"),
        (GREEDY + GREEDY.replace("Greedy", "Greedier"), "mine.py", r"found 2 methods \(Greedy, Greedier\)"),
        (
            "x = 1\nimport no_such_library",
            "mine.py:Greedy",
            r"mine\.py: line 2: cannot be run: ModuleNotFoundError: No module named 'no_such",
        ),
        ("x = 1\ny = (", "mine.py:Greedy", r"mine\.py: line 2: cannot be run: SyntaxError: '\(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()", "mine.py", r"mine\.py: line 2: cannot be run: ZeroDivisionError: div"),
        (ABSTRACT, "mine.py:greedy", r"greedy is <function greedy at .*>, expected a Method; the file defines: Greedy"),
        (ABSTRACT, "mine.py:Helper", r"Helper is a class that is not derived from mapmrf\.Method, expected a Method"),
        (ABSTRACT, "mine.py:Greedy", r"Greedy has no answer, step, expected start, step and answer"),
        (GREEDY.replace("@dataclass(frozen=True)", ""), "mine.py:Greedy", "Greedy is not a dataclass"),
        (GREEDY.replace("name: Cl", "nome: Cl"), "mine.py:Greedy", "Greedy has no name"),
        ("from mapmrf.methods.icm import ICM", "mine.py:ICM", r"ICM is imported from mapmrf\.methods\.icm, expected"),
        (None, "mine.py:Greedy", r"mine\.py: no such file"),
    ],
)
def test_a_file_without_the_method_is_refused(tmp_path: Path, text: str | None, name: str, message: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises((OptionError, UnknownName), match=message) as error:
        method_class(str(tmp_path / name))
    assert "\n" not in str(error.value)
    model = tmp_path / "model.uai"
    mapmrf.write(FactorGraph.from_tables([2], [], []), model)
    for command in (["solve", str(model), "--method"], ["bench", str(model), "-o", str(tmp_path / "r"), "--methods"]):
        done = CliRunner().invoke(main, [*command, str(tmp_path / name)])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1) and done.stderr.startswith("mapmrf: error: ")
