"""The Bayesian Interchange Format: files by hand, round trips of random networks, malformed files, pgmpy's networks."""

from __future__ import annotations

import itertools
import logging
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import formats
from mapmrf.errors import FormatError, MapMRFError
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


def read(tmp_path: Path, text: str, name: str = "m.bif") -> FactorGraph:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return formats.read(path)


def labels(graph: FactorGraph) -> list[tuple[int, ...]]:
    return list(itertools.product(*map(range, graph.card.tolist())))


def is_toy(graph: FactorGraph) -> bool:
    a, b = [0.25, 0.75], [0.2, 0.3, 0.5]
    for x, y, z in labels(graph):
        c0 = 0.01 * (1 + y + 3 * x)
        if not math.isclose(math.exp(graph.value([x, y, z])), a[x] * b[y] * (1 - c0 if z else c0), rel_tol=1e-12):
            return False
    return True


def test_reads_a_file_by_hand(tmp_path) -> None:
    graph = read(tmp_path, TOY)
    assert graph.names == Names(("A", "B", "C"), (("a0", "a1"), ("b0", "b1", "b2"), ("c0", "c1")))
    assert graph.scope.tolist() == [0, 1, 2]
    assert is_toy(graph)
    assert graph.condition({"B": "b2"}).value([0, 1, 0]) == -math.inf


@pytest.mark.parametrize(
    "change",
    [
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
    ],
)
def test_all_that_the_format_allows(tmp_path, change) -> None:
    graph = read(tmp_path, change(TOY))
    assert is_toy(graph)
    assert graph.names == read(tmp_path, TOY).names


def test_names_with_odd_characters(tmp_path) -> None:
    text = TOY.replace("a0", "<5.5%").replace("a1", '">= 5, (or) more"').replace("B", "B-b.1_x")
    graph = read(tmp_path, text)
    assert graph.names.states[0] == ("<5.5%", ">= 5, (or) more") and graph.names.variables[1] == "B-b.1_x"
    assert is_toy(graph)
    formats.write(graph, tmp_path / "again.bif")
    assert formats.read(tmp_path / "again.bif").names == graph.names


def test_a_file_in_latin_1(tmp_path) -> None:
    (tmp_path / "m.bif").write_bytes(TOY.replace("a0", "é").encode("latin-1"))
    assert formats.read(tmp_path / "m.bif").names.states[0][0] == "é"


def test_a_file_without_a_suffix_is_recognised(tmp_path) -> None:
    assert is_toy(read(tmp_path, TOY, "toy"))


def test_zero_is_forbidden(tmp_path) -> None:
    graph = read(tmp_path, TOY.replace("0.25, 0.75", "0, 1"))
    assert graph.value([0, 0, 0]) == -math.inf and graph.theta_v[1] == 0


def test_rows_that_do_not_sum_to_1_are_reported(tmp_path, caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="mapmrf"):
        graph = read(tmp_path, TOY.replace("0.03, 0.97", "0.03, 0.90").replace("0.04, 0.96", "0.04, 0.90"))
    assert "do not sum to 1: 2, the first of 'C'" in caplog.text
    assert math.exp(graph.table(0)[0, 2, 1]) == pytest.approx(0.90)


# -- writing ----------------------------------------------------------------------------------------------------------


@st.composite
def networks(draw: st.DrawFn) -> FactorGraph:
    """Random networks: any order of the variables in a scope, zeros, deterministic tables, with and without names."""
    card = draw(st.lists(st.integers(1, 4), max_size=6))
    order = draw(st.permutations(range(len(card))))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scopes, tables = [], []
    for k, child in enumerate(order):
        parents = [i for i in order[:k] if draw(st.booleans())][:3]
        table = random.dirichlet(np.ones(card[child]), size=[card[i] for i in parents])
        if draw(st.booleans()):
            table = np.eye(card[child])[random.integers(0, card[child], size=[card[i] for i in parents])]
        scope = [*parents, child]
        axes = draw(st.permutations(range(len(scope))))
        scopes.append([scope[j] for j in axes])
        with np.errstate(divide="ignore"):
            tables.append(np.log(table.transpose(axes)))
    names = Names(tuple(f"V{i}" for i in range(len(card))), tuple(tuple(f"v{k}" for k in range(r)) for r in card))
    return FactorGraph.from_tables(card, scopes, tables, names=names if draw(st.booleans()) else None)


def check_round_trip(graph: FactorGraph, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("network")
    formats.write(graph, folder / name)
    assert [path.name for path in folder.iterdir()] == [name]
    read = formats.read(folder / name)
    assert np.array_equal(read.card, graph.card)
    assert read.n_factors == graph.n_factors
    if graph.names is not None:
        assert read.names == graph.names
    for x in labels(graph)[:300]:
        assert read.value(x) == pytest.approx(graph.value(x), abs=1e-9)


@pytest.mark.parametrize("name", ["m.bif", "m.bif.gz"])
@given(graph=networks())
def test_round_trip(tmp_path_factory, name: str, graph: FactorGraph) -> None:
    check_round_trip(graph, name, tmp_path_factory)


NO_NETWORKS = {
    "a constant": ([2], [(), (0,)], [[1.0], np.log([0.5, 0.5])], "constant of 1"),
    "potentials": ([2], [(0,)], [[0.0, 1.0]], "variable 0 is not the child of a factor, and its potentials sum to 3.7"),
    "a variable alone": ([2], [], [], "variable 0 is not the child of a factor"),
    "a table of no variable": ([2, 2], [(0, 1)], [np.log([0.1, 0.2, 0.3, 0.4])], "factor 0 is not the conditional"),
    "two tables of one variable": (
        [2, 2],
        [(0, 1), (0, 1), (0,)],
        [np.log(np.full(4, 0.5)), np.log(np.full(4, 0.5)), np.log([0.5, 0.5])],
        "factor 0 is not",
    ),
    "evidence": (
        [2, 2],
        [(0,), (0, 1), (1,)],
        [np.log([0.5, 0.5]), np.log([0.1, 0.9, 0.2, 0.8]), [0.0, -math.inf]],
        "factor 0 is not",
    ),
    "a cycle": (
        [2, 2],
        [(0, 1), (1, 0)],
        [np.log([0.1, 0.9, 0.2, 0.8]), np.log([0.3, 0.7, 0.4, 0.6])],
        "factor 0 is not",
    ),
    "forbidden": ([2, 2], [(0, 1)], [[-math.inf] * 4], "factor 0 is not"),
    "too large": ([2, 2], [(0, 1)], [[800.0, 0, 0, 0]], "factor 0 is not"),
}


@pytest.mark.parametrize("name", ["m.bif", "m.xml"])
@pytest.mark.parametrize("kind", NO_NETWORKS)
def test_a_graph_that_is_no_network_is_refused(tmp_path, error_of, kind, name) -> None:
    card, scopes, tables, part = NO_NETWORKS[kind]
    path = tmp_path / name
    message = error_of(path, formats.write, FactorGraph.from_tables(card, scopes, tables), path)
    assert "not a Bayesian network" in message and part in message
    assert not path.exists()


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


@pytest.mark.parametrize("kind", ZOO)
def test_malformed(tmp_path, error_of, kind) -> None:
    text, parts = ZOO[kind]
    path = tmp_path / "bad.bif"
    path.write_text(text)
    message = error_of(path, formats.read, path)
    for part in parts:
        assert part in message, message


def test_every_cut_is_an_error(tmp_path) -> None:
    path = tmp_path / "cut.bif"
    for end in range(TOY.index("variable A") + 1, len(TOY.rstrip())):  # before that it is a network of no variables
        path.write_text(TOY[:end])
        with pytest.raises(FormatError):
            formats.read(path)


def test_other_values_are_refused(tmp_path, error_of) -> None:
    graph = read(tmp_path, TOY)
    path = tmp_path / "m.bif"
    assert "probabilities" in error_of(path, formats.read, path, values="log")
    assert "probabilities" in error_of(path, formats.write, graph, path, values="cost")


@given(
    words=st.lists(st.sampled_from([*"{}()[];|,", '"', "A", "a0", "a1", "table", "default", "property", "1", "0.5"]))
)
def test_random_words_are_an_error_or_a_model(tmp_path_factory, words: list[str]) -> None:
    path = tmp_path_factory.mktemp("words") / "m.bif"
    path.write_text("variable A { type discrete [2] { a0 a1 }; } probability ( A ) { " + " ".join(words))
    try:
        formats.read(path)
    except MapMRFError as error:
        assert str(path) in str(error) and "\n" not in str(error)


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
