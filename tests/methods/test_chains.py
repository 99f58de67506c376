"""Chains: what a chain is, by a plain implementation, and what holds when no chain helps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.methods.chains import Chains
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, soft_recipes, some_labels, with_weights


def alone(graph: FactorGraph, labels: np.ndarray | None = None, seed: int = 0, **options: Any) -> np.ndarray:
    """Where the method itself comes to rest."""
    problem, method = Problem.compile(graph), Chains(**options)
    state = method.start(problem, seed, Start(labels))
    while (progress := method.step(problem, state)).finished is None:
        pass
    assert progress.labels is not None
    return progress.labels


def best_of_chain(graph: FactorGraph, labels: np.ndarray, i: int, k: int, length: int, second: int) -> float:
    """Gain of the best beginning of a chain, every labelling evaluated from scratch."""
    scopes = [graph.scope_of(a).tolist() for a in range(graph.n_factors)]
    before, now = graph.value(labels), labels.copy()
    used: set[int] = set()
    best = 0.0
    for step in range(length):
        now[i] = k
        used.add(i)
        best = max(best, graph.value(now) - before)
        beside = {j for scope in scopes if used & set(scope) for j in scope} - used
        gains = []
        for j in beside:
            others = [s for s in range(graph.card[j]) if s != now[j]]
            trials = [np.concatenate([now[:j], [s], now[j + 1 :]]) for s in others]
            if others:
                values = [graph.value(trial) for trial in trials]
                gains.append((max(values), j, others[int(np.argmax(values))]))
        gains.sort(reverse=True)
        skip = second if step == 0 else 0
        if len(gains) <= skip:
            break
        _, i, k = gains[skip]
    return best


@given(recipe=with_weights(soft_recipes()), length=st.integers(1, 5), breadth=st.integers(1, 3), data=st.data())
@settings(max_examples=15)
def test_at_rest_no_chain_helps(recipe: Recipe, length: int, breadth: int, data: st.DataObject) -> None:
    graph = recipe.graph()
    start = some_labels(recipe, data)
    rest = alone(graph, start, length=length, breadth=breadth)
    assert graph.value(rest) >= graph.value(start) - 1e-9
    for i, r in enumerate(recipe.card):
        for k in range(r):
            if k != rest[i]:
                for second in range(breadth):
                    assert best_of_chain(graph, rest, i, k, min(length, graph.n_vars), second) <= 1e-9


def test_a_chain_crosses_a_valley_as_long_as_itself() -> None:
    """A ferromagnetic chain in its worse state: every flip but the last loses or gains nothing."""
    n = 8
    unary = np.zeros((n, 2))
    unary[:, 1] = 0.5
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    graph = FactorGraph.from_pairwise(unary, edges, [[2.0, 0.0], [0.0, 2.0]])
    zeros = np.zeros(n, dtype=np.int64)
    assert alone(graph, zeros, length=3).tolist() == [0] * n
    assert alone(graph, zeros, length=8).tolist() == [1] * n


def test_chains_reach_more_than_flips_on_a_frustrated_grid() -> None:
    graph = grid(20, 20, 3.0, seed=2)
    assert mapmrf.solve(graph, "chains").value > mapmrf.solve(graph, "flips", depth=3).value


def test_the_order_depends_on_the_seed_alone() -> None:
    graph = grid(12, 12, 3.0, seed=4)
    found = [alone(graph, seed=seed, length=6).tolist() for seed in (1, 1, 2, 3, 4)]
    assert found[0] == found[1]
    assert any(other != found[0] for other in found[2:])


def test_the_run_converges_by_itself() -> None:
    result = mapmrf.solve(grid(10, 10, 2.0), "chains")
    assert result.status is Status.CONVERGED
    again = mapmrf.solve(grid(10, 10, 2.0), "chains", initial=result)
    assert again.value == result.value


@pytest.mark.data
@pytest.mark.parametrize(
    ("model", "best", "share"),
    [("grid20x20.f10", 3015.7447, 0.985), ("grid40x40.f2", 2689.0028, 0.99), ("grid80x80.f10", 50494.0752, 0.99)],
)
def test_chains_come_near_the_best_known_values_of_the_grids(model: str, best: float, share: float) -> None:
    graph = benchmark(f"grids/{model}.uai.gz")
    single = mapmrf.solve(graph, "flips", depth=1)
    result = mapmrf.solve(graph, "chains", initial=single)
    assert single.value < share * best < result.value <= best + 1e-3
