"""Single-variable ascent: in pieces as at once, and as plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.moves import local_search
from mapmrf.engines.moves.local_search import Ascent
from mapmrf.model.problem import Problem
from plain_python import plain_kernels
from strategies import Recipe, assert_no_flip_helps, hard_recipes, random_recipe, recipes, with_weights


def climb(graph: FactorGraph, start: np.ndarray, entries: int = 10**9) -> np.ndarray:
    """Where an ascent ends, in runs of so many table entries."""
    ascent = Ascent(Problem.compile(graph))
    ascent.restart(start)
    while not ascent.at_optimum:
        before = ascent.visits
        ascent.run(10**9, entries)
        assert ascent.visits > before
    return ascent.labels


@given(recipe=with_weights(recipes()), data=st.data())
def test_at_the_end_no_single_flip_helps(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)
    rest = climb(graph, start)
    assert_no_flip_helps(graph, start, rest)


@given(recipe=with_weights(hard_recipes()), entries=st.integers(1, 20))
def test_short_runs_end_where_a_long_one_does(recipe: Recipe, entries: int) -> None:
    graph = recipe.graph()
    start = np.zeros(graph.n_vars, dtype=np.int64)
    assert climb(graph, start, entries).tolist() == climb(graph, start).tolist()


def test_a_run_stops_at_its_limit_of_visits() -> None:
    graph = random_recipe(3, 9, 14).graph()
    ascent = Ascent(Problem.compile(graph))
    ascent.restart(np.zeros(9, dtype=np.int64))
    ascent.run(4)
    assert ascent.visits == 4 and not ascent.at_optimum


@given(seed=st.integers(0, 20))
def test_the_kernel_runs_as_plain_python(seed: int) -> None:
    graph = random_recipe(seed, 6, 12, hard=0.2).graph()
    start = np.zeros(6, dtype=np.int64)
    with plain_kernels(local_search):
        plain = climb(graph, start)
    assert plain.tolist() == climb(graph, start).tolist()
