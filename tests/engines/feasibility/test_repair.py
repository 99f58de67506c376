"""Labellings that violate few factors, against exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest

from constraint_models import colouring, ksat, pigeons, random_constraints
from mapmrf import FactorGraph
from mapmrf.engines.feasibility.repair import Repair
from mapmrf.model.problem import Problem
from mapmrf.run.repair import shortfall
from strategies import labellings


def repaired(graph: FactorGraph, work: int = 300_000) -> Repair:
    search = Repair(Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64))
    search.run(work)
    return search


@pytest.mark.parametrize("seed", range(30))
def test_as_few_factors_are_violated_as_by_exhaustive_search(seed: int) -> None:
    graph = random_constraints(seed, 6, 16, 3)
    fewest = min(shortfall(graph, labels).n_violated for labels in labellings(graph))
    search = repaired(graph)
    assert search.n_violated == fewest == shortfall(graph, search.labels).n_violated


def test_one_pigeon_too_many_shares_one_hole() -> None:
    assert repaired(pigeons(10, 9)).n_violated == 1


def test_a_sparse_colouring_and_loose_clauses_are_solved() -> None:
    assert repaired(colouring(200, 500, 4, 0), 3_000_000).n_violated == 0
    assert repaired(ksat(200, 700, 3, 0), 3_000_000).n_violated == 0


def test_the_labels_violate_as_many_factors_as_the_search_says() -> None:
    graph = colouring(60, 390, 5, 0)
    search = repaired(graph)
    assert 0 < search.n_violated == shortfall(graph, search.labels).n_violated < 10


def test_a_labelling_that_violates_nothing_stays() -> None:
    graph = pigeons(5, 5)
    search = Repair(Problem.compile(graph), np.arange(5))
    search.run(1000)
    assert search.labels.tolist() == [0, 1, 2, 3, 4] and search.n_violated == 0
