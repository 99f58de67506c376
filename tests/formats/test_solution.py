"""Solutions in all styles and a stream of them that survives SIGKILL; three generations of evidence, and by name."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from format_models import error_of

from mapmrf.errors import FormatError, OptionError
from mapmrf.formats import solution
from mapmrf.formats.evidence import read_evidence, write_evidence
from mapmrf.formats.solution import read_solution
from mapmrf.model.graph import FactorGraph, Names
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
    assert read_solution(path, GRAPH).tolist() == [1, 1, 11]
    assert read_solution(path, GRAPH).dtype == np.int64


def test_results_of_ours_numbers_of_variables_and_empty_queries(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    path.write_text("MPE\n3 1 1 99\n")
    assert read_solution(path, 3).tolist() == [1, 1, 99]
    path = tmp_path / "m.uai.MMAP"
    solution.write_query_solution(path, [], [])
    assert path.read_text() == "MMAP\n0\n"
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"method": "icm", "labels": [0, 2, 5], "value": "-inf"}))
    assert read_solution(path, GRAPH).tolist() == [0, 2, 5]


def test_write_styles(tmp_path) -> None:
    path = tmp_path / "m.uai.MPE"
    solution.write_solution(path, np.array([1, 1, 0]))
    assert path.read_text() == "MPE\n3 1 1 0\n"
    solution.write_solution(path, [1, 1, 0], style="2010")
    assert path.read_text() == "MPE\n1\n3 1 1 0\n"
    assert read_solution(path, 3).tolist() == [1, 1, 0]
    refuses(OptionError, "2014, 2010", solution.write_solution, path, [1], style="2012")
    solution.write_solution(tmp_path / "m.MPE.gz", [])
    assert read_solution(tmp_path / "m.MPE.gz", 0).tolist() == []


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
            assert read_solution(path, n_vars).tolist() == [label] * n_vars
    stream.close()
    assert path.read_text().count("-BEGIN-") == 4
    whole = path.read_text()
    with solution.SolutionStream(path, style, np.full(n_vars, 0)) as stream:
        assert path.read_text() == whole[: whole.index("-BEGIN-")]
        for label in range(1, 5):
            stream.add(np.full(n_vars, label))
    assert path.read_text() == whole
    assert path.read_text().startswith("MPE\n" if style == "2014" else "MPE\n1\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.uai.MPE"]


def test_stream_drops_old_blocks_of_a_large_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("mapmrf.formats.solution._MOST_KEPT", 20_000)
    path = tmp_path / "m.uai.MPE"
    with solution.SolutionStream(path) as stream:
        for label in range(10):
            stream.add(np.full(3000, label))
            assert path.stat().st_size < 30_000
            assert read_solution(path, 3000).tolist() == [label] * 3000


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
        assert read_solution(path, GRAPH).tolist() in solutions


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
        assert len(set(read_solution(path, n_vars).tolist())) == 1


# -- evidence ---------------------------------------------------------------------------------------------------------


FOUR = FactorGraph.from_tables([2, 3, 2, 4], [], [])


@pytest.mark.parametrize(
    ("text", "samples"),
    [
        ("", [{}]),
        ("\n \n", [{}]),
        ("0", [{}]),
        ("0\n", [{}]),
        ("1 0 0", [{0: 0}]),
        ("1\n1 0 0\n", [{0: 0}]),
        ("2 3 3 1 2", [{3: 3, 1: 2}]),
        ("1\r\n2 3 3 1 2\r\n", [{3: 3, 1: 2}]),
        ("1 0", [{}]),
        ("2\n1 0 1\n2 1 1 2 0\n", [{0: 1}, {1: 1, 2: 0}]),
        ("3 0 0 0", [{}, {}, {}]),
        ("2 0 1 1 0", [{0: 1, 1: 0}]),  # also two samples, the first of them empty: the usual layout wins
        ("c seen by a camera\n1 0 1 # broken lamp\n", [{0: 1}]),
    ],
)
def test_generations(tmp_path, text, samples) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_bytes(text.encode())
    assert read_evidence(path, FOUR) == samples


def test_the_layout_that_suits_the_model_is_chosen(tmp_path) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_text("2 0 1 0 1")  # as one sample it would repeat variable 0
    assert read_evidence(path, FOUR) == [{}, {0: 1}]


MALFORMED = [
    ("1 4 0", ["token 2", "variable 4", "0 to 3"]),
    ("1 1 3", ["token 3", "state 3 of variable 1", "0 to 2"]),
    ("1 2 0 1 0 0", ["token 5", "variable 0 again"]),
    ("2 0 1 0 2", ["token 4", "variable 0 again"]),
    ("2 0 1", ["3 tokens", "start with 2", "expected 5"]),
    ("1 0 0 0 0", ["5 tokens", "expected 3"]),
    ("1 -1 0", ["token 2", "'-1'"]),
    ("1 x 0", ["token 2", "'x'"]),
    ("1 0.5 0", ["token 2", "'0.5'"]),
    ("\x00\xff", ["token 1"]),
    ("9" * 5000, ["token 1", "..."]),
    ("999999999999 1", ["start with 999999999999"]),
]
MALFORMED_SOLUTIONS = [
    ("", ["0 tokens", "nothing", "3 variables"]),
    ("MPE\n", ["1 tokens", "'MPE'"]),
    ("MPE\n3 1 1", ["4 tokens", "3 variables"]),
    ("MPE\n2 1 1\n", ["3 variables"]),
    ("MPE\n4 1 1 1 1\n", ["6 tokens", "3 variables"]),
    ("1 1", ["2 tokens"]),
    ("MPE\n3 1 3 1\n", ["variable 1", "'3'", "0 to 2"]),
    ("MPE\n3 1 -1 1\n", ["variable 1", "'-1'", "0 to 2"]),
    ("MPE\n3 1 x 1\n", ["variable 1", "'x'"]),
    ("\x00\xff\x00", ["1 tokens"]),
    ("[1, 2", ["JSON"]),
    ('{"value": 3}', ["JSON", "labels"]),
    ("[1, 1]", ["2 labels", "3 variables"]),
    ("[1, 1, 0.5]", ["variable 2", "'0.5'"]),
    ('{"labels": 5}', ["JSON"]),
]


@pytest.mark.parametrize(
    ("read", "graph", "text", "parts"),
    [
        *((read_evidence, FOUR, *row) for row in MALFORMED),
        *((read_solution, GRAPH, *row) for row in MALFORMED_SOLUTIONS),
    ],
)
def test_malformed_evidence_and_solutions(tmp_path, read, graph, text, parts) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_bytes(text.encode("latin-1"))
    message = error_of(path, read, path, graph)
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("evidence", [{}, {0: 1}, {3: 3, 1: 0, 0: 1}, [{0: 1}], [{0: 1}, {1: 2, 3: 0}], [{}, {0: 0}]])
def test_round_trip(tmp_path, evidence, suffix) -> None:
    path = tmp_path / ("m.uai.evid" + suffix)
    write_evidence(path, evidence)
    assert read_evidence(path, FOUR) == (evidence if isinstance(evidence, list) else [evidence])


# -- evidence by name -------------------------------------------------------------------------------------------------


NAMED = FactorGraph.from_tables(
    [2, 3, 2],
    [],
    [],
    names=Names(("rain", "grass", "inf"), (("no", "yes"), ("dry", "damp", "wet"), ("nan", "-inf"))),
)


def test_an_evidence_file_may_hold_many_named_samples(tmp_path) -> None:
    path = tmp_path / "seen.json"
    path.write_text('[{"rain": "yes"}, {}, {"inf": "nan", "grass": 2}]')
    assert read_evidence(path, NAMED) == [{0: 1}, {}, {2: 0, 1: 2}]
    path.write_text("[]")
    assert read_evidence(path, NAMED) == [{}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"grass": "wet"', "starts like JSON, but is not"),
        ('{"gras": "wet"}', "no variable is named 'gras'"),
        ('{"grass": "soaked"}', "variable 'grass' has no state named 'soaked'"),
        ('{"grass": 3}', "variable 'grass' has no state 3, expected 0 to 2"),
        ('{"grass": 1.0}', "state of 'grass': found 1.0, expected a name or an index"),
        ('{"grass": true}', "variable 'grass' has no state named True"),
        ('{"grass": "wet", "1": 2}', "found variable '1' again, expected every variable once"),
        ('{"grass": "wet", "grass": "dry"}', "found variable 'grass' again"),
        ("[1, 2]", "sample 0 is '1', expected an object of variable: state"),
        ('{"99999999999999999999": 0}', "no variable is named"),
    ],
)
def test_bad_named_evidence_is_one_clear_line(tmp_path, text: str, said: str) -> None:
    path = tmp_path / "seen.json"
    path.write_text(text)
    assert said in error_of(path, read_evidence, path, NAMED)
