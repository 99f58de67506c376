"""The sparse UAI format: files by hand, round trips, malformed files."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from format_models import POTENTIALS, Example, graphs, prefixes, read_text
from format_models import T3 as MODEL

from mapmrf import formats
from mapmrf.model.graph import FactorGraph

T3 = """SPARSEMARKOV
3
2 3 2
3
1 0
2 0 1
2 2 1

1 1
 1 1.6487212707001282

1.2214027581601699 5
 0 1 0.90483741803595952
 0 2 1
 1 0 0.74081822068171788
 1 1 1.4918246976412703
 1 2 1.1051709180756477

1 5
 0 1 1.3498588075760032
 0 2 0.81873075307798182
 1 0 1.8221188003905089
 1 1 0
 1 2 1.1051709180756477
"""


def test_defaults_repeated_tuples_and_constants(tmp_path) -> None:
    graph = read_text(tmp_path, "SPARSEMARKOV 1 3 3  1 0  0  1 0  2 3  0 4  0 5  2 6  7 0  3 1  1 8", "m.suai")
    # (5, 2, 6) from the first table, of whose tuples 0 the last counts, times (3, 8, 3) from the last.
    assert np.allclose(np.exp(graph.theta_v), [15, 16, 18])
    assert math.exp(graph.constant) == pytest.approx(7)


@pytest.mark.parametrize(("values", "expected"), [("log", [0.5, -1.0]), ("cost", [-0.5, 1.0])])
def test_values_says_what_the_numbers_are(tmp_path, values, expected) -> None:
    assert (
        read_text(tmp_path, "SPARSEMARKOV 1 2 1 1 0  0.5 1  1 -1", "m.suai", values=values).theta_v.tolist() == expected
    )


def test_rows_that_do_not_sum_to_1_are_reported(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        read_text(tmp_path, "SPARSEBAYES 2 2 2 2  1 0  2 0 1  0.5 0  0.5 1  1 1 0.4", "m.suai")
    assert "do not sum to 1: 1, the first in factor 1" in caplog.text


def test_the_most_frequent_number_is_the_default(tmp_path) -> None:
    table = np.full((4, 4), -math.inf)
    table[1, 2] = 0.0
    formats.write(FactorGraph.from_tables([4, 4], [(0, 1)], [table]), tmp_path / "m.suai")
    assert (tmp_path / "m.suai").read_text().split("\n\n")[1] == "0 1\n 1 2 1\n"


GOOD = "SPARSEMARKOV\n2\n2 3\n2\n1 0\n2 0 1\n1 1\n 1 2\n0 2\n 0 0 3\n 1 2 4\n"
ZOO = {
    "empty": ("", ["empty", "SPARSEMARKOV or SPARSEBAYES"]),
    "another word": ("MARKOV 2", ["'MARKOV'", "SPARSEMARKOV"]),
    "a word": (GOOD.replace("4", "four"), ["line 11, token 22", "'four'"]),
    "cardinality": (GOOD.replace("2 3\n2", "2 0\n2"), ["cardinality of variable 1", "'0'"]),
    "scope": (GOOD.replace("2 0 1\n1 1", "2 0 5\n1 1"), ["scope of factor 1", "'5'"]),
    "number of tuples": (GOOD.replace("0 2\n", "0 2.5\n"), ["number of tuples of factor 1", "line 9", "'2.5'"]),
    "negative number of tuples": (GOOD.replace("0 2\n", "0 -2\n"), ["number of tuples of factor 1", "'-2'"]),
    "too many tuples": (GOOD.replace("0 2\n", "0 1e9\n"), ["table of factor 1", "1000000000 tuples, of which 2"]),
    "cut": (GOOD[: GOOD.index("0 2\n")], ["table of factor 1", "a default and a number of tuples"]),
    "state": (GOOD.replace("1 2 4", "1 3 4"), ["tuple of factor 1", "line 11", "'3'", "0 to 2"]),
    "half a state": (GOOD.replace("1 2 4", "0.5 2 4"), ["tuple of factor 1", "'0.5'", "0 to 1"]),
    "negative": (GOOD.replace("1 2 4", "1 2 -4"), ["tuple of factor 1", "'-4'", "at least 0"]),
    "nan": (GOOD.replace("1 2 4", "1 2 nan"), ["tuple of factor 1", "'nan'"]),
    "negative default": (GOOD.replace("0 2\n", "-1 2\n"), ["default of factor 1", "'-1'"]),
    "more": (GOOD + "7", ["after the last table", "'7'"]),
}

CONTRACT = {
    "sparse_uai": Example(
        "m.suai",
        T3,
        graphs,
        POTENTIALS,
        lambda *x: MODEL.value(x),
        exact=("log", "cost"),
        malformed=ZOO,
        cuts=prefixes(GOOD),
        start="SPARSEBAYES ",
    )
}
