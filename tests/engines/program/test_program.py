"""Programs: rows of a sparse matrix, and a bound that holds for any multipliers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from binary_models import binary_graphs
from mapmrf import FactorGraph
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.program import Rows, block_losses, lagrangian, value_range
from mapmrf.model.problem import Problem
from strategies import brute_force


def test_rows_are_added_and_kept() -> None:
    one = Rows(csr_array([[1.0, 0.0, -1.0]]), np.array([-np.inf]), np.array([3.0]))
    two = Rows(csr_array([[0.0, 2.0, 0.0], [0.0, 0.0, 5.0]]), np.zeros(2), np.array([1.0, 4.0]))
    rows = one.plus(two)
    assert rows.n == 3
    assert rows.matrix.toarray().tolist() == [[1, 0, -1], [0, 2, 0], [0, 0, 5]]
    assert (rows.lower.tolist(), rows.upper.tolist()) == ([-np.inf, 0, 0], [3, 1, 4])
    last = rows.only(np.array([False, False, True]))
    assert (last.matrix.toarray().tolist(), last.lower.tolist(), last.upper.tolist()) == ([[0, 0, 5]], [0], [4])


@given(graph=binary_graphs(), seed=st.integers(0, 2**16))
@settings(max_examples=30)
def test_the_bound_of_the_relaxation_holds_for_any_weights(graph: FactorGraph, seed: int) -> None:
    program = Compact.build(Problem.compile(graph)).program
    weights = np.random.default_rng(seed).normal(size=program.rows.n)
    bound, reduced = lagrangian(program, program.rows, weights)
    assert bound >= brute_force(graph)[0]
    assert len(reduced) == len(program.cost)


def test_spread_is_the_largest_difference_of_values() -> None:
    table = np.array([[0.0, 5.0], [-np.inf, 1.0]])
    graph = FactorGraph.from_pairwise([[0, 2], [0, 0]], [[0, 1]], [table])
    assert value_range(Problem.compile(graph)) == 7.0


def test_losses_are_measured_from_the_best_of_a_block() -> None:
    theta, ptr = np.array([1.0, 3.0, -np.inf, -np.inf, -np.inf]), np.array([0, 3, 5])
    loss, best, largest = block_losses(theta, ptr)
    assert loss.tolist() == [2, 0, np.inf, np.inf, np.inf]
    assert (best.tolist(), largest.tolist()) == ([3, -np.inf], [2, 0])
