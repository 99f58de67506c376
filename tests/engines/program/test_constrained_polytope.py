"""Rows for constraints: every labelling is a point of its value, and violating points are cut off."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import mapmrf
from constrained_recipes import random_constrained
from mapmrf import FactorGraph, Status, constraints
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.local_polytope import ConstrainedPolytope
from mapmrf.methods.auto.constrained import FEW_ROWS, best_assignment
from mapmrf.model.problem import Problem


@pytest.mark.parametrize("seed", range(40))
def test_labellings_are_points_of_their_value(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=1 + seed % 4, n_constraints=1 + seed % 4)
    polytope = ConstrainedPolytope.build(Problem.compile(recipe.graph()))
    program = polytope.program
    for labels, value in recipe.values():
        if value == -math.inf:
            continue
        point = polytope.columns(np.array(labels))
        inside = program.rows.matrix @ point
        assert np.all(inside >= program.rows.lower - 1e-7)
        assert np.all(inside <= program.rows.upper + 1e-7)
        assert program.value(float(program.cost @ point)) == pytest.approx(value)
        assert polytope.labels(point).tolist() == list(labels)


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_for_any_multipliers(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=1 + seed % 4, n_constraints=1 + seed % 4)
    polytope = ConstrainedPolytope.build(Problem.compile(recipe.graph()))
    for weights in np.random.default_rng(seed).normal(size=(5, polytope.program.rows.n)):
        assert polytope.bound(weights) >= recipe.optimum() - 1e-9


def test_binary_pairs_stay_compact() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), [[0, 1], [2, 3]], [[0, 0], [0, 1.0]])
    graph = graph.with_constraints([constraints.exactly_k([(0, 0), (1, 1), (2, 0), (3, 1)], 2)])
    polytope = ConstrainedPolytope.build(Problem.compile(graph))
    assert isinstance(polytope.base, Compact)
    assert len(polytope.program.cost) == 6


def test_the_relaxation_of_an_assignment_proves_it() -> None:
    gain = np.random.default_rng(4).normal(size=(7, 7))
    graph = FactorGraph.from_tables([7] * 7, [(i,) for i in range(7)], list(gain))
    result = mapmrf.solve(graph.with_constraints([constraints.all_different(range(7))]), "lp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(gain[linear_sum_assignment(gain, maximize=True)].sum())


@pytest.mark.parametrize("seed", range(60))
def test_assignments_are_those_of_scipy(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 9))
    gain = random.normal(size=(n, n + int(random.integers(0, 3))))
    gain[random.random(gain.shape) < random.choice([0.0, 0.3, 0.6])] = -np.inf
    found = best_assignment(gain)
    try:
        expected = gain[linear_sum_assignment(gain, maximize=True)].sum()
    except ValueError:
        assert found is None
        return
    assert found is not None
    assert len(set(found.tolist())) == n
    assert gain[np.arange(n), found].sum() == pytest.approx(expected)


def test_large_assignments_are_left_to_scipy() -> None:
    gain = np.random.default_rng(0).normal(size=(FEW_ROWS + 1, FEW_ROWS + 1))
    found = best_assignment(gain)
    assert found is not None
    assert gain[np.arange(len(found)), found].sum() == pytest.approx(
        gain[linear_sum_assignment(gain, maximize=True)].sum()
    )
    assert best_assignment(np.full((FEW_ROWS + 1, FEW_ROWS + 1), -np.inf)) is None
