"""The three generations of evidence files."""

from __future__ import annotations

import pytest

from mapmrf.formats.evidence import read_evidence, write_evidence
from mapmrf.formats.solution import read_solution
from mapmrf.model.graph import FactorGraph

GRAPH = FactorGraph.from_tables([2, 3, 2, 4], [], [])


THREE = FactorGraph.from_tables([2, 3, 12], [], [])


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
    assert read_evidence(path, GRAPH) == samples


def test_the_layout_that_suits_the_model_is_chosen(tmp_path) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_text("2 0 1 0 1")  # as one sample it would repeat variable 0
    assert read_evidence(path, GRAPH) == [{}, {0: 1}]


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
        *((read_evidence, GRAPH, *row) for row in MALFORMED),
        *((read_solution, THREE, *row) for row in MALFORMED_SOLUTIONS),
    ],
)
def test_malformed_evidence_and_solutions(tmp_path, error_of, read, graph, text, parts) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_bytes(text.encode("latin-1"))
    message = error_of(path, read, path, graph)
    for part in parts:
        assert part in message, message


def test_missing_file(tmp_path, error_of) -> None:
    path = tmp_path / "no.evid"
    assert "No such file" in error_of(path, read_evidence, path, GRAPH)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("evidence", [{}, {0: 1}, {3: 3, 1: 0, 0: 1}, [{0: 1}], [{0: 1}, {1: 2, 3: 0}], [{}, {0: 0}]])
def test_round_trip(tmp_path, evidence, suffix) -> None:
    path = tmp_path / ("m.uai.evid" + suffix)
    write_evidence(path, evidence)
    assert read_evidence(path, GRAPH) == (evidence if isinstance(evidence, list) else [evidence])
