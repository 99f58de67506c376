"""Fusion of two labellings: the best combination where it is a cut, and never a worse one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.flow.fusion_move import FusionMove, LabelMoves, label_marks
from mapmrf.images import grid_model
from mapmrf.model.problem import Problem
from strategies import Recipe, random_recipe

METRIC = {
    "potts": 1.0 - np.eye(4),
    "linear": np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0))),
    "truncated": np.minimum(np.abs(np.subtract.outer(np.arange(4.0), np.arange(4.0))), 2.0),
}


def metric_graph(seed: int, smoothness: str, weighted: bool = True) -> FactorGraph:
    """Eight variables of four states, with pairs that are a metric."""
    random = np.random.default_rng(seed)
    edges = [pair for pair in itertools.combinations(range(8), 2) if random.random() < 0.4]
    weight = random.random(len(edges)) * 2 if weighted else None
    return FactorGraph.from_pairwise(1.5 * random.normal(size=(8, 4)), edges, -METRIC[smoothness], weight=weight)


def combinations(labels: np.ndarray, other: np.ndarray) -> list[np.ndarray]:
    return [np.where(take, other, labels) for take in itertools.product([False, True], repeat=len(labels))]


@pytest.mark.parametrize("smoothness", METRIC)
@pytest.mark.parametrize("seed", range(5))
def test_an_expansion_of_a_metric_model_is_the_best_combination(smoothness: str, seed: int) -> None:
    graph = metric_graph(seed, smoothness)
    move = FusionMove(Problem.compile(graph))
    labels = np.random.default_rng(seed).integers(0, 4, 8)
    for alpha in range(4):
        other = np.full(8, alpha)
        best = max(graph.value(each) for each in combinations(labels, other))
        before = graph.value(labels)
        gain = move.fuse(labels, other)
        assert move.roof is None
        assert graph.value(labels) == pytest.approx(best, rel=1e-12)
        assert gain == pytest.approx(best - before, rel=1e-9, abs=1e-9)


SEEDS = st.integers(0, 10**6)


def pairwise_graph(seed: int, hard: float = 0.0) -> FactorGraph:
    """Any pairwise model, of different numbers of states."""
    return random_recipe(seed, 6, 9, hard=hard, max_arity=2).graph()


@given(seed=SEEDS, hard=st.sampled_from([0.0, 0.2]))
@settings(max_examples=50)
def test_a_fusion_is_never_worse_and_its_gain_is_true(seed: int, hard: float) -> None:
    graph, random = pairwise_graph(seed, hard), np.random.default_rng(seed)
    labels, other = random.integers(0, graph.card), random.integers(0, graph.card)
    before, mixed = graph.value(labels), labels.copy()
    gain = FusionMove(Problem.compile(graph)).fuse(mixed, other)
    after = graph.value(mixed)
    assert np.all((mixed == labels) | (mixed == other))
    assert after == before or after >= before - 1e-9
    if hard == 0.0:
        assert gain >= 0.0
        assert after == pytest.approx(before + gain, rel=1e-9, abs=1e-9)


def test_an_infeasible_labelling_is_mended_where_the_other_one_can() -> None:
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    chain = Recipe([2] * 4, [(0, 1), (1, 2), (2, 3), (0,)], [differ] * 3 + [np.array([0.0, 3.0])])
    labels = np.zeros(4, dtype=np.int64)
    FusionMove(Problem.compile(chain.graph())).fuse(labels, np.ones(4, dtype=np.int64))
    assert labels.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_weights_are_those_of_the_expanded_model(swap: bool, seed: int) -> None:
    graph = metric_graph(seed, "truncated")
    assert graph.weight is not None
    first, second = (at_rest(each, swap).labels for each in (graph, graph.expanded()))
    assert first.tolist() == second.tolist()


def at_rest(graph: FactorGraph, swap: bool, work: int = 10**9) -> LabelMoves:
    search = LabelMoves(Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64), swap)
    while not search.at_rest:
        search.run(work)
    return search


@pytest.mark.parametrize(("smoothness", "swap"), [*((name, False) for name in METRIC), ("potts", True)])
@pytest.mark.parametrize("seed", range(4))
def test_in_the_end_no_move_helps(smoothness: str, swap: bool, seed: int) -> None:
    graph = metric_graph(seed, smoothness)
    search = at_rest(graph, swap)
    moves = [np.full(8, alpha) for alpha in range(4)]
    if swap:
        pairs = itertools.combinations(range(4), 2)
        moves = [np.select([search.labels == a, search.labels == b], [b, a], search.labels) for a, b in pairs]
    for move in moves:
        best = max(graph.value(each) for each in combinations(search.labels, move))
        assert best <= graph.value(search.labels) + 1e-9
    assert search.gain == pytest.approx(graph.value(search.labels) - graph.value(np.zeros(8, dtype=int)), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_with_costs_of_labels_an_expansion_is_the_best_of_all_combinations(seed: int) -> None:
    random, costs = np.random.default_rng(seed), np.array([1.5, 0.0, 2.5, 1.0])
    graph = grid_model(2 * random.random((2, 4, 4)), weight=0.3, label_costs=costs)
    assert label_marks(Problem.compile(graph)).tolist() == [-1] * 8 + [0, -1, 2, 3]
    search = LabelMoves(Problem.compile(graph), random.integers(0, graph.card))
    while not search.at_rest:
        search.run(10**9)
    pixels, value = search.labels[:8], graph.value(search.labels)

    def marked(labels: np.ndarray) -> float:
        return graph.value([*labels, *(int(k in labels) if costs[k] else 0 for k in range(4))])

    assert value == pytest.approx(marked(pixels))
    for alpha in range(4):
        best = max(marked(each) for each in combinations(pixels, np.full(8, alpha)))
        assert best <= value + 1e-9


def test_only_variables_that_do_nothing_but_forbid_a_label_are_marks() -> None:
    forbid, other = (
        np.array([[0.0, 0.0], [-np.inf, 0.0], [0.0, 0.0]]),
        np.array([[0.0, 0.0], [0.0, 0.0], [-np.inf, 0.0]]),
    )

    def marks(*pairs: tuple[tuple[int, int], np.ndarray]) -> list[int]:
        recipe = Recipe([3, 3, 2, 2], [scope for scope, _ in pairs], [table for _, table in pairs])
        return label_marks(Problem.compile(recipe.graph())).tolist()

    assert marks(((0, 2), forbid), ((1, 2), forbid), ((0, 3), other)) == [-1, -1, 1, 2]
    assert marks(((0, 2), forbid), ((1, 2), other)) == []  # two labels
    assert marks(((0, 2), forbid), ((2, 3), np.eye(2))) == []  # a pair with another variable
    assert marks(((0, 2), forbid), ((0, 3), np.where(forbid < 0, -1.0, 0.0))) == [-1, -1, 1, -1]  # soft


def course(graph: FactorGraph, threads: int, work: int, swap: bool) -> list[tuple[int, list[int]]]:
    search = LabelMoves(Problem.compile(graph, threads), np.zeros(graph.n_vars, dtype=np.int64), swap)
    found = []
    while not search.at_rest:
        search.run(work, max_moves=5)
        found.append((search.tried, search.labels.tolist()))
    search.close()
    return found


@pytest.mark.parametrize("work", [500, 20_000, 10**9])
@pytest.mark.parametrize("swap", [False, True])
def test_neither_moves_tried_ahead_on_threads_nor_short_runs_change_anything(work: int, swap: bool) -> None:
    random = np.random.default_rng(0)
    k = np.arange(5.0)
    uneven = -np.minimum((k[:, None] - k) ** 2, 6.0)  # not metric: roof duality
    for table in (-1.0 + np.eye(5), -np.minimum(abs(k[:, None] - k), 3.0), uneven):
        graph = grid_model(2 * random.normal(size=(10, 11, 5)), table, weight=0.7)
        alone = course(graph, 1, work, swap)
        assert alone == course(graph, 2, work, swap) == course(graph, 4, work, swap)
        assert alone[-1][0] > 5
        assert alone[-1] == course(graph, 1, 10**9, swap)[-1]


def test_labels_of_large_images_do_not_take_turns_in_sequence() -> None:
    unary = np.random.default_rng(0).normal(size=(110, 110, 4))
    potts, far, near = np.eye(4) - 1.0, [0, 2, 1, 3], [0, 1, 2, 3]
    for size, table, order in ((110, potts, far), (50, potts, near), (110, -potts, near), (50, -METRIC["linear"], far)):
        graph = grid_model(unary[:size, :size], table)
        moves = LabelMoves(Problem.compile(graph), graph.unary_labels).moves
        assert [alpha for alpha, _ in moves] == order
