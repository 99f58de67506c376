"""pgmpy: models in and out and MAP queries, with things that look like its factors and with pgmpy itself."""

from __future__ import annotations

import itertools
import logging
import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, FormatError, GraphError, MapMRFError, Names, OptionError, UnknownName, UnsupportedModel
from mapmrf.bridges import from_pgmpy, map_query, to_pgmpy
from refusals import refuses

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "bayesian-network.md"
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(eq=False)
class Factor:
    """Has what the bridge reads of a DiscreteFactor."""

    variables: list[Any]
    values: Any
    state_names: dict[Any, list[Any]] = field(default_factory=dict)


@dataclass
class Network:
    """Has what the bridge reads of a DiscreteBayesianNetwork."""

    cpds: list[Factor]
    names: list[Any]

    def nodes(self) -> list[Any]:
        return self.names


def sprinkler() -> Network:
    rain, on, wet = ["no", "yes"], ["off", "on"], ["dry", "wet"]
    return Network(
        [
            Factor(["grass", "sprinkler", "rain"], [[[1.0, 0.2], [0.1, 0.0]], [[0.0, 0.8], [0.9, 1.0]]],
                   {"grass": wet, "sprinkler": on, "rain": rain}),
            Factor(["rain"], [0.8, 0.2], {"rain": rain}),
            Factor(["sprinkler", "rain"], [[0.6, 0.99], [0.4, 0.01]], {"sprinkler": on, "rain": rain}),
        ],
        ["rain", "sprinkler", "grass"],
    )  # fmt: skip


STATES: dict[Any, list[Any]] = {"a": ["x", "y"], 7: [0, 1, 2], ("b", 1): [10, 20], "c": [True, False]}


def random_factors(seed: int) -> list[Factor]:
    """Four variables whose names and states are of several types."""
    rng = np.random.default_rng(seed)
    factors = []
    for scope in (["a"], [7, "a"], [("b", 1), 7, "c"], ["c", "a"], [("b", 1)]):
        values = rng.random([len(STATES[v]) for v in scope])
        factors.append(Factor(scope, values, {v: STATES[v] for v in scope}))
    return factors


def product(factors: list[Factor], assignment: dict[Any, Any]) -> float:
    """Potential of an assignment with the labels of the factors."""
    total = 1.0
    for f in factors:
        total *= np.asarray(f.values)[tuple(f.state_names[v].index(assignment[v]) for v in f.variables)]
    return float(total)


def all_assignments(factors: list[Factor]) -> list[dict[Any, Any]]:
    states = {v: f.state_names[v] for f in factors for v in f.variables}
    return [dict(zip(states, some, strict=True)) for some in itertools.product(*states.values())]


# -- without pgmpy ----------------------------------------------------------------------------------------------------


def test_names_order_and_zeros() -> None:
    graph = from_pgmpy(sprinkler())
    assert graph.names == Names(("rain", "sprinkler", "grass"), (("no", "yes"), ("off", "on"), ("dry", "wet")))
    assert np.exp(graph.value([0, 0, 0])) == pytest.approx(0.8 * 0.6)
    assert graph.value([0, 0, 1]) == -np.inf
    result = mapmrf.solve(graph.condition({"grass": "wet"}), "exhaustive")
    assert result.assignment == {"rain": "no", "sprinkler": "on", "grass": "wet"}


@given(SEEDS)
def test_values_are_the_logs_of_the_product(seed: int) -> None:
    factors = random_factors(seed)
    graph = from_pgmpy(factors)
    for assignment in all_assignments(factors):
        labels = [STATES[variable].index(state) for variable, state in assignment.items()]
        assert np.exp(graph.value(labels)) == pytest.approx(product(factors, assignment))


@given(SEEDS)
def test_a_query_answers_with_the_labels_of_the_model(seed: int) -> None:
    factors = random_factors(seed)
    found = map_query(factors)
    assert product(factors, found) == pytest.approx(max(product(factors, some) for some in all_assignments(factors)))


@given(SEEDS)
def test_a_query_for_some_variables_sums_over_the_others(seed: int) -> None:
    factors = random_factors(seed)
    seen = {("b", 1): 20}
    totals: dict[tuple[Any, Any], float] = {}
    for some in all_assignments(factors):
        if some["b", 1] == 20:
            key = (some["c"], some["a"])
            totals[key] = totals.get(key, 0.0) + product(factors, some)
    found = map_query(factors, ["c", "a"], seen)
    assert list(found) == ["c", "a"]
    assert totals[found["c"], found["a"]] == pytest.approx(max(totals.values()))


def test_virtual_evidence_and_single_factors_are_queried() -> None:
    joint = Factor(["a"], [0.6, 0.4], {"a": ["p", "q"]})
    assert map_query([joint], virtual_evidence=[Factor(["a"], [0.1, 0.9], {"a": ["p", "q"]})]) == {"a": "q"}
    assert map_query(Factor(["a", "b"], [[0.1, 0.2], [0.5, 0.2]])) == {"a": 1, "b": 0}
    mixed = [Factor(["a"], [0.1, 0.9]), Factor(["a"], [0.5, 0.5], {"a": ["p", "q"]}), Factor(["a"], [1, 1])]
    assert map_query(mixed) == {"a": "q"}


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        ([Factor(["a"], [0.5, -0.5])], GraphError, "factor on a: found -0.5 among its values"),
        ([Factor(["a"], [0.5, np.nan])], GraphError, "factor on a: found nan among its values"),
        ([Factor(["a", "b"], [0.5, 0.5])], GraphError, "factor on a, b: the values have 1 axes"),
        ([Factor(["a"], ["x", "y"])], GraphError, "factor on a is not an array of numbers"),
        ([Factor(["a"], [1, 1]), Factor(["a"], [1, 1, 1])], GraphError, "'a' has 2 states in one factor, 3 in another"),
        ([Factor(["a"], [1, 1], {"a": ["x"]})], GraphError, "variable 'a': 1 state names for 2 states"),
        (
            [Factor(["a"], [1, 1], {"a": ["x", "y"]}), Factor(["a"], [1, 1], {"a": ["y", "x"]})],
            GraphError,
            "the states of variable 'a' are ['x', 'y'] in one factor, ['y', 'x'] in another",
        ),
        (Network([Factor(["a"], [1, 0])], ["a", "b", "c"]), GraphError, "2 nodes have no CPD, among them 'b'"),
        ([3], UnsupportedModel, "found a int, expected a pgmpy model"),
        (3, UnsupportedModel, "found a int, expected a pgmpy model"),
        (
            [Factor(["a"], [1, 1], {"a": [1, "1"]}), Factor(["b"], [1, 1], {"b": ["z", "z"]})],
            GraphError,
            "both written",
        ),
    ],
)
def test_what_is_no_model_is_named(model: Any, error: type[MapMRFError], said: str) -> None:
    refuses(error, said, from_pgmpy, model)


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ({"evidence": {"snow": "yes"}}, UnknownName, "no variable is named 'snow'"),
        ({"evidence": {"rain": "maybe"}}, UnknownName, "'rain' has no state named 'maybe'; known: 'no', 'yes'"),
        ({"evidence": {"rain": 0}}, UnknownName, "variable 'rain' has no state named 0"),
        ({"variables": ["snow"]}, UnknownName, "no variable is named 'snow'"),
        ({"variables": ["rain"], "evidence": {"rain": "no"}}, OptionError, "'rain' is both queried and observed"),
        ({"evidence": {"rain": "no", "sprinkler": "off", "grass": "wet"}}, GraphError, "evidence has probability 0"),
        ({"variables": ["rain"], "evidence": {"sprinkler": "on", "grass": "dry", "rain": "yes"}}, OptionError, "both"),
    ],
)
def test_a_bad_query_is_one_clear_line(query: dict[str, Any], error: type[MapMRFError], said: str) -> None:
    refuses(error, said, map_query, sprinkler(), **query)


def test_an_answer_without_a_proof_says_so_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mapmrf"):
        assert map_query(sprinkler()) == {"rain": "no", "sprinkler": "off", "grass": "dry"}
        assert not caplog.records
        map_query(sprinkler(), method="icm")
    assert "icm is not proven optimal" in caplog.text


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(OptionError, match="kind='tree', expected one of markov, bayesian, factor_graph, factors"):
        to_pgmpy(FactorGraph.from_tables([2], [], []), "tree")


# -- with pgmpy -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pgmpy() -> Any:
    """pgmpy with its models, factors and inference imported; what it warns of is its own business."""
    package = pytest.importorskip("pgmpy")
    for module in ("models", "factors.discrete", "inference", "utils"):
        pytest.importorskip(f"pgmpy.{module}")
    return package


real = pytest.mark.filterwarnings("ignore")


@real
@pytest.mark.parametrize("name", ["asia", "cancer", "earthquake", "sachs", "survey", "child", "alarm"])
def test_queries_agree_with_variable_elimination(pgmpy: Any, name: str) -> None:
    model = pgmpy.utils.get_example_model(name)
    engine = pgmpy.inference.VariableElimination(model)
    choose = random.Random(name)
    nodes = sorted(model.nodes())
    for _ in range(3):
        evidence = {v: choose.choice(model.get_cpds(v).state_names[v]) for v in choose.sample(nodes, 1)}
        asked = choose.sample([v for v in nodes if v not in evidence], 3)
        ours, theirs = map_query(model, asked, evidence), engine.map_query(asked, evidence, show_progress=False)
        if ours != theirs:  # of equally probable answers either is right
            joint = engine.query(asked, evidence, show_progress=False)
            assert joint.get_value(**ours) == pytest.approx(joint.get_value(**theirs), rel=1e-9)


@real
def test_all_kinds_of_models_say_the_same(pgmpy: Any) -> None:
    model = pgmpy.utils.get_example_model("cancer")
    markov = model.to_markov_model()
    kinds = [model, markov, markov.to_factor_graph(), model.to_junction_tree(), markov.factors, model.cpds]
    best = {tuple(sorted(map_query(kind, evidence={"Xray": "positive"}).items())) for kind in kinds}
    assert len(best) == 1


@real
def test_pgmpy_finds_our_models_in_order(pgmpy: Any) -> None:
    graph = from_pgmpy(sprinkler())
    network = to_pgmpy(graph, "bayesian")
    assert network.check_model()
    assert network.get_parents("grass") == ["sprinkler", "rain"]
    assert network.get_cpds("grass").state_names["rain"] == ["no", "yes"]
    assert to_pgmpy(graph).check_model()
    assert to_pgmpy(graph, "factor_graph").check_model()
    again = from_pgmpy(network)
    assert again.names == graph.names
    assert again.theta_t == pytest.approx(graph.theta_t)
    found = pgmpy.inference.VariableElimination(network).map_query(["rain"], {"grass": "wet"}, show_progress=False)
    assert found == map_query(sprinkler(), ["rain"], {"grass": "wet"})


@real
def test_a_model_that_is_no_network_is_none(pgmpy: Any) -> None:
    with pytest.raises(FormatError, match="not a Bayesian network"):
        to_pgmpy(FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]]), "bayesian")


@real
def test_potentials_beyond_a_double_are_scaled_or_reported(pgmpy: Any, caplog: pytest.LogCaptureFixture) -> None:
    graph = FactorGraph.from_tables([2], [(0,)], [[5000.0, 5001.0]])
    (factor,) = to_pgmpy(graph, "factors")
    assert np.log(factor.values[1] / factor.values[0]) == pytest.approx(1)
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "mapmrf"):
        to_pgmpy(FactorGraph.from_tables([2], [(0,)], [[0.0, -5000.0]]), "factors")
    assert "1 potentials are too small for a double and become 0" in caplog.text


@real
def test_models_that_cannot_be_taken_say_why(pgmpy: Any) -> None:
    models = pgmpy.models
    with pytest.raises(UnsupportedModel, match="a dynamic Bayesian network must be unrolled first"):
        from_pgmpy(models.DynamicBayesianNetwork([(("A", 0), ("B", 0))]))
    markov = models.DiscreteMarkovNetwork([("a", "b")])
    markov.add_factors(pgmpy.factors.discrete.DiscreteFactor(["a"], [2], [1, 1]))
    refuses(GraphError, "node 'b' is in no factor", from_pgmpy, markov)
    refuses(GraphError, "2 nodes have no CPD, among them 'a'", from_pgmpy, models.DiscreteBayesianNetwork([("a", "b")]))


@real
def test_the_page_runs(pgmpy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in ``py`` need pgmpy; those in ``python`` come before and are run by the tests of the documentation."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```(?:py|python)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
