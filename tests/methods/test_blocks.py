"""Block moves: wider blocks reach more, and the run ends."""

from __future__ import annotations

import pytest

import mapmrf
from mapmrf import Status
from mapmrf.datasets import grid


def test_wider_blocks_reach_more_on_a_frustrated_grid() -> None:
    graph = grid(14, 14, 3.0, seed=3)
    values = [mapmrf.solve(graph, "blocks", width=width).value for width in (1, 3, 8)]
    assert values[0] <= values[1] <= values[2]
    assert mapmrf.solve(graph, "icm").value < values[1]


def test_a_run_ends_when_passes_no_longer_help() -> None:
    result = mapmrf.solve(grid(6, 6, 2.0), "blocks", patience=3, width=30)
    assert result.status is Status.CONVERGED
    assert result.iterations == 4 and result.details["passes"] == 4
    best = mapmrf.solve(grid(6, 6, 2.0), "branch").value
    assert result.value == pytest.approx(best)
