"""The factor graphs of libDAI: files by hand, round trips, malformed files."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_uai_round_trip import again, graphs, per_factor, same_layout

from mapmrf import formats
from mapmrf.errors import FormatError, MapMRFError
from mapmrf.model.graph import FactorGraph

T3 = """# a comment
3

1
0
2
2
0 1
1 1.6487212707001282

2
0 1
2 3
6
0 1.2214027581601699
1 0.74081822068171788
2 0.90483741803595952
3 1.4918246976412703
4 1
5 1.1051709180756477

2
2 1
2 3
5
0 1
1 1.8221188003905089
2 1.3498588075760032
4 0.81873075307798182
5 1.1051709180756477
"""


def read(tmp_path: Path, text: str) -> FactorGraph:
    path = tmp_path / "m.fg"
    path.write_text(text)
    return formats.read(path)


def test_reads_a_file_by_hand(tmp_path, t3) -> None:
    graph = read(tmp_path, T3)
    assert graph.scope.tolist() == [0, 1, 2, 1] and graph.names is None
    for x in itertools.product(range(2), range(3), range(2)):
        assert graph.value(x) == pytest.approx(t3.value(x), abs=1e-12)


def test_the_first_variable_is_fastest(tmp_path) -> None:
    graph = read(tmp_path, "1  3  2 0 1  4 2 3  2  1 7.0  9 5.0")
    # 1 = (1, 0, 0) of (2, 0, 1) with cardinalities 4, 2, 3; 9 = 1 + 4 (0 + 2 1)
    assert graph.scope.tolist() == [2, 0, 1] and graph.card.tolist() == [2, 3, 4]
    finite = np.argwhere(np.isfinite(graph.table(0))).tolist()
    assert finite == [[1, 0, 0], [1, 0, 1]]
    assert math.exp(graph.table(0)[1, 0, 1]) == pytest.approx(5.0)


def test_what_is_not_listed_is_forbidden(tmp_path) -> None:
    assert read(tmp_path, "1\n\n1\n0\n3\n1\n1 1\n").theta_v.tolist() == [-math.inf, 0, -math.inf]
    assert read(tmp_path, "1\n\n0\n\n\n0\n").constant == -math.inf


def test_labels_that_are_not_indices_become_names(tmp_path) -> None:
    graph = read(tmp_path, "2\n\n1\n7\n2\n2\n0 1\n1 2\n\n1\n3\n3\n1\n0 1\n")
    assert graph.names.variables == ("3", "7") and graph.card.tolist() == [3, 2]
    assert math.exp(graph.theta_v[4]) == pytest.approx(2)


@pytest.mark.parametrize("name", ["m.fg", "m.fg.gz"])
@given(graph=graphs(limit=100.0))
def test_round_trip(name: str, graph: FactorGraph) -> None:
    read = again(graph, name)
    assert same_layout(read, graph)
    assert np.allclose(read.theta_v, graph.theta_v, rtol=0, atol=1e-12)
    assert np.allclose(per_factor(read), per_factor(graph), rtol=0, atol=1e-12)
    assert read.constant == pytest.approx(graph.constant, abs=1e-12)


@pytest.mark.parametrize("values", ["log", "cost"])
@given(graph=graphs())
def test_round_trip_of_logs_and_costs(values: str, graph: FactorGraph) -> None:
    read = again(graph, "m.fg", values=values)
    assert same_layout(read, graph)
    assert np.array_equal(read.theta_v, graph.theta_v)
    assert np.array_equal(per_factor(read), per_factor(graph))


def test_potentials_out_of_range_are_refused(tmp_path, error_of) -> None:
    graph = FactorGraph.from_tables([2], [(0,)], [[-2000.0, 2000.0]])
    path = tmp_path / "m.fg"
    assert "variable 0" in error_of(path, formats.write, graph, path)
    assert not path.exists()


ZOO = {
    "empty": ("", ["number of factors", "ends after 0 tokens"]),
    "negative": ("-1", ["number of factors", "'-1'"]),
    "too many": ("1000000000 1 0", ["number of factors is 1000000000"]),
    "AD3": ("2\n1\n0.5\n0.3\nXOR 2 1 2\n", ["line 5, token 5", "'XOR'", "AD3"]),
    "a word": (T3.replace("4 1\n", "4 one\n"), ["line 19", "'one'", "a number"]),
    "half a variable": ("1 0.5 0 2 0", ["number of variables of factor 0", "'0.5'"]),
    "huge arity": ("1 1e300 0 2 0", ["number of variables of factor 0", "'1e300'"]),
    "label": ("1 1 -1 2 0", ["label of a variable", "token 3", "'-1'"]),
    "cardinality": ("1 1 0 0 0", ["cardinality", "token 4", "'0'"]),
    "two cardinalities": (
        T3.replace("2 1\n2 3", "2 1\n2 4"),
        ["variable 1 in factor 2", "line 24", "'4'", "3 as before"],
    ),
    "too many states": ("1 1 0 99999999999 0", ["states", "at most"]),
    "number of entries": ("1 1 0 2 -3", ["number of entries of factor 0", "'-3'"]),
    "no entries left": ("1 1 0 2 2 0 1", ["entries of factor 0", "2 of them, of which 1"]),
    "cut": ("1 2 0 1 2", ["number of entries of factor 0", "ends after 5"]),
    "index": (T3.replace("5 1.1051709180756477\n\n", "6 1\n\n"), ["index in factor 1", "'6'", "0 to 5"]),
    "half an index": ("1 1 0 2 1 0.5 1", ["index in factor 0", "'0.5'"]),
    "negative value": ("1 1 0 2 1 0 -1", ["value in factor 0", "'-1'", "at least 0"]),
    "nan": ("1 1 0 2 1 0 nan", ["value in factor 0", "'nan'"]),
    "variable twice": ("1 2 0 0 2 2 0", ["factor 0", "variable 0", "twice"]),
    "more": (T3 + "7", ["after the last factor", "'7'"]),
}


@pytest.mark.parametrize("kind", ZOO)
def test_malformed(tmp_path, error_of, kind) -> None:
    text, parts = ZOO[kind]
    path = tmp_path / "bad.fg"
    path.write_text(text)
    message = error_of(path, formats.read, path)
    for part in parts:
        assert part in message, message


def test_every_cut_is_an_error(tmp_path) -> None:
    words = T3.split("\n", 1)[1].split()
    path = tmp_path / "cut.fg"
    for end in range(len(words)):
        path.write_text(" ".join(words[:end]))
        with pytest.raises(FormatError):
            formats.read(path)


@given(tokens=st.lists(st.sampled_from(["0", "1", "2", "3", "-1", "0.5", "nan", "1e9", "inf", "1e300"]), max_size=25))
def test_random_tokens_are_an_error_or_a_model(tmp_path_factory, tokens: list[str]) -> None:
    path = tmp_path_factory.mktemp("tokens") / "m.fg"
    path.write_text(" ".join(tokens))
    try:
        graph = formats.read(path)
    except MapMRFError as error:
        assert str(path) in str(error) and "\n" not in str(error)
    else:
        assert len(graph.theta_v) == graph.card.sum()
