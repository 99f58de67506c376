"""The compact program of a binary pairwise model has the model's values at its integer points."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

from binary_models import binary_graphs
from mapmrf import FactorGraph
from mapmrf.engines.program.binary_program import Compact, is_compact
from mapmrf.model.problem import Problem


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_the_compact_program_is_the_model(graph: FactorGraph) -> None:
    problem = Problem.compile(graph)
    assert is_compact(problem)
    compact = Compact.build(problem)
    program = compact.program
    assert len(np.unique(compact.first * graph.n_vars + compact.second)) == len(compact.first)
    for labels in itertools.product([0, 1], repeat=graph.n_vars):
        x = np.array(labels)
        columns = compact.columns(x)
        assert program.value(float(program.cost @ columns)) == pytest.approx(graph.value(x))
        assert np.all(program.rows.matrix @ columns <= program.rows.upper)
        assert compact.labels(columns).tolist() == compact.rounded(columns).tolist() == x.tolist()
        assert compact.missing(columns, 1e-9).n == 0


def test_only_the_rows_that_the_sign_needs_are_in_the_program() -> None:
    like, unlike = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], [like, unlike])
    rows = Compact.build(Problem.compile(graph)).program.rows
    assert rows.matrix.toarray().tolist() == [[-1, 0, 0, 1, 0], [0, -1, 0, 1, 0], [0, 1, 1, 0, -1]]
    assert rows.upper.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("unary", "table", "compact"),
    [
        (np.zeros((2, 2)), np.zeros((2, 2)), True),
        (np.zeros((2, 3)), np.zeros((3, 3)), False),
        (np.zeros((2, 2)), np.array([[0.0, -np.inf], [0.0, 0.0]]), False),
        (np.array([[0.0, -np.inf], [0.0, 0.0]]), np.zeros((2, 2)), False),
    ],
    ids=["binary", "three states", "hard pair", "hard state"],
)
def test_only_binary_finite_pairs_are_compact(unary: np.ndarray, table: np.ndarray, compact: bool) -> None:
    assert is_compact(Problem.compile(FactorGraph.from_pairwise(unary, [[0, 1]], [table]))) == compact
