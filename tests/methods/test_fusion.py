"""Fusion: many local optima give more than the best of them."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid, potts_image
from mapmrf.methods.fusion import Fusion
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe


def islands(n: int) -> FactorGraph:
    """Frustrated rings without contact, each with a poor local optimum beside the best one."""
    random = np.random.default_rng(0)
    recipe = Recipe([2] * (4 * n))
    for b in range(n):
        for i in range(4):
            recipe.add((4 * b + i,), 0.3 * random.normal(size=2))
            recipe.add((4 * b + i, 4 * b + (i + 1) % 4), 2 * np.eye(2) + 0.1 * random.normal(size=(2, 2)))
    return recipe.graph()


def test_independent_parts_are_each_taken_from_where_they_are_best() -> None:
    """No single start has all twelve islands right, but the combination has."""
    graph = islands(12)
    best = mapmrf.solve(graph, "branch").value
    one = max(mapmrf.solve(graph, "icm", starts=30, seed=seed).value for seed in range(3))
    fused = mapmrf.solve(graph, "fusion", descent="flips", depth=1, starts=30)
    assert fused.value == pytest.approx(best)
    assert one < best - 1e-6


@pytest.mark.parametrize("descent", ["flips", "chains", "blocks"])
def test_every_kind_of_descent_ends_after_its_starts(descent: str) -> None:
    graph = grid(8, 8, 3.0, seed=1)
    few = mapmrf.solve(graph, "fusion", descent=descent, starts=2)
    many = mapmrf.solve(graph, "fusion", descent=descent, starts=12)
    assert (few.status, many.status) == (Status.CONVERGED, Status.CONVERGED)
    assert (few.iterations, many.details["starts"]) == (2, 12)
    assert many.value >= few.value
    assert many.value <= mapmrf.solve(graph, "branch").value + 1e-9


def test_a_pool_lets_earlier_optima_help_again() -> None:
    """A better labelling has other differences from an earlier optimum, and so other parts."""
    graphs = [grid(16, 16, 3.0, seed=seed) for seed in range(4)]
    options = {"descent": "flips", "depth": 2, "starts": 25}
    without = sum(mapmrf.solve(graph, "fusion", pool=0, **options).value for graph in graphs)
    with_pool = sum(mapmrf.solve(graph, "fusion", pool=20, **options).value for graph in graphs)
    assert with_pool >= without


def test_crossing_by_flows_finds_combinations_that_parts_do_not() -> None:
    """Potts models from random labellings, with hardly any search: the labellings differ in one large part."""
    graphs = [potts_image(12, 12, labels=4, noise=1.2, smoothness=0.8, seed=seed).graph for seed in range(3)]
    options = {"descent": "flips", "depth": 1, "starts": 4}
    parts = [mapmrf.solve(graph, "fusion", **options).value for graph in graphs]
    flows = [mapmrf.solve(graph, "fusion", crossover="flow", **options).value for graph in graphs]
    assert all(flow >= part - 1e-9 for flow, part in zip(flows, parts, strict=True))
    assert sum(flows) > sum(parts)


def test_the_pool_keeps_the_best_and_no_more_than_it_may() -> None:
    graph = grid(8, 8, 3.0, seed=1)
    problem, method = Problem.compile(graph), Fusion(descent="flips", depth=1, starts=20, pool=5)
    state = method.start(problem, 0, Start())
    while method.step(problem, state).finished is None:
        pass
    values = [value for value, _ in state.pool]
    assert len(values) == 5 and values == sorted(values, reverse=True)
    assert all(graph.value(labels) == value for value, labels in state.pool)
    assert state.best.value >= values[0]


def test_starts_depend_on_the_seed_alone() -> None:
    graph = grid(12, 12, 3.0, seed=2)
    runs = [mapmrf.solve(graph, "fusion", descent="flips", depth=1, starts=3, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].labels.tolist() == runs[1].labels.tolist()
    assert runs[0].labels.tolist() != runs[2].labels.tolist()
