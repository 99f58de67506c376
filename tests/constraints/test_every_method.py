"""Every method on models with constraints of all kinds, against exhaustive search."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mapmrf
from constrained_recipes import random_constrained
from mapmrf import FactorGraph, Status, UnsupportedModel, constraints
from mapmrf.run.registry import method_class, method_names
from refusals import refuses

TOL = 1e-6


def near(x: float, y: float) -> bool:
    return x == y or abs(x - y) <= TOL * max(1.0, abs(y))


@pytest.mark.parametrize("name", method_names())
def test_answers_are_honest_and_feasible(name: str) -> None:
    solved, limits = 0, {} if method_class(name).exact else {"max_iterations": 200}
    for seed in range(8):
        recipe = random_constrained(seed, n_vars=1 + seed % 5, n_constraints=1 + seed % 4)
        graph, optimum = recipe.graph(), recipe.optimum()
        try:
            result = mapmrf.solve(graph, name, **limits)
        except UnsupportedModel:
            continue
        solved += 1
        assert result.labels.shape == (graph.n_vars,)
        assert result.value == graph.value(result.labels) == pytest.approx(recipe.value(tuple(result.labels)))
        assert result.value <= optimum + TOL
        for bound in (result.bound, *(point.bound for point in result.trace)):
            assert bound is None or bound >= optimum - TOL * max(1.0, abs(optimum))
        assert (result.value > -math.inf) == (optimum > -math.inf)
        assert (result.status is Status.INFEASIBLE) == (optimum == -math.inf)
        if method_class(name).exact or result.status is Status.OPTIMAL:
            assert near(result.value, optimum)
        if result.mu_v is not None:
            assert result.mu_v.shape == graph.theta_v.shape
        if seed % 2:
            warm = mapmrf.solve(graph, name, initial=result, **limits)
            assert warm.value >= result.value - TOL or warm.value == result.value
    assert solved or name == "maxflow"


@pytest.mark.parametrize("polish", ["icm", "blocks", "flips"])
def test_a_polisher_works_on_its_own_form_of_the_model(polish: str) -> None:
    for seed in range(6):
        recipe = random_constrained(seed)
        result = mapmrf.solve(recipe.graph(), "bp", polish=polish)
        assert result.value <= recipe.optimum() + TOL
        assert result.value == recipe.graph().value(result.labels)


def test_results_know_the_names_and_violations_of_the_model_given() -> None:
    names = mapmrf.Names(("a", "b"), (("x", "y"), ("x", "y")))
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0,)], [[0, 1]], names=names)
    result = mapmrf.solve(graph.with_constraints([constraints.exactly_one([("a", "y"), ("b", "y")])]), "bp")
    assert result.assignment == {"a": "y", "b": "x"}
    impossible = graph.with_constraints([constraints.xor(["a", "b"]), constraints.xor(["a", "b"], 0)])
    result = mapmrf.solve(impossible, "trws")
    assert result.status is Status.INFEASIBLE
    assert len(result.violated) == 1
    assert result.violated[0].constraint in (0, 1)


def test_many_models_are_solved_in_workers() -> None:
    graphs = [random_constrained(seed).graph() for seed in range(4)]
    many = mapmrf.solve_many(graphs, "wcsp", jobs=2)
    alone = [mapmrf.solve(graph, "wcsp") for graph in graphs]
    assert [result.value for result in many] == [result.value for result in alone]


def test_runs_are_the_same_on_one_and_two_threads() -> None:
    graph = random_constrained(7).graph()
    first, second = (mapmrf.solve(graph, "auto", threads=threads) for threads in (1, 2))
    assert first.labels.tolist() == second.labels.tolist()
    assert np.array_equal([first.value], [second.value])


def test_a_budget_of_real_prices_needs_no_tables() -> None:
    """Its sum has too many values for counters: methods with a form of their own solve it, others say why not."""
    random = np.random.default_rng(0)
    price, gain = random.random(40), random.random(40)
    graph = mapmrf.FactorGraph.from_tables([2] * 40, [(i,) for i in range(40)], [[0.0, each] for each in gain])
    graph = graph.with_constraints([constraints.linear(range(40), price, upper=7.5)])
    best = mapmrf.solve(graph, "cuts")
    assert best.status.closes_gap
    auto = mapmrf.solve(graph, "auto", max_iterations=400)
    assert auto.value == pytest.approx(best.value) == mapmrf.solve(graph, "wcsp").value
    assert price @ auto.labels <= 7.5 + 1e-9
    assert mapmrf.solve(graph, "tabu", trajectories=20).value <= best.value + TOL
    refuses(UnsupportedModel, "too many for tables", mapmrf.solve, graph, "trws")
    nothing = graph.with_constraints([constraints.at_least_one([0]), constraints.linear([0], [2.0], upper=1.0)])
    assert mapmrf.solve(nothing, "cuts").status is Status.INFEASIBLE


def test_refusals_of_auxiliary_variables_say_where_these_come_from() -> None:
    graph = FactorGraph.from_tables([2] * 5, [], []).with_constraints([constraints.at_most_k(range(5), 2)])
    with pytest.raises(UnsupportedModel, match=r"with tables in place of its constraints: variable \d has 3 states"):
        mapmrf.solve(graph, "qpbo")
