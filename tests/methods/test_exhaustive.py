"""Exhaustive search: the first of the best labellings, and a refusal where there are too many."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.methods.exhaustive import Enumeration
from mapmrf.run.incumbent import Incumbent
from strategies import Recipe, any_recipes, brute_force, random_recipe, with_weights


def enumerated(graph: FactorGraph, block: int) -> Incumbent:
    """The best labelling after all blocks of so many labellings."""
    search = Enumeration(graph, block)
    while search.done < search.n_blocks:
        search.search_block()
    return search.best


@given(recipe=with_weights(any_recipes()), block=st.sampled_from([1, 2, 7, 2**14]))
def test_any_block_size_gives_the_optimum_of_brute_force(recipe: Recipe, block: int) -> None:
    graph = recipe.graph()
    assert enumerated(graph, block).value == pytest.approx(brute_force(graph)[0], abs=1e-9)


@given(recipe=with_weights(any_recipes()))
def test_the_bound_is_the_optimum(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "exhaustive")
    assert result.bound == result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)


@given(seed=st.integers(0, 2**16), block=st.sampled_from([1, 4, 2**14]))
def test_of_equal_labellings_the_first_in_lexicographic_order_is_taken(seed: int, block: int) -> None:
    recipe = random_recipe(seed, 6, 8)
    recipe.tables = [np.round(table) for table in recipe.tables]  # whole numbers: many exact ties
    graph = recipe.graph()
    assert tuple(enumerated(graph, block).labels) == brute_force(graph)[1]


def test_a_tie_is_not_decided_by_the_start() -> None:
    graph = Recipe([2, 2], [(0, 1)], [np.zeros((2, 2))]).graph()
    assert mapmrf.solve(graph, "exhaustive", initial=[1, 1]).labels.tolist() == [0, 0]


def test_variables_of_one_state_do_not_count() -> None:
    """More of them than numpy has axes."""
    recipe = Recipe([1] * 100 + [2], [(0, 50, 100)], [np.array([[[1.0, 2.0]]])])
    result = mapmrf.solve(recipe.graph(), "exhaustive")
    assert (result.value, result.labels[-1]) == (2.0, 1)
