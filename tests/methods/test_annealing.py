"""Simulated annealing: the schedule, reads, and models of any kind."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, OptionError, Status
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


def test_an_answer_in_the_middle_of_a_read_changes_nothing() -> None:
    """The quench of the present labelling is for show: the read goes on where it was."""
    for graph in (grid(12, 12, 3.0, seed=1), random_recipe(3, 8, 14).graph()):
        problem, method = Problem.compile(graph), Annealing(max_iterations=12_000_000 // graph.n_vars, reads=2)
        asked, plain = (method.start(problem, 1, Start()) for _ in range(2))
        first = [method.answer(problem, asked).labels for _ in range(2)]
        method.step(problem, asked)
        method.step(problem, plain)
        assert asked.sweeps_done < asked.ends[1]
        second = [method.answer(problem, asked).labels for _ in range(2)]
        for labels in (first, second):
            assert labels[0] is not None and labels[1] is not None
            assert labels[0].tolist() == labels[1].tolist()
        assert asked.best.value == plain.best.value
        method.step(problem, asked)
        method.step(problem, plain)
        assert asked.sweeps.labels().tolist() == plain.sweeps.labels().tolist()
