"""XMLBIF: files by hand, round trips of random networks, malformed files."""

from __future__ import annotations

from format_models import NO_NETWORKS, PROBABILITIES, Example, networks, prefixes, read_text
from hypothesis import given
from hypothesis import strategies as st
from test_bif import TOY as TOY_BIF
from test_bif import toy

from mapmrf import formats
from mapmrf.model.graph import FactorGraph, Names

TOY = """<?xml version="1.0"?>
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


def test_names_are_those_of_the_same_network_in_bif_and_are_escaped(tmp_path) -> None:
    assert read_text(tmp_path, TOY, "m").names == read_text(tmp_path, TOY_BIF, "m.bif").names
    names = Names(("a<b & c", 'with "quotes"'), (("<", ">"), ("]]>", "é")))
    table = [-0.6931471805599453] * 2
    graph = FactorGraph.from_tables([2, 2], [(0,), (1,)], [table, table], names=names)
    formats.write(graph, tmp_path / "m.xml")
    assert formats.read(tmp_path / "m.xml").names == names


VARIANTS = [
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


@given(words=st.lists(st.text(max_size=5), min_size=1, max_size=3))
def test_any_name_can_be_written(tmp_path_factory, words: list[str]) -> None:
    path = tmp_path_factory.mktemp("names") / "m.xml"
    table = [-0.6931471805599453] * 2
    names = Names(tuple(words), tuple((word, word + "'") for word in words))
    n = len(words)
    graph = FactorGraph.from_tables([2] * n, [(i,) for i in range(n)], [table] * n, names=names)
    for name in (path, path.with_suffix(".bif"), path.with_suffix(".cfn")):
        formats.write(graph, name)
        read = formats.read(name)
        assert len(set(read.names.variables)) == n
        lost = formats._format_of(name).losses(graph)
        if not any("replaced" in text for text in lost):
            assert read.names.variables == names.variables


ZOO = {
    "empty": ("", ["not XML"]),
    "no XML": ("network", ["not XML", "line 1"]),
    "cut off": (TOY[:300], ["not XML", "line"]),
    "another root": ("<HTML><NETWORK/></HTML>", ["<HTML>", "<BIF>"]),
    "no network": ("<BIF/>", ["0 networks"]),
    "two networks": ("<BIF><NETWORK/><NETWORK/></BIF>", ["2 networks"]),
    "no name": (TOY.replace("<NAME>A</NAME>", ""), ["variable 0", "name"]),
    "variable twice": (TOY.replace("<NAME>B</NAME>", "<NAME>A</NAME>"), ["variable 1", "'A'"]),
    "decision": (TOY.replace("nature", "decision", 1), ["variable 'A'", "'decision'", "'nature'"]),
    "no outcome": (
        TOY.replace("<OUTCOME>a0</OUTCOME><OUTCOME>a1</OUTCOME>", ""),
        ["variable 'A'", "0 different outcomes"],
    ),
    "outcome twice": (TOY.replace("a1", "a0"), ["variable 'A'", "1 different outcomes of 2"]),
    "no child": (TOY.replace("<FOR>A</FOR>", ""), ["<FOR>", "0 elements"]),
    "unknown child": (TOY.replace("<FOR>A</FOR>", "<FOR>D</FOR>"), ["definition of 'D'", "'D'"]),
    "unknown parent": (TOY.replace("<GIVEN>A", "<GIVEN>D"), ["definition of 'C'", "'D'"]),
    "parent twice": (TOY.replace("<GIVEN>A", "<GIVEN>B"), ["definition of 'C'", "'B'", "each once"]),
    "definition twice": (TOY.replace("<FOR>B</FOR><TABLE>0.2 0.3 0.5", "<FOR>A</FOR><TABLE>0.5 0.5"), ["two", "'A'"]),
    "no definition": (
        TOY.replace("<DEFINITION><FOR>A</FOR><TABLE>0.25 0.75</TABLE></DEFINITION>", ""),
        ["no probabilities of variable 'A'"],
    ),
    "no table": (TOY.replace("<TABLE>0.25 0.75</TABLE>", ""), ["definition of 'A'", "<TABLE>"]),
    "too few numbers": (TOY.replace("0.25 0.75", "0.25"), ["definition of 'A'", "found 1", "2 numbers"]),
    "a word": (TOY.replace("0.25 0.75", "0.25 rest"), ["definition of 'A'", "something else", "2 numbers"]),
    "negative": (TOY.replace("0.25 0.75", "0.25 -1"), ["definition of 'A', entry 1", "-1.0"]),
    "nan": (TOY.replace("0.25 0.75", "nan 1"), ["definition of 'A', entry 0", "nan"]),
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
    "unknown encoding": ('<?xml version="1.0" encoding="nonsense"?>' + TOY[21:], ["XML"]),
}

CONTRACT = {
    "xmlbif": Example(
        "m.xml",
        TOY,
        networks,
        PROBABILITIES,
        toy,
        others="probabilities",
        variants=VARIANTS,
        malformed=ZOO,
        unfit=NO_NETWORKS,
        cuts=prefixes(TOY)[::3],
        start="<?xml ",
        tokens=["?>", "<BIF>", "</BIF>", "<NETWORK>", "</NETWORK>", "<VARIABLE>", "<!--", "&", "0.5", "A"],
        aliases=("m.bifxml", "m.xmlbif"),
    )
}
