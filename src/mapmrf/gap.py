"""The relative gap between a bound and a value."""

from __future__ import annotations

import math

GAP_TOLERANCE = 1e-6
"""Relative gap at which a run may end, unless `solve` is told otherwise."""


def relative_gap(value: float, bound: float | None, unit: float = 1.0) -> float | None:
    """(bound - value) / max(unit, |value|), never negative; None without a bound, inf while no finite value is known.

    `unit` is `FactorGraph.unit`: 1, or less in a model whose potentials are all small.

    Examples
    --------
    >>> relative_gap(-200.0, -199.0), relative_gap(-200.0, None)
    (0.005, None)
    """
    if bound is None:
        return None
    if bound == value:
        return 0.0
    if not math.isfinite(value):
        return math.inf
    return max(0.0, (bound - value) / max(unit, abs(value)))
