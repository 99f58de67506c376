"""SDP and tabu: bounds and proofs of dense binary models, and good labellings of larger ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from binary_models import binary_graphs, complete, random_cut, spins
from mapmrf import FactorGraph, Status
from strategies import brute_force


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole", [True, False])
def test_models_with_fields_are_proven(seed: int, whole: bool) -> None:
    random = np.random.default_rng(seed)
    pairs = [(i, j) for j in range(18) for i in range(j) if random.random() < 0.7]
    unary, tables = random.normal(size=(18, 2)), random.normal(size=(len(pairs), 2, 2))
    if whole:
        unary, tables = np.round(4 * unary), np.round(4 * tables)
    graph = FactorGraph.from_pairwise(unary, pairs, tables)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "exhaustive").value)


def test_a_sparse_model_is_proven_as_by_cuts() -> None:
    graph = spins(7, seed=2)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "cuts").value)


def test_without_cuts_and_branches_there_is_a_bound() -> None:
    graph = complete(30, seed=1)
    plain = mapmrf.solve(graph, "sdp", cut_spins=0)
    tight = mapmrf.solve(graph, "sdp", branch_spins=0)
    whole = mapmrf.solve(graph, "sdp")
    assert plain.status is Status.CONVERGED
    assert plain.bound > tight.bound >= whole.bound == pytest.approx(whole.value)
    assert (plain.details["inequalities"], tight.details["nodes"]) == (0.0, 1.0)


# -- tabu -------------------------------------------------------------------------------------------------------------


@given(graph=binary_graphs())
def test_small_optima_are_found(graph: FactorGraph) -> None:
    result = mapmrf.solve(graph, "tabu", trajectories=2)
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_of_a_dense_model_is_found(seed: int) -> None:
    graph = complete(35, seed=seed)
    proven = mapmrf.solve(graph, "sdp")
    assert proven.status is Status.OPTIMAL
    assert mapmrf.solve(graph, "tabu", trajectories=5).value == pytest.approx(proven.value)


def test_it_goes_further_than_restarts_on_a_random_graph() -> None:
    graph = random_cut(500, 5000, seed=0)
    result = mapmrf.solve(graph, "tabu", max_iterations=20)
    assert result.value > mapmrf.solve(graph, "restarts", max_iterations=10).value


def test_forbidden_pairs_are_respected() -> None:
    graph = spins(6, seed=1)
    tables = np.array([graph.table(a) for a in range(graph.n_factors)])
    tables[::3, 1, 1] = -np.inf
    hard = FactorGraph.from_pairwise(graph.theta_v.reshape(-1, 2), graph.scope.reshape(-1, 2), tables)
    result = mapmrf.solve(hard, "tabu", trajectories=3)
    assert result.value == pytest.approx(mapmrf.solve(hard, "branch").value)


def test_a_run_ends_after_its_trajectories_or_rounds() -> None:
    for graph, n in ((complete(20), 3), (random_cut(30, 200, 0), 10)):
        some = mapmrf.solve(graph, "tabu", trajectories=n)
        assert some.status is Status.CONVERGED and some.details["trajectories"] >= n
    assert mapmrf.solve(random_cut(200, 2000, 1), "tabu", max_iterations=5).status is Status.ITERATION_LIMIT
