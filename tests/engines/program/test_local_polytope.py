"""The local polytope as a program, with and without constraints: every labelling is a point at its value."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from scipy.optimize import linear_sum_assignment

from constrained_recipes import SUMS, random_constrained
from mapmrf import FactorGraph, constraints
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.local_polytope import ConstrainedPolytope, LocalPolytope
from mapmrf.methods.auto.constrained import best_assignment
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.model.polytope import dense, integral
from mapmrf.model.problem import Problem
from strategies import Recipe, hard_recipes, with_weights


def labellings(graph: FactorGraph) -> list[np.ndarray]:
    """Some labellings of finite value."""
    every = itertools.islice(itertools.product(*map(range, graph.card.tolist())), 200)
    return [np.array(labels, dtype=np.int64) for labels in every if graph.value(labels) > -math.inf]


@given(recipe=with_weights(hard_recipes()))
@settings(max_examples=30)
def test_points_and_marginals_are_the_same_thing(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    polytope = LocalPolytope.build(problem)
    best_alone = problem.graph.theta_v
    for labels in labellings(problem.graph):
        for i in np.flatnonzero(problem.degree == 0):
            labels[i] = best_alone[problem.graph.var_ptr[i] :][: problem.graph.card[i]].argmax()
        columns = polytope.columns(labels)
        mu_v, mu_f = integral(problem, labels)
        found_v, found_f = polytope.marginals(columns)
        assert found_v.tolist() == mu_v.tolist()
        assert found_f.tolist() == dense(problem, mu_f).tolist()
        assert polytope.labels(columns[: polytope.program.n_integer]).tolist() == labels.tolist()


# -- rows for constraints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_with_constraints_labellings_are_points_of_their_value_and_bounds_hold(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=1 + seed % 4, n_constraints=1 + seed % 4, kinds=SUMS)
    polytope = ConstrainedPolytope.build(Problem.compile(recipe.graph()))
    program = polytope.program
    for weights in np.random.default_rng(seed).normal(size=(5, program.rows.n)):
        assert polytope.bound(weights) >= recipe.optimum() - 1e-9
    for labels, value in recipe.values():
        if value == -math.inf:
            continue
        point = polytope.columns(np.array(labels))
        inside = program.rows.matrix @ point
        assert np.all(inside >= program.rows.lower - 1e-7)
        assert np.all(inside <= program.rows.upper + 1e-7)
        assert program.value(float(program.cost @ point)) == pytest.approx(value)
        assert polytope.labels(point).tolist() == list(labels)


def test_binary_pairs_stay_compact() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((4, 2)), [[0, 1], [2, 3]], [[0, 0], [0, 1.0]])
    graph = graph.with_constraints([constraints.exactly_k([(0, 0), (1, 1), (2, 0), (3, 1)], 2)])
    polytope = ConstrainedPolytope.build(Problem.compile(graph))
    assert isinstance(polytope.base, Compact)
    assert len(polytope.program.cost) == 6


@pytest.mark.parametrize("seed", range(60))
def test_assignments_are_those_of_scipy(seed: int) -> None:
    assert best_assignment(np.full((SETTINGS.assignment_rows + 1, SETTINGS.assignment_rows + 1), -np.inf)) is None
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 9)) if seed else SETTINGS.assignment_rows + 1  # large ones are left to scipy
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
