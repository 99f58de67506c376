"""Expansions and swaps: local optima of large moves, never a worse labelling, and the values of gco."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import potts_image
from mapmrf.images import grid_model
from strategies import Recipe


def image(labels: int = 5) -> FactorGraph:
    return potts_image(40, 50, labels=labels, noise=1.2, smoothness=0.8, seed=0).graph


@pytest.mark.parametrize("move", ["expansion", "swap"])
def test_the_run_converges_above_single_variable_ascent_and_below_the_bound(move: str) -> None:
    graph = image()
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


def test_weights_are_those_of_the_expanded_model() -> None:
    random, plain = np.random.default_rng(2), image(4)
    weight = random.random(plain.n_factors) * 2
    graph = FactorGraph.from_pairwise(
        plain.theta_v.reshape(-1, 4), plain.scope.reshape(-1, 2), plain.table(0), weight=weight
    )
    weighted, expanded = (mapmrf.solve(each, "expansion") for each in (graph, graph.expanded()))
    assert weighted.labels.tolist() == expanded.labels.tolist()
    assert weighted.value == pytest.approx(expanded.value, rel=1e-12)


def test_variables_of_different_numbers_of_states_keep_to_them() -> None:
    random = np.random.default_rng(3)
    card = random.integers(1, 5, 12)
    pairs = [(i, i + 1) for i in range(11)]
    tables = [random.normal(size=(card[i], card[j])) for i, j in pairs]
    graph = Recipe(card.tolist(), pairs, tables).graph()
    result = mapmrf.solve(graph, "expansion")
    assert np.all(result.labels < card)
    assert result.value >= graph.value(np.zeros(12, dtype=int))


def test_the_labelling_given_is_the_start() -> None:
    graph = image()
    local = mapmrf.solve(graph, "expansion")
    again = mapmrf.solve(graph, "expansion", initial=local)
    assert again.labels.tolist() == local.labels.tolist()
    assert again.details["helpful_moves"] == 0.0 and again.iterations == 5
