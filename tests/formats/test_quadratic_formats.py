"""Binary quadratic models, .qubo and .coo, and graphs to be cut, .mc: files by hand, dimod, malformed files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from format_models import Example, Models, binary_graphs, cut_graphs, prefixes, read_text
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import formats
from mapmrf.formats import maxcut, quadratic
from mapmrf.model.graph import FactorGraph

QUBO = """c a comment
p qubo 0 4 2 2
0 0 -1.5
2 2 1e-3
c another
0 1 2.5
1 2 -0.25
"""
COO = """# vartype=SPIN
0 0 -1.5
2 2 1e-3
0 1 2.5
1 2 -0.25
"""
QPBO = """4 -4
1 1 1.5
3 3 -1e-3
1 2 -1.25
2 3 0.125
"""
CUT = """# a comment
4 5
1 2 2.5
2 3 -1
# another
1 3 4
3 2 3
3 4 1e-3
"""
EDGES = [(0, 1, 2.5), (1, 2, 2.0), (0, 2, 4.0), (2, 3, 1e-3)]


def energy(*x: int) -> float:
    return -1.5 * x[0] + 1e-3 * x[2] + 2.5 * x[0] * x[1] - 0.25 * x[1] * x[2]


def cut(*x: int) -> float:
    return sum(w for i, j, w in EDGES if x[i] != x[j])


@pytest.mark.parametrize("kind", ["BINARY", "spin"])
def test_the_type_of_the_variables_is_that_of_the_first_line(tmp_path, kind) -> None:
    graph = read_text(tmp_path, COO.replace("SPIN", kind), "m.txt")
    assert graph.card.tolist() == [2] * 3
    for x in itertools.product(range(2), repeat=3):
        assert graph.value(x) == pytest.approx(-energy(*(x if kind == "BINARY" else (2 * k - 1 for k in x))), abs=1e-12)


def test_variables_without_a_type_are_binary_and_repeated_terms_add_up(tmp_path) -> None:
    assert read_text(tmp_path, "0 1 2", "m.coo").table(0).tolist() == [[0, 0], [0, -2]]
    assert read_text(tmp_path, "0 1 2", "m.coo", values="log").table(0).tolist() == [[0, 0], [0, 2]]
    assert read_text(tmp_path, "", "m.coo").n_vars == 0
    graph = read_text(tmp_path, "0 1 2\n1 0 3\n0 0 1\n0 0 1", "m.coo")
    assert graph.value([1, 1]) == -7


def test_graphs_to_be_cut_have_weights_or_costs_and_may_be_empty(tmp_path) -> None:
    graph = read_text(tmp_path, CUT, "graph.txt")
    assert graph.card.tolist() == [2] * 4 and graph.n_factors == 4 and graph.n_tables == 1
    assert read_text(tmp_path, CUT, "m.mc", values="cost").value([0, 1, 1, 1]) == pytest.approx(-6.5)
    for text, n in (("3 0\n", 3), ("0 0", 0)):
        graph = read_text(tmp_path, text, "m.mc")
        assert (graph.n_vars, graph.n_factors) == (n, 0)
    for text in ("", "4", "4 5 6\n1 2 3", "4 2\n1 2 3", "4 1\n1 2", "x y\n1 2 3", "MARKOV 2 2 2 0"):
        assert not maxcut.sniff(text.encode()), text


@given(
    h=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
    j=st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3),
)
def test_spins_are_written_as_spins(tmp_path_factory, h: list[float], j: list[float]) -> None:
    path = tmp_path_factory.mktemp("spins") / "m.coo"
    sign = np.array([[1.0, -1.0], [-1.0, 1.0]])
    scopes = [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)]
    graph = FactorGraph.from_tables([2] * 3, scopes, [*([-x, x] for x in h), *(x * sign for x in j)])
    formats.write(graph, path)
    assert path.read_text().startswith("# vartype=SPIN") or not (any(h) or any(j))
    read = formats.read(path)
    assert np.array_equal(read.theta_v, graph.theta_v)
    assert all(np.array_equal(read.table(a), graph.table(a)) for a in range(3))


def test_spins_of_toulbar2_are_the_other_way_round(tmp_path) -> None:
    graph = read_text(tmp_path, "-2 2\n1 1 3\n1 2 -1", "m.qpbo")
    for x in itertools.product(range(2), repeat=2):
        s, t = (1 - 2 * k for k in x)
        assert graph.value(x) == -(3 * s - 2 * s * t)
    formats.write(graph, tmp_path / "m.qpbo.gz", values="log")
    assert formats.read(tmp_path / "m.qpbo.gz").value([1, 0]) == graph.value([1, 0])


def test_numbers_have_no_exponent_in_lists(tmp_path) -> None:
    graph = FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [[0, 1e-30], [0, 0, 0, -1.5e22]])
    formats.write(graph, tmp_path / "m.coo")
    text = (tmp_path / "m.coo").read_text()
    assert "e" not in text.split("\n", 1)[1]
    assert np.array_equal(formats.read(tmp_path / "m.coo").theta_v, graph.theta_v)


@pytest.mark.filterwarnings("ignore")
def test_dimod_reads_what_is_written(tmp_path) -> None:
    dimod_lists = pytest.importorskip("dimod.serialization.coo")
    random = np.random.default_rng(3)
    for spin in (False, True):
        scopes = [(0,), (1,), (2,), (3,), (0, 1), (2, 1), (3, 0)]
        if spin:
            sign = np.array([[1.0, -1.0], [-1.0, 1.0]])
            tables = [random.normal() * (sign if len(s) == 2 else sign[1]) for s in scopes]
        else:
            tables = [random.normal(size=[2] * len(s)) for s in scopes]
        graph = FactorGraph.from_tables([2] * 4, scopes, tables)
        formats.write(graph, tmp_path / "m.coo")
        with open(tmp_path / "m.coo") as file:
            model = dimod_lists.load(file)
        offset = quadratic.terms_of(graph, spin).offset
        for x in itertools.product(range(2), repeat=4):
            sample = {i: 2 * k - 1 if spin else k for i, k in enumerate(x)}
            assert model.energy(sample) + offset == pytest.approx(-graph.value(x), abs=1e-9)


# -- the contract -----------------------------------------------------------------------------------------------------

QUBO_ZOO = {
    "empty": ("", ["no line 'p qubo"]),
    "no header": ("0 0 1", ["no line 'p qubo"]),
    "late header": ("0 0 1\np qubo 0 1 1 0", ["before the first number"]),
    "another header": ("p cnf 3 2\n", ["header", "'p cnf 3 2'"]),
    "short header": ("p qubo 0 3 2\n", ["header", "nCouplers"]),
    "too many nodes": ("p qubo 0 999999999999 0 0\n", ["999999999999 nodes", "at most"]),
    "other counts": (QUBO.replace("4 2 2", "4 1 3"), ["2 nodes and 2 couplers", "1 and 3"]),
    "variable too large": (QUBO.replace("1 2 -", "1 4 -"), ["term 3", "line 7", "'4'", "0 to 3"]),
    "no variables": ("p qubo 0 0 1 0\n0 0 1", ["term 0", "no term"]),
    "a word": (QUBO.replace("2.5", "two"), ["line 6", "'two'", "a number"]),
    "cut": (QUBO.replace(" -0.25", ""), ["last term", "two variables and a weight"]),
}
COO_ZOO = {
    "infinite": (COO.replace("2.5", "inf"), ["weight of term 2", "line 4", "'inf'"]),
    "type": (COO.replace("SPIN", "SPUN"), ["vartype", "'SPUN'", "SPIN or BINARY"]),
    "huge label": ("0 999999999999 1", ["term 0", "'999999999999'"]),
    "cut list": ("0 1", ["last term"]),
    "offset": ("# offset=1e999\n0 1 1", ["offset", "'1e999'"]),
    "binary file of dimod": ("m.bqm", "DIMODBQM\x02\x00", ["binary file of dimod"]),
}
QPBO_ZOO = {
    "empty": ("", ["number 0 of the header", "ends after 0 tokens"]),
    "half": ("4.5 3", ["number 0 of the header", "'4.5'"]),
    "variable": (QPBO.replace("2 3 0", "2 5 0"), ["term 4", "line 5", "'5'", "from 1 to 4"]),
    "longer": (QPBO + "1 2 3", ["term 6", "'1'", "4 terms"]),
    "shorter": (QPBO[: QPBO.rindex("2 3")], ["term 4", "the file ends", "4 terms"]),
}
CUT_ZOO = {
    "empty": ("", ["number 0 of the header", "ends after 0 tokens"]),
    "half a header": ("4", ["number 1 of the header", "ends after 1 tokens"]),
    "a word": (CUT.replace("2.5", "two"), ["line 3", "'two'", "a number"]),
    "too many vertices": ("999999999999 0", ["number 0 of the header", "'999999999999'"]),
    "vertex too large": (CUT.replace("1 3 4", "1 5 4"), ["edge 3", "'5'", "from 1 to 4"]),
    "loop": (CUT.replace("1 3 4", "3 3 4"), ["edge 3", "another vertex"]),
    "infinite": (CUT.replace("2.5", "inf"), ["weight of edge 1", "'inf'", "finite"]),
    "cut": (CUT[: CUT.rindex("3 4 1e-3")], ["edge 5 of 5", "ends after"]),
    "cut in an edge": (CUT.replace(" 1e-3", ""), ["edge 5 of 5", "two vertices and a weight"]),
    "longer": (CUT + "1 2 3", ["after edge 5", "the end of the file"]),
    "no vertices": ("0 1\n1 1 1", ["edge 1", "no edge"]),
    "constant": ("# constant=1e999\n2 1\n1 2 1", ["offset", "'1e999'"]),
}
UNFIT = {
    "three states": ([2, 3], [(0, 1)], [np.zeros(6)], ["variable 1 has 3 states"]),
    "one state": ([2, 1], [(0,)], [np.zeros(2)], ["variable 1 has 1 states"]),
    "arity": ([2, 2, 2], [(0, 1, 2)], [np.zeros(8)], ["factor 0 has 3 variables"]),
    "forbidden state": ([2, 2], [(1,)], [[0.0, -np.inf]], ["state 1 of variable 1 is forbidden"]),
    "forbidden pair": ([2, 2], [(0, 1)], [[0.0, -np.inf, 0, 0]], ["factor 0 forbids"]),
    "infeasible": ([2], [()], [[-np.inf]], ["the constant is -inf"]),
}
CUT_UNFIT = {
    "a preference": ([2, 2], [(1,)], [[0.0, 1.5]], ["variable 1 prefers state 1 by 1.5"]),
    "a preference in a pair": ([2, 2], [(0, 1)], [[3.0, 1.0, 1.0, 0.0]], ["variable 0 prefers state 0 by 1.5"]),
}


def example(name: str, text: str, models: Models, worth: Callable[..., float], **about: Any) -> Example:
    limits = {None: 1e6, "log": 1e6, "cost": 1e6}
    tokens = ["0", "1", "2", "-1", "0.5", "nan", "1e300", "c", "p", "#", "\n", "x"]
    return Example(name, text, models, limits, worth, others="costs or logs", tokens=tokens, **about)


CONTRACT = {
    "qubo": example(
        "m.qubo",
        QUBO,
        binary_graphs,
        lambda *x: -energy(*x),
        malformed=QUBO_ZOO,
        unfit=UNFIT,
        # Behind that, the last weight is only shorter.
        cuts=prefixes(QUBO.split("\n", 1)[1].replace("c another\n", ""), last=4),
        start="p qubo 0 3 1 1\n",
    ),
    "coo": example(
        "m.coo",
        COO,
        binary_graphs,
        lambda *x: -energy(*(2 * k - 1 for k in x)),
        malformed=COO_ZOO,
        unfit=UNFIT,
        cuts=["0", "0 1"],  # else shorter files are smaller models
        start="# vartype=SPIN\n",
        aliases=("m.bqm",),
    ),
    "qpbo": example(
        "m.qpbo",
        QPBO,
        binary_graphs,
        lambda *x: -energy(*x),
        malformed=QPBO_ZOO,
        unfit=UNFIT,
        cuts=prefixes(QPBO, last=4),
        start="3 2\n",
    ),
    "maxcut": example(
        "m.mc",
        CUT,
        cut_graphs,
        cut,
        malformed=CUT_ZOO,
        unfit=UNFIT | CUT_UNFIT,
        cuts=prefixes(CUT, last=3),  # behind that, the last weight is only shorter
        start="2 2\n",
        aliases=("m.rudy",),
        real={"maxcut/be120.3.5.mc.gz": (121, 2248)},
    ),
}
