"""Bounds on the labellings with each state, from sequential passes of any kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.methods.trws import TRWS
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import any_recipes


def passes_after(problem: Problem, iterations: int) -> SequentialPasses:
    method = TRWS(max_iterations=iterations, tol=0.0)
    state = method.start(problem, 0, Start())
    for _ in range(iterations):
        if method.step(problem, state).finished is not None:
            break
    return state.passes


def best_with_each_state(graph: FactorGraph) -> np.ndarray:
    best = np.full(len(graph.theta_v), -np.inf)
    for labels in itertools.product(*(range(n) for n in graph.card)):
        at = graph.var_ptr[:-1] + np.array(labels, dtype=np.int64)
        best[at] = np.maximum(best[at], graph.value(labels))
    return best


@given(any_recipes(), st.integers(1, 4))
def test_no_labelling_with_a_state_is_better_than_its_bound(recipe, iterations):
    graph = recipe.graph()
    if graph.n_vars == 0:
        return
    bounds = passes_after(Problem.compile(graph), iterations).state_bounds()
    best = best_with_each_state(graph)
    assert np.all(bounds >= best - 1e-9 * (1 + np.abs(np.where(np.isfinite(best), best, 0.0))))


@pytest.mark.parametrize("n_states", [2, 5])
def test_bounds_of_a_tree_are_exact_at_the_optimum_and_exclude_other_states(n_states):
    rng = np.random.default_rng(0)
    edges = [[0, 1], [1, 2], [1, 3], [3, 4]]
    graph = FactorGraph.from_pairwise(rng.normal(size=(5, n_states)), edges, rng.normal(size=(4, n_states, n_states)))
    bounds, best = passes_after(Problem.compile(graph), 5).state_bounds(), best_with_each_state(graph)
    assert bounds.reshape(5, -1).max(axis=1) == pytest.approx(best.max())
    assert np.count_nonzero(bounds < best.max() - 1e-9) >= 5


def test_passes_go_on_after_bounds_were_asked_for():
    rng = np.random.default_rng(1)
    edges = [[i, j] for i in range(6) for j in range(i)]
    for n_states in (2, 4):
        graph = FactorGraph.from_pairwise(
            rng.normal(size=(6, n_states)), edges, rng.normal(size=(len(edges), n_states, n_states))
        )
        asked, plain = (passes_after(Problem.compile(graph), 2) for _ in range(2))
        asked.state_bounds()  # an iteration
        asked.iterate(3, 4, 1)
        plain.iterate(2, 4, 1)
        assert asked.figures.bound == plain.figures.bound


def test_bounds_do_not_depend_on_threads():
    problems = [Problem.compile(grid(620, 620, coupling=0.7, seed=0), threads) for threads in (1, 2)]
    alone, shared = (passes_after(problem, 2) for problem in problems)
    try:
        assert (alone.n_workers, shared.n_workers) == (1, 2)
        assert np.array_equal(alone.state_bounds(), shared.state_bounds())
    finally:
        shared.close()
