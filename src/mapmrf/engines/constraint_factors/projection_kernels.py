"""The ADMM step of counting factors: projection onto the convex hull of the allowed vectors.

With scores s, the step is ``argmin over z of |z - s|^2 / 2 + price v(z)``, where v(z) in [0, 1] is the violation of z:
the least v such that (z, v) lies in the hull of the allowed vectors with v = 0 and all vectors with v = 1. Rows of
unequal weights are the exception: there the box with the row replaces the hull.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind

NEGLIGIBLE = 1e-13  # relative tolerance on residuals and intervals in root finding
CLOSE = 1e-11  # tolerance on the violation of a row with a penalty, each of whose search steps is itself a search
ROUNDS, DOUBLINGS = 120, 200  # maximum number of steps of root finding, and of the search for an interval before that


@bare
def project(f: int, factors: CountingFactors, scores: Floats, price: float, z: Floats) -> float:
    """Project onto one factor, given the price of a violation; return the violation."""
    kind = factors.kind[f]
    if kind == CountingKind.PARITY:
        return project_parity(f, factors, scores, price, z)
    if kind != CountingKind.ROW:
        return project_fan(f, factors, scores, price, z)
    if price < np.inf:
        return project_soft_row(f, factors, scores, price, z)
    project_row(f, factors, scores, z)
    return 0.0


@bare
def row_activity(f: int, tau: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project every group of a row at the multiplier tau; return the weighted sum."""
    activity = 0.0
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        activity += put_weighted(g, tau, factors, scores, z)
    return activity


@bare
def project_row(f: int, factors: CountingFactors, scores: Floats, z: Floats) -> None:
    """Project onto a hard row: its multiplier is the root of a monotone function."""
    activity = row_activity(f, 0.0, factors, scores, z)
    if factors.lower[f] <= activity <= factors.upper[f]:
        return
    target = factors.upper[f] if activity > factors.upper[f] else factors.lower[f]
    low, g_low, enough = 0.0, activity - target, NEGLIGIBLE * max(1.0, abs(target))
    high = 1.0 if g_low > 0.0 else -1.0
    g_high = row_activity(f, high, factors, scores, z) - target
    for _ in range(DOUBLINGS):
        if g_low * g_high <= 0.0 or abs(g_high) <= enough:
            break
        low, g_low, high = high, g_high, 2.0 * high
        g_high = row_activity(f, high, factors, scores, z) - target
    if g_low * g_high > 0.0:
        return  # at the limit of what is attainable, or beyond
    for number in range(ROUNDS):
        at = guess(low, g_low, high, g_high, number)
        g = row_activity(f, at, factors, scores, z) - target
        if abs(g) <= enough or abs(high - low) <= NEGLIGIBLE * abs(at):
            return
        if g * g_low > 0.0:
            low, g_low = at, g
        else:
            high, g_high = at, g


@bare
def project_soft_row(f: int, factors: CountingFactors, scores: Floats, price: float, z: Floats) -> float:
    """Project onto a row with a penalty, upper side only: search for the optimal violation v."""
    # (z, v) lies in the hull if z = (1 - v) a + v b, where a satisfies the row. The minimum weighted sum of (1 - v) a
    # is a sum over groups, see `soft_group`, and must be at most (1 - v) upper.
    if row_activity(f, 0.0, factors, scores, z) <= factors.upper[f]:
        return 0.0
    slope = price + soft_slope(f, 0.0, factors, scores, z)
    if slope >= 0.0:
        return 0.0
    low, g_low, high, g_high = 0.0, slope, 1.0, price
    at = 1.0
    for number in range(ROUNDS):
        at = guess(low, g_low, high, g_high, number + 1)
        slope = price + soft_slope(f, at, factors, scores, z)
        if abs(slope) <= CLOSE * price or high - low <= CLOSE:
            return at
        if slope < 0.0:
            low, g_low = at, slope
        else:
            high, g_high = at, slope
    return at


@bare
def soft_slope(f: int, v: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project at a given violation; return the derivative of the distance term with respect to it."""
    excess, slope = soft_level(f, v, 0.0, factors, scores, z)
    if excess <= 0.0:
        return slope
    low, g_low, high, enough = 0.0, excess, 1.0, NEGLIGIBLE * (1.0 - v) * max(1.0, abs(factors.upper[f]))
    g_high, slope = soft_level(f, v, high, factors, scores, z)
    for _ in range(DOUBLINGS):
        if g_high <= enough:
            break
        low, g_low, high = high, g_high, 2.0 * high
        g_high, slope = soft_level(f, v, high, factors, scores, z)
    if g_high > 0.0:
        return slope
    for number in range(ROUNDS):
        at = guess(low, g_low, high, g_high, number)
        g, slope = soft_level(f, v, at, factors, scores, z)
        if abs(g) <= enough or high - low <= NEGLIGIBLE * at:
            return slope
        if g > 0.0:
            low, g_low = at, g
        else:
            high, g_high = at, g
    return slope


@bare
def soft_level(
    f: int, v: float, tau: float, factors: CountingFactors, scores: Floats, z: Floats
) -> tuple[float, float]:
    """Project every group at violation v and multiplier tau; return the row's excess and the slope in v."""
    excess, slope = (v - 1.0) * factors.upper[f], tau * factors.upper[f]
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        weight = factors.weight[factors.item_ptr[g]]
        held, shift = soft_group(g, v, tau * weight, factors, scores, z)
        excess += weight * held
        slope += -shift if weight > 0.0 else shift - tau * weight
    return excess, slope


@inlined
def soft_group(
    g: int, v: float, push: float, factors: CountingFactors, scores: Floats, z: Floats
) -> tuple[float, float]:
    """Project one group of sum t, pushed by its row; return the part of t that counts in the row, and the shift."""
    # The part of b takes up to v of t. With a positive weight it takes all it can, and max(0, t - v) counts; with a
    # negative one it takes as little as it can, and min(t, 1 - v) counts.
    begin, end = factors.item_ptr[g], factors.item_ptr[g + 1]
    positive = factors.weight[begin] > 0.0
    if factors.complete[g]:
        put_group(g, 0.0, factors, scores, z)
        return 1.0 - v, push if positive else 0.0
    kink = v if positive else 1.0 - v
    if end - begin == 1:
        return soft_item(begin, positive, kink, push, scores, z)
    plain, pushed = positive_total(begin, end, 0.0, scores), positive_total(begin, end, push, scores)
    if positive and plain <= kink:
        put_shifted(begin, end, 0.0, scores, z)
        return 0.0, 0.0
    if not positive and pushed <= kink:
        put_shifted(begin, end, push, scores, z)
        return pushed, push
    if positive and pushed >= kink:
        return put_group(g, push, factors, scores, z) - v, push
    if not positive and plain >= kink:
        put_group(g, 0.0, factors, scores, z)
        return kink, 0.0
    shift = threshold(begin, end, kink, 0.0, factors.weight, scores)
    put_shifted(begin, end, shift, scores, z)
    return (0.0 if positive else kink), shift


@inlined
def soft_item(j: int, positive: bool, kink: float, push: float, scores: Floats, z: Floats) -> tuple[float, float]:
    """`soft_group` for a single item: between its score minus the push and its score, it stops at the kink."""
    plain, pushed = max(0.0, scores[j]), max(0.0, scores[j] - push)
    if min(plain, pushed) < kink < max(plain, pushed):
        z[j] = kink
        return (0.0 if positive else kink), scores[j] - kink
    if positive:
        on = plain > kink
        z[j] = min(1.0, pushed) if on else plain
        return (z[j] - kink, push) if on else (0.0, 0.0)
    off = pushed <= kink
    z[j] = pushed if off else min(1.0, plain)
    return (z[j], push) if off else (kink, 0.0)


@bare
def project_fan(f: int, factors: CountingFactors, scores: Floats, price: float, z: Floats) -> float:
    """Project onto a fan: all other groups are capped by c, the sum of the last group y and the violation v."""
    # Their push against the cap raises y, and v once that is worth the price.
    last = factors.group_ptr[f + 1] - 1
    if factors.kind[f] == CountingKind.COST:
        return cap_root(last + 1, f, price, 0.0, factors, scores, z)
    y = factors.item_ptr[last]
    cap = 0.0 if price == np.inf else cap_root(last, f, price, 0.0, factors, scores, z)
    z[y] = min(1.0, max(0.0, scores[y] + price))
    if cap >= z[y]:
        violation: float = cap - z[y]
        return violation
    z[y] = cap_root(last, f, -scores[y], 1.0, factors, scores, z)
    return 0.0


@bare
def cap_root(
    end: int, f: int, level: float, slope: float, factors: CountingFactors, scores: Floats, z: Floats
) -> float:
    """Project a factor's groups up to `end` at the least cap c <= 1 at which their push is at most level + slope c."""
    g_low = cap_push(end, f, 0.0, factors, scores, z) - level
    if g_low <= 0.0:
        return 0.0
    g_high = cap_push(end, f, 1.0, factors, scores, z) - level - slope
    if g_high >= 0.0:
        return 1.0
    low, high, at = 0.0, 1.0, 1.0
    for number in range(ROUNDS):
        at = guess(low, g_low, high, g_high, number)
        g = cap_push(end, f, at, factors, scores, z) - level - slope * at
        if abs(g) <= NEGLIGIBLE or high - low <= NEGLIGIBLE * at:
            return at
        if g > 0.0:
            low, g_low = at, g
        else:
            high, g_high = at, g
    return at


@bare
def cap_push(end: int, f: int, cap: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project a factor's groups up to `end` onto sums of at most `cap`; return their total push against it."""
    push = 0.0
    for g in range(factors.group_ptr[f], end):
        first, last, shift = factors.item_ptr[g], factors.item_ptr[g + 1], 0.0
        if positive_total(first, last, 0.0, scores) > cap:
            shift = threshold(first, last, cap, 0.0, factors.weight, scores)
        put_shifted(first, last, shift, scores, z)
        push += shift
    return push


@bare
def project_parity(f: int, factors: CountingFactors, scores: Floats, price: float, z: Floats) -> float:
    """Project onto the parity polytope, at most one facet of which cuts off a point of the box."""
    # The facet belongs to the nearest 0/1 point of the wrong parity, from which the distance must be at least 1. A
    # price limits its multiplier.
    # `flipped` is the group to round the other way for that point, -1 for none.
    count, flipped, least = 0, -1, np.inf
    for group in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        total = group_total(group, factors, scores)
        count += total > 0.5
        if abs(total - 0.5) < least:
            flipped, least = group, abs(total - 0.5)
    if count % 2 != int(factors.lower[f]):
        flipped = -1
    g_low = 1.0 - parity_distance(f, flipped, 0.0, factors, scores, z)
    if g_low <= 0.0:
        return 0.0
    low, high = 0.0, min(1.0, price)
    g_high = 1.0 - parity_distance(f, flipped, high, factors, scores, z)
    for _ in range(DOUBLINGS):
        if g_high <= 0.0 or high >= price:
            break
        low, g_low, high = high, g_high, min(2.0 * high, price)
        g_high = 1.0 - parity_distance(f, flipped, high, factors, scores, z)
    if g_high >= 0.0:
        return g_high
    for number in range(ROUNDS):
        at = guess(low, g_low, high, g_high, number)
        g = 1.0 - parity_distance(f, flipped, at, factors, scores, z)
        if abs(g) <= NEGLIGIBLE or high - low <= NEGLIGIBLE * at:
            return 0.0
        if g > 0.0:
            low, g_low = at, g
        else:
            high, g_high = at, g
    return 0.0


@bare
def parity_distance(f: int, flipped: int, push: float, factors: CountingFactors, scores: Floats, z: Floats) -> float:
    """Project every group, pushed away from the 0/1 point of the wrong parity; return the distance from it."""
    distance = 0.0
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        on = (group_total(g, factors, scores) > 0.5) != (g == flipped)
        total = put_group(g, push if on else -push, factors, scores, z)
        distance += 1.0 - total if on else total
    return distance


# Projections onto one group: non-negative numbers with a sum of at most 1, or of exactly 1 if it is complete.


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
    total = 0.0
    for j in range(begin, end):
        total += max(0.0, scores[j] - shift)
    return total


@inlined
def put_shifted(begin: int, end: int, shift: float, scores: Floats, z: Floats) -> None:
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
