"""The three generations of evidence files."""

from __future__ import annotations

import pytest

from mapmrf.formats.evidence import read_evidence, write_evidence
from mapmrf.model.graph import FactorGraph

GRAPH = FactorGraph.from_tables([2, 3, 2, 4], [], [])


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


@pytest.mark.parametrize(
    ("text", "parts"),
    [
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
    ],
)
def test_malformed(tmp_path, error_of, text, parts) -> None:
    path = tmp_path / "m.uai.evid"
    path.write_bytes(text.encode("latin-1"))
    message = error_of(path, read_evidence, path, GRAPH)
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
