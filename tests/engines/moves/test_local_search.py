"""Local search, single-variable ascent and annealing: local optima, never worse afterwards, the right distribution."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.moves.annealing import AnnealingSweeps, PairSweeps, StateSweeps, new_sweeps
from mapmrf.engines.moves.local_search import Ascent, LocalSearch
from mapmrf.model.problem import Problem
from strategies import (
    Recipe,
    hard_recipes,
    one_changed,
    random_recipe,
    recipes,
    with_weights,
)


@given(recipe=with_weights(recipes()), seed=st.integers(0, 5))
def test_local_search_never_loses_its_best_and_is_a_local_optimum_at_first(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    start = np.random.default_rng(seed).integers(0, graph.card)
    local = LocalSearch(problem, start, seed)
    best = local.incumbent
    local.run(10**6, 0)
    assert not local.descending
    if best.value > -math.inf:
        assert all(graph.value(other) <= best.value + 1e-9 for _, _, other in one_changed(graph, best.labels))
    values = [best.value]
    for _ in range(5):
        local.run(10**6, 20)
        values.append(best.value)
    assert values == sorted(values)
    assert best.value == graph.value(best.labels)
    assert local.trials == 100


def test_perturbations_find_more_than_the_ascent_alone() -> None:
    graph = grid(15, 15, 3.0, seed=4)
    local = LocalSearch(Problem.compile(graph), np.zeros(225, dtype=np.int64), 0)
    local.run(10**7, 0)
    first = local.incumbent.value
    local.run(10**7, 500)
    assert local.incumbent.value > first + 1.0


# -- single-variable ascent -------------------------------------------------------------------------------------------


def climb(graph: FactorGraph, start: np.ndarray, entries: int = 10**9) -> np.ndarray:
    ascent = Ascent(Problem.compile(graph))
    ascent.restart(start)
    while not ascent.at_optimum:
        before = ascent.visits
        ascent.run(10**9, entries)
        assert ascent.visits > before
    return ascent.labels


@given(recipe=with_weights(hard_recipes()), entries=st.integers(1, 20))
def test_short_runs_end_where_a_long_one_does(recipe: Recipe, entries: int) -> None:
    graph = recipe.graph()
    start = np.zeros(graph.n_vars, dtype=np.int64)
    assert climb(graph, start, entries).tolist() == climb(graph, start).tolist()


def test_a_run_stops_at_its_limit_of_visits() -> None:
    graph = random_recipe(3, 9, 14).graph()
    ascent = Ascent(Problem.compile(graph))
    ascent.restart(np.zeros(9, dtype=np.int64))
    ascent.run(4)
    assert ascent.visits == 4 and not ascent.at_optimum


# -- annealing --------------------------------------------------------------------------------------------------------


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
            assert (1 - 2 * labels[i]) * sweeps.field[i] == pytest.approx(graph.value(flipped) - graph.value(labels))


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
