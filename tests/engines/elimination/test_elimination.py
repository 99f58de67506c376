"""Exact bucket elimination against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elimination_models import grid_edges, prepared
from mapmrf.engines.elimination import elimination
from mapmrf.engines.elimination.elimination import Elimination, row_major
from mapmrf.model.graph import FactorGraph
from plain_python import plain_kernels
from strategies import Recipe, any_recipes, brute_force, random_recipe, recipes, with_weights


def maximised(graph: FactorGraph, seed: int = 0, additions: int = 10**9) -> tuple[float, np.ndarray, int]:
    _, tree, given = prepared(graph, seed)
    run = Elimination(tree, given)
    steps = 0
    while not run.finished:
        run.advance(additions, tree.n)
        steps += 1
    return run.value + graph.constant, run.labels(), steps


@given(recipe=with_weights(recipes() | any_recipes()), seed=st.integers(0, 3))
def test_elimination_finds_the_optimum_of_any_model(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    value, labels, _ = maximised(graph, seed)
    assert value == pytest.approx(optimum, abs=1e-9)
    assert graph.value(labels) == pytest.approx(optimum, abs=1e-9)


def test_elimination_can_be_cut_anywhere() -> None:
    """Messages of several blocks, done a block at a time, are those done at once."""
    random = np.random.default_rng(3)
    side = 13
    edges = grid_edges(side, side)
    graph = FactorGraph.from_pairwise(
        random.normal(size=(side * side, 2)), edges, random.normal(size=(len(edges), 2, 2))
    )
    value, labels, steps = maximised(graph)
    again, same, more = maximised(graph, additions=1)
    assert value == again == pytest.approx(graph.value(labels))
    assert labels.tolist() == same.tolist()
    assert steps == 1 and more > side * side


def test_buckets_are_counted_and_the_count_limited() -> None:
    graph = random_recipe(4, 7, 12).graph()
    _, tree, given = prepared(graph)
    run = Elimination(tree, given)
    for done in (1, 3, 7):
        run.advance(10**9, done)
        assert run.n_done == done
    assert run.finished


def test_more_states_than_a_byte_holds() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_tables(
        [300, 3, 300], [(0, 1), (1, 2), (0,)], [random.normal(size=s) for s in ((300, 3), (3, 300), (300,))]
    )
    with plain_kernels(elimination):  # compiled for wider integers they take seconds
        value, labels, _ = maximised(graph)
    joint = graph.table(0)[:, :, None] + graph.table(1)[None] + graph.theta_v[:300, None, None]
    assert value == pytest.approx(joint.max())
    assert labels.tolist() == list(np.unravel_index(joint.argmax(), joint.shape))


def test_the_stack_stays_within_the_peak_that_was_announced() -> None:
    """Two heavy branches below a root: with both messages alive and the next one written, no more is needed."""
    graph = random_recipe(11, 9, 14, max_card=3).graph()
    _, tree, _ = prepared(graph)
    sizes = row_major(tree.card, tree.context_ptr, tree.context)[1]
    alive = peak = 0
    for p in range(tree.n - 1, -1, -1):
        peak = max(peak, alive + int(sizes[p]))
        alive += int(sizes[p]) * (tree.parent[p] >= 0) - sum(int(sizes[q]) for q in np.flatnonzero(tree.parent == p))
    assert peak <= tree.peak
    assert Elimination.bytes_needed(tree) == 8 * tree.peak + sizes.sum()
