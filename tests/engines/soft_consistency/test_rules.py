"""Constraints in a cost network: prices change no labelling's cost, nothing allowed goes, the trail restores all."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mapmrf
from constrained_recipes import KINDS, ConstrainedRecipe, random_constrained, random_constraint
from mapmrf import FactorGraph, constraints
from mapmrf.arrays import Ints
from mapmrf.engines.feasibility.pigeonhole import all_matched
from mapmrf.engines.soft_consistency.constraints import constraint_cost
from mapmrf.engines.soft_consistency.network import HARD, ModelNetwork, assign
from mapmrf.engines.soft_consistency.propagation_kernels import propagate
from mapmrf.engines.soft_consistency.search import (
    SoftSearch,
    follow,
    price_constraints,
    project_all,
    propagate_root,
    sweep,
)
from mapmrf.model.problem import Problem
from plain_python import plain
from strategies import random_recipe

LARGE = 1 << 62


def new_network(graph: FactorGraph) -> ModelNetwork:
    network = ModelNetwork.of(Problem.compile(graph))
    network.soft.tally.pause_at = LARGE
    return network


def cost_given(network: ModelNetwork, labels: Ints) -> float:
    """Cost of a labelling by the model's own constraints, the rounding of costs included."""
    total = network.costs.cost(network.problem, labels)
    stated = network.problem.graph.constraints
    assert stated is not None
    return total + float(network.costs.penalties[stated.violated(labels)].sum())


def cost_now(network: ModelNetwork, labels: Ints) -> int:
    """Cost of a labelling as the network states it."""
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
    net, now = network.soft.net, network.soft.now
    return bool(np.all(now.place[net.variables.at + labels] < now.cell[: len(labels)]))


def labellings(graph: FactorGraph) -> list[Ints]:
    return [np.array(states, dtype=np.int64) for states in itertools.product(*map(range, graph.card.tolist()))]


def one_kind(kind: str, seed: int, soft: bool) -> ConstrainedRecipe:
    recipe = random_recipe(seed, 4, 4, hard=0.0, max_card=3, max_arity=3)
    random = np.random.default_rng([seed, 4])
    return ConstrainedRecipe(recipe, [random_constraint(random, recipe.card, kind, soft) for _ in range(2)])


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
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


@pytest.mark.parametrize("kind", KINDS)
def test_below_a_decision_only_labellings_that_cost_too_much_go_and_all_comes_back(kind: str) -> None:
    for seed in range(4):
        graph = one_kind(kind, seed, bool(seed % 2)).graph()
        network = new_network(graph)
        project_all(network.soft, 0)
        propagate_root(network.soft)
        if network.soft.tally.failed == 1 or network.soft.now.cell[0] < 2:
            continue
        cells = network.soft.now.cell.copy()
        u = int(network.soft.now.domain[network.soft.net.variables.at[0]])
        plain(assign)(network.soft, 0, u)
        done = settle_below(network)
        for labels in labellings(graph):
            if labels[0] == u and cost_given(network, labels) < network.soft.tally.upper:
                assert done and is_left(network, labels)
                assert cost_now(network, labels) == cost_given(network, labels)
        follow(network.soft, SoftSearch(network).way.stack, 0)
        assert np.array_equal(network.soft.now.cell, cells)


def settle_below(network: ModelNetwork) -> bool:
    """Propagate without forgetting the trail; False after a failure."""
    plain(propagate)(network.soft)
    return int(network.soft.tally.failed) == 0


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_solved(kind: str, soft: bool) -> None:
    for seed in range(20, 28):
        recipe = one_kind(kind, seed, soft)
        result = mapmrf.solve(recipe.graph(), "wcsp", local_search=0, sweeps=seed % 3)
        assert result.value == pytest.approx(recipe.optimum())
        assert result.status.closes_gap or result.value == -math.inf


def test_mixed_constraints_are_solved() -> None:
    for seed in range(200, 320):
        recipe = random_constrained(seed, n_vars=2 + seed % 5, n_constraints=1 + seed % 6)
        result = mapmrf.solve(recipe.graph(), "wcsp", local_search=0)
        assert result.value == pytest.approx(recipe.optimum())


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


def test_sums_that_tables_cannot_hold_are_solved() -> None:
    random = np.random.default_rng(5)
    worth, price = random.uniform(1, 2, 40), random.uniform(1, 2, 40)
    graph = FactorGraph.from_tables([2] * 40, [(i,) for i in range(40)], [[0.0, gain] for gain in worth])
    graph = graph.with_constraints([constraints.linear(range(40), price.tolist(), upper=0.3 * price.sum())])
    with pytest.raises(mapmrf.UnsupportedModel):
        mapmrf.constraints.as_tables.rewrite(graph)
    result = mapmrf.solve(graph, "wcsp")
    other = mapmrf.solve(graph, "cuts")
    assert result.status.closes_gap
    assert result.value == pytest.approx(other.value)


def test_matching_agrees_with_scipy() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    csgraph = pytest.importorskip("scipy.sparse.csgraph")
    random, outcomes = np.random.default_rng(0), set()
    for _ in range(200):
        n_clauses, n_groups = random.integers(1, 9, 2).tolist()
        sizes = random.integers(1, 4, n_clauses)
        group = random.integers(0, n_groups, sizes.sum())
        edges = (np.repeat(np.arange(n_clauses), sizes), group)
        matrix = sparse.csr_array((np.ones(len(group), dtype=bool), edges), shape=(n_clauses, n_groups))
        expected = bool(np.all(csgraph.maximum_bipartite_matching(matrix, perm_type="column") >= 0))
        ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        assert all_matched(ptr, group.astype(np.int64), n_groups) == expected
        outcomes.add(expected)
    assert outcomes == {True, False}
