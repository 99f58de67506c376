"""Simulated annealing: the schedule, reads, and models of any kind."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import Status
from mapmrf.datasets import grid
from mapmrf.methods.annealing import Annealing
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import random_recipe


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
    falling = method.temperatures(state, 5) / state.unit
    assert falling == pytest.approx(10.0 ** -np.linspace(0, 1, 5))


def test_a_read_that_is_cut_short_counts_as_well() -> None:
    """Stopped in the middle of the only read, the run still has more than where it began."""
    graph = grid(40, 40, 3.0, seed=1)
    options = {"reads": 1, "max_iterations": 100_000, "cold": 0.02}
    result = mapmrf.solve(graph, "annealing", callback=lambda point, labels: point.iterations > 2000, **options)
    assert result.status is Status.INTERRUPTED and result.details["reads"] == 0
    began = graph.value(np.array([graph.theta_v[2 * i : 2 * i + 2].argmax() for i in range(graph.n_vars)]))
    assert result.value > began
