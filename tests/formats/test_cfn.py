"""The CFN format: files by hand, round trips, toulbar2 on what is written, malformed files, a real model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from format_models import T3 as MODEL
from format_models import Example, again, graphs, prefixes, read_text
from hypothesis import given
from hypothesis import strategies as st

from benchmark_models import benchmark
from mapmrf.formats import cfn
from mapmrf.model.graph import FactorGraph, Names

T3 = """{problem: {name: t3, mustbe: "<1000.000"},
 variables: {x0: 2, x1: [red green blue], x2: 2},
 functions: {
  f0: {scope: [x0], costs: [0.500 0.000]},
  f1: {scope: [x0 x1], costs: [0.200 0.500 0.400 0.700 0.000 0.300]},
  f2: {scope: [x2 x1], costs: [0.600 0.300 0.800 0.000 inf 0.500]}
 }
}
"""
HEAD = '{problem: {name: m, mustbe: "%s"}, variables: {a: 2, b: [u v w]}, functions: {%s}}'


def test_names_are_read(tmp_path) -> None:
    graph = read_text(tmp_path, T3, "m.cfn")
    assert graph.names == Names(("x0", "x1", "x2"), (("0", "1"), ("red", "green", "blue"), ("0", "1")))
    assert graph.scope.tolist() == [0, 1, 2, 1]


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


def test_tuples_with_a_default(tmp_path) -> None:
    graph = read_text(
        tmp_path, HEAD % ("<10.0", "f: {scope: [a b], defaultcost: 2.5, costs: [0 u 1.5, 1 w 0.5, 1 2 0.25]}"), "m.cfn"
    )
    assert graph.table(0).tolist() == [[-1.5, -2.5, -2.5], [-2.5, -2.5, -0.25]]
    text = HEAD % ("<10.0", "{scope: [], defaultcost: 2.5, costs: []} {scope: [a] defaultcost 1 costs []}")
    graph = read_text(tmp_path, text, "m.cfn")
    assert graph.constant == -2.5 and graph.theta_v[:2].tolist() == [-1, -1]


def test_maximising(tmp_path) -> None:
    graph = read_text(
        tmp_path, HEAD % (">-5.0", "{scope: [a], costs: [1.5 -2]} {scope: [b], costs: [inf 1 2]}"), "m.cfn"
    )
    assert graph.theta_v.tolist() == [1.5, -2, -math.inf, 1, 2]


def test_costs_with_which_no_total_stays_below_the_bound_are_forbidden(tmp_path) -> None:
    graph = read_text(tmp_path, HEAD % ("<10.0", "{scope: [a], costs: [10 9.9]}"), "m.cfn")
    assert graph.theta_v[:2].tolist() == [-math.inf, -9.9]
    # The other function may make up for 3 of it.
    graph = read_text(
        tmp_path, HEAD % ("<10.0", "{scope: [a], costs: [12.9 13]} {scope: [b], costs: [-3 0 1]}"), "m.cfn"
    )
    assert graph.theta_v.tolist() == [-12.9, -math.inf, 3, 0, -1]
    graph = read_text(tmp_path, HEAD % (">4.0", "{scope: [a], costs: [2 1]} {scope: [b], costs: [1 2 3]}"), "m.cfn")
    assert graph.theta_v.tolist() == [2, -math.inf, -math.inf, -math.inf, 3]


@pytest.mark.parametrize("later", [True, False])
def test_shared_functions_are_shared(tmp_path, later) -> None:
    table = "g: {scope: [a b], costs: [1 2 3 4 5 6]}"
    user = "h: {scope: [a b], costs: g}"
    graph = read_text(tmp_path, HEAD % ("<100.0", f"{user}, {table}" if later else f"{table} {user}"), "m.cfn")
    assert (graph.n_factors, graph.n_tables) == (2, 1)
    assert graph.table(1).tolist() == [[-1, -2, -3], [-4, -5, -6]]


# -- round trips ------------------------------------------------------------------------------------------------------


NAMES = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(["x1", "x0", "a b", "1a", "inf", "é", "a"])


@given(data=st.data())
def test_names_are_kept_or_said_to_be_replaced(data: st.DataObject) -> None:
    card = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    variables = tuple(data.draw(st.lists(NAMES, min_size=len(card), max_size=len(card))))
    states = tuple(tuple(data.draw(st.lists(NAMES, min_size=r, max_size=r))) for r in card)
    tables = [np.arange(float(r)) for r in card]
    graph = FactorGraph.from_tables(card, [(i,) for i in range(len(card))], tables, names=Names(variables, states))
    read = again(graph, "m.cfn")
    assert np.array_equal(read.theta_v, graph.theta_v)
    assert len(set(read.names.variables)) == len(card)
    kept = read.names.variables == variables
    assert kept == (not any("variables are replaced" in text and "states" not in text for text in cfn.losses(graph)))
    if not cfn.losses(graph):
        numbers = tuple(tuple(map(str, range(r))) for r in card)
        assert (read.names.states or numbers) == states


# -- what is wrong ----------------------------------------------------------------------------------------------------

ZOO = {
    "empty": ("", ["start of the file", "ends in line 1"]),
    "no bracket": ("problem", ["start of the file", "'problem'"]),
    "another part": ("{variables: {}}", ["part 'problem'", "'variables'"]),
    "no bound": ("{problem: {name: m}, variables: {}, functions: {}}", ["'mustbe'"]),
    "a bound without a direction": (HEAD % ("10", ""), ["mustbe (line 1)", "'10'", "'<' or '>'"]),
    "interval": (T3.replace("x0: 2", "x0: -9"), ["domain of variable 'x0' (line 2)", "'-9'", "no interval"]),
    "no value": (T3.replace("x0: 2", "x0: 0"), ["domain of variable 'x0'", "'0'"]),
    "empty domain": (T3.replace("x0: 2", "x0: []"), ["domain of variable 'x0'", "0 values"]),
    "value twice": (T3.replace("green", "red"), ["domain of variable 'x1'", "another name"]),
    "too many values": (T3.replace("x0: 2", "x0: 99999999999"), ["states", "at most"]),
    "variable twice": (T3.replace("x2: 2", "x0: 2"), ["name of a variable", "'x0'", "no other variable"]),
    "unknown variable": (T3.replace("[x0 x1]", "[x0 y]"), ["scope of function 'f1' (line 5)", "'y'", "0 to 2"]),
    "unknown index": (T3.replace("[x0 x1]", "[0 3]"), ["scope of function 'f1'", "'3'"]),
    "variable twice in a scope": (T3.replace("[x2 x1]", "[x0 x0]").replace("inf 0.500", ""), ["factor 2", "twice"]),
    "function twice": (T3.replace("f1", "f0"), ["name of a function", "'f0'"]),
    "too few costs": (
        T3.replace("0.500 0.000", "0.500"),
        ["costs of function 'f0' (line 4)", "1 words", "2 numbers"],
    ),
    "a word as a cost": (T3.replace("0.700", "dear"), ["costs of function 'f1' (line 5)", "'dear'", "numbers"]),
    "nan": (T3.replace("0.700", "nan"), ["costs of function 'f1'", "nan"]),
    "infinite reward": (T3.replace("inf", "-inf"), ["costs of function 'f2'", "-inf"]),
    "no costs": (T3.replace(", costs: [0.500 0.000]", ""), ["function 'f0'", "'scope' and 'costs'"]),
    "costs before the scope": (HEAD % ("<9", "f: {costs: [1 2] scope: [a]}"), ["function 'f'", "'costs'"]),
    "unknown key": (HEAD % ("<9", "f: {scope: [a] colour: red}"), ["function 'f'", "'colour'"]),
    "global": (
        HEAD % ("<9", "f: {scope: [a b] type: sregular params: {metric: var cost: 3}}"),
        ["function 'f'", "'sregular'", "global", "salldiff"],
    ),
    "default that is none": (HEAD % ("<9", "f: {scope: [a] defaultcost: x costs: []}"), ["default of function 'f'"]),
    "half a tuple": (
        HEAD % ("<9", "f: {scope: [a] defaultcost: 1 costs: [0 1 1]}"),
        ["costs of function 'f'", "3 words"],
    ),
    "tuple cost": (
        HEAD % ("<9", "f: {scope: [a] defaultcost: 1 costs: [0 x]}"),
        ["costs of function 'f'", "not a number"],
    ),
    "tuple value": (HEAD % ("<9", "f: {scope: [b] defaultcost: 1 costs: [x 1]}"), ["'x'", "a value of variable 'b'"]),
    "tuple index": (HEAD % ("<9", "f: {scope: [b] defaultcost: 1 costs: [3 1]}"), ["'3'", "a value of variable 'b'"]),
    "brackets in costs": (
        HEAD % ("<9", "f: {scope: [a] costs: [[1 2]]}"),
        ["costs of function 'f'", "without brackets"],
    ),
    "costs of nobody": (HEAD % ("<9", "f: {scope: [a] costs: g}"), ["function 0", "'g'"]),
    "costs of itself": (HEAD % ("<9", "f: {scope: [a] costs: f}"), ["function 0", "'f'"]),
    "costs of another shape": (
        HEAD % ("<9", "f: {scope: [a] costs: g} g: {scope: [b] costs: [1 2 3]}"),
        ["function 0", "[2] values", "[3]", "'g'"],
    ),
    "an open quote": (T3.replace('.000"}', ".000}"), ["mustbe (line 1)"]),
    "more": (T3 + " x", ["after the last bracket (line 9)", "'x'"]),
    "numbers too far apart": (
        '{problem: {name: m, mustbe: "<inf"}, variables: {'
        + " ".join(f"v{i}: 2" for i in range(20))
        + "}, functions: {f: {scope: ["
        + " ".join(map(str, range(20)))
        + "] defaultcost: 1.7e308 costs: ["
        + "1 " * 20
        + "-1.7e308]}}}",
        ["factor 0: its numbers differ by more than a float can hold"],
    ),
    "no end": (T3.rstrip()[:-1], ["end of the file", "ends in line 8"]),
}

CONTRACT = {
    "cfn": Example(
        "m.cfn",
        T3,
        graphs,
        {None: 1e6, "cost": 1e6},
        lambda *x: MODEL.value(x) - 1.5,
        others="costs",
        variants=RELAXED,
        malformed=ZOO,
        unfit={"too large": ([2], [(0,)], [[0.0, -1e17]], ["1e+17"])},
        cuts=prefixes(T3),
        start=HEAD.replace("}}", "") % ("<9", ""),
        tokens=[*"{}[]ab", "scope", "costs", "0", "1", '"', "defaultcost", "inf"],
        real={"other/1aho.cfn.gz": (64, 544)},
    )
}


@pytest.mark.data
def test_names_of_a_real_model_are_kept() -> None:
    graph = benchmark("other/1aho.cfn.gz")
    assert graph.names.states[1][:2] == ("K0", "K1")
    assert cfn.losses(graph) == []
