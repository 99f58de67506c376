"""MPLP-C: proofs of optimality where the linear relaxation is loose, and what each option switches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from pairwise_models import grid_optimum
from strategies import Recipe, brute_force, recipes


@pytest.mark.parametrize(("rows", "cols"), [(6, 6), (7, 9), (8, 8)])
@pytest.mark.parametrize("seed", range(3))
def test_frustrated_grids_are_proven_optimal(rows: int, cols: int, seed: int) -> None:
    graph = grid(rows, cols, coupling=5.0, seed=seed)
    result = mapmrf.solve(graph, "mplp_c", max_iterations=20_000)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(grid_optimum(graph, cols), abs=1e-6)
    assert mapmrf.solve(graph, "mplp").bound > result.bound + 1.0
    assert result.details["clusters"] > 0


def test_a_torus_is_proven_optimal() -> None:
    graph = grid(4, 4, coupling=5.0, wrap=True, seed=2)
    result = mapmrf.solve(graph, "mplp_c", max_iterations=20_000)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "exhaustive").value)


@pytest.mark.parametrize("seed", range(4))
def test_grids_of_three_states_are_proven_optimal(seed: int) -> None:
    random = np.random.default_rng(seed)
    edges = grid(3, 3).scope.reshape(-1, 2)
    graph = FactorGraph.from_pairwise(random.normal(size=(9, 3)), edges, 3 * random.normal(size=(len(edges), 3, 3)))
    result = mapmrf.solve(graph, "mplp_c", max_iterations=20_000)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "exhaustive").value)


def triples(seed: int) -> FactorGraph:
    """Three variables that want to differ, each two of them in a factor with a third variable of its own."""
    random = np.random.default_rng(seed)
    differ = np.array([[0.0, 3.0], [3.0, 0.0]])
    tables = [differ[:, :, None] + 0.3 * random.normal(size=(2, 2, 2)) for _ in range(3)]
    return FactorGraph.from_tables([2] * 6, [(0, 1, 3), (1, 2, 4), (0, 2, 5)], tables)


@pytest.mark.parametrize("seed", range(4))
def test_larger_factors_are_tightened_on_pairs_of_their_variables(seed: int) -> None:
    graph = triples(seed)
    assert mapmrf.solve(graph, "mplp").status is Status.CONVERGED
    result = mapmrf.solve(graph, "mplp_c")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(brute_force(graph)[0])
    assert result.details["pairs_added"] > 0


@given(recipe=recipes())
@settings(max_examples=20)
def test_the_bound_is_at_least_as_good_as_that_of_mplp(recipe: Recipe) -> None:
    graph = recipe.graph()
    bound = mapmrf.solve(graph, "mplp_c").bound
    assert bound is not None
    assert brute_force(graph)[0] - 1e-6 <= bound <= mapmrf.solve(graph, "mplp").bound + 1e-3


def alone(graph: FactorGraph, **options: Any) -> Progress:
    """How the method itself ends, without the library's search for feasible labellings."""
    problem, method = Problem.compile(graph), MPLPC(**options)
    state = method.start(problem, 0, Start())
    while (progress := method.step(problem, state)).finished is None:
        pass
    return progress


def test_clusters_prove_what_single_messages_cannot() -> None:
    """Three variables that must all differ, with two states: feasible for the linear relaxation alone."""
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], differ)
    progress = alone(graph)
    assert progress.finished is Status.INFEASIBLE
    assert progress.bound == -np.inf
    assert alone(graph, triplets=False).finished is Status.INFEASIBLE
    assert alone(graph, triplets=False, cycles=False).finished is Status.CONVERGED


def test_without_candidates_it_is_mplp() -> None:
    graph = grid(6, 6, coupling=5.0, seed=0)
    plain = mapmrf.solve(graph, "mplp", tol=1e-9)
    result = mapmrf.solve(graph, "mplp_c", triplets=False, cycles=False, tol=1e-9)
    assert result.bound == pytest.approx(plain.bound, rel=1e-6)
    assert (result.status, result.details["clusters"]) == (Status.CONVERGED, 0)


def test_each_kind_of_candidate_tightens_by_itself() -> None:
    graph = grid(6, 6, coupling=5.0, seed=0)
    loose = mapmrf.solve(graph, "mplp").bound
    short = mapmrf.solve(graph, "mplp_c", cycles=False)
    long = mapmrf.solve(graph, "mplp_c", triplets=False)
    assert short.details["clusters"] == 25
    assert short.details["pairs_added"] == 0
    assert max(short.bound, long.bound) < loose - 1.0
    assert long.details["clusters"] > 0


@pytest.mark.parametrize("whole", [3, 32])
def test_cycles_may_be_clusters_as_a_whole_or_be_cut(whole: int) -> None:
    graph = grid(6, 6, coupling=5.0, seed=1)
    result = mapmrf.solve(graph, "mplp_c", whole=whole, max_iterations=3000)
    optimum = grid_optimum(graph, 6)
    assert optimum - 1e-6 <= result.bound <= 1.02 * optimum
    assert (result.details["pairs_added"] == 0) == (whole == 32)


def test_no_entries_no_clusters() -> None:
    result = mapmrf.solve(grid(6, 6, coupling=5.0, seed=0), "mplp_c", max_entries=0)
    assert result.details["clusters"] == 0
    assert result.status is Status.CONVERGED


def test_clusters_stop_at_the_limit_of_entries() -> None:
    graph = grid(8, 8, coupling=5.0, seed=0)
    result = mapmrf.solve(graph, "mplp_c", max_entries=1000)
    assert 0 < result.details["clusters"] <= 1000 / 12
    assert result.bound < mapmrf.solve(graph, "mplp").bound - 0.1


def test_the_first_search_waits_for_its_iterations_or_for_the_bound_to_stall() -> None:
    graph = grid(8, 8, coupling=5.0, seed=0)

    def first_search(**options: Any) -> int:
        trace = mapmrf.solve(graph, "mplp_c", max_iterations=60, decode_every=1, **options).trace
        return next((point.iterations for point in trace if point.phase == "search"), -1)

    assert first_search(first_iterations=7, patience=0.0) == 7
    assert first_search(patience=0.0) == -1
    assert 1 < first_search(patience=0.5) < 60
