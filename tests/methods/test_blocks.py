"""Block moves: a pass never lowers the value, is exact where the width allows, and frozen variables stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import OptionError, Status
from mapmrf.datasets import grid
from mapmrf.engines.moves.blocks import Moves
from mapmrf.problem import Problem
from strategies import Recipe, brute_force, recipes


def some_labels(recipe: Recipe, data: st.DataObject) -> np.ndarray:
    return np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)


@given(recipe=recipes(), data=st.data(), width=st.sampled_from([0.0, 2.0, 4.0, 6.0]))
def test_a_pass_never_lowers_the_value(recipe: Recipe, data: st.DataObject, width: float) -> None:
    graph = recipe.graph()
    labels = some_labels(recipe, data)
    before = graph.value(labels)
    moves = Moves(Problem.compile(graph), 1)
    for _ in range(3):
        changed, old = moves.block_pass(labels, width), labels.copy()
        assert graph.value(labels) >= before - 1e-9 * max(1.0, abs(before))
        assert 0 <= changed <= graph.n_vars
        before = max(before, graph.value(old))


@given(recipe=recipes(), data=st.data())
def test_with_room_for_all_tables_one_pass_finds_the_optimum(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    labels = some_labels(recipe, data)
    Moves(Problem.compile(graph), 1).block_pass(labels, 40.0)
    assert graph.value(labels) == pytest.approx(brute_force(graph)[0])


@given(recipe=recipes(), data=st.data())
def test_only_the_region_changes_and_is_optimal_given_the_rest(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    labels = some_labels(recipe, data)
    before = labels.copy()
    moves = Moves(Problem.compile(graph), 2)
    region = moves.neighbourhood(data.draw(st.integers(1, graph.n_vars)))
    moves.block_pass(labels, 40.0, region)
    outside = np.setdiff1d(np.arange(graph.n_vars), region)
    assert labels[outside].tolist() == before[outside].tolist()
    fixed = graph.condition({int(i): int(before[i]) for i in outside})
    assert graph.value(labels) == pytest.approx(brute_force(fixed)[0])


@given(recipe=recipes(), data=st.data())
def test_fusion_is_the_best_of_all_combinations_of_the_parts(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    one, other = some_labels(recipe, data), some_labels(recipe, data)
    best = max(graph.value(np.array(mix)) for mix in _combinations(graph, one, other))
    before = graph.value(one)
    gain = Moves(Problem.compile(graph), 0).fuse(one, other)
    assert graph.value(one) == pytest.approx(best)
    if np.isfinite(before):
        assert gain == pytest.approx(best - before, abs=1e-9)


def _combinations(graph: mapmrf.FactorGraph, one: np.ndarray, other: np.ndarray) -> list[list[int]]:
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


def test_wider_blocks_reach_more_on_a_frustrated_grid() -> None:
    graph = grid(14, 14, 3.0, seed=3)
    values = [mapmrf.solve(graph, "blocks", width=width).value for width in (1, 3, 8)]
    assert values[0] <= values[1] <= values[2]
    assert mapmrf.solve(graph, "icm").value < values[1]


def test_a_run_ends_when_passes_no_longer_help() -> None:
    result = mapmrf.solve(grid(6, 6, 2.0), "blocks", patience=3, width=30)
    assert result.status is Status.CONVERGED
    assert result.iterations == 4 and result.details["passes"] == 4
    best = mapmrf.solve(grid(6, 6, 2.0), "branch").value
    assert result.value == pytest.approx(best)


@pytest.mark.parametrize(("option", "value"), [("patience", 0), ("max_iterations", 0), ("width", -1.0)])
def test_impossible_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=option):
        mapmrf.solve(grid(2, 2), "blocks", **{option: value})
