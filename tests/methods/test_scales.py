"""Potentials of every scale: bounds and proofs, with constraints too, the smallest numbers, and other units."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

import mapmrf
from constrained_recipes import KINDS, ConstrainedRecipe, one_kind, random_constrained
from mapmrf import FactorGraph, Status, constraints
from mapmrf.run.registry import method_class
from strategies import random_recipe

NATIVE = ("ad3", "auto", "branch", "cuts", "exhaustive", "lp", "lslp", "mplp", "wcsp")
SCALES = (1e-12, 1e-9, 1.0, 1e12)


def scaled(recipe: ConstrainedRecipe, scale: float) -> ConstrainedRecipe:
    tables = [scale * np.asarray(table) for table in recipe.recipe.tables]
    stated = [dataclasses.replace(each, penalty=scale * each.penalty) for each in recipe.stated]
    for n, each in enumerate(stated):
        if each.made_by == "regular":
            size, arcs, initial, ends = each.data
            arcs = tuple((*arc, scale * weight) for *arc, weight in arcs)
            data = (size, arcs, initial, tuple((end, scale * weight) for end, weight in ends))
            stated[n] = dataclasses.replace(each, data=data)
    return ConstrainedRecipe(dataclasses.replace(recipe.recipe, tables=tables), stated)


def check(recipe: ConstrainedRecipe, method: str, **options: float) -> mapmrf.Result:
    """Solve a model; no bound may be below the optimum, and no labelling that is not the best called so."""
    graph, optimum = recipe.graph(), recipe.optimum()
    result = mapmrf.solve(graph, method, **options)
    assert result.bound is not None
    assert result.value <= optimum + graph.allowance and math.isinf(result.value) == math.isinf(optimum)
    for bound in (result.bound, *(point.bound for point in result.trace)):
        assert bound is None or bound >= optimum - graph.allowance
    if result.status is Status.OPTIMAL:
        assert result.value >= optimum - graph.allowance
    if method_class(method).exact:
        assert result.status is (Status.OPTIMAL if optimum > -math.inf else Status.INFEASIBLE)
    return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", NATIVE)
def test_bounds_hold_for_every_kind_at_every_scale(method: str, kind: str) -> None:
    for seed, scale in enumerate(SCALES, 1):
        check(scaled(one_kind(kind, seed, bool(seed % 2), n_factors=3 if seed == 1 else 5), scale), method)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("method", ["ad3", "lslp", "mplp"])
def test_bounds_hold_for_several_kinds_together(method: str, scale: float) -> None:
    for seed in (27, 33, 48):
        check(scaled(random_constrained(seed, n_vars=2 + seed % 4, n_constraints=1 + seed % 4), scale), method)


def forced() -> ConstrainedRecipe:
    """A constraint that leaves one state each: no price would be enough, and prices that only grow drown the rest."""
    scopes = [(0,), (1,), (2,), (3,), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]
    recipe = random_recipe(0, 0, 0)
    recipe.card, recipe.scopes = [2, 3, 3, 3], scopes
    recipe.tables = [np.array(table) for table in (
        [0, -1.5], [.3, -.1, -1.2], [-2.4, .5, -.3], [-.5, -.2, 1.8], [[-1.5, 1.6], [.9, 1.1], [0, .9]],
        [[.6, -.2, -1.5], [1, -1.9, -.2], [-.2, -1, .6]], [[-.4, .5], [-.5, 1.4], [.4, -.5]],
        [[-1.3, 1.1, -.1], [-.3, 1.6, -1.3], [-.6, -.5, .6]], [[-.6, -1.6, .7], [.8, -.5, .2], [-1.3, -.5, 1.4]],
    )]  # fmt: skip
    return ConstrainedRecipe(recipe, [constraints.exactly_k([(1, 2), (0, 0), (3, 1), (2, 1)], 4)])


@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1.0, 1e9])
def test_prices_have_the_scale_of_the_model_and_do_not_grow(scale: float) -> None:
    result = check(scaled(forced(), scale), "mplp", tol=0.0, gap_tolerance=-1.0, max_iterations=300)
    assert result.status is Status.OPTIMAL
    assert result.value / scale == pytest.approx(-2.5) and result.bound / scale == pytest.approx(-2.5, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["auto", "branch", "cuts", "exhaustive", "wcsp"])
def test_a_penalty_that_nobody_pays_does_not_prevent_the_proof(method: str, kind: str) -> None:
    for seed in range(2):
        recipe = one_kind(kind, seed, soft=True)
        recipe.stated = [dataclasses.replace(each, penalty=3.7e9) for each in recipe.stated]
        assert check(recipe, method).status is Status.OPTIMAL


def test_a_potential_that_is_too_low_does_not_prevent_the_proof() -> None:
    random = np.random.default_rng(3)
    table = random.normal(size=(3, 3))
    table[1, 2] = -1e13
    graph = FactorGraph.from_pairwise(random.normal(size=(4, 3)), [(0, 1), (1, 2), (2, 3), (3, 0)], table)
    result = mapmrf.solve(graph, "branch")
    assert result.status is Status.OPTIMAL and result.value == mapmrf.solve(graph, "exhaustive").value


@pytest.mark.parametrize("scale", [1e-9, 1.0, 0.3])
def test_a_gap_below_the_granularity_is_a_proof(scale: float) -> None:
    """An odd cycle: the relaxation is worth half a step more than the best labelling."""
    table = scale * np.array([[0.0, 1.0], [1.0, 0.0]])
    unary = np.zeros((3, 2))
    unary[0, 0] = scale
    graph = FactorGraph.from_pairwise(unary, [(0, 1), (1, 2), (2, 0)], table)
    result = mapmrf.solve(graph, "lp", gap_tolerance=-1.0, initial=[0, 1, 0])
    assert result.bound == pytest.approx(3.5 * scale) and result.value == pytest.approx(3.0 * scale)
    assert result.status is Status.OPTIMAL


def test_a_large_constant_does_not_prevent_the_proof() -> None:
    random = np.random.default_rng(1)
    tables = [random.normal(size=(2, 2)) for _ in range(3)]
    graph = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2), (2, 0), ()], [*tables, np.array(1e12)])
    for method in ("branch", "cuts", "wcsp"):
        assert mapmrf.solve(graph, method).status is Status.OPTIMAL


# -- the smallest numbers ---------------------------------------------------------------------------------------------


TINY = (1e-308, 5e-324)


def alone(size: float) -> FactorGraph:
    return FactorGraph.from_tables([2], [(0,)], [[0.0, size]])


def beside_large(size: float) -> FactorGraph:
    pair = [[size, 0.0], [0.0, size]]
    return FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0,), (2,)], [pair, pair, [1.0, -1.0], [0.0, size]])


@pytest.mark.parametrize("method", ["ad3", "auto", "cuts", "l2box", "lp", "lslp", "psdd", "trws"])
@pytest.mark.parametrize("size", TINY)
@pytest.mark.parametrize("model", [alone, beside_large])
def test_tiny_potentials_give_no_warning_and_no_nan(
    model: Callable[[float], FactorGraph], size: float, method: str
) -> None:
    graph = model(size)
    result = mapmrf.solve(graph, method)
    best = mapmrf.solve(graph, "exhaustive").value
    assert result.value <= best and result.status != "infeasible"
    assert result.bound is None or (not math.isnan(result.bound) and result.bound >= best - 1e-9)
