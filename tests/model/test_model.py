"""Model: what is built by name is the graph that is meant, and mistakes are named."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from mapmrf import FactorGraph, GraphError, Model, OptionError, UnknownName, constraints
from refusals import refuses
from strategies import Recipe, any_recipes, recipes, with_weights


def weather() -> Model:
    model = Model("weather")
    rain = model.variable("rain", ["no", "yes"])
    grass = model.variable("grass", 3)
    model.factor([rain, grass], [[0.0, -1.0, -2.0], [-3.0, 0.0, 0.5]])
    model.factor(["rain"], {"yes": -1.2}, default=0.0)
    model.forbid([rain, "grass"], [("no", 2)])
    model.prefer(rain, "yes", 0.3)
    return model


def test_a_model_is_the_graph_that_it_says() -> None:
    model = weather()
    graph = model.graph()
    assert model.graph() is graph
    expected = [[0.0, -1.0, -math.inf], [-3.9, -0.9, -0.4]]
    found = [[graph.value([i, k]) for k in range(3)] for i in range(2)]
    assert found == [pytest.approx(row) for row in expected]
    assert graph.names is not None and graph.names.variables == ("rain", "grass")
    assert model.value({"rain": "yes", "grass": 2}) == model.value([1, 2]) == graph.value([1, 2])
    result = model.solve()
    assert (result["rain"], result["grass"], result[model["grass"]]) == ("no", "0", "0")
    assert result.assignment == {"rain": "no", "grass": "0"}
    assert mapmrf.solve(model).value == result.value
    model.prefer("rain", "yes", 5.0)
    assert model.graph() is not graph and model.solve()["rain"] == "yes"
    assert repr(model) == "Model('weather': 2 variables, 5 factors)"
    assert model._repr_html_() == model.graph()._repr_html_().replace("FactorGraph", "Model weather")


@given(recipe=recipes())
@pytest.mark.parametrize("values", ["log", "cost", "potential"])
def test_any_model_can_be_built_by_name(recipe: Recipe, values: str) -> None:
    graph = recipe.graph()
    model = Model(values=values)  # type: ignore[arg-type]
    for i, n_states in enumerate(graph.card.tolist()):
        model.variable(f"x{i}", [f"s{k}" for k in range(n_states)])
    convert = {"log": lambda table: table, "cost": np.negative, "potential": np.exp}[values]
    for i, unary in enumerate(np.split(graph.theta_v, graph.var_ptr[1:-1])):
        model.factor(f"x{i}", convert(unary))
    for a in range(graph.n_factors):
        model.factor([f"x{i}" for i in graph.scope_of(a).tolist()], convert(graph.table(a)))
    labels = np.random.default_rng(0).integers(0, graph.card)
    named = {f"x{i}": f"s{k}" for i, k in enumerate(labels.tolist())}
    assert model.value(named) + graph.constant == pytest.approx(graph.value(labels), abs=1e-9)


def test_names_serve_as_evidence_start_and_question() -> None:
    model = weather()
    result = model.solve(evidence={"grass": "2"}, margins=True)
    assert result.assignment == {"rain": "yes", "grass": "2"}
    assert result.certainty("rain") == math.inf
    assert model.solve("icm", initial={"rain": "yes", "grass": 1}).value >= model.value({"rain": "yes", "grass": 1})
    refuses(GraphError, "no state of variable 'grass' is given", model.solve, "icm", initial={"rain": "yes"})
    refuses(OptionError, "solve with margins=True", model.solve().certainty, "rain")


def test_constraints_take_variables_by_name_and_as_objects() -> None:
    model = Model()
    days = [model.variable(day, ["off", "on"]) for day in ("mon", "tue", "wed")]
    for day in days:
        model.prefer(day, "on", 1.0)
    model.add(constraints.at_most_k([(day, "on") for day in days], 2))
    model.add(constraints.exactly_one([("mon", "on"), ("tue", "on")]))
    assert model.solve().value == 2.0
    with pytest.raises(UnknownName, match="no variable is named 'tues', did you mean 'tue'"):
        model.add(constraints.at_most_one([("tues", "on"), ("mon", "on")]))
    with pytest.raises(GraphError, match="variable 'mon' belongs to another model"):
        Model().add(constraints.at_most_one([(days[0], "on")]))
    assert repr(model) == "Model(3 variables, 3 factors, 2 constraints)"


@given(recipe=with_weights(any_recipes()), further=any_recipes())
def test_a_model_that_begins_with_a_graph_is_continued_by_name(recipe: Recipe, further: Recipe) -> None:
    graph, more = recipe.graph(), further.graph()
    model = Model.from_graph(graph)
    assert model.graph() == replace(graph, names=model.graph().names)
    n = len(model.variables)
    added = [model.variable(f"new{i}", k) for i, k in enumerate(more.card.tolist())]
    for i, unary in enumerate(np.split(more.theta_v, more.var_ptr[1:-1]) if added else []):
        model.factor(added[i], unary)
    for a in range(more.n_factors):
        model.factor([added[i] for i in more.scope_of(a)], more.table(a))
    labels = np.random.default_rng(0).integers(0, [variable.n_states for variable in model.variables])
    expected = graph.value(labels[:n]) + more.value(labels[n:])
    assert model.value(labels) + more.constant == pytest.approx(expected, abs=1e-9)


def test_data_frames_of_factors_are_models() -> None:
    pandas = pytest.importorskip("pandas")
    rain = pandas.DataFrame({"rain": ["no", "yes"], "value": [0.8, 0.2]})
    grass = pandas.DataFrame({"rain": ["no", "no", "yes", "yes"], "grass": [1, 0, 1, 0], "value": [0.1, 0.9, 0.8, 0.2]})
    model = Model.from_pandas([rain, grass], values="potential")
    assert [each.states for each in model.variables] == [("no", "yes"), ("0", "1")]
    assert math.exp(model.value({"rain": "yes", "grass": "1"})) == pytest.approx(0.16)
    joined = pandas.concat([rain, grass])
    assert Model.from_pandas(joined, values="potential").graph() == model.graph()
    assert Model.from_pandas(model.to_pandas()).graph() == model.graph()
    twice = pandas.concat([rain.assign(factor=0), rain.assign(factor=1)])
    assert Model.from_pandas(twice).value({"rain": "no"}) == pytest.approx(1.6)
    ordered = rain.assign(rain=pandas.Categorical(["no", "yes"], ["yes", "no", "unknown"]))
    assert Model.from_pandas(ordered, default=-1.0).variables[0].states == ("yes", "no", "unknown")
    for frame, said in (
        (pandas.concat([rain, rain]), "factor of rain: no is listed twice"),
        (grass[:3], "factor of rain, grass: yes, 0 is not listed, and there is no default"),
        (rain.rename(columns={"value": "p"}), "the data frame has no column 'value'"),
        ({"rain": 1}, "found a dict, expected a data frame"),
    ):
        refuses(GraphError, said, Model.from_pandas, frame)


def test_graphs_take_names_as_lists_and_dicts() -> None:
    tables = ([2, 2], [(0, 1)], [[[0.0, 1.0], [2.0, 0.0]]])
    assert mapmrf.solve(FactorGraph.from_tables(*tables, names=["a", "b"])).assignment == {"a": 1, "b": 0}
    states = {"a": ["no", "yes"], "b": ["no", "yes"]}
    named = replace(FactorGraph.from_tables(*tables), names=states)  # type: ignore[arg-type]
    assert named == FactorGraph.from_tables(*tables, names=states)
    assert mapmrf.solve(FactorGraph.from_tables(*tables, names=states)).assignment == {"a": "yes", "b": "no"}


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda m: m.variable("rain"), GraphError, "there is a variable 'rain' already"),
        (lambda m: m.variable(""), GraphError, "expected text"),
        (lambda m: m.variable("x", []), GraphError, "no states"),
        (lambda m: m.variable("x", 0), GraphError, "has 0 states, expected at least 1"),
        (lambda m: m.variable("x", "abc"), GraphError, "expected a number or a list of names"),
        (lambda m: m.variable("x", [10, 20]), GraphError, "10 is no name of a state"),
        (lambda m: m.variable("x", ["a", "a"]), GraphError, "two states are named 'a'"),
        (lambda m: m.factor("rian", [0, 1]), UnknownName, "no variable is named 'rian', did you mean 'rain'?"),
        (lambda m: m.factor(7, [0, 1]), GraphError, "7 is not a variable of this model"),
        (lambda m: m.factor(Model().variable("rain"), [0, 1]), GraphError, "belongs to another model"),
        (lambda m: m.factor(["rain", "rain"], np.zeros((2, 2))), GraphError, "factor of rain, rain: a variable occurs"),
        (lambda m: m.factor(["rain", "grass"], np.zeros((3, 2))), GraphError, r"shape \(3, 2\), expected \(2, 3\)"),
        (lambda m: m.factor("rain", ["a", "b"]), GraphError, "factor of rain is not an array of numbers"),
        (lambda m: m.factor("rain", [0, math.nan]), GraphError, "entry 1 is nan, expected a finite number or -inf"),
        (lambda m: m.factor("rain", [0, 1], default=0.0), GraphError, "a default is for tables that are mappings"),
        (lambda m: m.factor("rain", {"yes": 1.0}), GraphError, "factor of rain: no is not listed"),
        (lambda m: m.factor("rain", {"yes": 1.0, 1: 2.0}, default=0), GraphError, "1 is listed twice"),
        (lambda m: m.factor("rain", {"yse": 1.0}, default=0), UnknownName, "no state named 'yse', did you mean 'yes'?"),
        (lambda m: m.factor("rain", {("no", "no"): 1.0}, default=0), GraphError, "has 2 states, expected 1"),
        (lambda m: m.forbid("rain", "yes"), GraphError, "expected a list of configurations"),
        (lambda m: m.prefer("rain", "yes", math.inf), GraphError, "entry 1 is inf"),
    ],
)  # fmt: skip
def test_mistakes_are_named(build, error, message) -> None:
    model = weather()
    before = repr(model)
    with pytest.raises(error, match=message):
        build(model)
    assert repr(model) == before


def test_numbers_must_fit_their_meaning() -> None:
    with pytest.raises(OptionError, match="values is 'energy', expected one of log, cost, potential"):
        Model(values="energy")  # type: ignore[arg-type]
    for values, number in (("potential", -1.0), ("potential", math.inf), ("cost", -math.inf), ("log", math.inf)):
        model = Model(values=values)  # type: ignore[arg-type]
        model.variable("x")
        refuses(GraphError, "factor of x: entry 0 is", model.factor, "x", [number, 1.0])
