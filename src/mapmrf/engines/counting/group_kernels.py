"""Projections onto one group: numbers that are not negative and sum up to at most 1, or to 1 if it is complete."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.counting.structs import CountingFactors
from mapmrf.kernels.jit import bare, inlined

NEGLIGIBLE = 1e-13
"""Residuals and intervals, relative to what they are part of, at which a root is found."""


@inlined
def guess(low: float, g_low: float, high: float, g_high: float, number: int) -> float:
    """Where to look for a root of a piecewise linear function next: by the secant and in the middle by turns."""
    if number % 2 == 0 and g_low != g_high:
        at = low - g_low * (high - low) / (g_high - g_low)
        if min(low, high) < at < max(low, high):
            return at
    return 0.5 * (low + high)


@inlined
def threshold(begin: int, end: int, radius: float, tau: float, weight: Floats, scores: Floats) -> float:
    """The number that, taken from all scores less tau times weight, leaves positive parts that sum up to the radius."""
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
            return top - radius  # round-off at a level that is the top
        if n >= count >= 0:  # more than before by round-off alone
            return level
        count = n
        level = (total - radius) / n


@inlined
def positive_total(begin: int, end: int, shift: float, scores: Floats) -> float:
    """Sum of the positive parts of scores less a shift."""
    total = 0.0
    for j in range(begin, end):
        total += max(0.0, scores[j] - shift)
    return total


@inlined
def put_shifted(begin: int, end: int, shift: float, scores: Floats, z: Floats) -> None:
    """Write the positive parts of scores less a shift."""
    for j in range(begin, end):
        z[j] = max(0.0, scores[j] - shift)


@bare
def put_group(g: int, shift: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores less a shift; returns the sum."""
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
    """Sum of the projection of a group's scores."""
    if factors.complete[g]:
        return 1.0
    return min(1.0, positive_total(factors.item_ptr[g], factors.item_ptr[g + 1], 0.0, scores))


@bare
def put_capped(g: int, cap: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores onto a sum of at most `cap`; returns the shift that this takes."""
    begin, end = factors.item_ptr[g], factors.item_ptr[g + 1]
    shift = 0.0
    if positive_total(begin, end, 0.0, scores) > cap:
        shift = threshold(begin, end, cap, 0.0, factors.weight, scores)
    put_shifted(begin, end, shift, scores, z)
    return shift


@inlined
def put_weighted(g: int, tau: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a group's scores less tau times the weights; returns the sum of weights of what is on."""
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
