"""The price of a sum that minimises a bound."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.elimination.path_rules_kernels import PathRule, best_sum

HALVINGS = 60
"""Bisection steps."""


@bare
def _priced_bound(
    ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], rule: PathRule
) -> tuple[float, float]:
    """The bound of all variables and the rule at its price, and its slope."""
    value, at = best_sum(ends[0], ends[1], rule)
    for v in range(len(ptr) - 1):
        best, chosen = -np.inf, 0.0
        for s in range(ptr[v], ptr[v + 1]):
            if score[s] - rule.price * gain[s] > best:
                best, chosen = score[s] - rule.price * gain[s], gain[s]
        value += best
        at -= chosen
    return value, at


@compiled
def find_price(ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], rule: PathRule) -> float:
    """The price at which scores and rule have the least bound; it is convex in the price."""
    spread, step = 0.0, np.inf
    for v in range(len(ptr) - 1):
        for s in range(ptr[v], ptr[v + 1]):
            for t in range(ptr[v], s):
                if np.isfinite(score[s]) and np.isfinite(score[t]) and gain[s] != gain[t]:
                    spread = max(spread, abs(score[s] - score[t]))
                    step = min(step, abs(gain[s] - gain[t]))
    if step == np.inf:
        return float(rule.price)
    price = rule.price
    best = _priced_bound(ptr, gain, score, ends, rule)[0]
    low, high = -2.0 * spread / step, 2.0 * spread / step  # beyond all kinks, and of the scale of the scores
    for _ in range(HALVINGS):
        rule.price = 0.5 * (low + high)
        value, slope = _priced_bound(ptr, gain, score, ends, rule)
        if value < best:
            best, price = value, rule.price
        if slope > 0.0:
            high = rule.price
        elif slope < 0.0:
            low = rule.price
        else:
            break
    return float(price)
