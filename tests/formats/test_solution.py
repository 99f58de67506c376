"""Solution files of all styles, and a stream of solutions that survives SIGKILL."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from mapmrf.errors import FormatError, OptionError
from mapmrf.formats import solution
from mapmrf.model.graph import FactorGraph
from refusals import refuses

GRAPH = FactorGraph.from_tables([2, 3, 12], [], [])


@pytest.mark.parametrize(
    "text",
    [
        "MPE\n3 1 1 11\n",
        "MPE\n3 1 1 11",
        "MPE\r\n1\r\n3 1 1 11\r\n",
        "MAP\n3 1 1 11\n",
        "mpe 3 1 1 11",
        "MPE\n3 0 0 0\n-BEGIN-\n3 1 1 11\n",
        "MPE\n-BEGIN-\n3 1 1 11\n",
        "MPE\n1\n3 0 0 0\n-BEGIN-\n1\n3 1 1 11\n",
        "MPE\n3 0 0 0\n-BEGIN-\nMPE\n3 1 1 11\n",
        "MPE\n3 0 0 0\n-BEGIN-\n3 1 1 11",
        "MPE\n3 1 1 11\n-BEGIN-\n3 0 0 1",  # perhaps the 1 of a 10
        "MPE\n3 1 1 11\n-BEGIN-\n3 0 0",
        "MPE\n3 1 1 11\n-BEGIN-\n3 0 0\n",
        "MPE\n3 1 1 11\n-BEGIN-\n1\n3 0 0",
        "MPE\n3 1 1 11\n-BEGIN-\n",
        "MPE\n3 1 1 11\n-BEG",
        "MPE\n2\n3 1 1 11\n3 0 0 0\n",  # the first of several is the best
        "MPE\n3 0 0 0\n-BEGIN-\n2\n3 1 1 11\n3 0 0 0\n",
        '[{"labels": [1, 1, 11]}, {"labels": [0, 0, 0]}]',
        "1 1 11",
        "1\n1\n11\n",
        "3 1 1 11",
        "[1, 1, 11]",
        '{"value": 1.5, "labels": [1, 1, 11]}',
    ],
)
def test_styles(tmp_path, text) -> None:
    path = tmp_path / "m.uai.MPE"
    path.write_bytes(text.encode())
    assert solution.read_solution(path, GRAPH).tolist() == [1, 1, 11]
    assert solution.read_solution(path, GRAPH).dtype == np.int64


def test_results_of_ours_numbers_of_variables_and_empty_queries(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    path.write_text("MPE\n3 1 1 99\n")
    assert solution.read_solution(path, 3).tolist() == [1, 1, 99]
    path = tmp_path / "m.uai.MMAP"
    solution.write_query_solution(path, [], [])
    assert path.read_text() == "MMAP\n0\n"
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"method": "icm", "labels": [0, 2, 5], "value": "-inf"}))
    assert solution.read_solution(path, GRAPH).tolist() == [0, 2, 5]


def test_write_styles(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    solution.write_solution(path, np.array([1, 1, 0]))
    assert path.read_text() == "MPE\n3 1 1 0\n"
    solution.write_solution(path, [1, 1, 0], style="2010")
    assert path.read_text() == "MPE\n1\n3 1 1 0\n"
    assert solution.read_solution(path, 3).tolist() == [1, 1, 0]
    refuses(OptionError, "2014, 2010", solution.write_solution, path, [1], style="2012")
    solution.write_solution(tmp_path / "m.MPE.gz", [])
    assert solution.read_solution(tmp_path / "m.MPE.gz", 0).tolist() == []


def test_several_solutions_come_back_in_order(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    for labellings in ([[1, 1, 11]], [[1, 1, 11], [0, 2, 0], [1, 0, 3]]):
        solution.write_solutions(path, labellings)
        assert [labels.tolist() for labels in solution.read_solutions(path, GRAPH)] == labellings
    solution.write_solution(path, [0, 1, 2])
    assert [labels.tolist() for labels in solution.read_solutions(path, GRAPH)] == [[0, 1, 2]]
    path.write_text("MPE\n2\n3 1 1 11\n3 0 3 0\n")
    refuses(FormatError, "label of variable 1: found '3'", solution.read_solutions, path, GRAPH)


@pytest.mark.parametrize("style", ["2014", "2010"])
@pytest.mark.parametrize("n_vars", [3, 5000])
def test_stream(tmp_path, style, n_vars) -> None:
    path = tmp_path / "m.uai.MPE"
    path.write_text("left from an earlier run")
    with solution.SolutionStream(path, style=style) as stream:
        assert path.read_text() == ""
        for label in range(5):
            stream.add(np.full(n_vars, label))
            assert solution.read_solution(path, n_vars).tolist() == [label] * n_vars
    stream.close()
    assert path.read_text().count("-BEGIN-") == 4
    assert path.read_text().startswith("MPE\n" if style == "2014" else "MPE\n1\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.uai.MPE"]


def test_stream_drops_old_blocks_of_a_large_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("mapmrf.formats.solution._MOST_KEPT", 20_000)
    path = tmp_path / "m.uai.MPE"
    with solution.SolutionStream(path) as stream:
        for label in range(10):
            stream.add(np.full(3000, label))
            assert path.stat().st_size < 30_000
            assert solution.read_solution(path, 3000).tolist() == [label] * 3000


def test_stream_errors(tmp_path) -> None:
    refuses(FormatError, "No such file", solution.SolutionStream, tmp_path / "no" / "m.MPE")
    refuses(FormatError, "compressed", solution.SolutionStream, tmp_path / "m.MPE.gz")


def test_every_cut_of_a_stream_gives_a_whole_solution(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    solutions = [[0, 2, 10], [1, 0, 11], [1, 1, 3]]
    with solution.SolutionStream(path) as stream:
        for labels in solutions:
            stream.add(labels)
    data = path.read_bytes()
    first = data.index(b"\n", 4) + 1
    for end in range(first, len(data) + 1):
        path.write_bytes(data[:end])
        assert solution.read_solution(path, GRAPH).tolist() in solutions


CHILD = """
import sys, numpy
from mapmrf.formats.solution import SolutionStream
n = int(sys.argv[2])
with SolutionStream(sys.argv[1]) as stream:
    stream.add(numpy.zeros(n))
    print("started", flush=True)
    for k in range(1, 10**9):
        stream.add(numpy.full(n, k % 10))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("n_vars", [200, 30_000])
def test_a_kill_leaves_a_whole_block(tmp_path, n_vars) -> None:
    path = tmp_path / "m.uai.MPE"
    moment = random.Random(n_vars)
    for _ in range(4):
        command = [sys.executable, "-c", CHILD, str(path), str(n_vars)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"started\n"
            time.sleep(moment.uniform(0.0, 0.03))
            child.kill()
        data = path.read_bytes()
        assert data.endswith(b"\n")
        assert len(data[data.rindex(b"\n", 0, -1) :].split()) == n_vars + 1
        assert len(set(solution.read_solution(path, n_vars).tolist())) == 1
