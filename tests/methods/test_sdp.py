"""SDP: exact on random models with fields, bounds on larger ones, warm starts, options."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from benchmark_models import benchmark
from binary_models import binary_graphs, complete, spins
from mapmrf import SDP, FactorGraph, OptionError, Status, UnsupportedModel
from mapmrf.methods import sdp
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start, running
from strategies import brute_force


@given(graph=binary_graphs())
def test_small_models_are_proven(graph: FactorGraph) -> None:
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole", [True, False])
def test_models_with_fields_are_proven(seed: int, whole: bool) -> None:
    random = np.random.default_rng(seed)
    pairs = [(i, j) for j in range(18) for i in range(j) if random.random() < 0.7]
    unary, tables = random.normal(size=(18, 2)), random.normal(size=(len(pairs), 2, 2))
    if whole:
        unary, tables = np.round(4 * unary), np.round(4 * tables)
    graph = FactorGraph.from_pairwise(unary, pairs, tables)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "exhaustive").value)


def test_a_sparse_model_is_proven_as_by_cuts() -> None:
    graph = spins(7, seed=2)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "cuts").value)


def test_without_cuts_and_branches_there_is_a_bound() -> None:
    graph = complete(30, seed=1)
    plain = mapmrf.solve(graph, "sdp", cut_spins=0)
    tight = mapmrf.solve(graph, "sdp", branch_spins=0)
    whole = mapmrf.solve(graph, "sdp")
    assert plain.status is Status.CONVERGED
    assert plain.bound > tight.bound >= whole.bound == pytest.approx(whole.value)
    assert (plain.details["inequalities"], tight.details["nodes"]) == (0.0, 1.0)


def test_a_forbidden_pair_is_respected() -> None:
    tables = np.zeros((3, 2, 2))
    tables[:, 1, 1] = -np.inf
    graph = FactorGraph.from_pairwise([[0.0, 1.0], [0.0, 2.0], [0.0, 1.5]], [(0, 1), (1, 2), (0, 2)], tables)
    result = mapmrf.solve(graph, "sdp")
    assert (result.labels.tolist(), result.value, result.status) == ([0, 1, 0], 2.0, Status.OPTIMAL)


def test_labellings_of_others_are_taken_over() -> None:
    graph = complete(40, seed=5)
    good = mapmrf.solve(graph, "tabu", trajectories=2).labels
    problem = Problem.compile(graph)
    with running(SDP(), problem, 0, Start()) as state:
        state.inform(good)
        step = SDP().step(problem, state)
        assert step.labels is not None and graph.value(step.labels) >= graph.value(good)


def test_a_large_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdp, "MOST_SPINS", 20)
    with pytest.raises(UnsupportedModel, match="25 variables, expected at most 20"):
        mapmrf.solve(spins(5), "sdp")


def test_options() -> None:
    for bad in ({"max_iterations": 0}, {"cut_spins": -1}, {"branch_spins": -1}):
        with pytest.raises(OptionError):
            SDP(**bad)


@pytest.mark.data
@pytest.mark.parametrize(("name", "value"), [("gka4d", 10727), ("pm1s_80.5", 87)])
def test_benchmark_graphs_are_proven(name: str, value: float) -> None:
    result = mapmrf.solve(benchmark(f"maxcut/{name}.mc.gz"), "sdp")
    assert (result.value, result.status) == (value, Status.OPTIMAL)
