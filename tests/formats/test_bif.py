"""The Bayesian Interchange Format: files by hand, round trips of random networks, malformed files, pgmpy's networks."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import numpy as np
import pytest
from format_models import NO_NETWORKS, PROBABILITIES, Example, networks, prefixes, read_text

from mapmrf import formats
from mapmrf.formats import bif
from mapmrf.model.graph import FactorGraph, Names

TOY = """network toy { }
variable A { type discrete [ 2 ] { a0, a1 }; }
variable B { type discrete [ 3 ] { b0, b1, b2 }; }
variable C { type discrete [ 2 ] { c0, c1 }; }
probability ( A ) {
  table 0.25, 0.75;
}
probability ( B ) {
  table 0.2, 0.3, 0.5;
}
probability ( C | A, B ) {
  (a0, b0) 0.01, 0.99;
  (a0, b1) 0.02, 0.98;
  (a0, b2) 0.03, 0.97;
  (a1, b0) 0.04, 0.96;
  (a1, b1) 0.05, 0.95;
  (a1, b2) 0.06, 0.94;
}
"""
ROWS = TOY[TOY.index("  (a0, b0)") : TOY.rindex("}")]


def toy(x: int, y: int, z: int) -> float:
    """The log probability of a labelling of TOY."""
    c0 = 0.01 * (1 + y + 3 * x)
    return math.log([0.25, 0.75][x] * [0.2, 0.3, 0.5][y] * (1 - c0 if z else c0))


def test_names_are_read(tmp_path) -> None:
    graph = read_text(tmp_path, TOY, "m.bif")
    assert graph.names == Names(("A", "B", "C"), (("a0", "a1"), ("b0", "b1", "b2"), ("c0", "c1")))
    assert graph.scope.tolist() == [0, 1, 2]
    assert graph.condition({"B": "b2"}).value([0, 1, 0]) == -math.inf


VARIANTS = [
    lambda s: s.replace(",", " ").replace("|", " "),
    lambda s: s.replace("\n", " "),
    lambda s: s.replace("\n", "\r\n"),
    lambda s: s.replace(" { ", "{").replace(" }", "}").replace("[ ", "[").replace(" ]", "]"),
    lambda s: s.replace("a0", '"a0"').replace("B", '"B"'),
    lambda s: '// a comment with a " and a {\n' + s.replace("table", "/* more ; \n of it */ table"),
    lambda s: s.replace("{ }", '{ property author = "A. U; Thor"; property x y z; }'),
    lambda s: s.replace("table", 'property it is 5" tall;\n table').replace("c1 };", "c1 }; property a b;"),
    lambda s: s.replace("0.25", "2.5e-1").replace("0.5;", ".5;"),
    lambda s: s.replace(ROWS, "table 0.01 0.02 0.03 0.04 0.05 0.06, 0.99 0.98 0.97 0.96 0.95 0.94;"),
    lambda s: s.replace("  (a1, b2) 0.06, 0.94;\n", "").replace("  (a0, b0)", "  default 0.06, 0.94;\n (a0, b0)"),
    lambda s: s.replace(ROWS, "".join(reversed(ROWS.splitlines(keepends=True)))),
    lambda s: s.replace("network toy { }", ""),
    lambda s: "\ufeff" + s,
]


def test_names_with_odd_characters(tmp_path) -> None:
    text = TOY.replace("a0", "<5.5%").replace("a1", '">= 5, (or) more"').replace("B", "B-b.1_x")
    graph = read_text(tmp_path, text, "m.bif")
    assert graph.names.states[0] == ("<5.5%", ">= 5, (or) more") and graph.names.variables[1] == "B-b.1_x"
    assert graph.value([1, 2, 0]) == pytest.approx(toy(1, 2, 0))
    formats.write(graph, tmp_path / "again.bif")
    assert formats.read(tmp_path / "again.bif").names == graph.names


def test_a_file_in_latin_1(tmp_path) -> None:
    (tmp_path / "m.bif").write_bytes(TOY.replace("a0", "é").encode("latin-1"))
    assert formats.read(tmp_path / "m.bif").names.states[0][0] == "é"


def test_zero_is_forbidden(tmp_path) -> None:
    graph = read_text(tmp_path, TOY.replace("0.25, 0.75", "0, 1"), "m.bif")
    assert graph.value([0, 0, 0]) == -math.inf and graph.theta_v[1] == 0


def test_rows_that_do_not_sum_to_1_are_reported(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        graph = read_text(
            tmp_path, TOY.replace("0.03, 0.97", "0.03, 0.90").replace("0.04, 0.96", "0.04, 0.90"), "m.bif"
        )
    assert "do not sum to 1: 2, the first of 'C'" in caplog.text
    assert math.exp(graph.table(0)[0, 2, 1]) == pytest.approx(0.90)


# -- writing ----------------------------------------------------------------------------------------------------------


def test_names_that_cannot_be_written_are_said(tmp_path, caplog) -> None:
    names = Names(("a", 'with "quotes"', "a"), (("x", "x"), ("y", "z"), ("u", "v")))
    graph = FactorGraph.from_tables([2] * 3, [(0,), (1,), (2,)], [np.log([0.5, 0.5])] * 3, names=names)
    formats.write(graph, tmp_path / "m.bif")
    read = formats.read(tmp_path / "m.bif").names
    assert read == Names(("a", "x1", "x2"), (("s0", "s1"), ("y", "z"), ("u", "v")))
    assert bif.losses(graph) == [
        "the names of 2 variables are replaced",
        "the names of the states of 1 variables are replaced",
    ]
    assert len(caplog.records) == 1 and "names of 2 variables" in caplog.text


# -- what is wrong ----------------------------------------------------------------------------------------------------

ZOO = {
    "empty": ("", ["empty"]),
    "only a comment": ("/* nothing", ["empty"]),
    "another word": ("graph x { }", ["start of a block (line 1)", "'graph'", "'network'"]),
    "no bracket": (TOY.replace("variable A {", "variable A"), ["variable 'A' (line 2)", "'type'", "'{'"]),
    "no type": (TOY.replace("type discrete [ 2 ] { a0, a1 };", ""), ["variable 'A'", "'type'"]),
    "continuous": (TOY.replace("type discrete [ 2 ] { a0", "type real [ 2 ] { a0"), ["type of variable 'A'", "'real'"]),
    "half a state": (TOY.replace("[ 3 ]", "[ 1.5 ]"), ["number of states of variable 'B'", "'1.5'"]),
    "another number of states": (TOY.replace("[ 3 ]", "[ 4 ]"), ["states of variable 'B'", "3 different", "4"]),
    "state twice": (TOY.replace("a0, a1", "a0, a0"), ["states of variable 'A'", "1 different"]),
    "variable twice": (TOY.replace("variable B", "variable A"), ["variable 'A' (line 3)", "no other variable"]),
    "unknown variable": (TOY.replace("| A, B", "| A, D"), ["probability (line 11)", "'D'"]),
    "child as a parent": (TOY.replace("| A, B", "| A, C"), ["probability", "'C'", "each once"]),
    "probability twice": (TOY.replace("( B )", "( A )"), ["probability (line 8)", "'A'", "has none yet"]),
    "probability of nothing": (TOY.replace("( B )", "( )"), ["probability (line 8)"]),
    "probability before the variable": ("probability ( A ) { table 1; }", ["probability", "'A'"]),
    "too few numbers": (TOY.replace("0.2, 0.3, 0.5", "0.2, 0.8"), ["probability of 'B' (line 9)", "2 words", "3"]),
    "a word": (TOY.replace("0.3", "some"), ["probability of 'B'", "'some'"]),
    "underscore": (TOY.replace("0.3", "0_3"), ["probability of 'B'", "'0_3'"]),
    "negative": (TOY.replace("0.3", "-0.3"), ["probability of 'B'", "'-0.3'", "at least 0"]),
    "nan": (TOY.replace("0.3", "nan"), ["probability of 'B'", "'nan'"]),
    "infinite": (TOY.replace("0.3", "inf"), ["probability of 'B'", "'inf'"]),
    "unknown state": (TOY.replace("(a1, b1)", "(a1, b7)"), ["probability of 'C' (line 16)", "'b7'", "b0 b1 b2"]),
    "too few parents": (TOY.replace("(a1, b1)", "(a1)"), ["probability of 'C'", "1 states", "2 parents"]),
    "row twice": (TOY.replace("(a1, b1)", "(a1, b0)"), ["probability of 'C'", "row 3 again"]),
    "row missing": (TOY.replace("  (a1, b1) 0.05, 0.95;\n", ""), ["probability of 'C'", "no row 4", "default"]),
    "table twice": (
        TOY.replace("table 0.25, 0.75;", "table 0.25, 0.75; table 1 0;"),
        ["probability of 'A'", "'table'"],
    ),
    "no probabilities": (TOY[: TOY.index("probability ( C")], ["no probabilities of variable 'C'"]),
    "property without an end": (TOY.replace("{ }", "{ property x }").replace(";", " "), ["property"]),
    "open quote": (TOY.replace("( A )", '( "A )'), ["probability (line 5)", "closed"]),
    "wrong bracket": (TOY.replace("( A )", "( A }"), ["probability (line 5)", "'}'"]),
    "huge table": (
        "".join(f"variable V{i} {{ type discrete [ 2 ] {{ a b }}; }}\n" for i in range(40))
        + f"probability ( {' '.join(f'V{i}' for i in range(40))} ) {{ default 0.5 0.5; }}",
        ["1.1e+12 entries", "at most"],
    ),
}

CONTRACT = {
    "bif": Example(
        "m.bif",
        TOY,
        networks,
        PROBABILITIES,
        toy,
        others="probabilities",
        variants=VARIANTS,
        malformed=ZOO,
        unfit=NO_NETWORKS,
        cuts=prefixes(TOY, TOY.index("variable A") + 1),  # before that it is a network of no variables
        start="variable A { type discrete [2] { a0 a1 }; } probability ( A ) { ",
        tokens=[*"{}()[];|,", '"', "A", "a0", "a1", "table", "default", "property", "1", "0.5"],
    )
}


# -- pgmpy ------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of pgmpy's own
@pytest.mark.parametrize("name", ["asia", "survey", "sachs", "child", "alarm", "insurance"])
def test_the_networks_of_pgmpy(tmp_path, name) -> None:
    """Both read the same file; every table must be the same, entry by entry."""
    pytest.importorskip("pgmpy")
    import pgmpy.utils
    from pgmpy.readwrite import BIFReader, XMLBIFReader

    source = Path(pgmpy.utils.__file__).parent / "example_models" / f"{name}.bif.gz"
    if not source.is_file():
        pytest.skip(f"this pgmpy has no {source.name}")
    graph = formats.read(source)
    (tmp_path / "plain.bif").write_bytes(formats.files.read_bytes(source))
    check_against_pgmpy(graph, BIFReader(str(tmp_path / "plain.bif")))
    formats.write(graph, tmp_path / "ours.bif")
    check_against_pgmpy(graph, BIFReader(str(tmp_path / "ours.bif")))
    formats.write(graph, tmp_path / "ours.xml")
    check_against_pgmpy(graph, XMLBIFReader(str(tmp_path / "ours.xml")))


def check_against_pgmpy(graph: FactorGraph, reader: object) -> None:
    random = np.random.default_rng(0)
    tables = [cpd.to_factor() for cpd in reader.get_model().get_cpds()]  # type: ignore[attr-defined]
    assert len(tables) == graph.n_vars
    for _ in range(50):
        x = random.integers(0, graph.card)
        state = {n: s[k] for n, s, k in zip(graph.names.variables, graph.names.states, x, strict=True)}
        product = math.prod(float(t.get_value(**{v: state[v] for v in t.variables})) for t in tables)
        assert math.exp(graph.value(x)) == pytest.approx(product, rel=1e-9, abs=1e-300)
