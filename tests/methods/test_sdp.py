"""SDP: exact on random models with fields, bounds on larger ones, warm starts, options."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from binary_models import complete, spins
from mapmrf import FactorGraph, Status


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("whole", [True, False])
def test_models_with_fields_are_proven(seed: int, whole: bool) -> None:
    random = np.random.default_rng(seed)
    pairs = [(i, j) for j in range(18) for i in range(j) if random.random() < 0.7]
    unary, tables = random.normal(size=(18, 2)), random.normal(size=(len(pairs), 2, 2))
    if whole:
        unary, tables = np.round(4 * unary), np.round(4 * tables)
    graph = FactorGraph.from_pairwise(unary, pairs, tables)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "exhaustive").value)


def test_a_sparse_model_is_proven_as_by_cuts() -> None:
    graph = spins(7, seed=2)
    result = mapmrf.solve(graph, "sdp")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(mapmrf.solve(graph, "cuts").value)


def test_without_cuts_and_branches_there_is_a_bound() -> None:
    graph = complete(30, seed=1)
    plain = mapmrf.solve(graph, "sdp", cut_spins=0)
    tight = mapmrf.solve(graph, "sdp", branch_spins=0)
    whole = mapmrf.solve(graph, "sdp")
    assert plain.status is Status.CONVERGED
    assert plain.bound > tight.bound >= whole.bound == pytest.approx(whole.value)
    assert (plain.details["inequalities"], tight.details["nodes"]) == (0.0, 1.0)
