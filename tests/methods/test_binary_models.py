"""Max-flow, QPBO, expansions, SDP and tabu: proofs, persistent variables, and good labellings of binary models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from binary_models import binary_graphs, complete, random_cut, spins, submodular_recipe
from mapmrf import FactorGraph, Status
from mapmrf.datasets import potts_image
from mapmrf.images import grid_model
from strategies import brute_force


def image(labels: int = 2) -> FactorGraph:
    return potts_image(40, 50, labels=labels, noise=1.2, smoothness=0.8, seed=0).graph


def test_an_image_is_solved_to_round_off() -> None:
    """The gap is far below the tolerance at which other methods may stop."""
    graph = image()
    result = mapmrf.solve(graph, "maxflow")
    assert result.status is Status.OPTIMAL
    assert result.gap is not None and result.gap < 1e-13
    assert mapmrf.solve(graph, "trws").value <= result.value + 1e-9
    assert result.kind is not None and result.relaxed_value == pytest.approx(result.value)


def test_a_medium_model_with_flips_and_hard_constraints_agrees_with_branch_and_bound() -> None:
    graph = submodular_recipe(np.random.default_rng(1), 22, 0.15, 0.05).graph()
    cut, exact = mapmrf.solve(graph, "maxflow"), mapmrf.solve(graph, "branch")
    assert cut.status is exact.status is Status.OPTIMAL
    assert cut.value == pytest.approx(exact.value, rel=1e-12)
    assert cut.details["flipped"] > 0


def test_the_run_does_not_stop_at_the_tolerance() -> None:
    graph = image()
    assert mapmrf.solve(graph, "maxflow", gap_tolerance=10.0).value == mapmrf.solve(graph, "maxflow").value


# -- qpbo -------------------------------------------------------------------------------------------------------------


def test_a_submodular_model_is_solved_as_by_maxflow() -> None:
    graph = image()
    result, cut = mapmrf.solve(graph, "qpbo"), mapmrf.solve(graph, "maxflow")
    assert result.status is Status.OPTIMAL
    assert (result.value, result.bound) == (cut.value, cut.bound)
    assert result.details["fixed_by_cut"] == graph.n_vars


def test_a_model_with_strong_fields_is_solved_by_persistency() -> None:
    graph = spins(15, seed=1, field=3.0)
    result = mapmrf.solve(graph, "qpbo", rounds=0)
    assert 0 < result.details["fixed_by_roof_duality"] <= graph.n_vars
    assert result.bound == pytest.approx(mapmrf.solve(graph, "lp").bound, rel=1e-6)
    assert result.bound is not None and result.bound >= mapmrf.solve(graph, "cuts").value - 1e-6


def test_rounds_improve_what_ascent_finds() -> None:
    graph = spins(20, seed=3)
    none, some = (mapmrf.solve(graph, "qpbo", rounds=rounds) for rounds in (0, 3))
    assert none.status is some.status is Status.CONVERGED
    assert mapmrf.solve(graph, "icm").value <= none.value < some.value
    assert (none.iterations, some.iterations, some.details["rounds"]) == (1, 4, 3.0)
    assert none.bound == some.bound


# -- expansions and swaps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("move", ["expansion", "swap"])
def test_the_run_converges_above_single_variable_ascent_and_below_the_bound(move: str) -> None:
    graph = image(5)
    result, proof = mapmrf.solve(graph, "expansion", move=move), mapmrf.solve(graph, "trws")
    assert result.status is Status.CONVERGED and result.bound is None
    assert mapmrf.solve(graph, "icm").value < result.value <= proof.bound
    assert result.value > proof.bound - 0.02 * abs(proof.bound)  # large moves come close


def test_a_binary_model_is_solved_by_one_expansion() -> None:
    graph = image(labels=2)
    assert mapmrf.solve(graph, "expansion").value == pytest.approx(mapmrf.solve(graph, "maxflow").value, rel=1e-12)


@pytest.mark.parametrize("move", ["expansion", "swap"])
@pytest.mark.parametrize("smoothness", ["potts", "linear"])
def test_the_value_is_near_that_of_gco(smoothness: str, move: str) -> None:
    """Local optima depend on the order of the moves. Costs are whole numbers, since gco rounds."""
    gco = pytest.importorskip("gco")
    observed = potts_image(40, 50, labels=6, noise=0.9, seed=1).observed
    costs = np.round(10 * np.abs(observed[..., None] - np.arange(6)))
    truncation = 3 if smoothness == "linear" else None
    graph = grid_model(costs, smoothness, weight=6.0, truncation=truncation, costs=True)
    pairs, first = np.sort(graph.scope.reshape(-1, 2), axis=1), costs.reshape(-1, 6).argmin(axis=1)
    labels = gco.cut_general_graph(
        pairs, np.ones(len(pairs)), costs.reshape(-1, 6), -graph.table(0), algorithm=move, init_labels=first
    )
    assert mapmrf.solve(graph, "expansion", move=move).value == pytest.approx(graph.value(labels), rel=0.003)


def test_non_metric_pairs_are_moved_by_roof_duality() -> None:
    """Quadratic costs are no metric, and random tables anything but."""
    random = np.random.default_rng(0)
    quadratic = grid_model(random.normal(size=(12, 12, 6)), "quadratic", weight=0.2, truncation=9)
    edges = quadratic.scope.reshape(-1, 2)
    anything = FactorGraph.from_pairwise(random.normal(size=(144, 6)), edges, random.normal(size=(len(edges), 6, 6)))
    for graph in (quadratic, anything):
        result = mapmrf.solve(graph, "expansion")
        first = graph.value(graph.theta_v.reshape(-1, 6).argmax(axis=1))
        assert result.status is Status.CONVERGED
        assert first < result.value <= mapmrf.solve(graph, "trws").bound


def test_the_labelling_given_is_the_start() -> None:
    graph = image(5)
    local = mapmrf.solve(graph, "expansion")
    again = mapmrf.solve(graph, "expansion", initial=local)
    assert again.labels.tolist() == local.labels.tolist()
    assert again.details["helpful_moves"] == 0.0 and again.iterations == 5


# -- semidefinite bounds ----------------------------------------------------------------------------------------------


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
def test_tabu_finds_small_optima(graph: FactorGraph) -> None:
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


def test_a_tabu_search_ends_after_its_trajectories_or_rounds() -> None:
    for graph, n in ((complete(20), 3), (random_cut(30, 200, 0), 10)):
        some = mapmrf.solve(graph, "tabu", trajectories=n)
        assert some.status is Status.CONVERGED and some.details["trajectories"] >= n
    assert mapmrf.solve(random_cut(200, 2000, 1), "tabu", max_iterations=5).status is Status.ITERATION_LIMIT
