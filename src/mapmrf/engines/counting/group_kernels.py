"""Projections onto one group: non-negative numbers with a sum of at most 1, or of exactly 1 if it is complete."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.counting.structs import CountingFactors

NEGLIGIBLE = 1e-13
"""Relative tolerance on residuals and intervals in root finding."""


@inlined
def guess(low: float, g_low: float, high: float, g_high: float, number: int) -> float:
    """Return the next point in the search for a root of a piecewise linear function: secant and bisection in turn."""
    if number % 2 == 0 and g_low != g_high:
        at = low - g_low * (high - low) / (g_high - g_low)
        if min(low, high) < at < max(low, high):
            return at
    return 0.5 * (low + high)


@inlined
def threshold(begin: int, end: int, radius: float, tau: float, weight: Floats, scores: Floats) -> float:
    """Return the threshold at which the positive parts of the scores minus tau times the weights sum to the radius."""
    level, count = -np.inf, -1
    while True:
        total, n = 0.0, 0
        top = -np.inf
        for j in range(begin, end):
            score = scores[j] - tau * weight[j]
            top = max(top, score)
            if score > level:
                total += score
                n += 1
        if n == 0:
            return top - radius  # round-off when the threshold is close to the top
        if n >= count >= 0:  # more than before only by round-off
            return level
        count = n
        level = (total - radius) / n


@inlined
def positive_total(begin: int, end: int, shift: float, scores: Floats) -> float:
    """Sum the positive parts of scores minus a shift."""
    total = 0.0
    for j in range(begin, end):
        total += max(0.0, scores[j] - shift)
    return total


@inlined
def put_shifted(begin: int, end: int, shift: float, scores: Floats, z: Floats) -> None:
    """Write the positive parts of scores minus a shift."""
    for j in range(begin, end):
        z[j] = max(0.0, scores[j] - shift)


@bare
def put_group(g: int, shift: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores minus a shift; return the sum."""
    begin, end = factors.item_ptr[g], factors.item_ptr[g + 1]
    if factors.complete[g]:
        put_shifted(begin, end, threshold(begin, end, 1.0, 0.0, factors.weight, scores), scores, z)
        return 1.0
    total = positive_total(begin, end, shift, scores)
    if total > 1.0:
        shift = threshold(begin, end, 1.0, 0.0, factors.weight, scores)
        total = 1.0
    put_shifted(begin, end, shift, scores, z)
    return total


@bare
def group_total(g: int, factors: CountingFactors, scores: Floats) -> float:
    """Return the sum of the projection of a group's scores."""
    if factors.complete[g]:
        return 1.0
    return min(1.0, positive_total(factors.item_ptr[g], factors.item_ptr[g + 1], 0.0, scores))


@bare
def put_capped(g: int, cap: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores onto a sum of at most `cap`; return the required shift."""
    begin, end = factors.item_ptr[g], factors.item_ptr[g + 1]
    shift = 0.0
    if positive_total(begin, end, 0.0, scores) > cap:
        shift = threshold(begin, end, cap, 0.0, factors.weight, scores)
    put_shifted(begin, end, shift, scores, z)
    return shift


@inlined
def put_weighted(g: int, tau: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores minus tau times the weights; return the weighted sum."""
    begin, end, weight = factors.item_ptr[g], factors.item_ptr[g + 1], factors.weight
    if end - begin == 1:
        z[begin] = 1.0 if factors.complete[g] else min(1.0, max(0.0, scores[begin] - tau * weight[begin]))
        activity: float = weight[begin] * z[begin]
        return activity
    total = 0.0
    for j in range(begin, end):
        total += max(0.0, scores[j] - tau * weight[j])
    shift = 0.0
    if total > 1.0 or factors.complete[g]:
        shift = threshold(begin, end, 1.0, tau, weight, scores)
    activity = 0.0
    for j in range(begin, end):
        z[j] = max(0.0, scores[j] - tau * weight[j] - shift)
        activity += weight[j] * z[j]
    return activity
