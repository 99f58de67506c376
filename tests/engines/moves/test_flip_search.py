"""Flips, chains, kicks and forced states: gains are exact, pieces of work add up; the layout of a model for moves."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.compilation.jit import compiled
from mapmrf.datasets import grid
from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.flip_state import floor_of, lay_out, local_scale
from mapmrf.engines.moves.kicks import BlockKicks, SearchKicks
from mapmrf.engines.moves.local_search import ForcedStates
from mapmrf.engines.reduction.reduction import _reducible
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Evaluator
from strategies import (
    Recipe,
    cost,
    hard_recipes,
    one_changed,
    recipes,
    soft_recipes,
    some_labels,
    with_weights,
)


@given(recipe=with_weights(recipes()), entries=st.integers(1, 40), data=st.data())
def test_between_runs_scores_and_labels_are_those_of_one_labelling(
    recipe: Recipe, entries: int, data: st.DataObject
) -> None:
    """The labels that are handed out never hold a trial flip, and values never fall on the way."""
    graph = recipe.graph()
    start = some_labels(recipe, data)
    search = FlipSearch(Problem.compile(graph), 3)
    search.restart(start)
    before = cost(graph, start)
    while not search.at_rest:
        search.run(entries)
        now = cost(graph, search.labels())
        assert now <= (before[0], before[1] + 1e-9) or now[0] < before[0]
        before = now
    flips = search.flips
    if np.isinf(flips.floor):
        for i, k, changed in one_changed(graph, search.labels()):
            gain = graph.value(changed) - graph.value(search.labels())
            row = flips.score[graph.var_ptr[i] :]
            assert row[k] - row[flips.labels[i]] == pytest.approx(gain, abs=1e-9)


def test_visits_are_limited_and_counted() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((6, 2)), [[i, i + 1] for i in range(5)], [[0.0, -1.0], [-1.0, 0.5]])
    for search in (FlipSearch(Problem.compile(graph), 2), ChainSearch(Problem.compile(graph), 5, 1, 0)):
        search.restart(np.zeros(6, dtype=np.int64))
        search.run(10**6, 4)
        assert search.visits == 4 and not search.at_rest


def test_the_floor_is_below_what_a_move_can_lose_and_the_scale_is_the_mean_stake_of_a_variable() -> None:
    table = np.array([[1.0, -2.0], [0.0, -np.inf]])
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), [[0, 1], [1, 2]], table)
    assert floor_of(Problem.compile(graph), 2) < -2 * 2 * 3
    assert local_scale(Problem.compile(graph)) == 2 * 2 * 3.0 / 4
    soft = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.zeros((2, 2)))
    assert floor_of(Problem.compile(soft), 2) == -np.inf


# -- kicks ------------------------------------------------------------------------------------------------------------


def kicks_of(problem: Problem, repair: str, largest: int, seed: int) -> SearchKicks | BlockKicks:
    start = np.zeros(problem.n_vars, dtype=np.int64)
    if repair == "blocks":
        return BlockKicks(problem, start, largest, 3.0, seed)
    kicks = (
        SearchKicks(problem, FlipSearch(problem, 2), largest, seed)
        if repair == "flips"
        else SearchKicks(problem, ChainSearch(problem, 6, 1, seed), largest, seed)
    )
    kicks.restart(start)
    return kicks


@given(recipe=with_weights(recipes()), kick=st.integers(1, 6), entries=st.integers(1, 60), seed=st.integers(0, 5))
@settings(max_examples=15)
@pytest.mark.parametrize("repair", ["flips", "chains"])
def test_the_labels_between_two_runs_never_get_worse(
    repair: str, recipe: Recipe, kick: int, entries: int, seed: int
) -> None:
    graph = recipe.graph()
    kicks = kicks_of(Problem.compile(graph), repair, kick, seed)
    value = graph.value(kicks.labels())
    for _ in range(60):
        kicks.run(entries, 30, 0.0)
        now = graph.value(kicks.labels())
        assert now >= value - 1e-9 * max(1.0, abs(value))
        value = max(now, value)


def test_a_restart_forgets_a_kick_under_way() -> None:
    problem = Problem.compile(grid(10, 10, 3.0, seed=3))
    kicks = kicks_of(problem, "chains", 20, 0)
    ones = np.ones(100, dtype=np.int64)
    for entries in range(1, 400, 7):
        kicks.run(entries, 1000, 0.0)
        kicks.restart(ones)
        assert kicks.labels().tolist() == ones.tolist()


# -- forced states ----------------------------------------------------------------------------------------------------


@given(with_weights(soft_recipes() | hard_recipes()))
def test_labellings_with_forced_states_are_worth_what_is_said(recipe) -> None:
    graph = recipe.graph()
    labels = np.array(graph.unary_labels)
    if graph.value(labels) == -np.inf:
        return
    forced = ForcedStates(Problem.compile(graph), labels)
    while not forced.finished:
        forced.advance(1)
    for i, k, _ in one_changed(graph, labels):
        found = forced.labels_with(i, k)
        assert found[i] == k
        gain = graph.value(found) - graph.value(labels)
        assert forced.gain[graph.var_ptr[i] + k] >= gain - 1e-9


def test_neighbours_follow_a_forced_state() -> None:
    graph = grid(20, 20, coupling=3.0, seed=0)
    labels = np.array(graph.unary_labels)
    forced = ForcedStates(Problem.compile(graph), labels)
    while not forced.finished:
        forced.advance()
    alone = labels.copy()
    alone[210] = 1 - alone[210]
    assert forced.gain[420 + alone[210]] > graph.value(alone) - graph.value(labels)


# -- the layout -------------------------------------------------------------------------------------------------------


def test_a_problem_is_laid_out_once_and_let_go() -> None:
    problem = Problem.compile(grid(40, 40))  # the structure of the last small model is kept
    assert lay_out(problem).scope is lay_out(problem).scope
    assert not lay_out(problem).scope.flags.writeable
    gone = weakref.ref(lay_out(problem).factor_of)
    del problem
    gc.collect()
    assert gone() is None


class Tally:
    tried: int
    gain: float


@compiled
def add(tally: Tally, gain: float) -> None:
    tally.tried += 1
    tally.gain += gain


def test_kernels_are_compiled_once_for_models_with_and_without_weights() -> None:
    numba = pytest.importorskip("numba")
    plain = Recipe([2, 3], [(0, 1)], [np.zeros((2, 3))])
    heavy = Recipe([2, 3], [(0, 1)], [np.ones((2, 3))], [0.5])
    problems = [Problem.compile(recipe.graph()) for recipe in (plain, heavy)]
    assert [len(problem.weight) for problem in problems] == [0, 1]
    for seen in (lay_out, lambda problem: _reducible(problem), lambda problem: Evaluator(problem.graph).tables):
        types = [numba.typeof(seen(problem)) for problem in problems]
        assert types[0] == types[1]
