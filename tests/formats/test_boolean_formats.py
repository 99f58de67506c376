"""Clauses, .cnf and .wcnf, pseudo-Boolean models, .opb and .wbo, and integer programs, .mps and .lp."""

from __future__ import annotations

import math
from pathlib import Path

import highspy
import numpy as np
import pytest
from format_models import Example, again, binary_graphs, labellings, prefixes, read_text, word_prefixes

import mapmrf
from mapmrf import FactorGraph, FormatError, constraints
from mapmrf.formats.files import read_bytes
from refusals import refuses
from strategies import random_recipe
from toulbar2_runs import toulbar2

WCNF = """c a comment
p wcnf 4 6 50
50 1 2 0
3 -1 0
2 -2 3
0
7 1 -2 3 -4 1 0
60 -3 -4 0
4 1 -1 0
"""
NEW = """c the same
h 1 2 0
3 -1 0
2 -2 3 0
7 1 -2 3 -4 0
h -3 -4 0
4 1 -1 0
"""
OPB = """* #variable= 4 #constraint= 3
* a comment
min: +2 x1 -3 x2 +1.5 x1 x2 ~x3 -1 x4 x4;
+1 x1 +2 x2 -1 ~x3 >= 1;
x1 + x2 +x3 -2 x4 <= 2 ; 1 x1 x2 +1 x3 x4 = 1;
"""
WBO = """* #variable= 3
soft: 10 ;
[2] +1 x1 >= 1;
[3] +1 x1 +1 x2 x3 = 1;
[12] +1 x2 +1 x3 <= 1;
+1 x1 +1 ~x2 >= 1;
"""


def worth(a: int, b: int, c: int, d: int) -> float:
    if not (a or b) or (c and d):
        return -math.inf
    return -3.0 * a - 2.0 * (b and not c) - 7.0 * (not a and b and not c and d)


def objective(a: int, b: int, c: int, d: int) -> float:
    fine = a + 2 * b - (1 - c) >= 1 and a + b + c - 2 * d <= 2 and a * b + c * d == 1
    return -(2 * a - 3 * b + 1.5 * a * b * (1 - c) - d) if fine else -math.inf


def test_both_forms_of_weighted_clauses_are_the_same(tmp_path: Path) -> None:
    graph = read_text(tmp_path, NEW, "m.wcnf")
    assert all(graph.value(x) == worth(*x) for x in labellings(graph))
    assert read_text(tmp_path, "h 1 0\n2 -3 0", "m").n_vars == 3


def test_clauses_are_hard_unless_they_cost(tmp_path: Path) -> None:
    text = "p cnf 3 3\n1 -2 0 2 3\n0 -1 0"
    hard, soft = read_text(tmp_path, text, "m.cnf"), read_text(tmp_path, text, "m.cnf", values="cost")
    for a, b, c in labellings(hard):
        violated = (not a and b) + (not b and not c) + a
        assert hard.value([a, b, c]) == (-math.inf if violated else 0) and soft.value([a, b, c]) == -violated
    assert read_text(tmp_path, "p cnf 2 1\n0\n", "m.cnf").constant == -math.inf


def test_long_clauses_are_constraints_and_come_back(tmp_path: Path) -> None:
    text = "p wcnf 12 3 9\n9 1 2 3 4 5 6 -7 0\n5 -1 -2 -3 -4 -5 -6 -8 -9 0\n1 12 0\n"
    graph = read_text(tmp_path, text, "m.wcnf")
    assert graph.n_constraints == 2 and graph.n_factors == 0
    for name in ("m.wcnf", "m.wbo"):
        for labels in ([0] * 12, [0] * 6 + [1] * 6, [1] * 12, [1] * 11 + [0]):
            assert again(graph, name).value(labels) == graph.value(labels)
    refuses(FormatError, "the model has costs", mapmrf.write, graph, tmp_path / "m.cnf")
    hard = read_text(tmp_path, "p cnf 6 2\n1 2 3 4 5 6 0\n-1 2 0", "m.cnf")
    assert [again(hard, "m.cnf").value(x) for x in labellings(hard)] == [hard.value(x) for x in labellings(hard)]


def test_soft_constraints_and_products(tmp_path: Path) -> None:
    graph = read_text(tmp_path, WBO, "m.wbo")
    for a, b, c in labellings(graph):
        cost = 2 * (not a) + 3 * (a + b * c != 1)
        assert graph.value([a, b, c]) == (-math.inf if b + c > 1 or not (a or not b) else -cost)
    found = toulbar2([tmp_path / "m.wbo"])[0]
    assert found == "" or found[1] == -mapmrf.solve(graph).value


def test_names_and_constants(tmp_path: Path) -> None:
    graph = read_text(tmp_path, "max: 2 rain -1 rain ~wet;\n1 rain +1 wet >= 1;\n", "m.opb")
    assert graph.names.variables == ("rain", "wet")
    assert mapmrf.solve(graph).value == 2 and graph.value([1, 0]) == 1
    assert read_text(tmp_path, "min: x3;\n", "m.opb").n_vars == 3
    assert read_text(tmp_path, "* #variable= 2\n>= 1;\n", "m.opb").constant == -math.inf


@pytest.mark.parametrize("name", ["m.opb", "m.wbo"])
def test_constraints_that_are_inequalities_come_back(tmp_path: Path, name: str) -> None:
    graph = FactorGraph.from_tables([2] * 4, [(0, 2)], [[1, -2, 0.5, -math.inf]])
    hard = [constraints.linear([(0, 0), (1, 1)], [2.5, -1], lower=-1, upper=2), constraints.all_different([1, 3])]
    soft = [constraints.at_most_k([0, 1, 3], 1, penalty=3.0)] if name == "m.wbo" else []
    stated = graph.with_constraints([*hard, *soft])
    read = again(stated, name)
    assert [read.value(x) for x in labellings(graph)] == pytest.approx([stated.value(x) for x in labellings(graph)])
    for other, said in (
        (constraints.xor([0, 1]), "is no linear inequality"),
        (constraints.exactly_one([0, 1], penalty=1.0), "has a penalty"),
    ):
        refuses(FormatError, said, mapmrf.write, graph.with_constraints([other]), tmp_path / name)
    refuses(FormatError, "is not a clause", mapmrf.write, stated, tmp_path / "m.wcnf")


@pytest.mark.parametrize("suffix", [".mps", ".lp", ".lp.gz"])
def test_programs_have_the_optimum_of_the_model(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m{suffix}"
    for seed in range(8):
        recipe = random_recipe(seed, 2 + seed % 4, 5, hard=0.2 * (seed % 2), max_arity=3 if seed % 3 else 2)
        graph = recipe.graph()
        if seed > 4:
            word = constraints.regular([0, 1], [(0, 0, 0), (0, 1, 1, -1.0), (1, 0, 1)])
            graph = graph.with_constraints([constraints.at_most_one([(0, 0), (1, 0)], penalty=0.5), word])
        mapmrf.write(graph, path)
        plain = tmp_path / f"plain{suffix.removesuffix('.gz')}"
        plain.write_bytes(read_bytes(path))
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(plain))
        highs.run()
        optimum = max(graph.value(x) for x in labellings(graph))
        if optimum == -math.inf:
            assert "kInfeasible" in str(highs.getModelStatus())
        else:
            assert highs.getInfo().objective_function_value == pytest.approx(optimum, abs=1e-6)
    assert b"x0_" in plain.read_bytes()
    assert b"x%d_" % graph.n_vars not in plain.read_bytes()  # the variables of tables that stand for automata
    refuses(FormatError, "an integer program, which is written, but not read", mapmrf.read, path)
    refuses(FormatError, "the constant is -inf", mapmrf.write, FactorGraph.from_tables([2], [()], [[-np.inf]]), path)


SAT_ZOO = {
    "header": ("p cnf 3", ["header", "'p cnf 3'", "p cnf n m"]),
    "other header": ("p sat 3 2 9\n1 0", ["header", "'p sat 3 2 9'"]),
    "late header": ("1 2 0\np cnf 2 1\n", ["numbers before the header"]),
    "nothing": ("\n", ["the file is empty"]),
    "no top": ("p wcnf 1 1 nan\n1 1 0", ["header", "'nan'", "the weight of hard clauses"]),
    "top": ("p wcnf 1 1 x\n1 1 0", ["header", "'x'", "the weight of hard clauses"]),
    "too many variables": ("p cnf 99999999999 0\n", ["99999999999 variables", "at most"]),
    "clauses": ("p wcnf 2 3\n1 1 0\n1 2 0\n", ["found 2 clauses, expected 3"]),
    "a word": (WCNF.replace("-2 3", "-2 x"), ["among the clauses (line 5", "'x'", "a number"]),
    "variable": (WCNF.replace("-2 3", "-2 5"), ["clause 3 (line 5", "'5'", "from 1 to 4"]),
    "half a variable": (WCNF.replace("-2 3", "-2 1.5"), ["clause 3", "'1.5'"]),
    "weight": (WCNF.replace("3 -1 0", "-3 -1 0"), ["weight of clause 2 (line 4", "'-3'", "above 0"]),
    "weight of -1": ("p wcnf 2 1 9\n-1 1 2 0\n", ["weight of clause 1 (line 2", "'-1'", "above 0"]),
    "no weight": ("0 -1 0", ["weight of a clause", "'0'"]),
    "no end": (WCNF[:-2], ["clause 6", "a 0 at its end"]),
}
PB_ZOO = {
    "no end": ("min: x1;\nx1 >= 1", ["the last statement (line 2)", "'x1 >= 1'", "';' at its end"]),
    "no comparison": ("min: x1;\nx1 1;", ["constraint 1 (line 2)", "'>=', '<=' or '='"]),
    "nothing to compare with": ("x1 >= ;", ["constraint 1", "a number after it"]),
    "nothing": ("\n", ["the file is empty"]),
    "a lonely sign": ("1 x1 + >= 1;", ["constraint 1 (line 1)", "'>='"]),
    "a lonely sign at the end": ("min: 1 x1 +;", ["the objective (line 1)", "'+'"]),
    "negative cost": ("[-3] 1 x1 >= 1;", ["the cost of constraint 1 (line 1)", "'-3'", "at least 0"]),
    "more": ("x1 >= 1 x2;", ["constraint 1 (line 1)", "'1 x2'", "a number and ';'"]),
    "sign": ("min: x1 $ 3;", ["the objective (line 1)", "'$'"]),
    "two objectives": ("min: x1;\nmax: x2;", ["max (line 2)", "before all constraints, and once"]),
    "comparison in the objective": ("min: x1 >= 1;", ["the objective", "terms only"]),
    "cost": ("[x] x1 >= 1;", ["the cost of constraint 1", "'x'", "a finite number"]),
    "huge": ("min: 1e999 x1;", ["the objective", "a finite number"]),
    "constraints": ("* #variable= 1 #constraint= 2\nx1 >= 1;", ["found 1 constraints, expected 2"]),
    "too many variables": ("min: x999999999;", ["999999999 variables", "at most"]),
}
UNFIT = {"three states": ([2, 3], [(0, 1)], [np.zeros(6)], ["variable 1 has 3 states"])}
LIMITS = {None: 1e6, "cost": 1e6}
CONTRACT = {
    "sat": Example(
        "m.wcnf",
        WCNF,
        binary_graphs,
        LIMITS,
        worth,
        others="costs",
        malformed=SAT_ZOO,
        unfit=UNFIT,
        cuts=[text for text in word_prefixes(WCNF.split("\n", 1)[1]) if len(text.split()) > 5],
        start="p wcnf 3 2 9\n",
        tokens=["1", "-2", "3", "0", "5", "nan", "h", "\n", "c"],
        variants=[lambda s: s.replace("60 -3", "50.0 -3"), lambda s: s.replace("\n", "\r\n")],
    ),
    "pseudo_boolean": Example(
        "m.opb",
        OPB,
        binary_graphs,
        LIMITS,
        objective,
        others="costs",
        malformed=PB_ZOO,
        unfit=UNFIT,
        cuts=prefixes(OPB, OPB.index("min"), last=0),
        start="* #variable= 3\n",
        tokens=["min:", "x1", "~x2", "x3", "+1", "-2.5", ">=", "=", ";", "[2]", "*"],
        variants=[
            lambda s: s.replace(";", " ;\n"),
            lambda s: s.replace("+1.5", "+ 1.5"),
            lambda s: s.replace("1 x3", "x3"),
        ],
        aliases=(),
    ),
}
