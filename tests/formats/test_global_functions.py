"""Global cost functions of WCSP and CFN files: what they mean, there and back, and what toulbar2 makes of them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from format_models import again, labellings, read_text
from hypothesis import given
from hypothesis import strategies as st
from test_cfn import HEAD
from test_cfn import T3 as T3_CFN
from test_wcsp import T3 as T3_WCSP

import mapmrf
from constrained_recipes import random_constraint
from mapmrf import FactorGraph, FormatError, Names, constraints, formats
from refusals import refuses
from strategies import brute_force, random_recipe
from toulbar2_runs import toulbar2

both_formats = pytest.mark.parametrize("suffix", [".wcsp", ".cfn"])


LATIN = """latin 4 3 3 9
3 3 3 3
1 0 0 1
1 2
4 0 1 2 3 -1 {}
2 0 1 5 1
0 0 0
"""


def costs_of(graph: FactorGraph) -> dict[tuple[int, ...], float]:
    bare = FactorGraph.from_energies([3] * 4, [(0,), (0, 1)], [[0, 2, 0], [[0, 5, 5], [5, 5, 5], [5, 5, 5]]])
    return {labels: bare.value(labels) - graph.value(labels) for labels in labellings(graph)}


def counts(labels: tuple[int, ...]) -> list[int]:
    return [labels.count(k) for k in range(3)]


FUNCTIONS = {
    "salldiff var 2": lambda x: 2 * sum(max(0, n - 1) for n in counts(x)),
    "salldiff dec 2": lambda x: 2 * sum(n * (n - 1) // 2 for n in counts(x)),
    "samong var 3 1 2 2 0 1": lambda x: 3 * max(0, 1 - x.count(0) - x.count(1), x.count(0) + x.count(1) - 2),
    "samong var 9 1 2 1 2": lambda x: 0 if 1 <= x.count(2) <= 2 else math.inf,
    "sgcc var 9 2 0 0 1 1 1 4": lambda x: 0 if x.count(0) <= 1 <= x.count(1) else math.inf,
    "knapsack 3 1 1 -1 2": lambda x: 0 if (x[0] == 1) + (x[1] == 1) - (x[2] == 1) + 2 * (x[3] == 1) >= 3 else math.inf,
    "knapsackp 3 1 1 2 2 1 1 2 2 0 1 2 1": lambda x: (
        0 if 2 * (x[0] == 1) + (x[1] == 1) + 2 * (x[1] == 2) + (x[3] == 2) >= 3 else math.inf
    ),
    "clique 1 1 0 2 0 1 0 1 2": lambda x: 0 if (x[0] == 0) + (x[1] in (0, 1)) + (x[3] == 2) <= 1 else math.inf,
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_a_wcsp_mean_what_they_count(tmp_path: Path, function: str) -> None:
    graph = read_text(tmp_path, LATIN.format(function), "model.wcsp")
    for labels, cost in costs_of(graph).items():
        if cost == cost:  # both infinite where the tables forbid
            assert cost == FUNCTIONS[function](labels)


CFN = """{{ problem: {{name: m, mustbe: "<9.0"}},
 variables: {{a: [x y z], b: 3, c: 3, d: 3}},
 functions: {{ u: {{scope: [a], costs: [0 2 0]}}
  g: {{scope: [a b c d], type: {} }}
  p: {{scope: [a b], defaultcost: 5, costs: [x 0 0]}} }} }}
"""

CFN_FUNCTIONS = {
    "salldiff, params: {metric: var, cost: 2.0}": "salldiff var 2",
    "salldiff params {metric dec cost 2.0}": "salldiff dec 2",
    "samong, params: {metric: var, cost: 3, min: 1, max: 2, values: [0 1]}": "samong var 3 1 2 2 0 1",
    "sgcc, params: {metric: var, cost: 9, bounds: [[0 0 1] [y 1 4]]}": "sgcc var 9 2 0 0 1 1 1 4",
    "knapsack, params: {capacity: 3, weights: [1 1 -1 2]}": "knapsack 3 1 1 -1 2",
    "knapsackp, params: {capacity: 3, weightedvalues: [[[y 2]] [[1 1] [2 2]] [] [[2 1]]]}": (
        "knapsackp 3 1 1 2 2 1 1 2 2 0 1 2 1"
    ),
    "knapsackv, params: {capacity: 3, weightedvalues: [[a 1 2] [b 1 1] [1 2 2] [d 2 1]]}": (
        "knapsackp 3 1 1 2 2 1 1 2 2 0 1 2 1"
    ),
    "clique, params: {rhs: 1, values: [[x] [0 1] [] [2]]}": "clique 1 1 0 2 0 1 0 1 2",
}


@pytest.mark.parametrize("function", CFN_FUNCTIONS)
def test_functions_of_a_cfn_are_those_of_a_wcsp(tmp_path: Path, function: str) -> None:
    graph = read_text(tmp_path, CFN.format(function), "model.cfn")
    other = read_text(tmp_path, LATIN.format(CFN_FUNCTIONS[function]), "model.wcsp")
    assert graph.names.variables == ("a", "b", "c", "d")
    for labels in labellings(graph):
        assert graph.value(labels) == pytest.approx(other.value(labels))


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
    """Soft constraints and a parity beside a hard one."""
    random = np.random.default_rng([seed, 5])
    card = random.integers(2, 4, 4).tolist()
    kinds = ["at_most_k", "linear", "or_with_output", "all_different", "real", "label_cost"]
    stated = [random_constraint(random, card, kinds[(seed + n) % 6], soft=True) for n in range(2)]
    priced = [dataclasses.replace(each, penalty=float(random.integers(1, 9))) for each in stated]
    names = Names(tuple("abcd"), tuple(tuple(f"s{k}" for k in range(r)) for r in card))
    graph = FactorGraph.from_tables(card, [(0,)], [random.integers(-5, 5, card[0]).astype(float)], names=names)
    return graph.with_constraints(
        [*priced, constraints.xor([(0, 0), (1, 0), (2, 1)]), constraints.at_most_one([(0, 1), (3, 1)])]
    )


@both_formats
def test_soft_constraints_and_parities_are_written_as_tables(tmp_path: Path, suffix: str, caplog) -> None:
    cases = [(random_soft(seed), tmp_path / f"{seed}{suffix}") for seed in range(6)]
    caplog.set_level("INFO", logger="mapmrf")
    for graph, path in cases:
        caplog.clear()
        mapmrf.write(graph, path)
        assert "3 constraints with a penalty or of a parity are written as tables" in caplog.text
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
    (".wcsp", T3_WCSP),
    (".wcsp", "m 3 2 3 10  2 2 2  -2 0 1 5 1  1 1 2  2 1 2 5 -1  1 0 0 1  1 3"),
    (".wcsp", "m 1 2 2 10  2  1 0 0 3  0 3  1 4  0 7  0 2 1 1"),
    (".wcsp", "m 2 2 1 10  2 2  2 0 1 10 1  1 1 9"),
    (".cfn", T3_CFN),
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
