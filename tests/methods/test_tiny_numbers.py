"""Potentials at the lower end of what floats hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import mapmrf
from mapmrf import FactorGraph

TINY = (1e-308, 5e-324)


def alone(size: float) -> FactorGraph:
    return FactorGraph.from_tables([2], [(0,)], [[0.0, size]])


def beside_large(size: float) -> FactorGraph:
    pair = [[size, 0.0], [0.0, size]]
    return FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0,), (2,)], [pair, pair, [1.0, -1.0], [0.0, size]])


@pytest.mark.parametrize("method", ["ad3", "auto", "cuts", "l2box", "lp", "lslp", "psdd", "trws"])
@pytest.mark.parametrize("size", TINY)
@pytest.mark.parametrize("model", [alone, beside_large])
def test_tiny_potentials_give_no_warning_and_no_nan(
    model: Callable[[float], FactorGraph], size: float, method: str
) -> None:
    graph = model(size)
    result = mapmrf.solve(graph, method)
    best = mapmrf.solve(graph, "exhaustive").value
    assert result.value <= best and result.status != "infeasible"
    assert result.bound is None or (not math.isnan(result.bound) and result.bound >= best - 1e-9)
