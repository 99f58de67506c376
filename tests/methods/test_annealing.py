"""Simulated annealing: the right distribution, the schedule, reads, and both kinds of sweeps."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.datasets import grid
from mapmrf.method import Start
from mapmrf.methods.annealing import Annealing, _Pairs, _States
from mapmrf.problem import Problem
from strategies import random_recipe


def boltzmann(graph: FactorGraph, temperature: float) -> dict[tuple[int, ...], float]:
    """The distribution that sweeps at one temperature must converge to."""
    every = list(itertools.product(*(range(r) for r in graph.card)))
    weight = np.exp(np.array([graph.value(labels) for labels in every]) / temperature)
    return dict(zip(every, weight / weight.sum(), strict=True))


def frequencies(sweeps: Any, temperature: float, n: int) -> dict[tuple[int, ...], float]:
    counts: dict[tuple[int, ...], float] = {}
    for _ in range(n):
        sweeps.run(np.full(3, temperature))
        key = tuple(int(k) for k in sweeps.labels)
        counts[key] = counts.get(key, 0.0) + 1.0 / n
    return counts


def random_bits(seed: int) -> np.ndarray:
    return np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64)


@pytest.mark.parametrize("kind", ["pairs", "metropolis", "heat_bath"])
def test_sweeps_at_one_temperature_draw_from_the_boltzmann_distribution(kind: str) -> None:
    random = np.random.default_rng(3)
    card = [2, 2, 2] if kind == "pairs" else [2, 3, 2]
    edges = [(0, 1), (1, 2), (0, 2)]
    tables = [random.normal(size=(card[i], card[j])) for i, j in edges]
    unary = [random.normal(size=r) for r in card]
    graph = FactorGraph.from_tables(card, [(0,), (1,), (2,), *edges], [*unary, *tables])
    problem = Problem.compile(graph)
    sweeps = _Pairs(problem, random_bits(1)) if kind == "pairs" else _States(problem, random_bits(1), kind[0] == "h")
    sweeps.restart(np.zeros(3, dtype=np.int64))
    expected, found = boltzmann(graph, 1.5), frequencies(sweeps, 1.5, 20_000)
    assert max(abs(found.get(key, 0.0) - p) for key, p in expected.items()) < 0.02


def test_the_quadratic_form_has_the_values_of_the_model() -> None:
    graph = grid(4, 5, 2.0, seed=1)
    sweeps = _Pairs(Problem.compile(graph), random_bits(0))
    for seed in range(5):
        labels = np.random.default_rng(seed).integers(0, 2, graph.n_vars)
        sweeps.restart(labels)
        sweeps.run(np.full(4, 3.0))
        for i in range(graph.n_vars):
            flipped = sweeps.labels.copy()
            flipped[i] = 1 - flipped[i]
            assert sweeps._gain[i] == pytest.approx(graph.value(flipped) - graph.value(sweeps.labels))


def test_slow_cooling_solves_a_small_grid() -> None:
    graph = grid(8, 8, 2.0, seed=5)
    result = mapmrf.solve(graph, "annealing")
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)
    assert result.status is Status.CONVERGED
    assert (result.iterations, result.details["reads"]) == (10_000, 10)


@pytest.mark.parametrize("rule", ["metropolis", "heat_bath"])
def test_models_of_any_arity_and_cardinality_are_solved(rule: str) -> None:
    for seed in range(6):
        graph = random_recipe(seed, 7, 12, hard=0.1).graph()
        optimum = mapmrf.solve(graph, "exhaustive").value
        result = mapmrf.solve(graph, "annealing", rule=rule, max_iterations=10_000, reads=50)
        assert result.value == pytest.approx(optimum)


def test_more_sweeps_reach_more() -> None:
    graph = grid(30, 30, 3.0, seed=1)
    values = [mapmrf.solve(graph, "annealing", reads=1, max_iterations=n).value for n in (20, 200, 2000)]
    assert values[0] < values[1] < values[2]


def test_every_read_ends_in_a_local_optimum() -> None:
    graph = grid(12, 12, 3.0, seed=1)
    result = mapmrf.solve(graph, "annealing", reads=1, max_iterations=5)
    assert mapmrf.solve(graph, "icm", initial=result).value == result.value


def test_the_temperature_falls_by_the_same_factor_from_hot_to_cold_in_every_read() -> None:
    graph = grid(3, 3, 2.0)
    problem, method = Problem.compile(graph), Annealing(max_iterations=9, reads=2, hot=1.0, cold=0.1)
    state = method.start(problem, 0, Start())
    assert state.ends.tolist() == [0, 5, 9]
    falling = method._temperatures(state, 5) / state.unit
    assert falling == pytest.approx(10.0 ** -np.linspace(0, 1, 5))


def test_the_unit_follows_the_model() -> None:
    """In other units the same run happens."""
    graph = grid(10, 10, 2.0, seed=2)
    scaled = FactorGraph.from_pairwise(
        1024 * graph.theta_v.reshape(-1, 2),
        [graph.scope_of(a) for a in range(graph.n_factors)],
        np.stack([1024 * graph.table(a) for a in range(graph.n_factors)]),
    )
    runs = [mapmrf.solve(g, "annealing", max_iterations=50, reads=1) for g in (graph, scaled)]
    assert runs[0].labels.tolist() == runs[1].labels.tolist()


@pytest.mark.parametrize(
    ("option", "value"), [("reads", 0), ("max_iterations", 0), ("hot", 0.0), ("cold", -1.0), ("rule", "gibbs")]
)
def test_impossible_options_are_refused(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=option):
        mapmrf.solve(grid(2, 2), "annealing", **{option: value})


def test_a_read_that_is_cut_short_counts_as_well() -> None:
    """Stopped in the middle of the only read, the run still has more than where it began."""
    graph = grid(40, 40, 3.0, seed=1)
    options = {"reads": 1, "max_iterations": 100_000, "cold": 0.02}
    result = mapmrf.solve(graph, "annealing", callback=lambda point, labels: point.iterations > 2000, **options)
    assert result.status is Status.INTERRUPTED and result.details["reads"] == 0
    began = graph.value(np.array([graph.theta_v[2 * i : 2 * i + 2].argmax() for i in range(graph.n_vars)]))
    assert result.value > began
