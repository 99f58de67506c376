"""The WCSP format: files by hand, round trips, toulbar2 on what is written, malformed files, real models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from format_models import NUMBERS, Example, graphs, labellings, read_text, word_prefixes
from format_models import T3 as MODEL
from hypothesis import given
from hypothesis import strategies as st

from benchmark_models import benchmark_path
from mapmrf import formats
from mapmrf.model.graph import FactorGraph, Names

T3 = """t3 3 3 3 1000000
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


def test_costs_are_minus_the_potentials(tmp_path) -> None:
    graph = read_text(tmp_path, T3, "m.wcsp")
    assert graph.scope.tolist() == [0, 1, 2, 1]
    assert formats.read(tmp_path / "m.wcsp", values="cost").value([1, 1, 0]) == -300


def test_constants_forbidden_costs_and_defaults(tmp_path) -> None:
    assert read_text(tmp_path, "c 1 2 2 10  2  0 3 0  0 4 0", "m.wcsp").constant == -7
    assert read_text(tmp_path, "c 1 2 1 10  2  0 3 1 5", "m.wcsp").constant == -5
    assert read_text(tmp_path, "c 1 2 1 10  2  0 10 0", "m.wcsp").constant == -math.inf
    graph = read_text(tmp_path, "m 1 4 1 10  4  1 0 9 3  0 10  1 11  2 0", "m.wcsp")
    assert graph.theta_v.tolist() == [-math.inf, -math.inf, 0, -9]
    graph = read_text(tmp_path, "m 2 3 1 100  2 3  2 0 1 7 3  1 2 4  0 0 1  1 2 5", "m.wcsp")
    assert graph.table(0).tolist() == [[-1, -7, -7], [-7, -7, -5]]


def test_shared_functions_are_shared(tmp_path) -> None:
    text = "m 3 2 4 100  2 2 2  -2 0 1 5 1  0 0 4  2 1 2 5 -1  -1 0 0 1  1 2  2 2 0 5 -1"
    graph = read_text(tmp_path, text, "m.wcsp")
    assert graph.n_factors == 3 and graph.n_tables == 1
    assert graph.table(2).tolist() == [[-4, -5], [-5, -5]]
    assert graph.theta_v.tolist() == [0, -2, 0, 0, 0, 0]


def test_tables_of_other_shapes_are_not_shared(tmp_path) -> None:
    table = np.arange(6.0)
    graph = FactorGraph.from_tables([2, 3], [(0, 1), (1, 0)], [table, table])
    assert graph.n_tables == 2
    formats.write(graph, tmp_path / "m.wcsp")
    again = formats.read(tmp_path / "m.wcsp")
    for x in labellings(graph):
        assert again.value(x) == graph.value(x)


# -- round trips ------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 10**6))
def test_whole_costs_have_a_plain_name(tmp_path_factory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("wcsp")
    costs = np.random.default_rng(seed).integers(0, 50, size=(2, 3)).astype(float)
    formats.write(FactorGraph.from_energies([2, 3], [(0, 1)], [costs]), folder / "m.wcsp")
    assert (folder / "m.wcsp").read_text().startswith("mapmrf 2 3 ")


def test_names_and_digits_that_are_lost_are_said(tmp_path, caplog) -> None:
    graph = FactorGraph.from_tables([2], [(0,)], [[0.0, math.pi]], names=Names(("a",), (("x", "y"),)))
    formats.write(graph, tmp_path / "m.wcsp")
    assert len(caplog.records) == 1
    assert "names of 1 variables and their states are dropped" in caplog.text
    assert "rounded, by at most 5e-15" in caplog.text


# -- what is wrong ----------------------------------------------------------------------------------------------------

ZOO = {
    "empty": ("", ["empty"]),
    "only a name": ("t3", ["number of variables", "ends after 1 tokens"]),
    "a word": (T3.replace("700", "seven"), ["line 9, token 31", "'seven'", "a number"]),
    "global function": (
        "m 2 2 1 10  2 2  2 0 1 -1 sregular var 5",
        ["token 12", "'sregular'", "without a table", "tuples", "salldiff"],
    ),
    "arithmetic function": ("m 2 2 1 10\n2 2\n2 0 1 -1 >= 1 0", ["line 3", "'>='", "without a table"]),
    "interval": ("m 2 2 0 10  2 -5", ["domain of variable 1", "'-5'", "no interval"]),
    "no state": ("m 2 2 0 10  2 0", ["domain of variable 1", "'0'"]),
    "domains cut off": ("m 3 2 0 10  2 2", ["domains", "3 of them"]),
    "too many states": ("m 1 2 0 10  99999999999", ["states", "at most"]),
    "half a bound": ("m 1 2 0 10.5 2", ["upper bound", "'10.5'"]),
    "nan as a bound": ("m 1 2 0 nan 2", ["upper bound", "'nan'"]),
    "too many functions": ("m 1 2 1000000000 10 2 1 0 0 0", ["number of functions is 1000000000"]),
    "arity": ("m 1 2 1 10  2  0.5 0 0 0", ["arity of function 0", "'0.5'"]),
    "huge arity": ("m 1 2 1 10  2  1e18 0 0 0", ["arity of function 0", "'1e18'"]),
    "function cut off": ("m 2 2 1 10  2 2  2 0 1", ["function 0", "2 variables, a default"]),
    "variable": ("m 1 2 1 10  2  1 1 0 0", ["scope of function 0", "token 8", "'1'", "0 to 0"]),
    "no variable at all": ("m 0 0 1 10  1 0 0 0", ["scope of function 0", "no variables"]),
    "variable twice": ("m 2 2 1 10  2 2  2 0 0 0 0", ["factor 0", "variable 0", "twice"]),
    "number of tuples": ("m 1 2 1 10  2  1 0 0 0.5", ["number of tuples of function 0", "'0.5'"]),
    "tuples cut off": (T3[:-10], ["function 2", "5 tuples, of which 4"]),
    "state": ("m 1 2 1 10  2  1 0 0 1  2 5", ["tuple of factor 0", "token 11", "'2'", "0 to 1"]),
    "half a state": ("m 1 2 1 10  2  1 0 0 1  0.5 5", ["tuple of factor 0", "'0.5'"]),
    "half a cost": ("m 1 2 1 10  2  1 0 0 1  0 0.5", ["cost of a tuple", "'0.5'", "whole cost"]),
    "negative cost": ("m 1 2 1 10  2  1 0 0 1  0 -5", ["cost of a tuple", "'-5'"]),
    "negative default": ("m 1 2 1 10  2  1 0 -5 1  0 5", ["default cost", "'-5'"]),
    "infinite cost": ("m 1 2 1 10  2  1 0 0 1  0 inf", ["cost of a tuple", "'inf'"]),
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
            "wregular 2 1": "cost function without a table",
            "salldiff lin 2": "cannot read its parameters 'lin 2'",
            "salldiff var x": "cannot read its parameters 'var x'",
            "sgcc var 2 1 0 0 1": "cannot read its parameters",
            "knapsackp 3 1 7 2 0 0 0": "has no state 7",
        }.items()
    },
    "variable twice in a list": (
        f"m 30 2 1 100 {'2 ' * 30} 30 0 {' '.join(map(str, range(29)))} 7 0",
        ["factor 0: variable 0 occurs twice in its scope"],
    ),
    "more": (T3 + "7", ["after the last function", "'7'", "end of the file"]),
}

CONTRACT = {
    "wcsp": Example(
        "m.wcsp",
        T3,
        graphs,
        {None: 1e9, "cost": 1e9},
        lambda *x: 1000 * (MODEL.value(x) - 1.5),
        others="costs",
        variants=[lambda text: " ".join(text.split()).replace("1000000", "1000000\r\n")],
        malformed=ZOO,
        cuts=word_prefixes(T3),
        start="m 2 2 ",
        tokens=(*NUMBERS, "-2"),
        real={"other/scen06.wcsp.xz": (100, 1222)},
    )
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
