"""Files of potentials, .uai, .LG, .suai and .fg: what numbers and layouts mean, malformed files, benchmark models."""

from __future__ import annotations

import itertools
import math
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from format_models import (
    NUMBERS,
    POTENTIALS,
    T3,
    Example,
    again,
    error_of,
    graphs,
    labellings,
    prefixes,
    read_text,
    word_prefixes,
)
from hypothesis import given

from benchmark_models import FOLDER
from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.formats.files import NUMBER, parse_numbers
from mapmrf.model.graph import FactorGraph


def read(tmp_path: Path, text: str, name: str = "m.uai", **options: str) -> FactorGraph:
    return read_text(tmp_path, text, name, **options)


def all_values(graph: FactorGraph) -> np.ndarray:
    return np.array([graph.value(x) for x in labellings(graph)])


def test_constants_single_states_and_the_order_of_a_table(tmp_path) -> None:
    text = "MARKOV 4 1 2 3 2  5  0  1 1  1 1  2 0 1  0   1 2.0  2 1 3  2 2 5  2 1 10  1 0.5"
    graph = read(tmp_path, text)
    assert graph.constant == pytest.approx(0.0)
    assert graph.n_factors == 1
    assert graph.value([0, 1, 2, 1]) == pytest.approx(math.log(3 * 5 * 10))
    assert read(tmp_path, "MARKOV 2 3 4 0").value([2, 3]) == 0.0
    assert read(tmp_path, "MARKOV\n0\n\n0\n").n_vars == 0
    assert read(tmp_path, "MARKOV 0 1 0 1 5").constant == pytest.approx(math.log(5))
    graph = read(tmp_path, "MARKOV 3 2 3 4 1  3 2 0 1  24 " + " ".join(str(k + 1) for k in range(24)))
    for x0, x1, x2 in itertools.product(range(2), range(3), range(4)):
        assert graph.value([x0, x1, x2]) == pytest.approx(math.log(1 + x2 * 6 + x0 * 3 + x1))


def test_numbers_logs_and_costs(tmp_path) -> None:
    text = "MARKOV 1 6 1 1 0 6 1e-3 +2.5E2 .5 5. 4.9406564584124654e-324 0"
    expected = [math.log(x) for x in (1e-3, 250, 0.5, 5, 5e-324)]
    assert read(tmp_path, text).theta_v[:5].tolist() == pytest.approx(expected)
    assert read(tmp_path, text).theta_v[5] == -np.inf
    text = "MARKOV 1 6 1 1 0 6 -1e30 -1e39 -inf -9e29 -1e400 3"
    expected = [-np.inf, -np.inf, -np.inf, -9e29, -np.inf, 3]
    assert read(tmp_path, text, "m.LG").theta_v.tolist() == expected
    assert read(tmp_path, text, "m.uai.LG").theta_v.tolist() == expected
    assert read(tmp_path, text, "m.uai", values="log").theta_v.tolist() == expected
    text = "MARKOV 1 4 1 1 0 4 1.5 -2 inf 1e31"
    assert read(tmp_path, text, values="cost").theta_v.tolist() == [-1.5, 2, -np.inf, -np.inf]
    assert read(tmp_path, "MARKOV 1 2 1 1 0 2 1 2", "m.LG", values="potential").theta_v[1] == pytest.approx(math.log(2))


def test_potts_extension(tmp_path) -> None:
    text = "MARKOV 4 3 3 2 2  4  1 0  2 0 1  2 2 3  2 1 0    3 0 -1 -1   -1 -0.5  -1 -0.5  9 0 -1 -1 -1 0 -1 -1 -1 0"
    graph = read(tmp_path, text, "m.UAI.LG")
    assert graph.value([0, 0, 1, 1]) == 0.0
    assert graph.value([0, 1, 1, 0]) == -2.0
    assert graph.value([1, 1, 0, 0]) == -1.0
    shared = "MARKOV 3 2 2 2 2  2 0 1  2 1 2   -1 -7  -1 -7"
    assert read(tmp_path, shared, "m.LG").n_tables == 1
    assert read(tmp_path, shared, values="cost").value([0, 1, 0]) == 14.0
    assert read(tmp_path, shared.replace("-7", "-inf"), "m.LG").value([0, 1, 0]) == -np.inf


def test_bayes_children_are_last(tmp_path) -> None:
    graph = read(tmp_path, "BAYES 2 2 3 2  1 0  2 0 1  2 .25 .75  6 .1 .2 .7  .3 .3 .4")
    assert graph.value([1, 2]) == pytest.approx(math.log(0.75 * 0.4))
    assert sum(np.exp(all_values(graph))) == pytest.approx(1.0)


def test_writes_only_what_matters(tmp_path) -> None:
    graph = FactorGraph.from_tables([2, 2], [(1, 0), (0,)], [[0, 0.5, 1, 2], [0, -np.inf]])
    path = tmp_path / "m.LG"
    formats.write(graph, path)
    assert " ".join(path.read_text().split()) == "MARKOV 2 2 2 2 1 0 2 1 0 2 0 -1e+39 4 0 0.5 1 2"
    formats.write(graph, path, values="cost")
    assert " ".join(path.read_text().split()) == "MARKOV 2 2 2 2 1 0 2 1 0 2 0 1e+39 4 0 -0.5 -1 -2"


def test_potentials_out_of_range_are_scaled(tmp_path) -> None:
    tables = [[1000.0, 1001.0], [-1500.0, -200.0], [-800.0, 10.0, -np.inf, -802.0]]
    graph = FactorGraph.from_tables([2, 2], [(0,), (1,), (0, 1)], tables)
    formats.write(graph, tmp_path / "m.uai")
    again = formats.read(tmp_path / "m.uai")
    assert np.allclose(all_values(again), all_values(graph), rtol=0, atol=1e-9)


def test_large_models_are_written_in_pieces(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("mapmrf.formats.uai._CHUNK", 8)
    random = np.random.default_rng(0)
    scopes = [tuple(random.permutation(6)[: 1 + a % 3]) for a in range(40)]
    card = [2, 3, 2, 1, 2, 3]
    tables = [np.full(int(np.prod([card[i] for i in scope])), float(a % 5)) for a, scope in enumerate(scopes)]
    graph = FactorGraph.from_tables(card, scopes, tables)
    formats.write(graph, tmp_path / "m.LG")
    again = formats.read(tmp_path / "m.LG")
    assert again.scope.tolist() == graph.scope.tolist()
    assert all_values(again).tolist() == all_values(graph).tolist()


@given(graph=graphs(limit=1000.0))
def test_potentials_out_of_range_are_scaled_or_refused(graph: FactorGraph) -> None:
    try:
        read = again(graph, "m.uai")
    except FormatError as error:
        assert "write .LG" in str(error)
    else:
        labels = np.array([graph.theta_v[a:b].argmax() for a, b in pairwise(graph.var_ptr.tolist())], dtype=np.int64)
        assert read.value(labels) == pytest.approx(graph.value(labels), abs=1e-9)


@pytest.mark.parametrize("suffix", [".uai", ".suai", ".fg"])
@pytest.mark.parametrize(("scale", "digits"), [(1e-9, 7), (1e-14, 2), (1e-300, 0)])
def test_lost_digits_are_reported(tmp_path, caplog, suffix, scale, digits) -> None:
    """A potential near 1 has 16 digits, of which its log keeps few."""
    theta = np.array([[0.9, 0.1], [0.3, 0.7]]) * scale
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [theta])
    formats.write(graph, tmp_path / f"m{suffix}")
    assert f"m{suffix}: log potentials that differ by at most" in caplog.text
    assert f"keep {digits} digits as potentials: write .LG (logs) to keep all" in caplog.text
    lost = np.abs(formats.read(tmp_path / f"m{suffix}").value([0, 0]) - graph.value([0, 0]))
    assert lost <= 1.2e-16
    assert digits == 0 or lost <= 2 * scale * 10.0**-digits
    caplog.clear()
    formats.write(graph, tmp_path / "m.LG")
    formats.write(FactorGraph.from_tables([2, 2], [(0, 1)], [theta / scale]), tmp_path / f"m{suffix}")
    formats.write(FactorGraph.from_tables([2, 2], [], []), tmp_path / f"m{suffix}")
    assert formats.read(tmp_path / "m.LG").value([0, 0]) == graph.value([0, 0])
    assert caplog.text == ""


# -- numbers, of which all text formats are made ----------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"five", b"4,5", b"0x4", b"4_0", b"1e", b"--1", b"\xff"])
def test_what_is_no_number_is_found(text: bytes) -> None:
    assert parse_numbers(b"1 .5 5. +2E1 -3e-2 " + text) is None
    assert NUMBER.fullmatch(text) is None
    assert parse_numbers(b" \t\n 1 .5 5. +2E1 -3e-2\r\n").tolist() == [1.0, 0.5, 5.0, 20.0, -0.03]


# -- the sparse formats ------------------------------------------------------------------------------------------------

SUAI_T3 = """SPARSEMARKOV
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
FG_T3 = """# a comment
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


def test_defaults_repeated_tuples_and_constants(tmp_path) -> None:
    graph = read_text(tmp_path, "SPARSEMARKOV 1 3 3  1 0  0  1 0  2 3  0 4  0 5  2 6  7 0  3 1  1 8", "m.suai")
    # (5, 2, 6) from the first table, of whose tuples 0 the last counts, times (3, 8, 3) from the last.
    assert np.allclose(np.exp(graph.theta_v), [15, 16, 18])
    assert math.exp(graph.constant) == pytest.approx(7)
    for values, expected in (("log", [0.5, -1.0]), ("cost", [-0.5, 1.0])):
        graph = read(tmp_path, "SPARSEMARKOV 1 2 1 1 0  0.5 1  1 -1", "m.suai", values=values)
        assert graph.theta_v.tolist() == expected


def test_the_most_frequent_number_is_the_default(tmp_path) -> None:
    table = np.full((4, 4), -math.inf)
    table[1, 2] = 0.0
    formats.write(FactorGraph.from_tables([4, 4], [(0, 1)], [table]), tmp_path / "m.suai")
    assert (tmp_path / "m.suai").read_text().split("\n\n")[1] == "0 1\n 1 2 1\n"


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


# -- the contract -----------------------------------------------------------------------------------------------------

BLANKS_AND_COMMENTS = [
    lambda text: text.replace("\n", "\r\n"),
    lambda text: text.replace("\n", " "),
    lambda text: text.replace("\n", "\n\n\t "),
    lambda text: text.replace("MARKOV", "markov  "),
    lambda text: "c a comment\nc\n" + text.replace("2 0 1\n", "2 0 1 # the first pair\nc 5 6 7\n"),
    lambda text: "# written by a program\r\n" + text + "# the end",
    lambda text: text.strip(),
    lambda text: "\ufeff" + text,
]
GOOD = "MARKOV\n2\n2 3\n2\n1 0\n2 0 1\n2\n 1 2\n6\n 1 2 3 4 5 6\n"

UAI_ZOO = {
    "empty": ("", ["empty", "MARKOV or BAYES"]),
    "only comments": ("c nothing\n# here\n", ["empty"]),
    "another word": ("SPARSEMARKOV 2", ["line 1, token 1", "'SPARSEMARKOV'", "MARKOV or BAYES"]),
    "no numbers": ("MARKOV", ["number of variables", "ends after 1 tokens"]),
    "binary junk": ("MARKOV\x00\x01\x02\xff\n\x00", ["token 1"]),
    "junk behind the word": ("MARKOV \x00\x01\xff", ["line 1, token 2", "expected a number"]),
    "word among the numbers": (GOOD.replace("4 5", "4 five"), ["line 10, token 19", "'five'", "expected a number"]),
    "comma": (GOOD.replace("4 5", "4,5"), ["line 10, token 18", "'4,5'"]),
    "negative count": ("MARKOV -1", ["number of variables", "'-1'", "at least 0"]),
    "huge count": ("MARKOV 1e300 2", ["number of variables", "'1e300'"]),
    "too many variables": ("MARKOV 1000000000000 2 2 0", ["ends after 5 tokens", "1000000000000"]),
    "no state": ("MARKOV 2 2 0 0", ["cardinality of variable 1", "token 4", "'0'", "at least 1"]),
    "too many states": ("MARKOV 2 1000000000 1000000000 0", ["2000000000 states"]),
    "cut in the cardinalities": ("MARKOV 3 2 2", ["ends after 4 tokens", "3 of them"]),
    "negative number of factors": ("MARKOV 1 2 -3", ["number of factors", "token 4", "'-3'"]),
    "too many factors": ("MARKOV 1 2 99999999999 1 0 2 1 1", ["number of factors is 99999999999", "ends after 9"]),
    "arity too large": (GOOD.replace("2 0 1\n", "3 0 1\n"), ["arity of factor 1", "line 6, token 8", "'3'", "0 to 2"]),
    "arity huge": (GOOD.replace("2 0 1\n", "1e300 0 1\n"), ["arity of factor 1", "'1e300'"]),
    "arity nan": (GOOD.replace("2 0 1\n", "nan 0 1\n"), ["arity of factor 1", "'nan'"]),
    "arity infinite": (GOOD.replace("2 0 1\n", "inf 0 1\n"), ["arity of factor 1", "'inf'"]),
    "cut in the arities": ("MARKOV 4 2 2 2 2 3 4 0 1 2 3 4 0 1 2 3", ["arity of factor 2", "ends after 17 tokens"]),
    "cut in the scopes": ("MARKOV 3 2 2 2 1 3 0 1", ["scope of factor 0", "ends after 9 tokens", "3 variables"]),
    "variable too large": (
        GOOD.replace("2 0 1\n", "2 0 2\n"),
        ["scope of factor 1", "line 6, token 10", "'2'", "0 to 1"],
    ),
    "repeated variable": (GOOD.replace("2 0 1\n", "2 1 1\n"), ["scope of factor 1", "token 10", "'1'", "already"]),
    "wrong table size": (
        GOOD.replace("6\n", "5\n", 1),
        ["table size of factor 1 (variables 0, 1)", "line 9, token 14", "'5'", "6 = 2 x 3"],
    ),
    "entry missing": (GOOD.replace("2\n 1 2\n", "2\n 1\n"), ["table size of factor 1", "'1'", "6 = 2 x 3"]),
    "cut in a table": (GOOD[:-5], ["table of factor 1", "ends after 18 tokens", "6 entries, of which 4"]),
    "cut before a table": (GOOD[: GOOD.rindex("6\n 1")], ["table of factor 1", "ends after 13 tokens", "6 entries"]),
    "more than the tables": (GOOD + "7 8\n", ["after the last table", "line 11, token 21", "'7'", "end of the file"]),
    "nan": (GOOD.replace("4 5", "4 nan"), ["factor 1 (variables 0, 1), entry 4", "line 10, token 19", "'nan'"]),
    "infinite potential": (GOOD.replace("4 5", "4 inf"), ["entry 4", "'inf'", "a finite potential"]),
    "infinite count": ("MARKOV -inf", ["number of variables", "'-inf'"]),
    "negative potential": (
        GOOD.replace("1 2\n", "1 -2\n"),
        ["factor 0 (variables 0), entry 1", "'-2'", "values='log'"],
    ),
    "logs: infinite": ("m.LG", "MARKOV 1 2 1 1 0 2 0 inf", ["entry 1", "'inf'"]),
    "logs: Potts of two shapes": (
        "m.LG",
        "MARKOV 2 2 3 1 2 0 1 -1 5",
        ["table size of factor 0", "'-1'", "two variables with the same"],
    ),
    "logs: Potts of one variable": (
        "m.LG",
        "MARKOV 1 2 1 1 0 -1 5",
        ["table size of factor 0", "'-1'", "two variables"],
    ),
    "logs: cut in a table": ("m.LG", "MARKOV 2 2 2 1 2 0 1 -1", ["table of factor 0", "ends after 9 tokens"]),
    **{
        f"a table of {n} variables": (
            f"MARKOV {n} {'2 ' * n} 1 {n} {' '.join(map(str, range(n)))} 4 1 1 1 1",
            ["table size of factor 0 (variables 0, 1, 2, 3, 4, 5, ...)"],
        )
        for n in (70, 200, 2000)
    },
    "Potts among potentials": ("MARKOV 2 2 2 1 2 0 1 -1 5", ["factor 0", "token 9", "'-1'", "needs logs"]),
}
SPARSE = "SPARSEMARKOV\n2\n2 3\n2\n1 0\n2 0 1\n1 1\n 1 2\n0 2\n 0 0 3\n 1 2 4\n"
SUAI_ZOO = {
    "empty": ("", ["empty", "SPARSEMARKOV or SPARSEBAYES"]),
    "another word": ("MARKOV 2", ["'MARKOV'", "SPARSEMARKOV"]),
    "a word": (SPARSE.replace("4", "four"), ["line 11, token 22", "'four'"]),
    "cardinality": (SPARSE.replace("2 3\n2", "2 0\n2"), ["cardinality of variable 1", "'0'"]),
    "scope": (SPARSE.replace("2 0 1\n1 1", "2 0 5\n1 1"), ["scope of factor 1", "'5'"]),
    "number of tuples": (SPARSE.replace("0 2\n", "0 2.5\n"), ["number of tuples of factor 1", "line 9", "'2.5'"]),
    "too many tuples": (SPARSE.replace("0 2\n", "0 1e9\n"), ["table of factor 1", "1000000000 tuples, of which 2"]),
    "cut": (SPARSE[: SPARSE.index("0 2\n")], ["table of factor 1", "a default and a number of tuples"]),
    "state": (SPARSE.replace("1 2 4", "1 3 4"), ["tuple of factor 1", "line 11", "'3'", "0 to 2"]),
    "negative": (SPARSE.replace("1 2 4", "1 2 -4"), ["tuple of factor 1", "'-4'", "at least 0"]),
    "negative default": (SPARSE.replace("0 2\n", "-1 2\n"), ["default of factor 1", "'-1'"]),
    "more": (SPARSE + "7", ["after the last table", "'7'"]),
}
FG_ZOO = {
    "empty": ("", ["number of factors", "ends after 0 tokens"]),
    "negative": ("-1", ["number of factors", "'-1'"]),
    "too many": ("1000000000 1 0", ["number of factors is 1000000000"]),
    "AD3": ("2\n1\n0.5\n0.3\nXOR 2 1 2\n", ["line 5, token 5", "'XOR'", "AD3"]),
    "a word": (FG_T3.replace("4 1\n", "4 one\n"), ["line 19", "'one'", "a number"]),
    "half a variable": ("1 0.5 0 2 0", ["number of variables of factor 0", "'0.5'"]),
    "label": ("1 1 -1 2 0", ["label of a variable", "token 3", "'-1'"]),
    "cardinality": ("1 1 0 0 0", ["cardinality", "token 4", "'0'"]),
    "two cardinalities": (
        FG_T3.replace("2 1\n2 3", "2 1\n2 4"),
        ["variable 1 in factor 2", "line 24", "'4'", "3 as before"],
    ),
    "too many states": ("1 1 0 99999999999 0", ["states", "at most"]),
    "number of entries": ("1 1 0 2 -3", ["number of entries of factor 0", "'-3'"]),
    "no entries left": ("1 1 0 2 2 0 1", ["entries of factor 0", "2 of them, of which 1"]),
    "cut": ("1 2 0 1 2", ["number of entries of factor 0", "ends after 5"]),
    "index": (FG_T3.replace("5 1.1051709180756477\n\n", "6 1\n\n"), ["index in factor 1", "'6'", "0 to 5"]),
    "negative value": ("1 1 0 2 1 0 -1", ["value in factor 0", "'-1'", "at least 0"]),
    "variable twice": ("1 2 0 0 2 2 0", ["factor 0", "variable 0", "twice"]),
    "more": (FG_T3 + "7", ["after the last factor", "'7'"]),
}
UNFIT = {
    "a wide table": ([2, 2], [(0, 1)], [[0, 0, -2000, 0]], ["factor 0"]),
    "a far state": ([2], [(0,), ()], [[0, -2000], [0]], [".LG"]),
    "a constant": ([2], [()], [[5000]], ["constant"]),
    "a log that means forbidden": ("m.LG", [2], [(0,)], [[0, -1e35]], ["forbidden"]),
}


CONTRACT = {
    "uai": Example(
        "m.uai",
        GOOD,
        graphs,
        POTENTIALS,
        lambda x, y: math.log((1 + x) * (1 + 3 * x + y)),
        exact=("log", "cost"),
        variants=BLANKS_AND_COMMENTS,
        malformed=UAI_ZOO,
        unfit=UNFIT,
        cuts=prefixes(GOOD),
        start="BAYES ",
        tokens=(*NUMBERS, "4"),
        real={"grids-small/grid10x10.f10.uai.gz": (100, 180), "scene/0000047.uai.gz": (186, 501)},
    ),
    "sparse_uai": Example(
        "m.suai",
        SUAI_T3,
        graphs,
        POTENTIALS,
        lambda *x: T3.value(x),
        exact=("log", "cost"),
        malformed=SUAI_ZOO,
        cuts=prefixes(SPARSE),
        start="SPARSEBAYES ",
    ),
    "libdai": Example(
        "m.fg",
        FG_T3,
        graphs,
        POTENTIALS,
        lambda *x: T3.value(x),
        exact=("log", "cost"),
        malformed=FG_ZOO,
        unfit={"out of range": ([2], [(0,)], [[-2000.0, 2000.0]], ["variable 0"])},
        cuts=word_prefixes(FG_T3.split("\n", 1)[1]),
    ),
}


def test_malformed_costs(tmp_path) -> None:
    path = tmp_path / "bad.uai"
    path.write_text("MARKOV 1 2 1 1 0 2 0 -inf")
    assert "finite cost" in error_of(path, formats.read, path, values="cost")


def test_numpy_that_only_warns_about_bad_text(tmp_path, monkeypatch) -> None:
    def fromstring(text: bytes, **options: object) -> np.ndarray:
        warnings.warn("string or file could not be read to its end", DeprecationWarning, stacklevel=1)
        return np.zeros(3)

    monkeypatch.setattr("mapmrf.formats.files.np.fromstring", fromstring)
    path = tmp_path / "bad.uai"
    path.write_text(GOOD.replace("4 5", "4 five"))
    assert "'five'" in error_of(path, formats.read, path)


# -- benchmark models --------------------------------------------------------------------------------------------------

FILES = sorted(FOLDER.glob("**/*.uai.gz"))


@pytest.mark.data
def test_they_can_be_read() -> None:
    for path in FILES[::4]:
        graph = formats.read(path)
        assert graph.n_factors > 0
        assert graph.value(np.zeros(graph.n_vars)) < np.inf


@pytest.mark.data
def test_protein_models_share_their_tables() -> None:
    for path in (FOLDER / "protein").glob("*.uai.gz"):
        graph = formats.read(path)
        assert graph.n_factors > 1000 * graph.n_tables
