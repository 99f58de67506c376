"""A run can start from the messages of an earlier one on a model of the same structure."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Result
from mapmrf.datasets import grid
from mapmrf.run import dual_state
from strategies import Recipe, any_recipes, brute_force, random_recipe, with_weights

METHODS = ("trws", "mplp", "ad3", "lslp", "dd_sg", "psdd")
every_method = pytest.mark.parametrize("method", METHODS)
MODELS = {
    "spins": lambda: grid(7, 7, coupling=2.0, seed=1),
    "labels": lambda: random_recipe(3, 12, 24, max_arity=2, max_card=4).graph(),
    "any arity": lambda: random_recipe(5, 12, 60, max_arity=3, max_card=3).graph(),
}
every_model = pytest.mark.parametrize("name", MODELS)


def changed(graph: FactorGraph, size: float, seed: int = 0) -> FactorGraph:
    """The model with noise on all of its potentials."""
    random = np.random.default_rng(seed)
    theta_v, theta_t = (each + size * random.normal(size=len(each)) for each in (graph.theta_v, graph.theta_t))
    return dataclasses.replace(graph, theta_v=theta_v, theta_t=theta_t)


def few(graph: FactorGraph, method: str, initial: Any = None) -> Result:
    options = {"starts": 1} if method == "lslp" else {}
    return mapmrf.solve(graph, method, initial=initial, max_iterations=10, gap_tolerance=-1.0, **options)


@every_method
@every_model
def test_the_bound_begins_where_the_earlier_run_left_it(method: str, name: str) -> None:
    graph = MODELS[name]()
    first = mapmrf.solve(graph, method, gap_tolerance=-1.0, **({"sphere": "off"} if method == "lslp" else {}))
    assert first.dual is not None and first.bound is not None
    again, cold = few(graph, method, first), few(graph, method)
    assert again.bound is not None and cold.bound is not None
    slack = 1e-3 * abs(first.bound)  # ADMM's bound is not monotone
    assert again.bound <= first.bound + slack
    assert cold.bound > again.bound + slack or cold.bound <= first.bound + slack


@every_method
@every_model
def test_after_a_small_change_the_messages_help_more_than_the_labels(method: str, name: str) -> None:
    graph = MODELS[name]()
    first = mapmrf.solve(graph, method, gap_tolerance=-1.0, **({"sphere": "off"} if method == "lslp" else {}))
    after = changed(graph, 1e-3)
    with_messages, with_labels = few(after, method, first), few(after, method, first.labels)
    assert with_messages.bound is not None and with_labels.bound is not None
    assert with_messages.bound <= with_labels.bound + 1e-9
    assert with_messages.bound <= first.bound + 0.05 * abs(first.bound)  # type: ignore[operator]


@every_method
@given(with_weights(any_recipes()), st.integers(0, 100))
def test_bounds_and_labels_are_honest_after_any_change(method: str, recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    first = mapmrf.solve(graph, method, max_iterations=30)
    after = changed(graph, 1.0, seed)
    result = mapmrf.solve(after, method, initial=first, max_iterations=30)
    best = brute_force(after)[0]
    assert result.value == after.value(result.labels)
    slack = 1e-9 * max(1.0, abs(best)) if np.isfinite(best) else 0.0
    assert result.bound is None or result.bound >= best - slack
    assert result.value <= best + slack


@every_method
def test_other_structures_and_other_methods_use_the_labels_alone(method: str) -> None:
    graph = MODELS["spins"]()
    first = mapmrf.solve(graph, method)
    scope = graph.scope.copy()
    scope[:2] = scope[:2][::-1]
    turned = dataclasses.replace(graph, scope=scope)  # the same size, another structure
    assert first.dual is not None
    assert first.dual.fits(graph) and not first.dual.fits(turned)
    for other in METHODS:
        if {method, other} != {"ad3", "lslp"}:  # these two share a layout
            model = turned if other == method else graph
            assert few(model, other, first).bound == few(model, other, dataclasses.replace(first, dual=None)).bound


def test_messages_of_another_order_are_not_used() -> None:
    graph = MODELS["spins"]()
    first = mapmrf.solve(graph, "trws")
    given_order = mapmrf.solve(graph, "trws", order="given", initial=first, max_iterations=1)
    assert given_order.bound == mapmrf.solve(graph, "trws", order="given", max_iterations=1).bound


def test_a_forbidden_entry_that_comes_or_goes_changes_the_layout() -> None:
    graph = MODELS["labels"]()
    first = mapmrf.solve(graph, "ad3")
    theta_t = graph.theta_t.copy()
    theta_t[0] = -np.inf
    hard = dataclasses.replace(graph, theta_t=theta_t)
    assert few(hard, "ad3", first).bound == few(hard, "ad3", dataclasses.replace(first, dual=None)).bound


@every_method
def test_it_is_pickled_but_not_written_as_json(method: str) -> None:
    graph = MODELS["labels"]()
    result = mapmrf.solve(graph, method)
    assert "dual" not in json.loads(result.to_json(trace=True, mu_v=True))
    assert Result.from_json(result.to_json()).dual is None
    again = pickle.loads(pickle.dumps(result))
    assert few(graph, method, again).bound == few(graph, method, result).bound


@every_method
def test_large_states_are_not_kept(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dual_state, *(__import__(f"mapmrf.{name}", fromlist=["x"]) for name in HOLDERS)):
        monkeypatch.setattr(module, "MOST_NUMBERS", 10)
    assert mapmrf.solve(MODELS["labels"](), method).dual is None


HOLDERS = ("methods.trws", "engines.admm.sphere_run", "engines.decomposition.subgradient")


def test_only_methods_with_messages_keep_them_and_a_polisher_leaves_them() -> None:
    graph = MODELS["labels"]()
    assert mapmrf.solve(graph, "icm").dual is None
    (result,) = mapmrf.solve_many([graph], "trws")
    assert isinstance(result, Result) and result.dual is None
    result = mapmrf.solve(MODELS["spins"](), "trws", polish="icm")
    assert result.dual is not None and result.dual.layout.startswith("trws")


@every_method
def test_a_warm_start_gives_the_same_answer_every_time_and_leaves_the_result_alone(method: str) -> None:
    graph = MODELS["labels"]()
    first = mapmrf.solve(graph, method)
    assert first.dual is not None
    before = first.dual.values.copy()
    after = changed(graph, 0.1)
    one, two = (mapmrf.solve(after, method, initial=first) for _ in range(2))
    assert one.labels.tolist() == two.labels.tolist()
    assert one.bound == two.bound
    assert np.array_equal(first.dual.values, before)
