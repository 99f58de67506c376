"""Constraints in the engine of ADMM: bounds at any iterate, multipliers that last, simplexes of their own."""

from __future__ import annotations

import numpy as np
import pytest

from constrained_recipes import random_constrained
from mapmrf import FactorGraph, constraints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout, harden, impossible
from mapmrf.model.problem import Problem


def engine_of(graph: FactorGraph, compact: bool) -> Engine:
    return Engine(Layout.build(harden(Problem.compile(graph)), compact=compact))


@pytest.mark.parametrize("compact", [True, False])
def test_the_bound_holds_at_any_multipliers(compact: bool) -> None:
    tried = 0
    for seed in range(15):
        recipe = random_constrained(seed, n_vars=4)
        graph, random = recipe.graph(), np.random.default_rng(seed)
        if impossible(Problem.compile(graph)):
            continue
        tried += 1
        engine = engine_of(graph, compact)
        for _ in range(5):
            engine.resume(random.random(len(engine.mu)), random.normal(size=len(engine.q)), 0.7)
            assert engine.measure().bound >= recipe.optimum() - 1e-9
    assert tried >= 8


@pytest.mark.parametrize("compact", [True, False])
def test_multipliers_outlast_a_change_of_the_penalty(compact: bool) -> None:
    graph = FactorGraph.from_tables([2, 3, 2], [(0, 1)], [np.arange(6.0).reshape(2, 3)])
    graph = graph.with_constraints([constraints.at_most_one([(0, 1), (1, 2), (2, 1)])])
    engine = engine_of(graph, compact)
    engine.begin(engine.layout.compress(np.full(7, 0.4)), 0.5)
    engine.run(7)
    before, bound = engine.multipliers(), engine.measure().bound
    assert len(before) == engine.layout.q_size + engine.layout.counting.n_items
    engine.change_rho(3.0)
    assert np.allclose(engine.multipliers(), before)
    engine.begin(engine.mu.copy(), 2.0, multipliers=True)
    assert np.allclose(engine.multipliers(), before)
    assert engine.measure().bound == pytest.approx(bound)


def test_both_layouts_solve_the_same_relaxation() -> None:
    random = np.random.default_rng(0)
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3)]
    graph = FactorGraph.from_tables([2] * 4, scopes, [random.normal(size=(2, 2)) for _ in scopes])
    graph = graph.with_constraints([constraints.exactly_k(range(4), 2), constraints.xor([0, (1, 0), 2], 1, 0.6)])
    found = []
    for compact in (True, False):
        engine = engine_of(graph, compact)
        engine.begin(engine.layout.compress(np.full(8, 0.5)), 0.5)
        engine.run(3000)
        found.append(engine.measure())
        assert found[-1].primal_max < 1e-5
        assert found[-1].relaxed == pytest.approx(found[-1].bound, abs=1e-4)
    assert found[0].bound == pytest.approx(found[1].bound, abs=1e-4)


def test_a_variable_without_tables_stays_on_its_simplex() -> None:
    graph = FactorGraph.from_tables([3, 3], [(0,), (1,)], [[1.0, 2.0, -np.inf], [0.0, 3.0, 1.0]])
    graph = graph.with_constraints([constraints.at_most_one([(0, 1), (1, 1)])])
    engine = engine_of(graph, compact=True)
    engine.begin(np.full(6, 0.3), 0.5)
    engine.run(400)
    assert engine.variables() == pytest.approx([1, 0, 0, 0, 1, 0], abs=1e-5)
    found = engine.measure()
    assert engine.labels.tolist() == [0, 1] and found.value == 4.0 and found.bound == pytest.approx(4.0, abs=1e-5)
