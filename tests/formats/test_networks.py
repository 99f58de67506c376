"""Bayesian networks, .bif, .xml and .erg: files by hand, names, malformed files, pgmpy's networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_models import NO_NETWORKS, PROBABILITIES, Example, networks, prefixes, read_text

from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.formats import bif
from mapmrf.formats.evidence import read_evidence
from mapmrf.model.graph import FactorGraph, Names
from refusals import refuses

BIF = """network toy { }
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
ROWS = BIF[BIF.index("  (a0, b0)") : BIF.rindex("}")]
XML = """<?xml version="1.0"?>
<BIF VERSION="0.3">
<NETWORK>
<NAME>toy</NAME>
<VARIABLE TYPE="nature"><NAME>A</NAME><OUTCOME>a0</OUTCOME><OUTCOME>a1</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>B</NAME><OUTCOME>b0</OUTCOME><OUTCOME>b1</OUTCOME><OUTCOME>b2</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>C</NAME><OUTCOME>c0</OUTCOME><OUTCOME>c1</OUTCOME></VARIABLE>
<DEFINITION><FOR>A</FOR><TABLE>0.25 0.75</TABLE></DEFINITION>
<DEFINITION><FOR>B</FOR><TABLE>0.2 0.3 0.5</TABLE></DEFINITION>
<DEFINITION><FOR>C</FOR><GIVEN>A</GIVEN><GIVEN>B</GIVEN>
<TABLE>0.01 0.99 0.02 0.98 0.03 0.97 0.04 0.96 0.05 0.95 0.06 0.94</TABLE></DEFINITION>
</NETWORK>
</BIF>
"""
ERG = """/* a network
   of three variables */
3
2 3 1   /* cardinalities */
0
2 0 2
0
/* tables */
2
0.25 0.75
6
.1 .2 .7
0.5 0.5 0
1
1
"""
NAMES = "/* Names   */\nrain\nc\nthe grass\n\n/* Labels  */\nno yes\na b #c\nX0000\n"
NAMED = ERG + "\n" + NAMES


def toy(x: int, y: int, z: int) -> float:
    """The log probability of a labelling of BIF and XML."""
    c0 = 0.01 * (1 + y + 3 * x)
    return math.log([0.25, 0.75][x] * [0.2, 0.3, 0.5][y] * (1 - c0 if z else c0))


def worth(x: int, y: int, z: int) -> float:
    chance = [0.25, 0.75][x] * [[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]][x][y]
    return math.log(chance) if chance else -math.inf


def test_names_are_read_in_bif_and_xml_and_with_odd_characters(tmp_path) -> None:
    graph = read_text(tmp_path, BIF, "m.bif")
    assert graph.names == Names(("A", "B", "C"), (("a0", "a1"), ("b0", "b1", "b2"), ("c0", "c1")))
    assert graph.names == read_text(tmp_path, XML, "m").names
    assert graph.scope.tolist() == [0, 1, 2]
    assert graph.condition({"B": "b2"}).value([0, 1, 0]) == -math.inf
    assert read_text(tmp_path, BIF.replace("a0", "é").encode("latin-1"), "m.bif").names.states[0][0] == "é"
    odd = BIF.replace("a0", "<5.5%").replace("a1", '">= 5, (or) more"').replace("B", "B-b.1_x")
    graph = read_text(tmp_path, odd, "m.bif")
    assert graph.names.states[0] == ("<5.5%", ">= 5, (or) more") and graph.names.variables[1] == "B-b.1_x"
    assert graph.value([1, 2, 0]) == pytest.approx(toy(1, 2, 0))
    formats.write(graph, tmp_path / "again.bif")
    assert formats.read(tmp_path / "again.bif").names == graph.names


def test_the_last_parent_runs_faster_than_the_first(tmp_path) -> None:
    rows = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6], [0.5, 0.5], [0.6, 0.4]]
    table = " ".join(f"{p}" for row in rows for p in row)
    graph = read_text(tmp_path, f"3 2 3 2  0 0 2 0 1  2 .5 .5  3 .2 .3 .5  12 {table}", "m.erg")
    assert graph.value([1, 2, 0]) - graph.value([1, 2, 1]) == pytest.approx(math.log(0.6 / 0.4))
    assert graph.value([0, 2, 0]) - graph.value([0, 2, 1]) == pytest.approx(math.log(0.3 / 0.7))


def test_evidence_of_the_same_years_has_comments(tmp_path) -> None:
    graph, path = read_text(tmp_path, NAMED, "m.erg"), tmp_path / "m.erg.evid"
    path.write_text("/* Evidence */\n1 /* number of\n observations */\n 1 2 /* end */\n")
    assert read_evidence(path, graph) == [{1: 2}]
    path.write_text("/* Evidence\n1 1 2\n")
    refuses(FormatError, "line 1: found a comment without an end", read_evidence, path, graph)


SUMS = {
    "m.bif": (BIF.replace("0.03, 0.97", "0.03, 0.90").replace("0.04, 0.96", "0.04, 0.90"), "2, the first of 'C'"),
    "m.erg": (ERG.replace(".1 .2 .7", ".1 .2 .6"), "1, the first in factor 1"),
    "m.uai": ("BAYES 2 2 3 2  1 0  2 0 1  2 .25 .75  6 .1 .2 .7  .3 .3 .41", "1, the first in factor 1"),
    "m.suai": ("SPARSEBAYES 2 2 2 2  1 0  2 0 1  0.5 0  0.5 1  1 1 0.4", "1, the first in factor 1"),
}


@pytest.mark.parametrize("name", SUMS)
def test_rows_that_do_not_sum_to_1_are_reported_and_taken_as_they_are(tmp_path, caplog, name) -> None:
    text, said = SUMS[name]
    graph = read_text(tmp_path, text, name)
    assert f"{name}: rows of conditional probability tables do not sum to 1: {said}" in caplog.text
    if name == "m.uai":
        assert graph.value([1, 2]) == pytest.approx(math.log(0.75 * 0.41))
    caplog.clear()
    whole = {"m.bif": BIF, "m.erg": ERG, "m.uai": text.replace(".41", ".4"), "m.suai": text.replace("0.4", "0.5")}
    read_text(tmp_path, whole[name], name)
    read_text(tmp_path, SUMS["m.uai"][0].replace("BAYES", "MARKOV"), "m.uai")
    assert caplog.text == ""


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


def test_names_of_variables_and_states_follow_the_numbers(tmp_path) -> None:
    graph = read_text(tmp_path, NAMED, "m.erg")
    assert graph.names == Names(("rain", "c", "the grass"), (("no", "yes"), ("a", "b", "#c"), ("X0000",)))
    assert read_text(tmp_path, ERG, "m.erg").names is None
    assert read_text(tmp_path, NAMED.partition("/* Labels")[0], "m.erg").names == Names(("rain", "c", "the grass"))
    unnamed = read_text(tmp_path, ERG + "/* LABELS */\nno yes\na b c\nx\n", "m.erg")
    assert unnamed.names == Names(("x0", "x1", "x2"), (("no", "yes"), ("a", "b", "c"), ("x",)))


def test_ambiguous_names_are_left_out(tmp_path, caplog) -> None:
    assert read_text(tmp_path, NAMED.replace("rain", "c"), "m.erg").names is None
    assert read_text(tmp_path, NAMED.replace("no yes", "no no"), "m.erg").names == Names(("rain", "c", "the grass"))
    assert "two variables have the same name" in caplog.text and "two states of 'rain'" in caplog.text


@pytest.mark.parametrize("name", ["m.erg", "m"])
def test_a_file_may_begin_without_a_comment(tmp_path, name) -> None:
    """As the grids of UAI 2008 do: the first comment comes before the tables."""
    text = "3\n2 2 2\n0\n1    0\n2    0    1\n\n/* Probabilities */\n2\n 0.7 0.3\n\n4\n 0.0 1.0\n 1.0 0.0\n\n"
    text += "8\n" + " 0.25 0.75\n" * 4 + "\n/* Names   */\nV_1_1\nV_1_2\nV_2_1\n\n/* Labels  */\n" + "X0 X1\n" * 3
    graph = read_text(tmp_path, text, name)
    assert graph.names == Names(("V_1_1", "V_1_2", "V_2_1"), (("X0", "X1"),) * 3)
    assert graph.value([0, 1, 1]) == pytest.approx(math.log(0.7 * 0.75))


# -- the contract -----------------------------------------------------------------------------------------------------

BIF_VARIANTS = [
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
XML_VARIANTS = [
    lambda s: s.replace("0.25 0.75", "\n 0.25<!-- half --> 0.75\n"),
    lambda s: s.replace("0.25 0.75", "2.5e-1<!-- no blank around -->7.5e-1"),
    lambda s: s.replace(' TYPE="nature"', ""),
    lambda s: s.replace("<FOR>A", "<PROPERTY>x = 1</PROPERTY><FOR> A "),
    lambda s: s.replace("<BIF", '<BIF xmlns="http://www.cs.ubc.ca/labs/lci/fopi/ve/XMLBIFv0_3"'),
    lambda s: s.replace("<BIF", "<!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> ]>\n<BIF"),
    lambda s: s.replace("\n", "\r\n"),
    lambda s: "\ufeff" + s,
    lambda s: s.replace("<GIVEN>A</GIVEN>", "<!-- first --><GIVEN>A</GIVEN>"),
]
BIF_ZOO = {
    "empty": ("", ["empty"]),
    "only a comment": ("/* nothing", ["empty"]),
    "another word": ("graph x { }", ["start of a block (line 1)", "'graph'", "'network'"]),
    "no bracket": (BIF.replace("variable A {", "variable A"), ["variable 'A' (line 2)", "'type'", "'{'"]),
    "no type": (BIF.replace("type discrete [ 2 ] { a0, a1 };", ""), ["variable 'A'", "'type'"]),
    "continuous": (BIF.replace("type discrete [ 2 ] { a0", "type real [ 2 ] { a0"), ["type of variable 'A'", "'real'"]),
    "half a state": (BIF.replace("[ 3 ]", "[ 1.5 ]"), ["number of states of variable 'B'", "'1.5'"]),
    "another number of states": (BIF.replace("[ 3 ]", "[ 4 ]"), ["states of variable 'B'", "3 different", "4"]),
    "state twice": (BIF.replace("a0, a1", "a0, a0"), ["states of variable 'A'", "1 different"]),
    "variable twice": (BIF.replace("variable B", "variable A"), ["variable 'A' (line 3)", "no other variable"]),
    "unknown variable": (BIF.replace("| A, B", "| A, D"), ["probability (line 11)", "'D'"]),
    "child as a parent": (BIF.replace("| A, B", "| A, C"), ["probability", "'C'", "each once"]),
    "probability twice": (BIF.replace("( B )", "( A )"), ["probability (line 8)", "'A'", "has none yet"]),
    "probability of nothing": (BIF.replace("( B )", "( )"), ["probability (line 8)"]),
    "probability before the variable": ("probability ( A ) { table 1; }", ["probability", "'A'"]),
    "too few numbers": (BIF.replace("0.2, 0.3, 0.5", "0.2, 0.8"), ["probability of 'B' (line 9)", "2 words", "3"]),
    "a word": (BIF.replace("0.3", "some"), ["probability of 'B'", "'some'"]),
    "underscore": (BIF.replace("0.3", "0_3"), ["probability of 'B'", "'0_3'"]),
    "negative": (BIF.replace("0.3", "-0.3"), ["probability of 'B'", "'-0.3'", "at least 0"]),
    "nan": (BIF.replace("0.3", "nan"), ["probability of 'B'", "'nan'"]),
    "unknown state": (BIF.replace("(a1, b1)", "(a1, b7)"), ["probability of 'C' (line 16)", "'b7'", "b0 b1 b2"]),
    "too few parents": (BIF.replace("(a1, b1)", "(a1)"), ["probability of 'C'", "1 states", "2 parents"]),
    "row twice": (BIF.replace("(a1, b1)", "(a1, b0)"), ["probability of 'C'", "row 3 again"]),
    "row missing": (BIF.replace("  (a1, b1) 0.05, 0.95;\n", ""), ["probability of 'C'", "no row 4", "default"]),
    "table twice": (
        BIF.replace("table 0.25, 0.75;", "table 0.25, 0.75; table 1 0;"),
        ["probability of 'A'", "'table'"],
    ),
    "no probabilities": (BIF[: BIF.index("probability ( C")], ["no probabilities of variable 'C'"]),
    "property without an end": (BIF.replace("{ }", "{ property x }").replace(";", " "), ["property"]),
    "open quote": (BIF.replace("( A )", '( "A )'), ["probability (line 5)", "closed"]),
    "wrong bracket": (BIF.replace("( A )", "( A }"), ["probability (line 5)", "'}'"]),
    "huge table": (
        "".join(f"variable V{i} {{ type discrete [ 2 ] {{ a b }}; }}\n" for i in range(40))
        + f"probability ( {' '.join(f'V{i}' for i in range(40))} ) {{ default 0.5 0.5; }}",
        ["1.1e+12 entries", "at most"],
    ),
}
XML_ZOO = {
    "empty": ("", ["not XML"]),
    "no XML": ("network", ["not XML", "line 1"]),
    "cut off": (XML[:300], ["not XML", "line"]),
    "another root": ("<HTML><NETWORK/></HTML>", ["<HTML>", "<BIF>"]),
    "no network": ("<BIF/>", ["0 networks"]),
    "two networks": ("<BIF><NETWORK/><NETWORK/></BIF>", ["2 networks"]),
    "no name": (XML.replace("<NAME>A</NAME>", ""), ["variable 0", "name"]),
    "variable twice": (XML.replace("<NAME>B</NAME>", "<NAME>A</NAME>"), ["variable 1", "'A'"]),
    "decision": (XML.replace("nature", "decision", 1), ["variable 'A'", "'decision'", "'nature'"]),
    "no outcome": (
        XML.replace("<OUTCOME>a0</OUTCOME><OUTCOME>a1</OUTCOME>", ""),
        ["variable 'A'", "0 different outcomes"],
    ),
    "outcome twice": (XML.replace("a1", "a0"), ["variable 'A'", "1 different outcomes of 2"]),
    "no child": (XML.replace("<FOR>A</FOR>", ""), ["<FOR>", "0 elements"]),
    "unknown child": (XML.replace("<FOR>A</FOR>", "<FOR>D</FOR>"), ["definition of 'D'", "'D'"]),
    "unknown parent": (XML.replace("<GIVEN>A", "<GIVEN>D"), ["definition of 'C'", "'D'"]),
    "parent twice": (XML.replace("<GIVEN>A", "<GIVEN>B"), ["definition of 'C'", "'B'", "each once"]),
    "definition twice": (XML.replace("<FOR>B</FOR><TABLE>0.2 0.3 0.5", "<FOR>A</FOR><TABLE>0.5 0.5"), ["two", "'A'"]),
    "no definition": (
        XML.replace("<DEFINITION><FOR>A</FOR><TABLE>0.25 0.75</TABLE></DEFINITION>", ""),
        ["no probabilities of variable 'A'"],
    ),
    "no table": (XML.replace("<TABLE>0.25 0.75</TABLE>", ""), ["definition of 'A'", "<TABLE>"]),
    "too few numbers": (XML.replace("0.25 0.75", "0.25"), ["definition of 'A'", "found 1", "2 numbers"]),
    "a word": (XML.replace("0.25 0.75", "0.25 rest"), ["definition of 'A'", "something else", "2 numbers"]),
    "negative": (XML.replace("0.25 0.75", "0.25 -1"), ["definition of 'A', entry 1", "-1.0"]),
    **{
        f"{encoding} entity {entity}": (
            f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE BIF [<!ENTITY {entity}>]><BIF></BIF>'.encode(
                encoding
            ),
            ["declaration of the entity 'a', expected none"],
        )
        for encoding in ("utf-8", "utf-16")
        for entity in ('a "aa"', 'a SYSTEM "file:///etc/hostname"', '% a SYSTEM "http://localhost/a.dtd"')
    },
    "unknown encoding": ('<?xml version="1.0" encoding="nonsense"?>' + XML[21:], ["XML"]),
}
ERG_ZOO = {
    "empty": ("", ["number of variables", "ends after 0 tokens"]),
    "open comment": ("3 /* 2 2 2", ["line 1", "comment without an end"]),
    "a word": (ERG.replace(" .7", " x"), ["line 12", "'x'", "a number"]),
    "no states": (ERG.replace("2 3 1", "2 0 1"), ["cardinality of variable 1", "line 4", "'0'"]),
    "few cardinalities": ("3 2 3", ["cardinality of variable 2", "ends after 3"]),
    "parent unknown": (ERG.replace("2 0 2", "2 0 3"), ["parents of variable 1", "'3'", "from 0 to 2"]),
    "parent twice": (ERG.replace("2 0 2", "2 0 0"), ["parents of variable 1", "already"]),
    "own parent": (ERG.replace("2 0 2", "2 0 1"), ["parents of variable 1", "line 6", "another variable"]),
    "too many parents": (ERG.replace("2 0 2", "9 0 2"), ["parents of variable 1", "'9'"]),
    "table size": (ERG.replace("\n6\n", "\n5\n"), ["table size of variable 1", "'5'", "6"]),
    "negative": (ERG.replace(" .2", " -.2"), ["table of variable 1, entry 1", "'-.2'"]),
    "cut": (ERG[: ERG.rindex("1\n1\n")], ["table of variable 2", "1 entries, of which 0 are present"]),
    "longer": (ERG + "1", ["after the last table", "the end of the file"]),
    "name missing": (NAMED.replace("rain\n", ""), ["found 2 names, expected one line for each of 3 variables"]),
    "labels missing": (NAMED.replace("no yes\n", ""), ["found labels of 2 variables, expected a line for each of 3"]),
    "label missing": (NAMED.replace("no yes", "no"), ["labels of variable 'rain': found 1, expected 2"]),
    "too many states": (f"2 {2**29} {2**30} 0 0", ["states", "in all"]),
}


def network_example(name: str, text: str, worth: Callable[..., float], **about: Any) -> Example:
    return Example(name, text, networks, PROBABILITIES, worth, others="probabilities", unfit=NO_NETWORKS, **about)


CONTRACT = {
    "bif": network_example(
        "m.bif",
        BIF,
        toy,
        variants=BIF_VARIANTS,
        malformed=BIF_ZOO,
        cuts=prefixes(BIF, BIF.index("variable A") + 1),  # before that it is a network of no variables
        start="variable A { type discrete [2] { a0 a1 }; } probability ( A ) { ",
        tokens=[*"{}()[];|,", '"', "A", "a0", "a1", "table", "default", "property", "1", "0.5"],
    ),
    "xmlbif": network_example(
        "m.xml",
        XML,
        toy,
        variants=XML_VARIANTS,
        malformed=XML_ZOO,
        cuts=prefixes(XML)[::3],
        start="<?xml ",
        tokens=["?>", "<BIF>", "</BIF>", "<NETWORK>", "</NETWORK>", "<VARIABLE>", "<!--", "&", "0.5", "A"],
        aliases=("m.bifxml", "m.xmlbif"),
    ),
    "erg": network_example(
        "m.erg",
        ERG,
        worth,
        malformed=ERG_ZOO,
        cuts=prefixes(ERG),
        start="1 2 0 2 ",
        tokens=["0", "1", "2", "-1", "0.5", "nan", "1e300", "/*", "*/", "\n", "x"],
    ),
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
