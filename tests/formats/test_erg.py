"""Ergo files: a network by hand, round trips, evidence, malformed files."""

from __future__ import annotations

import math

import pytest
from format_models import NO_NETWORKS, PROBABILITIES, Example, networks, prefixes

from mapmrf import formats
from mapmrf.errors import FormatError
from mapmrf.formats.evidence import read_evidence
from mapmrf.model.graph import Names

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


NAMED = (
    ERG
    + """
/* Names   */
rain
c
the grass

/* Labels  */
no yes
a b #c
X0000
"""
)


def worth(x: int, y: int, z: int) -> float:
    chance = [0.25, 0.75][x] * [[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]][x][y]
    return math.log(chance) if chance else -math.inf


def test_the_last_parent_runs_faster_than_the_first(tmp_path) -> None:
    rows = [[0.1, 0.9], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6], [0.5, 0.5], [0.6, 0.4]]
    table = " ".join(f"{p}" for row in rows for p in row)
    (tmp_path / "m.erg").write_text(f"3 2 3 2  0 0 2 0 1  2 .5 .5  3 .2 .3 .5  12 {table}")
    graph = formats.read(tmp_path / "m.erg")
    assert graph.value([1, 2, 0]) - graph.value([1, 2, 1]) == pytest.approx(math.log(0.6 / 0.4))
    assert graph.value([0, 2, 0]) - graph.value([0, 2, 1]) == pytest.approx(math.log(0.3 / 0.7))


def test_evidence_of_the_same_years_has_comments(tmp_path) -> None:
    (tmp_path / "m.erg").write_text(ERG)
    (tmp_path / "m.erg.evid").write_text("1\n 1 2\n")
    graph = formats.read(tmp_path / "m.erg", evidence=tmp_path / "m.erg.evid")
    assert graph.value([0, 2, 0]) == pytest.approx(math.log(0.25 * 0.7))
    assert graph.value([1, 2, 0]) == -math.inf
    (tmp_path / "m.erg").write_text(NAMED)
    (tmp_path / "m.erg.evid").write_text("/* Evidence */\n1 /* number of\n observations */\n 1 2 /* end */\n")
    assert read_evidence(tmp_path / "m.erg.evid", formats.read(tmp_path / "m.erg")) == [{1: 2}]
    (tmp_path / "m.erg.evid").write_text("/* Evidence\n1 1 2\n")
    with pytest.raises(FormatError, match="line 1: found a comment without an end"):
        read_evidence(tmp_path / "m.erg.evid", formats.read(tmp_path / "m.erg"))


def test_rows_that_do_not_sum_to_one_are_reported(tmp_path, caplog) -> None:
    (tmp_path / "m.erg").write_text(ERG.replace(".1 .2 .7", ".1 .2 .6"))
    formats.read(tmp_path / "m.erg")
    assert "do not sum to 1: 1, the first in factor 1" in caplog.text


ZOO = {
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
    "nan": (ERG.replace(" .2", " nan"), ["table of variable 1, entry 1", "'nan'"]),
    "cut": (ERG[: ERG.rindex("1\n1\n")], ["table of variable 2", "1 entries, of which 0 are present"]),
    "longer": (ERG + "1", ["after the last table", "the end of the file"]),
    "name missing": (NAMED.replace("rain\n", ""), ["found 2 names, expected one line for each of 3 variables"]),
    "labels missing": (NAMED.replace("no yes\n", ""), ["found labels of 2 variables, expected a line for each of 3"]),
    "label missing": (NAMED.replace("no yes", "no"), ["labels of variable 'rain': found 1, expected 2"]),
    "huge": ("1 999999999999 0 1 1", ["cardinality of variable 0", "'999999999999'"]),
    "too many states": (f"2 {2**29} {2**30} 0 0", ["states", "in all"]),
}

CONTRACT = {
    "erg": Example(
        "m.erg",
        ERG,
        networks,
        PROBABILITIES,
        worth,
        others="probabilities",
        malformed=ZOO,
        unfit=NO_NETWORKS,
        cuts=prefixes(ERG),
        start="1 2 0 2 ",
        tokens=["0", "1", "2", "-1", "0.5", "nan", "1e300", "/*", "*/", "\n", "x"],
    )
}


def test_names_of_variables_and_states_follow_the_numbers(tmp_path) -> None:
    (tmp_path / "m.erg").write_text(NAMED)
    graph = formats.read(tmp_path / "m.erg")
    assert graph.names == Names(("rain", "c", "the grass"), (("no", "yes"), ("a", "b", "#c"), ("X0000",)))
    (tmp_path / "m.erg").write_text(ERG)
    assert formats.read(tmp_path / "m.erg").names is None
    (tmp_path / "m.erg").write_text(NAMED.partition("/* Labels")[0])
    assert formats.read(tmp_path / "m.erg").names == Names(("rain", "c", "the grass"))
    (tmp_path / "m.erg").write_text(ERG + "/* LABELS */\nno yes\na b c\nx\n")
    assert formats.read(tmp_path / "m.erg").names == Names(("x0", "x1", "x2"), (("no", "yes"), ("a", "b", "c"), ("x",)))


def test_names_are_written_and_read_back(tmp_path, caplog) -> None:
    (tmp_path / "m.erg").write_text(NAMED.replace("the grass", "grass"))
    graph = formats.read(tmp_path / "m.erg")
    formats.write(graph, tmp_path / "again.erg.gz")
    assert formats.read(tmp_path / "again.erg.gz").names == graph.names
    assert caplog.text == ""


def test_ambiguous_names_are_left_out(tmp_path, caplog) -> None:
    (tmp_path / "m.erg").write_text(NAMED.replace("rain", "c"))
    assert formats.read(tmp_path / "m.erg").names is None
    (tmp_path / "m.erg").write_text(NAMED.replace("no yes", "no no"))
    assert formats.read(tmp_path / "m.erg").names == Names(("rain", "c", "the grass"))
    assert "two variables have the same name" in caplog.text and "two states of 'rain'" in caplog.text


@pytest.mark.parametrize("name", ["m.erg", "m"])
def test_a_file_may_begin_without_a_comment(tmp_path, name) -> None:
    """As the grids of UAI 2008 do: the first comment comes before the tables."""
    text = "3\n2 2 2\n0\n1    0\n2    0    1\n\n/* Probabilities */\n2\n 0.7 0.3\n\n4\n 0.0 1.0\n 1.0 0.0\n\n"
    text += "8\n" + " 0.25 0.75\n" * 4 + "\n/* Names   */\nV_1_1\nV_1_2\nV_2_1\n\n/* Labels  */\n" + "X0 X1\n" * 3
    (tmp_path / name).write_text(text)
    graph = formats.read(tmp_path / name)
    assert graph.names == Names(("V_1_1", "V_1_2", "V_2_1"), (("X0", "X1"),) * 3)
    assert graph.value([0, 1, 1]) == pytest.approx(math.log(0.7 * 0.75))
