"""The factor graphs of libDAI: files by hand, round trips, malformed files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from format_models import POTENTIALS, Example, graphs, read_text, word_prefixes
from format_models import T3 as MODEL

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


def test_the_first_variable_is_fastest(tmp_path) -> None:
    graph = read_text(tmp_path, "1  3  2 0 1  4 2 3  2  1 7.0  9 5.0", "m.fg")
    # 1 = (1, 0, 0) of (2, 0, 1) with cardinalities 4, 2, 3; 9 = 1 + 4 (0 + 2 1)
    assert graph.scope.tolist() == [2, 0, 1] and graph.card.tolist() == [2, 3, 4]
    finite = np.argwhere(np.isfinite(graph.table(0))).tolist()
    assert finite == [[1, 0, 0], [1, 0, 1]]
    assert math.exp(graph.table(0)[1, 0, 1]) == pytest.approx(5.0)


def test_what_is_not_listed_is_forbidden(tmp_path) -> None:
    assert read_text(tmp_path, "1\n\n1\n0\n3\n1\n1 1\n", "m.fg").theta_v.tolist() == [-math.inf, 0, -math.inf]
    assert read_text(tmp_path, "1\n\n0\n\n\n0\n", "m.fg").constant == -math.inf


def test_labels_that_are_not_indices_become_names(tmp_path) -> None:
    graph = read_text(tmp_path, "2\n\n1\n7\n2\n2\n0 1\n1 2\n\n1\n3\n3\n1\n0 1\n", "m.fg")
    assert graph.names.variables == ("3", "7") and graph.card.tolist() == [3, 2]
    assert math.exp(graph.theta_v[4]) == pytest.approx(2)


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

CONTRACT = {
    "libdai": Example(
        "m.fg",
        T3,
        graphs,
        POTENTIALS,
        lambda *x: MODEL.value(x),
        exact=("log", "cost"),
        malformed=ZOO,
        unfit={"out of range": ([2], [(0,)], [[-2000.0, 2000.0]], ["variable 0"])},
        cuts=word_prefixes(T3.split("\n", 1)[1]),
    )
}
