"""Soft consistency: costs move but no labelling's cost changes; the search finds the optimum of any model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.arrays import Ints
from mapmrf.datasets import random_graph
from mapmrf.engines.soft_consistency import search as search_module
from mapmrf.engines.soft_consistency.depth_first import project_all, propagate_root, sweep
from mapmrf.engines.soft_consistency.network import ModelNetwork
from mapmrf.engines.soft_consistency.search import OpenNodes, SoftSearch
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, brute_force, recipes, with_weights

LARGE = 1 << 62


def cost_now(network: ModelNetwork, labels: Ints) -> int:
    """Cost of a labelling as the network states it: lower bound, states, and tables less what was shifted."""
    net, cell = network.soft.net, network.soft.now.cell
    total = int(cell[network.problem.n_vars]) + int(cell[net.variables.at + labels].sum())
    for factor in net.factors:
        edges = net.edges[factor.first : factor.end]
        states = labels[edges.variable]
        total += int(net.costs[factor.table + edges.stride @ states])
        total -= int(cell[edges.at + states].sum())
    return total


def is_left(network: ModelNetwork, labels: Ints) -> bool:
    """Whether no state of a labelling has been removed."""
    net, now = network.soft.net, network.soft.now
    return bool(np.all(now.place[net.variables.at + labels] < now.cell[: len(labels)]))


def labellings(graph: FactorGraph) -> list[Ints]:
    return [np.array(states, dtype=np.int64) for states in itertools.product(*map(range, graph.card.tolist()))]


def run(search: SoftSearch, sweeps: int) -> Iterator[None]:
    """All steps of a search."""
    yield from search.prepare(sweeps)
    if not search.finished:
        yield from search.explore()


def open_network(graph: FactorGraph) -> ModelNetwork | None:
    """The network of a model, unless a table allows nothing."""
    network = ModelNetwork.of(Problem.compile(graph))
    network.soft.tally.pause_at = LARGE
    return None if network.costs.offset == -math.inf else network


@given(recipe=with_weights(recipes() | any_recipes()), sweeps=st.integers(0, 3))
def test_costs_of_labellings_stay_and_all_costs_are_at_least_0(recipe: Recipe, sweeps: int) -> None:
    graph = recipe.graph()
    network = open_network(graph)
    if network is None:
        return
    before = {tuple(labels): network.costs.cost(network.problem, labels) for labels in labellings(graph)}
    for k in range(sweeps):
        sweep(network.soft, k % 2 == 0, 0)
    if network.soft.tally.failed == 0:
        project_all(network.soft, 0)
        propagate_root(network.soft)
    if network.soft.tally.failed == 1:
        assert all(cost == math.inf for cost in before.values())
        return
    for labels, cost in before.items():
        if is_left(network, np.array(labels, dtype=np.int64)) and cost < math.inf:
            assert cost_now(network, np.array(labels, dtype=np.int64)) == cost
            assert network.lower <= cost
        elif cost < math.inf:
            pytest.fail("a state of an allowed labelling is gone")
    net, now = network.soft.net, network.soft.now
    for i in range(graph.n_vars):
        begin = net.variables.at[i]
        costs = [now.cell[begin + u] for u in now.domain[begin : begin + now.cell[i]]]
        assert min(costs) == 0


def test_sweeps_in_many_steps_are_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(30, 60, states=(2, 3), arity=(2, 3), hard=0.0, seed=1)
    lower = []
    for work in (1, 100, 1 << 40):
        monkeypatch.setattr(search_module, "STEP_WORK", work)
        search = SoftSearch(ModelNetwork.of(Problem.compile(graph)))
        n_steps = sum(1 for _ in search.prepare(6))
        assert (n_steps == 0) == (work == 1 << 40)
        lower.append(search.lower)
    assert lower[0] == lower[1] == lower[2] > 0


@pytest.mark.parametrize("seed", range(40))
def test_the_search_is_exact(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    arity = (2, 5) if seed % 2 else (2, 3)
    graph = random_graph(8, int(rng.integers(8, 20)), states=(2, 4), arity=arity, hard=0.3 * (seed % 3), seed=seed)
    optimum, _ = brute_force(graph)
    network = ModelNetwork.of(Problem.compile(graph))
    if network.costs.offset == -math.inf:
        assert optimum == -math.inf
        return
    monkeypatch.setattr(search_module, "STEP_WORK", int(rng.integers(1, 2000)))
    search = SoftSearch(network)
    lower = 0
    for _ in run(search, seed % 4):
        assert search.lower >= lower
        lower = search.lower
    assert search.finished
    if optimum == -math.inf:
        assert search.labels is None
    else:
        assert search.labels is not None
        assert graph.value(search.labels) == pytest.approx(optimum, abs=1e-9)


def test_a_limit_bounds_the_search() -> None:
    graph = random_graph(10, 30, states=(2, 3), arity=(2, 3), hard=0.0, seed=5)
    optimum, _ = brute_force(graph)
    search = SoftSearch(ModelNetwork.of(Problem.compile(graph)))
    search.limit(optimum - 0.5)
    assert list(run(search, 1)) == []
    assert search.labels is not None and graph.value(search.labels) == pytest.approx(optimum)
    none = SoftSearch(ModelNetwork.of(Problem.compile(graph)))
    none.limit(optimum)
    assert list(run(none, 1)) == []
    assert none.finished and none.labels is None and none.nodes <= search.nodes


@pytest.mark.parametrize("seed", range(8))
def test_whole_potentials_have_a_unit_and_their_optimum_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scopes = [rng.choice(8, size=int(rng.integers(1, 4)), replace=False).tolist() for _ in range(20)]
    tables = [rng.integers(-5, 1, size=(3,) * len(scope)).astype(float) for scope in scopes]
    graph = FactorGraph.from_tables(np.full(8, 3), scopes, tables)
    network = ModelNetwork.of(Problem.compile(graph))
    search = SoftSearch(network)
    assert network.unit > 1
    for _ in run(search, 2):
        pass
    assert search.labels is not None
    assert graph.value(search.labels) == brute_force(graph)[0]
    assert search.lower == network.costs.cost(network.problem, search.labels)


def test_open_nodes_come_by_bound_and_know_their_path() -> None:
    nodes = OpenNodes()
    nodes.push(3, -1)
    assert nodes.pop(10) == (3, -1)
    nodes.leave((3, -1), [[0, 1], [2, 0], [0, 1], [0, 5], [4, 6]], 10)
    assert len(nodes) == 2 and nodes.lower(None) == 4
    first = nodes.pop(10)
    assert first is not None and first[0] == 4 and nodes.path(first[1]) == [(0, 2, 1)]
    second = nodes.pop(10)
    assert second is not None and second[0] == 6 and nodes.path(second[1]) == [(0, 2, 0), (1, 0, 1)]
    assert nodes.pop(10) is None


def test_forgetting_nodes_keeps_the_paths_of_open_ones() -> None:
    plenty, few = OpenNodes(), OpenNodes(room=3)
    for nodes in (plenty, few):
        nodes.push(0, -1)
        for turn in range(20):
            base = nodes.pop(1000)
            assert base is not None
            nodes.leave(base, [[turn, turn + 1], [0, 1], [0, turn % 2], [0, 0], [turn + 3, turn + 5]], 1000)
    assert len(plenty) == len(few)
    while len(plenty):
        first, second = plenty.pop(1000), few.pop(1000)
        assert first is not None and second is not None
        assert first[0] == second[0] and plenty.path(first[1]) == few.path(second[1])


def test_open_nodes_at_the_upper_bound_are_closed() -> None:
    nodes = OpenNodes()
    nodes.push(7, -1)
    assert nodes.pop(7) is None and len(nodes) == 0
