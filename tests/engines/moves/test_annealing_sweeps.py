"""AnnealingSweeps of simulated annealing: the right distribution, and gains that are those of the model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.moves.annealing import AnnealingSweeps, PairSweeps, StateSweeps, new_sweeps
from mapmrf.model.problem import Problem
from strategies import one_changed, random_recipe


def boltzmann(graph: FactorGraph, temperature: float) -> dict[tuple[int, ...], float]:
    every = list(itertools.product(*(range(r) for r in graph.card)))
    weight = np.exp(np.array([graph.value(labels) for labels in every]) / temperature)
    return dict(zip(every, weight / weight.sum(), strict=True))


def frequencies(sweeps: AnnealingSweeps, temperature: float, n: int) -> dict[tuple[int, ...], float]:
    counts: dict[tuple[int, ...], float] = {}
    for _ in range(n):
        sweeps.run(np.full(3, temperature))
        key = tuple(sweeps.labels().tolist())
        counts[key] = counts.get(key, 0.0) + 1.0 / n
    return counts


@pytest.mark.parametrize("kind", ["pairs", "metropolis", "heat_bath"])
def test_sweeps_at_one_temperature_draw_from_the_boltzmann_distribution(kind: str) -> None:
    random = np.random.default_rng(3)
    card = [2, 2, 2] if kind == "pairs" else [2, 3, 2]
    edges = [(0, 1), (1, 2), (0, 2)]
    tables = [random.normal(size=(card[i], card[j])) for i, j in edges]
    unary = [random.normal(size=r) for r in card]
    graph = FactorGraph.from_tables(card, [(0,), (1,), (2,), *edges], [*unary, *tables])
    sweeps = new_sweeps(Problem.compile(graph), kind == "heat_bath", 1)
    assert isinstance(sweeps, PairSweeps if kind == "pairs" else StateSweeps)
    sweeps.restart(np.zeros(3, dtype=np.int64))
    expected, found = boltzmann(graph, 1.5), frequencies(sweeps, 1.5, 20_000)
    assert max(abs(found.get(key, 0.0) - p) for key, p in expected.items()) < 0.02


def test_the_quadratic_form_has_the_values_of_the_model() -> None:
    graph = grid(4, 5, 2.0, seed=1)
    sweeps = PairSweeps(Problem.compile(graph), 0)
    for seed in range(5):
        sweeps.restart(np.random.default_rng(seed).integers(0, 2, graph.n_vars))
        sweeps.run(np.full(4, 3.0))
        labels = sweeps.labels()
        for i, _, flipped in one_changed(graph, labels):
            assert sweeps.gain[i] == pytest.approx(graph.value(flipped) - graph.value(labels))


@pytest.mark.parametrize("heat_bath", [False, True])
def test_sweeps_at_temperature_zero_end_in_a_local_optimum_and_draw_no_random_number(heat_bath: bool) -> None:
    graph = random_recipe(4, 8, 14).graph()
    runs = []
    for quench in (False, True):
        sweeps = StateSweeps(Problem.compile(graph), heat_bath, 7)
        sweeps.restart(np.zeros(8, dtype=np.int64))
        if quench:
            while sweeps.run(np.zeros(1)) > 0:
                pass
            rest = sweeps.labels()
            assert all(graph.value(other) <= graph.value(rest) + 1e-9 for _, _, other in one_changed(graph, rest))
            sweeps.restart(np.zeros(8, dtype=np.int64))
        sweeps.run(np.full(5, 2.0))
        runs.append(sweeps.labels().tolist())
    assert runs[0] == runs[1]
