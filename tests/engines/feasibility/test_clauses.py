"""Clauses of tables: they rule out the forbidden entries, and nothing else."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from constraint_models import random_constraints
from mapmrf import FactorGraph
from mapmrf.engines.feasibility.clauses import Atoms, HardClauses, factor_clauses, variable_clauses
from mapmrf.model.problem import Problem
from strategies import labellings


def all_clauses(graph: FactorGraph) -> tuple[Atoms, HardClauses]:
    problem = Problem.compile(graph)
    atoms = Atoms.of(problem)
    return atoms, HardClauses.joined([variable_clauses(problem, atoms), *factor_clauses(problem, atoms)])


def holds(graph: FactorGraph, atoms: Atoms, clauses: HardClauses, labels: np.ndarray) -> bool:
    truth = np.zeros(2 * atoms.n_atoms, dtype=bool)
    truth[1::2] = True
    chosen = atoms.literal_of[graph.var_ptr[:-1] + labels]
    truth[chosen], truth[chosen ^ 1] = True, False
    return all(truth[clauses.literals[begin:end]].any() for begin, end in itertools.pairwise(clauses.ptr.tolist()))


def assert_clauses(graph: FactorGraph) -> None:
    """The labellings that satisfy them are the feasible ones."""
    atoms, clauses = all_clauses(graph)
    for labels in labellings(graph):
        assert holds(graph, atoms, clauses, labels) == (graph.value(labels) > -math.inf)


@pytest.mark.parametrize("seed", range(80))
def test_labellings_that_satisfy_the_clauses_are_the_feasible_ones(seed: int) -> None:
    assert_clauses(random_constraints(seed, 5, 4))


def test_a_table_that_factors_of_two_shapes_share_is_read_by_each_in_its_own_shape() -> None:
    table = np.array([0.0, -np.inf, -np.inf, 0.0, 0.0, -np.inf])
    graph = FactorGraph.from_arrays([2, 3, 2], [0, 2, 4], [0, 1, 1, 2], [0, 0], [0, 6], table)
    assert_clauses(graph)


def test_a_clause_of_many_literals_is_one_clause() -> None:
    table = np.zeros((2,) * 10)
    table[(1,) * 10] = -np.inf
    graph = FactorGraph.from_tables(np.full(10, 2), [tuple(range(10))], [table])
    assert all_clauses(graph)[1].lengths.tolist() == [10]


def test_configurations_that_differ_in_one_variable_are_ruled_out_together() -> None:
    """An AND gate is three clauses, and not four forbidden rows."""
    gate = np.full((2, 2, 2), -np.inf)
    for x, y in itertools.product(range(2), repeat=2):
        gate[x, y, x * y] = 0.0
    clauses = all_clauses(FactorGraph.from_tables([2, 2, 2], [(0, 1, 2)], [gate]))[1]
    assert sorted(clauses.lengths.tolist()) == [2, 2, 3]


def test_a_state_with_few_partners_implies_them() -> None:
    """Equal states of many: every state implies the other variable's, instead of excluding all others in turn."""
    equal = np.where(np.eye(8, dtype=bool), 0.0, -np.inf)
    clauses = all_clauses(FactorGraph.from_pairwise(np.zeros((2, 8)), [[0, 1]], equal))[1]
    assert sorted(clauses.lengths.tolist()) == [2] * 8 + [8, 8]
