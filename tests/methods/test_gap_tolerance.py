"""The user's gap tolerance reaches methods that have stopping rules of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf.model.graph import FactorGraph
from mapmrf.run.method import Start
from mapmrf.run.result import GAP_TOLERANCE, Result, Status


def small_gap() -> FactorGraph:
    """A frustrated triangle next to a large number: the relaxation leaves a relative gap of 1e-7."""
    pair = 1e-4 * np.array([[0.0, 1.0], [1.0, 0.0]])
    scopes = [(0, 1), (1, 2), (0, 2), (3,), (0,)]
    return FactorGraph.from_tables([2] * 4, scopes, [pair, pair, pair, [0.0, 1000.0], [0.0, 1e-6]])


def solved(method: str, tolerance: float | None, **options: Any) -> Result:
    result = mapmrf.solve(small_gap(), method, gap_tolerance=tolerance, **options)
    assert result.value == pytest.approx(1000.000201, abs=1e-12)
    return result


@pytest.mark.parametrize("method", ["trws", "adsal", "lslp", "ad3"])
def test_the_default_tolerance_is_met(method: str) -> None:
    assert Start().gap_tolerance == GAP_TOLERANCE
    assert solved(method, None).status is Status.WITHIN_TOLERANCE
    assert solved(method, 1e-4).status is Status.WITHIN_TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-9, 0.0, -1.0])
def test_message_passing_converges_instead_of_waiting_for_a_gap_that_is_not_closed(tolerance: float) -> None:
    for method in ("trws", "adsal"):
        result = solved(method, tolerance)
        assert result.status is Status.CONVERGED
        assert result.iterations < 20
        assert result.gap is not None and 1e-9 < result.gap < GAP_TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-9, 0.0, -1.0])
def test_ad3_branches_until_the_gap_is_that_of_the_user(tolerance: float) -> None:
    result = solved("ad3", tolerance, branch_and_bound=True)
    assert result.status is Status.OPTIMAL
    assert result.gap is not None and result.gap < 1e-12
    assert solved("ad3", None, branch_and_bound=True).details.get("nodes") is None


def test_lslp_continues_with_the_sphere() -> None:
    phases = {point.phase for point in solved("lslp", 1e-9, max_iterations=600).trace}
    assert "lp" in phases and any(phase.startswith("sphere") for phase in phases)
    assert {point.phase for point in solved("lslp", None).trace} == {"lp"}
