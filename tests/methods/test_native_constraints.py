"""Methods that work on constraints without tables, against exhaustive search and against the relaxation by HiGHS."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import mapmrf
from constrained_recipes import KINDS, ConstrainedRecipe, random_constrained, random_constraint
from mapmrf import FactorGraph, Status, constraints
from mapmrf.datasets import potts_image
from mapmrf.model.polytope import Kind, classify
from mapmrf.model.problem import Problem
from strategies import random_recipe

NATIVE = ("lslp", "ad3")
HULL = [kind for kind in KINDS if kind not in ("linear", "real")]
"""Kinds whose factor is the hull of what is allowed."""


def with_tables(recipe: ConstrainedRecipe) -> FactorGraph:
    """The same model with a table for every constraint, over all of its variables."""
    graph = recipe.recipe.graph()
    scopes = [graph.scope_of(a).tolist() for a in range(graph.n_factors)]
    tables = [graph.table(a) for a in range(graph.n_factors)]
    scopes += [[i] for i in range(graph.n_vars)]
    tables += [graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in range(graph.n_vars)]
    stated = recipe.graph().constraints
    assert stated is not None
    for c in range(len(stated)):
        one, scope = stated.take([c]), stated.variables(c).tolist()
        card = [recipe.recipe.card[i] for i in scope]
        labels = np.zeros(graph.n_vars, dtype=np.int64)
        entries = []
        for states in itertools.product(*(range(r) for r in card)):
            labels[scope] = states
            entries.append(one.value(labels))
        scopes.append(scope)
        tables.append(np.array(entries).reshape(card))
    scopes.append([])
    tables.append(np.array(graph.constant))
    return FactorGraph.from_tables(recipe.recipe.card, scopes, tables)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["ad3", "lslp"])
def test_the_relaxation_is_that_of_a_table(method: str, kind: str) -> None:
    """With a table for the constraint the local polytope has its hull; HiGHS solves that."""
    options = {"ad3": {"max_iterations": 5000}, "lslp": {"sphere": "off", "max_iterations": 5000, "tol": 1e-7}}[method]
    for seed in range(6):
        random = np.random.default_rng([seed, KINDS.index(kind), 3])
        recipe = random_recipe(seed, 4, 5, hard=0.0, max_card=3, max_arity=2)
        stated = ConstrainedRecipe(recipe, [random_constraint(random, recipe.card, kind, soft=False)])
        truth = mapmrf.solve(with_tables(stated), "lp")
        if math.isinf(stated.optimum()):
            continue
        found = mapmrf.solve(stated.graph(), method, gap_tolerance=-1, abs_gap_tolerance=-1, **options)
        if kind in HULL:
            assert found.bound == pytest.approx(truth.bound, abs=2e-3)
        else:
            assert found.bound >= truth.bound - 1e-6


@pytest.mark.parametrize("method", [*NATIVE, "lp"])
def test_assignment(method: str) -> None:
    weights = np.random.default_rng(1).normal(size=(12, 12))
    graph = FactorGraph.from_tables([12] * 12, [(i,) for i in range(12)], list(weights))
    result = mapmrf.solve(graph.with_constraints([constraints.all_different(range(12))]), method)
    best = weights[linear_sum_assignment(weights, maximize=True)].sum()
    assert result.value == pytest.approx(best) and result.gap <= 1e-6


@pytest.mark.parametrize("method", NATIVE)
def test_label_costs_and_counts_on_an_image(method: str) -> None:
    graph = potts_image(10, 12, labels=4).graph
    plain = mapmrf.solve(graph, "trws")
    priced = mapmrf.solve(graph.with_constraints([constraints.label_cost(k, 4.0) for k in range(4)]), method)
    used = len(set(plain.labels.tolist()))
    assert plain.value - 4.0 * used - 1e-6 <= priced.value <= priced.bound + 1e-6
    assert priced.gap < 1e-3
    few = graph.with_constraints([constraints.at_most_k([(i, 0) for i in range(graph.n_vars)], 10)])
    counted = mapmrf.solve(few, method)
    assert np.count_nonzero(counted.labels == 0) <= 10
    assert counted.value <= counted.bound + 1e-6 <= plain.bound + 2e-6


@pytest.mark.parametrize(
    ("method", "n", "options"),
    [
        ("ad3", 4, {"branch_and_bound": True}),
        ("wcsp", 60, {"local_search": 0}),
    ],
)
def test_exact_methods_solve_several_kinds_together(method: str, n: int, options: dict[str, Any]) -> None:
    for seed in range(n):
        recipe = random_constrained(seed + 100, n_vars=2 + seed % 5, n_constraints=1 + seed % 6)
        result, optimum = mapmrf.solve(recipe.graph(), method, **options), recipe.optimum()
        assert result.value == pytest.approx(optimum, abs=1e-6)
        assert result.status is (Status.OPTIMAL if optimum > -math.inf else Status.INFEASIBLE)


def test_variants_of_lslp_take_constraints() -> None:
    recipe = random_constrained(3, n_vars=4, soft=0.0)
    optimum = recipe.optimum()
    assert optimum > -math.inf
    for options in ({"preset": "paper"}, {"sphere": "affine"}, {"sphere": "factors"}, {"epsilon": 1e-3}):
        result = mapmrf.solve(recipe.graph(), "lslp", **options)
        assert -math.inf < result.value <= optimum + 1e-6 <= result.bound + 2e-6


def test_kinds_know_of_constraints() -> None:
    graph = FactorGraph.from_tables([2] * 3, [(0,), (1,), (2,)], [[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]])
    one = graph.with_constraints([constraints.at_most_one(range(3))])
    problem = Problem.compile(one)
    empty = np.zeros(0)
    assert classify(problem, np.array([0, 1, 0, 1, 1, 0.0]), empty)[0] is Kind.APPROXIMATE
    assert classify(problem, np.array([0, 1, 1, 0, 1, 0.0]), empty)[0] is Kind.VALID
    assert classify(problem, np.array([0.5, 0.5, 0.5, 0.5, 1, 0.0]), empty)[0] is Kind.FRACTIONAL
    differ = Problem.compile(graph.with_constraints([constraints.all_different([0, 1])]))
    assert classify(differ, np.array([0, 1, 0, 1, 1, 0.0]), empty)[0] is Kind.APPROXIMATE
    assert classify(differ, np.array([0, 1, 1, 0, 1, 0.0]), empty)[0] is Kind.VALID
    early = mapmrf.solve(one, "ad3", max_iterations=1)
    assert early.kind is Kind.APPROXIMATE or early.status is Status.OPTIMAL
