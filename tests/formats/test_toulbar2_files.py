"""The formats of toulbar2, .wcsp and .cfn: costs, global functions, toulbar2 on what is written, malformed files."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from format_models import NUMBERS, T3, Example, again, graphs, labellings, prefixes, read_text, word_prefixes
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, benchmark_path
from constrained_recipes import random_constraint
from mapmrf import FactorGraph, FormatError, Names, constraints, formats
from mapmrf.formats import cfn
from refusals import refuses
from strategies import brute_force, random_recipe
from toulbar2_runs import toulbar2

both_formats = pytest.mark.parametrize("suffix", [".wcsp", ".cfn"])

WCSP_T3 = """t3 3 3 3 1000000
2 3 2
1 0 0 1
0 500
2 0 1 0 5
0 0 200
0 1 500
0 2 400
1 0 700
1 2 300
2 2 1 0 5
0 0 600
0 1 300
0 2 800
1 1 1000000
1 2 500
"""
CFN_T3 = """{problem: {name: t3, mustbe: "<1000.000"},
 variables: {x0: 2, x1: [red green blue], x2: 2},
 functions: {
  f0: {scope: [x0], costs: [0.500 0.000]},
  f1: {scope: [x0 x1], costs: [0.200 0.500 0.400 0.700 0.000 0.300]},
  f2: {scope: [x2 x1], costs: [0.600 0.300 0.800 0.000 inf 0.500]}
 }
}
"""
HEAD = '{problem: {name: m, mustbe: "%s"}, variables: {a: 2, b: [u v w]}, functions: {%s}}'


# -- costs ------------------------------------------------------------------------------------------------------------


def wcsp(folder: Path, text: str) -> FactorGraph:
    return read_text(folder, text, "m.wcsp")


def cfn_of(folder: Path, bound: str, functions: str) -> FactorGraph:
    """A CFN of the variables a and b, with two and three states."""
    return read_text(folder, HEAD % (bound, functions), "m.cfn")


def test_constants_forbidden_costs_and_defaults(tmp_path) -> None:
    assert wcsp(tmp_path, "c 1 2 2 10  2  0 3 0  0 4 0").constant == -7
    assert wcsp(tmp_path, "c 1 2 1 10  2  0 3 1 5").constant == -5
    assert wcsp(tmp_path, "c 1 2 1 10  2  0 10 0").constant == -math.inf
    graph = wcsp(tmp_path, "m 1 4 1 10  4  1 0 9 3  0 10  1 11  2 0")
    assert graph.theta_v.tolist() == [-math.inf, -math.inf, 0, -9]
    graph = wcsp(tmp_path, "m 2 3 1 100  2 3  2 0 1 7 3  1 2 4  0 0 1  1 2 5")
    assert graph.table(0).tolist() == [[-1, -7, -7], [-7, -7, -5]]


def test_shared_functions_are_shared(tmp_path) -> None:
    text = "m 3 2 4 100  2 2 2  -2 0 1 5 1  0 0 4  2 1 2 5 -1  -1 0 0 1  1 2  2 2 0 5 -1"
    graph = wcsp(tmp_path, text)
    assert graph.n_factors == 3 and graph.n_tables == 1
    assert graph.table(2).tolist() == [[-4, -5], [-5, -5]]
    assert graph.theta_v.tolist() == [0, -2, 0, 0, 0, 0]


def test_names_are_read(tmp_path) -> None:
    graph = read_text(tmp_path, CFN_T3, "m.cfn")
    assert graph.names == Names(("x0", "x1", "x2"), (("0", "1"), ("red", "green", "blue"), ("0", "1")))
    assert graph.scope.tolist() == [0, 1, 2, 1] == read_text(tmp_path, WCSP_T3, "m.wcsp").scope.tolist()


def test_tuples_with_a_default(tmp_path) -> None:
    graph = cfn_of(tmp_path, "<10.00", "f: {scope: [a b], defaultcost: 2.5, costs: [0 u 1.5, 1 w 0.5, 1 2 0.25]}")
    assert graph.table(0).tolist() == [[-1.5, -2.5, -2.5], [-2.5, -2.5, -0.25]]
    graph = cfn_of(tmp_path, "<10.0", "{scope: [], defaultcost: 2.59, costs: []} {scope: [a] defaultcost 1 costs []}")
    assert graph.constant == -2.5 and graph.theta_v[:2].tolist() == [-1, -1]


def test_maximising(tmp_path) -> None:
    graph = cfn_of(tmp_path, ">-5.0", "{scope: [a], costs: [1.5 -2]} {scope: [b], costs: [inf 1 2]}")
    assert graph.theta_v.tolist() == [1.5, -2, -math.inf, 1, 2]


def test_costs_with_which_no_total_stays_below_the_bound_are_forbidden(tmp_path) -> None:
    graph = cfn_of(tmp_path, "<10.0", "{scope: [a], costs: [10 9.9]}")
    assert graph.theta_v[:2].tolist() == [-math.inf, -9.9]
    # The other function may make up for 3 of it.
    graph = cfn_of(tmp_path, "<10.0", "{scope: [a], costs: [12.9 13]} {scope: [b], costs: [-3 0 1]}")
    assert graph.theta_v.tolist() == [-12.9, -math.inf, 3, 0, -1]
    graph = cfn_of(tmp_path, ">4.0", "{scope: [a], costs: [2 1]} {scope: [b], costs: [1 2 3]}")
    assert graph.theta_v.tolist() == [2, -math.inf, -math.inf, -math.inf, 3]


@pytest.mark.parametrize("later", [True, False])
def test_functions_of_a_cfn_share_the_costs_of_another(tmp_path, later) -> None:
    table = "g: {scope: [a b], costs: [1 2 3 4 5 6]}"
    user = "h: {scope: [a b], costs: g}"
    graph = cfn_of(tmp_path, "<100.0", f"{user}, {table}" if later else f"{table} {user}")
    assert (graph.n_factors, graph.n_tables) == (2, 1)
    assert graph.table(1).tolist() == [[-1, -2, -3], [-4, -5, -6]]


@given(seed=st.integers(0, 10**6))
def test_whole_costs_have_a_plain_name(tmp_path_factory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("wcsp")
    costs = np.random.default_rng(seed).integers(0, 50, size=(2, 3)).astype(float)
    formats.write(FactorGraph.from_energies([2, 3], [(0, 1)], [costs]), folder / "m.wcsp")
    assert (folder / "m.wcsp").read_text().startswith("mapmrf 2 3 ")


# -- functions without tables -----------------------------------------------------------------------------------------


def assert_toulbar2_agrees(cases: list[tuple[FactorGraph, Path]]) -> None:
    """The labels that toulbar2 finds in a file, without auxiliary variables, are the best of the model."""
    for (graph, path), found in zip(cases, toulbar2([path for _, path in cases]), strict=True):
        optimum = max(graph.value(labels) for labels in labellings(graph))
        assert (found is None) == (optimum == -math.inf), path
        assert found is None or graph.value(np.array(found[0][: graph.n_vars])) == pytest.approx(optimum), path


def random_hard(seed: int) -> FactorGraph:
    random = np.random.default_rng([seed, 4])
    card = random.integers(2, 4, 5).tolist()
    graph = FactorGraph.from_tables(
        card, [(i,) for i in range(5)], [random.integers(-5, 5, r).astype(float) for r in card]
    )
    kinds = ["at_most_k", "linear", "or_with_output", "exactly_one", "real", "at_least_one"]
    stated = [random_constraint(random, card, kinds[(seed + n) % 6], soft=False) for n in range(2)]
    return graph.with_constraints([*stated, constraints.all_different([0, 1, 2])] if min(card[:3]) > 2 else stated)


def all_different() -> FactorGraph:
    gains = np.random.default_rng(3).integers(0, 9, (5, 5)).astype(float)
    graph = FactorGraph.from_tables([5] * 5, [(i,) for i in range(5)], list(gains))
    return graph.with_constraints([constraints.all_different(range(5))])


@both_formats
def test_hard_constraints_survive_there_and_back_and_are_those_of_toulbar2(tmp_path: Path, suffix: str) -> None:
    cases = [(random_hard(seed), tmp_path / f"{seed}{suffix}") for seed in range(12)]
    cases.append((all_different(), tmp_path / f"different{suffix}"))
    for graph, path in cases:
        mapmrf.write(graph, path)
        again = mapmrf.read(path)
        for labels in labellings(graph):
            assert again.value(labels) == pytest.approx(graph.value(labels))
    assert_toulbar2_agrees([*cases[:6], cases[-1]])


def random_soft(seed: int) -> FactorGraph:
    """Soft constraints, a parity and an automaton beside a hard one."""
    random = np.random.default_rng([seed, 5])
    card = random.integers(2, 4, 4).tolist()
    kinds = ["at_most_k", "linear", "or_with_output", "all_different", "real", "label_cost"]
    stated = [random_constraint(random, card, kinds[(seed + n) % 6], soft=True) for n in range(2)]
    priced = [dataclasses.replace(each, penalty=float(random.integers(1, 9))) for each in stated]
    names = Names(tuple("abcd"), tuple(tuple(f"s{k}" for k in range(r)) for r in card))
    graph = FactorGraph.from_tables(card, [(0,)], [random.integers(-5, 5, card[0]).astype(float)], names=names)
    return graph.with_constraints(
        [
            *priced,
            constraints.xor([(0, 0), (1, 0), (2, 1)]),
            constraints.regular([3, 1], [(0, 0, 0), (0, 1, 1, -2.0), (1, 0, 0), (0, 0, 1, 1.0)]),
            constraints.at_most_one([(0, 1), (3, 1)]),
        ]
    )


@both_formats
def test_soft_constraints_and_parities_are_written_as_tables(tmp_path: Path, suffix: str, caplog) -> None:
    cases = [(random_soft(seed), tmp_path / f"{seed}{suffix}") for seed in range(6)]
    caplog.set_level("INFO", logger="mapmrf")
    for graph, path in cases:
        caplog.clear()
        mapmrf.write(graph, path)
        assert "4 constraints with a penalty, parities or automata are written as tables" in caplog.text
        again = mapmrf.read(path)
        assert again.constraints is not None
        assert again.names is None or again.names.variables[:4] == ("a", "b", "c", "d")
        best: dict[tuple[int, ...], float] = {}
        for labels in labellings(again):
            best[labels[:4]] = max(best.get(labels[:4], -math.inf), again.value(labels))
        for mine, value in best.items():
            assert value == pytest.approx(graph.value(np.array(mine)))
    assert_toulbar2_agrees(cases)


def test_sums_with_too_many_values_are_told(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=40).tolist()
    graph = FactorGraph.from_tables([2] * 40, [], [])
    graph = graph.with_constraints([constraints.linear(range(40), weights, upper=0.5, penalty=1.0)])
    for suffix in (".wcsp", ".cfn"):
        with pytest.raises(FormatError, match=r"written as tables: constraint 0 \(linear\)"):
            mapmrf.write(graph, tmp_path / f"model{suffix}")
        assert not (tmp_path / f"model{suffix}").exists()


@pytest.mark.parametrize("suffix", [".uai", ".bif", ".h5", ".lg"])
def test_formats_without_constraints_refuse_them(tmp_path: Path, suffix: str) -> None:
    if suffix == ".h5":
        pytest.importorskip("h5py")
    graph = FactorGraph.from_tables([2, 2], [], []).with_constraints([constraints.xor([0, 1])])
    told = "the format has no constraints, and the model has 1, the first: xor; convert --tables"
    refuses(FormatError, told, mapmrf.write, graph, tmp_path / f"model{suffix}")


# -- files as toulbar2 reads them -------------------------------------------------------------------------------------


@both_formats
def test_toulbar2_reads_what_is_written(tmp_path: Path, suffix: str) -> None:
    cases = []
    for seed in range(24):
        recipe = random_recipe(seed, 2 + seed % 5, seed % 9, hard=0.0 if seed % 3 else 0.3, max_arity=3)
        recipe.tables = [np.round(table, 3) if seed % 2 else table for table in recipe.tables]
        cases.append((recipe.graph(), tmp_path / f"{seed}{suffix}"))
        formats.write(*cases[-1])
    for (graph, path), found in zip(cases, toulbar2([path for _, path in cases]), strict=True):
        best, _ = brute_force(graph)
        if found is None:
            assert best == -math.inf
            continue
        at, cost = found
        name = path.read_text().split()[0]
        decimals, offset = (int(part.split("=")[1]) for part in name.split(":")[1:]) if ":" in name else (0, 0)
        assert graph.value(at) == pytest.approx(best, abs=1e-9)
        assert (offset - cost) / 10.0**decimals == pytest.approx(best, abs=1e-9)


BY_HAND = [
    (".wcsp", WCSP_T3),
    (".wcsp", "m 3 2 3 10  2 2 2  -2 0 1 5 1  1 1 2  2 1 2 5 -1  1 0 0 1  1 3"),
    (".wcsp", "m 1 2 2 10  2  1 0 0 3  0 3  1 4  0 7  0 2 1 1"),
    (".wcsp", "m 2 2 1 10  2 2  2 0 1 10 1  1 1 9"),
    (".cfn", CFN_T3),
    (".cfn", HEAD % ("<10.00", "{scope: [a], costs: [12.9 13]} {scope: [b], costs: [-3 0 1]}")),
    (".cfn", HEAD % (">5.00", "{scope: [a b], costs: [2.0 4 1 3 5 6]} {scope: [b], costs: [2 3 inf]}")),
    (".cfn", HEAD % ("<10.00", "f: {scope: [b a], costs: g} g: {scope: [b a], costs: [1 2 3 0 4 5]}")),
    (".cfn", HEAD % ("<10.00", "{scope: [b], defaultcost: 3, costs: [v 0.25]}")),
    (".cfn", HEAD % ("<10.00", "{scope: [], costs: [-3.5]}")),
]


def test_toulbar2_reads_files_by_hand_as_we_do(tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}{suffix}" for k, (suffix, _) in enumerate(BY_HAND)]
    for path, (_, text) in zip(paths, BY_HAND, strict=True):
        path.write_text(text)
    for path, found in zip(paths, toulbar2(paths), strict=True):
        graph = formats.read(path)
        assert found is not None
        sign = 1.0 if 'mustbe: ">' in path.read_text() else -1.0
        assert sign * found[1] == pytest.approx(graph.value(found[0]))
        assert graph.value(found[0]) == pytest.approx(brute_force(graph)[0])


@both_formats
def test_written_tables_are_shared(tmp_path: Path, suffix: str) -> None:
    table = np.array([[0.0, -1.0], [-1.0, 0.0]])
    chain = FactorGraph.from_tables([2] * 5, [(i, i + 1) for i in range(4)], [table] * 4)
    formats.write(chain, tmp_path / f"m{suffix}")
    text = (tmp_path / f"m{suffix}").read_text()
    if suffix == ".wcsp":  # the header, four functions, and the two tuples of the first
        assert text.count("\n") == 2 + 4 + 2
    else:
        assert text.count("costs: f3") == 3 and text.count("costs: [") == 1
    assert formats.read(tmp_path / f"m{suffix}").n_tables == 1


@both_formats
@given(costs=st.lists(st.integers(-1000, 1000), min_size=12, max_size=12), digits=st.integers(0, 9))
def test_decimal_costs_are_kept_to_the_last_digit(suffix: str, costs: list[int], digits: int) -> None:
    table = np.array(costs) / 10.0**digits
    table = -np.abs(table) if suffix == ".wcsp" else table  # others are shifted, and then rounded once more
    graph = FactorGraph.from_tables([3, 4], [(1, 0)], [table])
    read = again(graph, f"m{suffix}")
    assert np.array_equal(read.theta_t, graph.theta_t) and read.constant == 0


# -- the contract -----------------------------------------------------------------------------------------------------

RELAXED = [
    lambda s: s.replace(",", " ").replace(":", " "),
    lambda s: s.replace("[", "{").replace("]", "}"),
    lambda s: s.replace("\n", "\r\n"),
    lambda s: s.replace("f0", '"f0"').replace("scope", '"scope"').replace(" ", ", "),
    lambda s: "# a comment {\n" + s.replace("\n ", "\n# another ]]\n "),
    lambda s: s.replace("f1:", "").replace("f2:", ""),
    lambda s: s.replace("[x0 x1]", "[0 1]").replace("x2 x1", "2, x1"),
    lambda s: " ".join(s.split()),
]
WCSP_ZOO = {
    "empty": ("", ["empty"]),
    "only a name": ("t3", ["number of variables", "ends after 1 tokens"]),
    "a word": (WCSP_T3.replace("700", "seven"), ["line 9, token 31", "'seven'", "a number"]),
    "another function": (
        "m 2 2 1 10  2 2  2 0 1 -1 sregulars var 5",
        ["token 12", "'sregulars'", "without a table", "tuples", "such as sregular"],
    ),
    "function cut off in its parameters": ("m 2 2 1 10\n2 2\n2 0 1 -1 >= 1", ["function 0", "the end of the file"]),
    "numbers beside functions": ("m 2 2 2 10\n2 2\n2 0 1 -1 >= 1 0\n1 0 0 1 0 -3", ["cost of a tuple (line 4", "'-3'"]),
    "more after functions": ("m 2 2 1 10 2 2 2 0 1 -1 >= 1 0 7", ["after the last function", "token 15", "'7'"]),
    "domains cut off": ("m 3 2 0 10  2 2", ["domains", "3 of them"]),
    "too many states": ("m 1 2 0 10  99999999999", ["states", "at most"]),
    "half a bound": ("m 1 2 0 10.5 2", ["upper bound", "'10.5'"]),
    "too many functions": ("m 1 2 1000000000 10 2 1 0 0 0", ["number of functions is 1000000000"]),
    "arity": ("m 1 2 1 10  2  0.5 0 0 0", ["arity of function 0", "'0.5'"]),
    "function cut off": ("m 2 2 1 10  2 2  2 0 1", ["function 0", "2 variables, a default"]),
    "variable": ("m 1 2 1 10  2  1 1 0 0", ["scope of function 0", "token 8", "'1'", "0 to 0"]),
    "no variable at all": ("m 0 0 1 10  1 0 0 0", ["scope of function 0", "no variables"]),
    "variable twice": ("m 2 2 1 10  2 2  2 0 0 0 0", ["factor 0", "variable 0", "twice"]),
    "number of tuples": ("m 1 2 1 10  2  1 0 0 0.5", ["number of tuples of function 0", "'0.5'"]),
    "tuples cut off": (WCSP_T3[:-10], ["function 2", "5 tuples, of which 4"]),
    "state": ("m 1 2 1 10  2  1 0 0 1  2 5", ["tuple of factor 0", "token 11", "'2'", "0 to 1"]),
    "negative cost": ("m 1 2 1 10  2  1 0 0 1  0 -5", ["cost of a tuple", "'-5'"]),
    "negative default": ("m 1 2 1 10  2  1 0 -5 1  0 5", ["default cost", "'-5'"]),
    "unknown shared table": ("m 1 2 1 10  2  1 0 0 -1", ["number of tuples of function 0", "'-1'"]),
    "shared table of a later function": (
        "m 1 2 2 10  2  1 0 0 -1  -1 0 0 0",
        ["number of tuples of function 0", "'-1'"],
    ),
    "shared table of another shape": (
        "m 2 3 2 10  2 3  -1 0 0 0  1 1 0 -1",
        ["function 1", "[3] states", "[2] states"],
    ),
    "two constants in one": ("m 1 2 1 10  2  0 3 2 4 5", ["number of tuples of function 0", "'2'", "0 or 1"]),
    **{
        f"function {function}": (f"m 4 3 1 9  3 3 3 3  4 0 1 2 3 -1 {function}", [said])
        for function, said in {
            "wregular 2 1 5 0 1 0 0 0": "cannot read its parameters",
            "wamong soft 2 1 1 0 1": "cannot read its parameters 'soft 2 1 0 1'",
            "wsum lin 2 =< 3": "cannot read its parameters",
            "alldiff 0 1 2 5": "costs of values that a search has moved into the function",
            "wcsp 0 1 0 0 inner 2 2 0 9 2 2": "found a network of 2 variables",
            "salldiff lin 2": "cannot read its parameters 'lin 2'",
            "salldiff var x": "cannot read its parameters 'var x'",
            "sgcc lin 2 1 0 0 1": "cannot read its parameters",
            "knapsackp 3 1 7 2 0 0 0": "has no state 7",
        }.items()
    },
    "variable twice in a list": (
        f"m 30 2 1 100 {'2 ' * 30} 30 0 {' '.join(map(str, range(29)))} 7 0",
        ["factor 0: variable 0 occurs twice in its scope"],
    ),
    "more": (WCSP_T3 + "7", ["after the last function", "'7'", "end of the file"]),
}


def function(text: str) -> str:
    """A CFN with the function f."""
    return HEAD % ("<9", f"f: {{{text}}}")


CFN_ZOO = {
    "empty": ("", ["start of the file", "ends in line 1"]),
    "no bracket": ("problem", ["start of the file", "'problem'"]),
    "another part": ("{variables: {}}", ["part 'problem'", "'variables'"]),
    "no bound": ("{problem: {name: m}, variables: {}, functions: {}}", ["'mustbe'"]),
    "a bound without a direction": (HEAD % ("10", ""), ["mustbe (line 1)", "'10'", "'<' or '>'"]),
    "no value": (CFN_T3.replace("x0: 2", "x0: 0"), ["domain of variable 'x0'", "'0'"]),
    "empty domain": (CFN_T3.replace("x0: 2", "x0: []"), ["domain of variable 'x0'", "0 values"]),
    "value twice": (CFN_T3.replace("green", "red"), ["domain of variable 'x1'", "another name"]),
    "too many values": (CFN_T3.replace("x0: 2", "x0: 99999999999"), ["states", "at most"]),
    "variable twice": (CFN_T3.replace("x2: 2", "x0: 2"), ["name of a variable", "'x0'", "no other variable"]),
    "unknown variable": (CFN_T3.replace("[x0 x1]", "[x0 y]"), ["scope of function 'f1' (line 5)", "'y'", "0 to 2"]),
    "unknown index": (CFN_T3.replace("[x0 x1]", "[0 3]"), ["scope of function 'f1'", "'3'"]),
    "variable twice in a scope": (CFN_T3.replace("[x2 x1]", "[x0 x0]").replace("inf 0.500", ""), ["factor 2", "twice"]),
    "too few costs": (
        CFN_T3.replace("0.500 0.000", "0.500"),
        ["costs of function 'f0' (line 4)", "1 words", "2 numbers"],
    ),
    "a word as a cost": (CFN_T3.replace("0.700", "dear"), ["costs of function 'f1' (line 5)", "'dear'", "numbers"]),
    "nan": (CFN_T3.replace("0.700", "nan"), ["costs of function 'f1'", "nan"]),
    "infinite reward": (CFN_T3.replace("inf", "-inf"), ["costs of function 'f2'", "-inf"]),
    "no costs": (CFN_T3.replace(", costs: [0.500 0.000]", ""), ["function 'f0'", "'scope' and 'costs'"]),
    "costs before the scope": (function("costs: [1 2] scope: [a]"), ["function 'f'", "'costs'"]),
    "unknown key": (function("scope: [a] colour: red"), ["function 'f'", "'colour'"]),
    "another global": (
        function("scope: [a b] type: regular params: {}"),
        ["'f'", "'regular'", "global", "such as wregular"],
    ),
    "no parameters": (
        function("scope: [a b] type: sregular params: {metric: var cost: 3}"),
        ["function 'f': cannot read its parameters 'var 3'"],
    ),
    "default that is none": (function("scope: [a] defaultcost: x costs: []"), ["default of function 'f'"]),
    "half a tuple": (function("scope: [a] defaultcost: 1 costs: [0 1 1]"), ["costs of function 'f'", "3 words"]),
    "tuple cost": (function("scope: [a] defaultcost: 1 costs: [0 x]"), ["costs of function 'f'", "not a number"]),
    "tuple value": (function("scope: [b] defaultcost: 1 costs: [x 1]"), ["'x'", "a value of variable 'b'"]),
    "tuple index": (function("scope: [b] defaultcost: 1 costs: [3 1]"), ["'3'", "a value of variable 'b'"]),
    "brackets in costs": (function("scope: [a] costs: [[1 2]]"), ["costs of function 'f'", "without brackets"]),
    "costs of nobody": (function("scope: [a] costs: g"), ["function 0", "'g'"]),
    "costs of itself": (function("scope: [a] costs: f"), ["function 0", "'f'"]),
    "costs of another shape": (
        function("scope: [a] costs: g} g: {scope: [b] costs: [1 2 3]"),
        ["function 0", "[2] values", "[3]", "'g'"],
    ),
    "an open quote": (CFN_T3.replace('.000"}', ".000}"), ["mustbe (line 1)"]),
    "more": (CFN_T3 + " x", ["after the last bracket (line 9)", "'x'"]),
    "no end": (CFN_T3.rstrip()[:-1], ["end of the file", "ends in line 8"]),
}
CONTRACT = {
    "wcsp": Example(
        "m.wcsp",
        WCSP_T3,
        graphs,
        {None: 1e9, "cost": 1e9},
        lambda *x: 1000 * (T3.value(x) - 1.5),
        others="costs",
        variants=[lambda text: " ".join(text.split()).replace("1000000", "1000000\r\n")],
        malformed=WCSP_ZOO,
        cuts=word_prefixes(WCSP_T3),
        start="m 2 2 ",
        tokens=(*NUMBERS, "-2"),
        real={"other/scen06.wcsp.xz": (100, 1222)},
    ),
    "cfn": Example(
        "m.cfn",
        CFN_T3,
        graphs,
        {None: 1e6, "cost": 1e6},
        lambda *x: T3.value(x) - 1.5,
        others="costs",
        variants=RELAXED,
        malformed=CFN_ZOO,
        unfit={"too large": ([2], [(0,)], [[0.0, -1e17]], ["1e+17"])},
        cuts=prefixes(CFN_T3),
        start=HEAD.replace("}}", "") % ("<9", ""),
        tokens=[*"{}[]ab", "scope", "costs", "0", "1", '"', "defaultcost", "inf"],
        real={"other/1aho.cfn.gz": (64, 544)},
    ),
}


# -- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_a_real_model_is_what_its_uai_file_says() -> None:
    ours, uai = formats.read(benchmark_path("other/404.wcsp.xz")), formats.read(benchmark_path("other/404.wcsp.uai.gz"))
    assert np.array_equal(ours.card, uai.card)
    assert np.array_equal(ours.scope, uai.scope)
    # That file has costs in another unit, and a least probability for what is forbidden.
    soft = ours.theta_v < 0
    scale = (uai.theta_v[soft] / ours.theta_v[soft]).mean()
    assert np.allclose(uai.theta_v, scale * ours.theta_v, rtol=1e-5)
    hard = ours.theta_t == -math.inf
    assert np.array_equal(hard, np.isclose(uai.theta_t, math.log(1e-4)))
    assert np.all(uai.theta_t[~hard] == 0) and np.all(ours.theta_t[~hard] == 0)


@pytest.mark.data
def test_names_of_a_real_model_are_kept() -> None:
    graph = benchmark("other/1aho.cfn.gz")
    assert graph.names.states[1][:2] == ("K0", "K1")
    assert cfn.losses(graph) == []
