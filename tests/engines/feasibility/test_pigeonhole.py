"""Cliques of variables that all differ: they are found, their clauses hold, and matchings are those of scipy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mapmrf
from constraint_models import sudoku
from mapmrf import FactorGraph, Status
from mapmrf.engines.feasibility.clauses import Atoms
from mapmrf.engines.feasibility.conflict_search import FEASIBLE, ConflictSearch
from mapmrf.engines.feasibility.pigeonhole import all_matched, clique_clauses, cliques, different_pairs
from mapmrf.model.problem import Problem


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
            holds = set(atoms.literal_of[graph.var_ptr[:-1] + np.array(labels)].tolist())
            for a, b in itertools.pairwise(clauses.ptr.tolist()):
                assert holds & set(clauses.literals[a:b].tolist())


def test_a_large_sudoku_needs_few_conflicts() -> None:
    graph = shuffled_sudoku(5, 0.6, 0)
    search = ConflictSearch.of(Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64))
    while search.n_conflicts < 20_000 and search.run(200_000) == 0:
        pass
    assert search.outcome == FEASIBLE  # without the clauses some 200 000 conflicts are not enough
    assert graph.value(search.labels()) == 0.0


def test_auto_solves_a_sudoku_and_refutes_a_wrong_clue() -> None:
    graph = shuffled_sudoku(4, 0.4, 1)
    result = mapmrf.solve(graph)
    assert result.status is Status.OPTIMAL and result.value == 0.0
    unary = graph.theta_v.reshape(-1, 16).copy()
    cell = int(np.flatnonzero(np.isfinite(unary).sum(axis=1) > 1)[0])
    unary[cell, np.arange(16) != (result.labels[cell] + 1) % 16] = -np.inf
    scope = graph.scope.reshape(-1, 2)
    broken = FactorGraph.from_pairwise(unary, scope, np.where(np.eye(16, dtype=bool), -np.inf, 0))
    truth = mapmrf.solve(broken, "wcsp").status
    assert mapmrf.solve(broken).status is truth


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
