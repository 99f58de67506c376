"""Restarts: kicks never cost anything, every part of a change is judged on its own, and the run ends."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid

MOVES = ["flips", "chains", "blocks"]


@pytest.mark.parametrize(
    ("move", "option", "size"), [("flips", "depth", 2), ("chains", "length", 5), ("blocks", "width", 3)]
)
def test_kicks_raise_what_the_move_alone_reaches(move: str, option: str, size: int) -> None:
    graph = grid(20, 20, 3.0, seed=3)
    alone = mapmrf.solve(graph, move, **{option: size})
    kicked = mapmrf.solve(graph, "restarts", move=move, initial=alone, max_iterations=10, **{option: size})
    assert kicked.value > alone.value
    assert kicked.details["kicks"] > 0 and kicked.details["kicks_taken"] > 0


@pytest.mark.parametrize("move", MOVES)
def test_small_grids_are_solved(move: str) -> None:
    graph = grid(8, 8, 2.0, seed=5)
    best = mapmrf.solve(graph, "branch").value
    result = mapmrf.solve(graph, "restarts", move=move)
    assert result.status is Status.CONVERGED
    assert result.value == pytest.approx(best)


def test_parts_of_a_change_are_judged_one_by_one() -> None:
    """Two coupled pairs that both must flip together: one gains by that, the other loses."""
    unary = np.zeros((4, 2))
    edges = [[0, 1], [2, 3], [1, 2]]
    tables = [[[0.0, -4.0], [-4.0, 1.0]], [[0.0, -4.0], [-4.0, -1.0]], [[0.0, 0.0], [0.0, 0.0]]]
    graph = FactorGraph.from_pairwise(unary, edges, np.array(tables))
    result = mapmrf.solve(graph, "restarts", depth=1, kick=4, initial=[0, 0, 0, 0], patience=30)
    assert result.labels.tolist() == [1, 1, 0, 0]


def test_a_temperature_lets_worse_parts_stay_and_keeps_the_best() -> None:
    graph = grid(10, 10, 3.0, seed=3)
    cold = mapmrf.solve(graph, "restarts", move="flips", max_iterations=15, patience=15)
    warm = mapmrf.solve(graph, "restarts", move="flips", max_iterations=15, temperature=0.3)
    assert warm.details["kicks_taken"] > cold.details["kicks_taken"]
    assert (warm.status, warm.iterations) == (Status.CONVERGED, 15)
    first = mapmrf.solve(graph, "flips", depth=2)
    assert warm.value >= first.value
    blocks = mapmrf.solve(graph, "restarts", max_iterations=3, temperature=0.3, move="blocks", initial=first)
    assert blocks.value >= first.value


def test_a_round_kicks_every_variable_once_on_average() -> None:
    graph = grid(9, 11, 2.0)
    result = mapmrf.solve(graph, "restarts", kick=7, max_iterations=2, patience=5)
    assert result.iterations == 2
    assert result.details["kicks"] == 2 * np.ceil(2 * 99 / 8)


def test_patience_ends_the_run() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1]], np.zeros((2, 2)))
    result = mapmrf.solve(graph, "restarts", patience=4)
    assert result.status is Status.CONVERGED
    assert result.iterations == 5
