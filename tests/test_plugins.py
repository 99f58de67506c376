"""Methods, formats and bridges of other packages and of files are found and used like our own."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import mapmrf
from mapmrf import FactorGraph, MapMRFError, OptionError, UnknownName, formats, plugins
from mapmrf.cli import main
from mapmrf.registry import method_class, method_names

GREEDY = '''
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mapmrf
from mapmrf.method import Answer, Progress


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
    """Another package, installed."""
    bridge = "\n\ndef from_somebody(number):\n    return mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, number]])\n"
    (tmp_path / "somebody_else.py").write_text(GREEDY + bridge)
    (tmp_path / "somebody_elses_format.py").write_text(FORMAT)
    info = tmp_path / "somebody_else-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    for cached in (plugins.declared, formats._register):
        cached.cache_clear()
    yield
    for cached in (plugins.declared, formats._register):
        cached.cache_clear()


# -- packages ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("package")
def test_a_method_of_another_package_is_used_by_its_name(graph: FactorGraph) -> None:
    assert "greedy" in method_names()
    result = mapmrf.solve(graph, "greedy", last=True)
    assert (result.method, result.labels.tolist(), result.value) == ("greedy", [1, 1], 2.0)
    with pytest.raises(OptionError, match="greedy has no option 'lst', did you mean 'last'"):
        mapmrf.solve(graph, "greedy", lst=True)


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


def test_a_method_is_named_by_its_file(graph: FactorGraph, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(GREEDY)
    for name in (f"{path}:Greedy", str(path)):
        assert mapmrf.solve(graph, name).labels.tolist() == [1, 0]
    assert method_class(f"{path}:Greedy") is method_class(str(path))  # it is run once


def test_solve_and_bench_take_a_method_from_a_file(graph: FactorGraph, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GREEDY)
    mapmrf.write(graph, tmp_path / "model.uai")
    name, model = f"{tmp_path / 'mine.py'}:Greedy", str(tmp_path / "model.uai")
    solved = CliRunner().invoke(main, ["solve", model, "--method", name, "--set", "last=true", "--json"])
    assert json.loads(solved.stdout)["labels"] == [1, 1]
    records = tmp_path / "records.jsonl"
    arguments = ["bench", model, "--methods", f"{name},icm", "--output", str(records), "--time-limit", "60"]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    found = [json.loads(line) for line in records.read_text().splitlines()]
    assert {record["method"]: record["outcome"] for record in found} == {name: "done", "icm": "done"}


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (GREEDY, "mine.py:Gready", r"mine\.py: found no Method named 'Gready', expected one of those it has: Greedy"),
        ("x = 1", "mine.py", "found 0 methods"),
        (GREEDY + GREEDY.replace("Greedy", "Greedier"), "mine.py", r"found 2 methods \(Greedy, Greedier\)"),
        ("import no_such_library", "mine.py:Greedy", "cannot be run: ModuleNotFoundError: No module named 'no_such"),
        (None, "mine.py:Greedy", r"mine\.py: no such file"),
    ],
)
def test_a_file_without_the_method_is_refused(tmp_path: Path, text: str | None, name: str, message: str) -> None:
    if text is not None:
        (tmp_path / "mine.py").write_text(text)
    with pytest.raises((OptionError, UnknownName), match=message):
        method_class(str(tmp_path / name))
