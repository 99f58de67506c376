"""Why a model has no labelling, and sums over all labellings, against exhaustive search."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Model, constraints
from refusals import refuses
from strategies import Recipe, any_recipes, with_weights

BINARY = list(itertools.product((0, 1), repeat=4))


@given(seed=st.integers(0, 10_000))
def test_no_fewer_parts_contradict_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    scopes = [(0, 1), (1, 2), (2, 3), (3, 0), (2,)]
    tables = [np.where(random.random((2,) * len(scope)) < 0.4, -np.inf, random.normal()) for scope in scopes]
    stated = [constraints.at_most_k(range(4), int(random.integers(4))), constraints.xor([0, 2], penalty=1.0)]
    graph = FactorGraph.from_tables([2] * 4, scopes, tables).with_constraints(stated)
    evidence = {int(i): int(random.integers(2)) for i in random.permutation(4)[:2]}
    parts = [{y for y in BINARY if y[i] == k} for i, k in evidence.items()]
    parts += [
        {y for y in BINARY if table[tuple(y[i] for i in scope)] > -np.inf}
        for scope, table in zip(scopes, tables, strict=True)
    ]
    parts.append({y for y in BINARY if sum(y) <= stated[0].upper})
    sizes = (n for n in range(1, 9) for some in itertools.combinations(parts, n) if not set.intersection(*some))
    fewest = next(sizes, None)
    found = mapmrf.conflict(graph, evidence)
    assert (None if found is None else len(found.lines)) == fewest
    if found is not None:
        assert found.smallest and len(str(found).splitlines()) == fewest
        mine = [{y for y in BINARY if y[i] == k} for i, k in found.evidence.items()]
        mine += [parts[2 + a] for a in found.factors] + [parts[-1] for _ in found.constraints]
        mine += [parts[-2] for _ in found.variables]
        assert not set.intersection(*mine)
        result = mapmrf.solve(graph, evidence=evidence)
        assert result.status == "infeasible" and all(result[i] == k for i, k in evidence.items())
        assert result.violated and all(each.factor is not None or each.constraint == 0 or each.variables == (2,)
                                       for each in result.violated)  # fmt: skip


def test_parts_are_called_by_their_names_and_the_constant_counts() -> None:
    model = Model()
    for name in ("tub", "either"):
        model.variable(name, ["no", "yes"])
    model.forbid(["tub", "either"], [("yes", "no")])
    model.add(constraints.exactly_one([("tub", "yes")], name="sick"))
    impossible = {"either": "no"}
    assert str(mapmrf.conflict(model, impossible)).splitlines() == [
        "either=no is observed", "factor 0 (tub, either)", "constraint 'sick': tub"
    ]  # fmt: skip
    assert mapmrf.conflict(model) is None and mapmrf.conflict(model.graph(), {"either": "yes"}) is None
    assert str(mapmrf.solve(model, evidence=impossible | {"tub": "yes"}).violated[0]) == "factor 0 (tub=yes, either=no)"
    assert str(mapmrf.solve(model, evidence={"tub": "no"}).violated[0]) == "constraint 'sick' (tub=no)"
    model.forbid("either", ["yes"])
    assert "either must not be yes" in str(mapmrf.conflict(model))
    assert mapmrf.conflict(FactorGraph.from_tables([2], [()], [[-np.inf]])).lines == ("the constant",)


@given(recipe=with_weights(any_recipes()), seed=st.integers(0, 99))
def test_the_partition_function_is_the_sum_over_all_labellings(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    if graph.n_vars:
        counted = constraints.at_most_k([(i, 0) for i in range(graph.n_vars)], seed % (graph.n_vars + 1))
        graph = graph.with_constraints([counted]) if seed % 2 else graph
    evidence = {0: 0} if graph.n_vars and seed % 3 == 0 else {}
    values = [graph.value(y) for y in itertools.product(*map(range, graph.card.tolist())) if not evidence or y[0] == 0]
    expected = np.logaddexp.reduce(np.array(values))
    found = mapmrf.log_partition(graph, evidence=evidence)
    assert found == pytest.approx(expected, abs=1e-9) or found == expected == -math.inf


def test_a_sum_that_needs_more_memory_is_refused() -> None:
    refuses(mapmrf.UnsupportedModel, "induced width", mapmrf.log_partition, mapmrf.datasets.grid(12, 12), memory=0.01)


def test_questions_take_evidence_and_give_names() -> None:
    model = Model("weather", values="potential")
    model.variable("rain", ["no", "yes"])
    model.variable("grass", ["dry", "wet"])
    model.factor("rain", [0.8, 0.2])
    model.factor(["rain", "grass"], [[0.9, 0.1], [0.2, 0.8]])
    seen = {"grass": "wet"}
    best = mapmrf.solve_best(model, 2, evidence=seen)
    assert [result.assignment["rain"] for result in best] == ["yes", "no"]
    frame = best.to_pandas()
    assert frame["rain"].tolist() == ["yes", "no"] and frame["value"].tolist() == [result.value for result in best]
    found = mapmrf.max_marginals(model, evidence=seen)
    assert math.exp(found["rain"]["yes"][0]) == pytest.approx(0.16) and found["grass"]["dry"] == (-math.inf, -math.inf)
    assert found.margins({"rain": "no", "grass": "wet"})[0] == pytest.approx([-math.log(2)] * 2)
    assert found.to_pandas()["state"].tolist() == ["no", "yes", "dry", "wet"]
    assert repr(found) == "MaxMarginals(2 variables, exact, least certain: rain=yes)"
    assert "rain=yes" in found._repr_html_() and "rain=yes" in best._repr_html_()
    assert mapmrf.marginal_map(model, ["rain"], evidence=seen).assignment == {"rain": "yes"}
    assert math.exp(mapmrf.log_partition(model, evidence=seen)) == pytest.approx(0.24)
