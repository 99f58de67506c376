"""The four examples of the how-to give what the page says, and what other solvers find."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import mapmrf
from mapmrf import Status, constraints
from test_docs import DOCS, blocks


@pytest.fixture(scope="module")
def page() -> dict[str, object]:
    """The names that the page's code leaves behind."""
    names: dict[str, object] = {}
    for block in blocks(Path(DOCS, "how-to", "constraints.md"), "python"):
        exec(block.code, names)
    return names


def test_the_sudoku_is_solved(page: dict[str, object]) -> None:
    result = mapmrf.solve(page["sudoku"])
    assert result.status is Status.OPTIMAL
    for group in page["groups"]:
        assert sorted(result.labels[group]) == list(range(9))
    assert all(result.labels[i] == k for i, k in page["given"].items())
    assert len(mapmrf.solve_best(page["sudoku"], 2)) == 1


def test_the_assignment_is_that_of_scipy(page: dict[str, object]) -> None:
    gain = page["gain"]
    result = mapmrf.solve(page["tasks"])
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(gain[linear_sum_assignment(gain, maximize=True)].sum())
    assert round(result.value, 6) == 31.342691


def test_the_selection_is_the_best_within_the_budget(page: dict[str, object]) -> None:
    graph = page["items"]
    best = max(graph.value(labels) for labels in itertools.product(range(2), repeat=5))
    result = mapmrf.solve(graph)
    assert result.value == best == 13.5
    assert result.labels.tolist() == [0, 1, 0, 1, 1]


def test_the_object_has_its_size(page: dict[str, object]) -> None:
    assert page["result"].labels.sum() == 81
    assert page["result"].value > -math.inf


@pytest.mark.parametrize("seed", range(4))
def test_assignments_with_forbidden_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    gain = random.normal(size=(6, 8))
    gain[random.random(gain.shape) < 0.5] = -np.inf
    graph = mapmrf.FactorGraph.from_tables([8] * 6, [(i,) for i in range(6)], list(gain))
    result = mapmrf.solve(graph.with_constraints([constraints.all_different(range(6))]))
    try:
        expected = gain[linear_sum_assignment(gain, maximize=True)].sum()
    except ValueError:
        expected = -math.inf
    assert result.value == pytest.approx(expected)
    assert result.status is (Status.OPTIMAL if expected > -math.inf else Status.INFEASIBLE)
