"""Max-marginals of counting factors: the best sum of scores with an item on, and with a group off.

Every group has a score for being off in addition to those of its items; -inf if it cannot be off. Rows are maximised
through their multiplier: ``min over tau of tau limit + sum over groups of max(off, score - tau weight)``. With equal
weights that is exact; otherwise it is the optimum over the box with the row, an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind
from mapmrf.model.graph import ROUND_OFF

ROUNDS, DOUBLINGS = 100, 60  # maximum number of bisection steps, and of doublings before that to find an interval
SLACK = 1e-9  # relative tolerance for round-off by which a sum of weights may exceed a limit


class GroupScores(NamedTuple):
    """Scores or max-marginals: a number for every item being on, and one for every group being off."""

    on: Floats
    off: Floats


class RowRange(NamedTuple):
    """A row's value at a multiplier, and the minimum and maximum weight of the choices that attain it."""

    value: float
    low: float
    high: float


@inlined
def best_item(g: int, tau: float, factors: CountingFactors, scores: GroupScores) -> float:
    top = -np.inf
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        top = max(top, scores.on[j] - tau * factors.weight[j])
    return top


@inlined
def best_choice(g: int, tau: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the best score of a group at a multiplier, on or off."""
    best: float = max(scores.off[g], best_item(g, tau, factors, scores))
    return best


@bare
def best_value(f: int, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the maximum of one factor, without max-marginals, and with what round-off may have taken from it."""
    kind = factors.kind[f]
    penalty: float = factors.penalty[f]
    free = free_value(f, factors, scores)
    error = round_off(f, 0.0, factors, scores)
    if penalty < np.inf:
        error += ROUND_OFF * penalty
    if kind == CountingKind.PARITY:
        sums = parity_sums(f, factors, scores)
        change = min(sums.first, penalty) if sums.value > -np.inf and sums.wrong else 0.0
        return sums.value - change + error
    if kind == CountingKind.ROW:
        if free == -np.inf:
            return free
        top = -np.inf
        if reachable(f, factors, scores):
            top = np.inf
            for tau in row_multipliers(f, factors, scores):
                value = row_range(f, tau, factors, scores).value + round_off(f, tau, factors, scores)
                top = min(top, value)
        return max(top, free - penalty + error)
    last = factors.group_ptr[f + 1] - 1
    all_off: float = 0.0
    for g in range(factors.group_ptr[f], last + 1):
        all_off += scores.off[g]
    if kind == CountingKind.COST:
        return max(all_off, free - penalty) + error
    if free == -np.inf:
        return free
    inputs = free - best_choice(last, 0.0, factors, scores)
    off: float = scores.off[last] + inputs - penalty
    return max(best_item(last, 0.0, factors, scores) + inputs, max(all_off, off)) + error


@bare
def round_off(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Bound on the floating-point error of a factor's value at a multiplier, by the size of what is summed."""
    size = 0.0
    if tau != 0.0:
        size = abs(tau * (factors.upper[f] if tau > 0.0 else factors.lower[f]))
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        top = abs(scores.off[g]) if np.isfinite(scores.off[g]) else 0.0
        for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
            if np.isfinite(scores.on[j]):
                top = max(top, abs(scores.on[j]) + abs(tau * factors.weight[j]))
        size += top
    return ROUND_OFF * size


@bare
def free_value(f: int, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the sum of the best choices of all groups, ignoring the factor."""
    total = 0.0
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        total += best_choice(g, 0.0, factors, scores)
    return total


@bare
def row_range(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> RowRange:
    """Return a row's value at a multiplier, an upper bound for any, and the weights of the choices that attain it."""
    value = low = high = 0.0
    if tau != 0.0:
        value = tau * (factors.upper[f] if tau > 0.0 else factors.lower[f])
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        top = scores.off[g]
        least = most = 0.0
        for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
            weight = factors.weight[j]
            score = scores.on[j] - tau * weight
            if score > top:
                top = score
                least = most = weight
            elif score == top:
                least, most = min(least, weight), max(most, weight)
        value, low, high = value + top, low + least, high + most
    return RowRange(value, low, high)


@bare
def row_multipliers(f: int, factors: CountingFactors, scores: GroupScores) -> tuple[float, float]:
    """Return the smallest and largest multiplier that minimise a row's value."""
    lower, upper = factors.lower[f], factors.upper[f]
    here = row_range(f, 0.0, factors, scores)
    unit = 0.0  # of the scale of the scores: their sums with larger multiples of the weights would cancel
    for j in range(factors.item_ptr[factors.group_ptr[f]], factors.item_ptr[factors.group_ptr[f + 1]]):
        if scores.on[j] > -np.inf:
            unit = max(unit, abs(scores.on[j]))
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        if scores.off[g] > -np.inf:
            unit = max(unit, abs(scores.off[g]))
    if unit == 0.0:  # all kinks are at zero
        return 0.0, 0.0
    tau_low = tau_high = 0.0
    if here.low >= upper:  # moving up costs nothing
        tau_high = last_multiplier(f, unit, factors, scores)
    if here.high <= lower:
        tau_low = last_multiplier(f, -unit, factors, scores)
    if here.low > upper:  # zero is no minimiser
        tau_low = first_multiplier(f, tau_high, factors, scores)
    elif here.high < lower:
        tau_high = first_multiplier(f, tau_low, factors, scores)
    return tau_low, tau_high


@bare
def last_multiplier(f: int, step: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Move away from zero, first by `step`, as long as a row's value does not rise, or at least past all its kinks."""
    near, far = 0.0, step
    low, high = activity_limits(f, factors, scores)
    for _ in range(DOUBLINGS):
        if rises_before(f, far, factors, scores):
            break
        here = row_range(f, far, factors, scores)
        if here.high <= low if step > 0.0 else here.low >= high:
            return far
        near, far = far, 2.0 * far
    for _ in range(ROUNDS):
        at = 0.5 * (near + far)
        if not min(near, far) < at < max(near, far):
            break
        if rises_before(f, at, factors, scores):
            far = at
        else:
            near = at
    return near


@inlined
def rises_before(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> bool:
    """Return whether a row's value rises just before tau, coming from zero."""
    here = row_range(f, tau, factors, scores)
    rises: bool = here.high < factors.upper[f] if tau > 0.0 else here.low > factors.lower[f]
    return rises


@bare
def first_multiplier(f: int, far: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the minimiser of a row's value closest to zero, given one that is further away."""
    near, up = 0.0, far > 0.0
    for _ in range(ROUNDS):
        at = 0.5 * (near + far)
        if not min(near, far) < at < max(near, far):
            break
        here = row_range(f, at, factors, scores)
        falls = here.low > factors.upper[f] if up else here.high < factors.lower[f]
        if falls:
            near = at
        else:
            far = at
    return far


@inlined
def weight_limits(g: int, factors: CountingFactors, scores: GroupScores) -> tuple[float, float]:
    least, most = np.inf, -np.inf
    if scores.off[g] > -np.inf:
        least = most = 0.0
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        if scores.on[j] > -np.inf:
            least, most = min(least, factors.weight[j]), max(most, factors.weight[j])
    return least, most


@bare
def activity_limits(f: int, factors: CountingFactors, scores: GroupScores) -> tuple[float, float]:
    low = high = 0.0
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        least, most = weight_limits(g, factors, scores)
        low, high = low + least, high + most
    return low, high


@inlined
def within(low: float, high: float, f: int, factors: CountingFactors) -> bool:
    """Return whether some sum of weights in an interval satisfies a row."""
    lower, upper = factors.lower[f], factors.upper[f]
    fits: bool = low <= upper + SLACK * max(1.0, abs(upper)) and high >= lower - SLACK * max(1.0, abs(lower))
    return fits


@bare
def reachable(f: int, factors: CountingFactors, scores: GroupScores) -> bool:
    low, high = activity_limits(f, factors, scores)
    return within(low, high, f, factors)


class ParitySums(NamedTuple):
    """The best choices of all groups: their value, whether their parity is wrong, and the two cheapest changes."""

    value: float
    wrong: bool
    cheapest: int
    first: float
    second: float


@bare
def parity_sums(f: int, factors: CountingFactors, scores: GroupScores) -> ParitySums:
    value, count, cheapest, first, second = 0.0, 0, -1, np.inf, np.inf
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        item, off = best_item(g, 0.0, factors, scores), scores.off[g]
        value += max(item, off)
        cost = 0.0 if item == off else abs(item - off)
        count += item > off
        if cost < first:
            cheapest, first, second = g, cost, first
        elif cost < second:
            second = cost
    return ParitySums(value, count % 2 != int(factors.lower[f]), cheapest, first, second)
