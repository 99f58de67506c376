"""Soft consistency: no labelling's cost changes, constraints or not; the search finds the optimum of any model."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from constrained_recipes import SUMS, one_kind
from mapmrf import FactorGraph, constraints
from mapmrf.arrays import Ints
from mapmrf.datasets import random_graph
from mapmrf.engines.soft_consistency.cliques import join_exclusions
from mapmrf.engines.soft_consistency.constraints import constraint_cost
from mapmrf.engines.soft_consistency.network import HARD, ModelNetwork, assign
from mapmrf.engines.soft_consistency.propagation_kernels import propagate
from mapmrf.engines.soft_consistency.search import (
    OpenNodes,
    SoftSearch,
    follow,
    price_constraints,
    project_all,
    propagate_root,
    sweep,
)
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from plain_python import plain
from strategies import Recipe, any_recipes, brute_force, labellings, recipes, with_weights

LARGE = 1 << 62


def cost_now(network: ModelNetwork, labels: Ints) -> int:
    """Cost of a labelling as the network states it: lower bound, states, tables less what was shifted, constraints."""
    soft = network.soft
    net, cell = soft.net, soft.now.cell
    total = int(cell[network.problem.n_vars]) + int(cell[net.variables.at + labels].sum())
    for factor in net.factors:
        edges = net.edges[factor.first : factor.end]
        states = labels[edges.variable]
        total += int(net.costs[factor.table + edges.stride @ states]) - int(cell[edges.at + states].sum())
    for c in range(len(soft.constraints.records)):
        if cell[soft.constraints.records[c].at] == 0:
            total += plain(constraint_cost)(soft, c, labels)
    return total


def is_left(network: ModelNetwork, labels: Ints) -> bool:
    """Whether no state of a labelling has been removed."""
    net, now = network.soft.net, network.soft.now
    return bool(np.all(now.place[net.variables.at + labels] < now.cell[: len(labels)]))


def run(search: SoftSearch, sweeps: int) -> Iterator[None]:
    yield from search.prepare(sweeps)
    if not search.finished:
        yield from search.explore(20)


def new_network(graph: FactorGraph) -> ModelNetwork:
    network = ModelNetwork.of(Problem.compile(graph))
    network.soft.tally.pause_at = LARGE
    return network


@given(recipe=with_weights(recipes() | any_recipes()), sweeps=st.integers(0, 3))
def test_costs_of_labellings_stay_and_all_costs_are_at_least_0(recipe: Recipe, sweeps: int) -> None:
    graph = recipe.graph()
    network = new_network(graph)
    if network.costs.offset == -math.inf:  # a table allows nothing
        return
    every = labellings(graph)
    some = every[:: 1 + len(every) // 300]
    before = {tuple(labels.tolist()): network.costs.cost(network.problem, labels) for labels in some}
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
        monkeypatch.setattr(pace, "CONSISTENCY", work)
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
    monkeypatch.setattr(pace, "CONSISTENCY", int(rng.integers(1, 2000)))
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
    nodes.leave((3, -1), [(0, 2, 0, 0, 4), (1, 0, 1, 5, 6)], 10)
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
            nodes.leave(base, [(turn, 0, 0, 0, turn + 3), (turn + 1, 1, turn % 2, 0, turn + 5)], 1000)
    assert len(plenty) == len(few)
    while len(plenty):
        first, second = plenty.pop(1000), few.pop(1000)
        assert first is not None and second is not None
        assert first[0] == second[0] and plenty.path(first[1]) == few.path(second[1])


def test_open_nodes_at_the_upper_bound_are_closed() -> None:
    nodes = OpenNodes()
    nodes.push(7, -1)
    assert nodes.pop(7) is None and len(nodes) == 0


# -- constraints in a cost network ------------------------------------------------------------------------------------


def cost_given(network: ModelNetwork, labels: Ints) -> float:
    """Cost of a labelling by the model's own constraints, the rounding of costs included."""
    total = network.costs.cost(network.problem, labels)
    stated = network.problem.graph.constraints
    assert stated is not None
    return total + float(network.costs.penalties[stated.violated(labels)].sum())


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", SUMS)
def test_costs_stay_and_nothing_allowed_goes(kind: str, soft: bool) -> None:
    moved = 0
    for seed in range(12):
        graph = one_kind(kind, seed, soft).graph()
        network = new_network(graph)
        before = {tuple(labels.tolist()): cost_given(network, labels) for labels in labellings(graph)}
        for k in range(seed % 3):
            sweep(network.soft, k % 2 == 0, 0)
            price_constraints(network.soft, 0)
        if network.soft.tally.failed == 0:
            project_all(network.soft, 0)
            propagate_root(network.soft)
        if network.soft.tally.failed == 1:
            assert all(cost == math.inf for cost in before.values())
            continue
        moved += network.lower > 0
        for key, cost in before.items():
            labels = np.array(key, dtype=np.int64)
            if cost < math.inf:
                assert is_left(network, labels)
                assert cost_now(network, labels) == cost
                assert network.lower <= cost
            elif is_left(network, labels):
                assert cost_now(network, labels) >= HARD // 2
    assert moved


@pytest.mark.parametrize("kind", SUMS)
def test_below_a_decision_only_labellings_that_cost_too_much_go_and_all_comes_back(kind: str) -> None:
    for seed in range(9):
        graph = one_kind(kind, seed, bool(seed % 2)).graph()
        network = new_network(graph)
        project_all(network.soft, 0)
        propagate_root(network.soft)
        if network.soft.tally.failed == 1 or network.soft.now.cell[0] < 2:
            continue
        cells = network.soft.now.cell.copy()
        u = int(network.soft.now.domain[network.soft.net.variables.at[0]])
        plain(assign)(network.soft, 0, u)
        plain(propagate)(network.soft)  # without forgetting the trail
        done = network.soft.tally.failed == 0
        for labels in labellings(graph):
            if labels[0] == u and cost_given(network, labels) < network.soft.tally.upper:
                assert done and is_left(network, labels)
                assert cost_now(network, labels) == cost_given(network, labels)
        follow(network.soft, SoftSearch(network).way.stack, 0)
        assert np.array_equal(network.soft.now.cell, cells)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", SUMS)
def test_every_kind_is_solved(kind: str, soft: bool) -> None:
    for seed in range(20, 28):
        recipe = one_kind(kind, seed, soft)
        result = mapmrf.solve(recipe.graph(), "wcsp", local_search=0, sweeps=seed % 3)
        assert result.value == pytest.approx(recipe.optimum())
        assert result.status.closes_gap or result.value == -math.inf


def test_prices_of_an_assignment_are_its_proof() -> None:
    random = np.random.default_rng(3)
    gains = random.normal(size=(8, 10))
    graph = FactorGraph.from_tables([10] * 8, [(i,) for i in range(8)], list(gains))
    network = new_network(graph.with_constraints([constraints.all_different(range(8))]))
    project_all(network.soft, 0)
    propagate_root(network.soft)
    best = mapmrf.solve(network.problem.graph, "auto").value
    assert network.costs.bound(network.lower) == pytest.approx(best)


def test_too_few_states_are_found_by_matching() -> None:
    card = [4] * 5
    for allowed in ([0, 1, 2, 3], [0, 1, 2, 3, 3]):
        unary = [[0.0, 0.0, 0.0, -np.inf] if i < 4 else [0.0] * 4 for i in allowed]
        graph = FactorGraph.from_tables(card[: len(unary)], [(i,) for i in range(len(unary))], unary)
        result = mapmrf.solve(graph.with_constraints([constraints.all_different(range(len(unary)))]), "wcsp")
        assert result.status is mapmrf.Status.INFEASIBLE


# -- cliques of exclusions --------------------------------------------------------------------------------------------


def bids(seed: int, n: int, n_goods: int, stated: bool) -> FactorGraph:
    """Bids for some of the goods, each of which is sold once; the pairs say so, and if `stated`, some constraints."""
    rng = np.random.default_rng(seed)
    wants = rng.random((n, n_goods)) < 2.5 / n_goods
    card = rng.integers(2, 4, n)
    last = card - 1  # the state in which a bid is accepted
    scopes = [(i, j) for i in range(n) for j in range(i) if np.any(wants[i] & wants[j])]
    tables = [np.full((card[i], card[j]), rng.integers(-1, 2)) + 0.0 for i, j in scopes]
    for table in tables:
        table[-1, -1] = -np.inf
    others = [(0, 1), (2, 3), (1, 2, 4)]
    more = [rng.integers(-4, 1, size=card[list(scope)]) for scope in others]
    unary = [rng.integers(0, 5, r) * np.arange(r) for r in card]
    graph = FactorGraph.from_tables(card, [*((i,) for i in range(n)), *scopes, *others], [*unary, *tables, *more])
    goods = [[(i, int(last[i])) for i in np.flatnonzero(column)] for column in wants.T if column.sum() > 1]
    made = [constraints.at_most_one(goods[0]), constraints.linear(goods[1], [-2.0] * len(goods[1]), lower=-3.0)]
    return graph.with_constraints(made) if stated else graph


@pytest.mark.parametrize("stated", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_cliques_of_exclusions_become_constraints_and_no_value_changes(seed: int, stated: bool) -> None:
    graph = bids(seed, 7, 3, stated)
    joined = join_exclusions(Problem.compile(graph)).graph
    assert joined.n_factors < graph.n_factors / 2 and joined.constraints is not None
    for labels in labellings(graph):
        assert joined.value(labels) == graph.value(labels)
    result = mapmrf.solve(graph, "wcsp")
    assert result.status is mapmrf.Status.OPTIMAL and result.value == pytest.approx(brute_force(graph)[0])


def test_exclusions_in_large_cliques_need_few_nodes() -> None:
    result = mapmrf.solve(bids(0, 60, 12, stated=False), "wcsp")
    assert result.status is mapmrf.Status.OPTIMAL and result.iterations < 200


def test_few_exclusions_or_none_in_cliques_stay_pairs() -> None:
    table = np.array([[0.0, 1.0], [1.0, -np.inf]])
    ring = FactorGraph.from_tables([2] * 12, [(i, (i + 1) % 12) for i in range(12)], [np.minimum(table, 0.0)] * 12)
    softened = FactorGraph.from_tables([2] * 6, [(i, j) for i in range(6) for j in range(i)], [table] * 15)
    for graph in (ring, softened, random_graph(12, 20, states=(2, 3), arity=(2, 3), hard=0.1, seed=0)):
        problem = Problem.compile(graph)
        assert join_exclusions(problem) is problem
