"""Clauses of tables rule out the forbidden entries and nothing else; those of cliques hold, and settle matchings."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from constraint_models import random_constraints, sudoku
from mapmrf import FactorGraph
from mapmrf.engines.feasibility.clauses import Atoms, HardClauses, factor_clauses, variable_clauses
from mapmrf.engines.feasibility.conflict_search import FEASIBLE, ConflictSearch
from mapmrf.engines.feasibility.pigeonhole import all_matched, clique_clauses, cliques, different_pairs
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


# -- variables that all differ ----------------------------------------------------------------------------------------


def shuffled_sudoku(base: int, holes: float, seed: int) -> FactorGraph:
    """A sudoku of base^2 x base^2 cells from a shuffled solution, of which a share is left out."""
    n, random = base * base, np.random.default_rng(seed)
    rows, columns = (np.concatenate([base * g + random.permutation(base) for g in range(base)]) for _ in range(2))
    r, c = np.meshgrid(rows, columns, indexing="ij")
    clues = 1 + random.permutation(n)[(base * (r % base) + r // base + c) % n].ravel()
    clues[random.permutation(n * n)[: int(holes * n * n)]] = 0
    return sudoku("".join(np.base_repr(clue, 36) for clue in clues))


def test_the_units_of_a_sudoku_are_its_cliques() -> None:
    problem = Problem.compile(shuffled_sudoku(3, 0.5, 0))
    found = {tuple(clique.tolist()) for clique in cliques(different_pairs(problem), 81, 9)}
    row, column = np.divmod(np.arange(81), 9)
    block = row // 3 * 3 + column // 3
    units = {tuple(np.flatnonzero(which == u).tolist()) for which in (row, column, block) for u in range(9)}
    assert found == units


@pytest.mark.parametrize("seed", range(20))
def test_every_feasible_labelling_satisfies_the_clauses(seed: int) -> None:
    random = np.random.default_rng(seed)
    n, states = 5, 4
    pairs = [pair for pair in itertools.combinations(range(n), 2) if random.random() < 0.8]
    unary = np.where(random.random((n, states)) < 0.3, -np.inf, 0.0)
    other = np.where(random.random((states, states)) < 0.3, -np.inf, 0.0)
    differ = np.where(np.eye(states, dtype=bool), -np.inf, other)
    graph = FactorGraph.from_pairwise(unary, pairs, [differ if random.random() < 0.9 else other for _ in pairs])
    problem = Problem.compile(graph)
    atoms = Atoms.of(problem)
    clauses = clique_clauses(problem, atoms)
    for labels in itertools.product(range(states), repeat=n):
        if graph.value(labels) > -math.inf:
            assert holds(graph, atoms, clauses, np.array(labels))


def test_a_large_sudoku_needs_few_conflicts() -> None:
    graph = shuffled_sudoku(5, 0.6, 0)
    search = ConflictSearch.of(Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64))
    while search.n_conflicts < 20_000 and search.run(200_000) == 0:
        pass
    assert search.outcome == FEASIBLE  # without the clauses some 200 000 conflicts are not enough
    assert graph.value(search.labels()) == 0.0


def test_matching_agrees_with_scipy() -> None:
    random, outcomes = np.random.default_rng(0), set()
    for _ in range(200):
        n_clauses, n_groups = random.integers(1, 9, 2).tolist()
        sizes = random.integers(1, 4, n_clauses)
        group = random.integers(0, n_groups, sizes.sum())
        edges = (np.repeat(np.arange(n_clauses), sizes), group)
        matrix = csr_array((np.ones(len(group), dtype=bool), edges), shape=(n_clauses, n_groups))
        expected = bool(np.all(maximum_bipartite_matching(matrix, perm_type="column") >= 0))

        ptr = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        assert all_matched(ptr, group.astype(np.int64), n_groups) == expected
        outcomes.add(expected)
    assert outcomes == {True, False}
