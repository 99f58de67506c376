"""Block moves and crossover: never a lower value, exact where they can be, and nothing changes outside a region."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.elimination.orders import PrimalGraph
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.model.problem import Problem
from strategies import Recipe, brute_force, hard_recipes, recipes, soft_recipes, some_labels, with_weights


@given(recipe=with_weights(recipes()), data=st.data(), width=st.sampled_from([0.0, 2.0, 4.0, 6.0]))
def test_a_pass_never_lowers_the_value(recipe: Recipe, data: st.DataObject, width: float) -> None:
    graph = recipe.graph()
    labels = some_labels(recipe, data)
    moves = BlockMoves(Problem.compile(graph), 1)
    for _ in range(3):
        old, before = labels.copy(), graph.value(labels)
        changed = moves.optimise(labels, width)
        assert graph.value(labels) >= before - 1e-9 * max(1.0, abs(before))
        assert changed == np.count_nonzero(labels != old)


@given(recipe=with_weights(recipes()), data=st.data())
def test_only_the_region_changes_and_is_optimal_given_the_rest(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    labels = some_labels(recipe, data)
    before = labels.copy()
    moves = BlockMoves(Problem.compile(graph), 2)
    region = moves.neighbourhood(data.draw(st.integers(1, graph.n_vars)))
    moves.optimise(labels, 40.0, region)
    outside = np.setdiff1d(np.arange(graph.n_vars), region)
    assert labels[outside].tolist() == before[outside].tolist()
    fixed = graph.condition({int(i): int(before[i]) for i in outside})
    assert graph.value(labels) == pytest.approx(brute_force(fixed)[0])


def test_a_wider_pass_costs_more_work() -> None:
    problem = Problem.compile(grid(12, 12, 3.0, seed=3))
    spent = []
    for width in (1.0, 3.0, 9.0):
        moves = BlockMoves(problem, 0)
        moves.optimise(np.zeros(144, dtype=np.int64), width)
        spent.append(moves.work)
    assert spent[0] < spent[1] < spent[2]


@given(recipe=with_weights(soft_recipes() | hard_recipes()), seed=st.integers(0, 5))
@settings(max_examples=15)
def test_balls_never_make_a_labelling_worse(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    moves = BlockMoves(problem, seed, PrimalGraph.of(problem))
    labels = np.random.default_rng(seed).integers(0, graph.card)
    for _ in range(6):
        before = graph.value(labels)
        moves.optimise_ball(labels)
        assert graph.value(labels) >= before - 1e-9
    assert moves.effort == 6 * 16


def test_a_ball_that_covers_a_component_finds_its_optimum() -> None:
    graph = grid(3, 3, 3.0, seed=2)
    moves = BlockMoves(Problem.compile(graph), 0)
    moves.ball_size = 40.0
    labels = np.zeros(9, dtype=np.int64)
    moves.optimise_ball(labels)
    assert graph.value(labels) == pytest.approx(brute_force(graph)[0])


def test_balls_grow_until_something_has_to_be_frozen() -> None:
    problem = Problem.compile(grid(40, 40, 3.0, seed=2))
    moves = BlockMoves(problem, 0)
    labels, sizes = np.zeros(1600, dtype=np.int64), []
    for _ in range(80):
        moves.optimise_ball(labels)
        sizes.append(moves.ball_size)
    assert max(sizes) > 100 and min(np.diff(sizes)) < 0


# -- crossover --------------------------------------------------------------------------------------------------------


@given(recipe=with_weights(recipes()), data=st.data())
def test_fusion_is_the_best_of_all_combinations_of_the_parts(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    one, other = some_labels(recipe, data), some_labels(recipe, data)
    best = max(graph.value(np.array(mix)) for mix in combinations(graph, one, other))
    before = graph.value(one)
    crossover = Crossover(Problem.compile(graph))
    gain = crossover.fuse(one, other)
    assert graph.value(one) == pytest.approx(best)
    if np.isfinite(before):
        assert gain == pytest.approx(best - before, abs=1e-9)
    if np.isfinite(best):
        assert crossover.fuse(one, other) == 0.0


def combinations(graph: FactorGraph, one: np.ndarray, other: np.ndarray) -> list[list[int]]:
    """Every way to take whole parts of the difference from one or the other, parts found by plain search."""
    differs = set(np.flatnonzero(one != other).tolist())
    scopes = [set(graph.scope_of(a).tolist()) & differs for a in range(graph.n_factors)]
    parts: list[set[int]] = []
    for i in sorted(differs):
        part = {i}.union(*(old for old in parts if any(i in s and old & s for s in scopes)))
        parts = [old for old in parts if not old & part] + [part]
    mixes = [one.tolist()]
    for part in parts:
        mixes += [[other[i] if i in part else x for i, x in enumerate(mix)] for mix in mixes]
    return mixes


def test_a_region_limits_what_is_taken_over() -> None:
    graph = FactorGraph.from_pairwise([[0.0, 1.0]] * 4, [[0, 1]], np.zeros((2, 2)))
    labels, ones = np.zeros(4, dtype=np.int64), np.ones(4, dtype=np.int64)
    assert Crossover(Problem.compile(graph)).fuse(labels, ones, np.array([2])) == 1.0
    assert labels.tolist() == [0, 0, 1, 0]


def test_round_off_is_no_gain_unless_it_is_asked_for() -> None:
    graph = FactorGraph.from_pairwise([[0.0, 1e-10], [0.0, 0.0]], [[0, 1]], np.full((2, 2), 1e6))
    for tol, taken in ((1e-12, 0), (0.0, 1)):
        labels = np.zeros(2, dtype=np.int64)
        Crossover(Problem.compile(graph), tol=tol).fuse(labels, np.array([1, 0]))
        assert labels.tolist() == [taken, 0]
