"""Kicks: a kick that has not been judged is not shown, and pieces of work add up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf.datasets import grid
from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.kicks import BlockKicks, SearchKicks
from mapmrf.model.problem import Problem
from strategies import Recipe, hard_recipes, recipes, with_weights


def kicks_of(problem: Problem, repair: str, largest: int, seed: int) -> SearchKicks | BlockKicks:
    """Kicks from the labels zero."""
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


@given(recipe=with_weights(recipes() | hard_recipes()), entries=st.integers(1, 50), seed=st.integers(0, 3))
@settings(max_examples=10)
@pytest.mark.parametrize("repair", ["flips", "chains"])
def test_short_runs_end_where_a_long_one_does(repair: str, recipe: Recipe, entries: int, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    found = []
    for size in (entries, 10**9):
        kicks = kicks_of(problem, repair, 5, seed)
        while kicks.done < 20:
            kicks.run(size, 20, 0.0)
        found.append((kicks.labels().tolist(), kicks.taken))
    assert found[0] == found[1]


@pytest.mark.parametrize("repair", ["flips", "chains", "blocks"])
def test_a_temperature_lets_worse_parts_stay(repair: str) -> None:
    problem = Problem.compile(grid(10, 10, 3.0, seed=3))
    taken = []
    for temperature in (0.0, 5.0):
        kicks = kicks_of(problem, repair, 10, 0)
        while kicks.done < 200:
            kicks.run(10**7, 200, temperature)
        taken.append(kicks.taken)
    assert taken[0] < taken[1]


def test_a_restart_forgets_a_kick_under_way() -> None:
    problem = Problem.compile(grid(10, 10, 3.0, seed=3))
    kicks = kicks_of(problem, "chains", 20, 0)
    ones = np.ones(100, dtype=np.int64)
    for entries in range(1, 400, 7):
        kicks.run(entries, 1000, 0.0)
        kicks.restart(ones)
        assert kicks.labels().tolist() == ones.tolist()
