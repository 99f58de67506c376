"""Graphs to be cut, .mc: a file by hand, round trips, models that the format cannot hold, malformed files."""

from __future__ import annotations

import numpy as np
import pytest
from format_models import Example, cut_graphs, prefixes, read_text

from mapmrf import formats
from mapmrf.model.graph import FactorGraph, Names

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


def cut(*x: int) -> float:
    return sum(w for i, j, w in EDGES if x[i] != x[j])


def test_weights_costs_and_graphs_without_edges_or_vertices(tmp_path) -> None:
    graph = read_text(tmp_path, CUT, "graph.txt")
    assert graph.card.tolist() == [2] * 4 and graph.n_factors == 4 and graph.n_tables == 1
    (tmp_path / "m.mc").write_text(CUT)
    graph = formats.read(tmp_path / "m.mc", values="cost")
    assert graph.value([0, 1, 1, 1]) == pytest.approx(-6.5)
    for text, n in (("3 0\n", 3), ("0 0", 0)):
        (tmp_path / "m.mc").write_text(text)
        graph = formats.read(tmp_path / "m.mc")
        assert (graph.n_vars, graph.n_factors) == (n, 0)


def test_what_other_programs_will_not_see_is_said(tmp_path, caplog) -> None:
    graph = FactorGraph.from_tables([2, 2], [(), (0, 1)], [[2.0], [0.0, 1.0, 1.0, 0.0]], names=Names(("a", "b")))
    formats.write(graph, tmp_path / "m.mc")
    assert "names of 2 variables" in caplog.text and "constant 2" in caplog.text
    assert formats.read(tmp_path / "m.mc").value([0, 0]) == 2


ZOO = {
    "empty": ("", ["number 0 of the header", "ends after 0 tokens"]),
    "half a header": ("4", ["number 1 of the header", "ends after 1 tokens"]),
    "a word": (CUT.replace("2.5", "two"), ["line 3", "'two'", "a number"]),
    "too many vertices": ("999999999999 0", ["number 0 of the header", "'999999999999'"]),
    "vertex 0": (CUT.replace("1 3 4", "0 3 4"), ["edge 3", "line 6", "'0'", "from 1 to 4"]),
    "vertex too large": (CUT.replace("1 3 4", "1 5 4"), ["edge 3", "'5'", "from 1 to 4"]),
    "half a vertex": (CUT.replace("1 3 4", "1 2.5 4"), ["edge 3", "'2.5'"]),
    "loop": (CUT.replace("1 3 4", "3 3 4"), ["edge 3", "another vertex"]),
    "infinite": (CUT.replace("2.5", "inf"), ["weight of edge 1", "'inf'", "finite"]),
    "cut": (CUT[: CUT.rindex("3 4 1e-3")], ["edge 5 of 5", "ends after"]),
    "cut in an edge": (CUT.replace(" 1e-3", ""), ["edge 5 of 5", "two vertices and a weight"]),
    "longer": (CUT + "1 2 3", ["after edge 5", "the end of the file"]),
    "no vertices": ("0 1\n1 1 1", ["edge 1", "no edge"]),
    "constant": ("# constant=1e999\n2 1\n1 2 1", ["offset", "'1e999'"]),
}

UNFIT = {
    "states": ([2, 3], [(0, 1)], [np.zeros(6)], ["variable 1 has 3 states"]),
    "arity": ([2, 2, 2], [(0, 1, 2)], [np.zeros(8)], ["factor 0 has 3 variables"]),
    "forbidden": ([2, 2], [(0, 1)], [[0.0, -np.inf, -np.inf, 0]], ["factor 0 forbids"]),
    "a preference": ([2, 2], [(1,)], [[0.0, 1.5]], ["variable 1 prefers state 1 by 1.5"]),
    "a preference in a pair": ([2, 2], [(0, 1)], [[3.0, 1.0, 1.0, 0.0]], ["variable 0 prefers state 0 by 1.5"]),
}


CONTRACT = {
    "maxcut": Example(
        "m.mc",
        CUT,
        cut_graphs,
        {None: 1e6, "log": 1e6, "cost": 1e6},
        cut,
        others="costs or logs",
        malformed=ZOO,
        unfit=UNFIT,
        cuts=prefixes(CUT, last=3),  # behind that, the last weight is only shorter
        start="2 2\n",
        tokens=["0", "1", "2", "-1", "0.5", "nan", "1e300", "c", "#", "\n", "x"],
        aliases=("m.rudy",),
        real={"maxcut/be120.3.5.mc.gz": (121, 2248)},
    )
}


def test_other_texts_are_not_taken_for_graphs() -> None:
    from mapmrf.formats import maxcut

    assert maxcut.sniff(CUT.encode())
    for text in ("", "4", "4 5 6\n1 2 3", "4 2\n1 2 3", "4 1\n1 2", "x y\n1 2 3", "MARKOV 2 2 2 0"):
        assert not maxcut.sniff(text.encode()), text
