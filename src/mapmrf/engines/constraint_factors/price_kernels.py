"""Prices of items: reductions of their scores such that the free choice of all groups satisfies a counting factor.

``sum over groups of max(off, on - price) + maximum of the factor at the prices`` is an upper bound on the maximum at
the scores, for any prices. Those found here make it equal, except for some rows with a penalty and unequal weights.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.constraint_factors.marginal_kernels import (
    GroupScores,
    best_item,
    free_value,
    parity_sums,
    reachable,
    row_multipliers,
)
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind

ROUNDS = 60  # bisection steps


@inlined
def gain_of(g: int, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the gain of a group from being on."""
    top = best_item(g, 0.0, factors, scores)
    return 0.0 if top == scores.off[g] else top - scores.off[g]


@inlined
def put_price(g: int, price: float, factors: CountingFactors, prices: Floats) -> None:
    """Set the same price for all items of a group."""
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        prices[j] = price


@bare
def find_prices(f: int, factors: CountingFactors, scores: GroupScores, prices: Floats) -> None:
    """Compute the prices of one factor; 0 if it cannot be satisfied."""
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        put_price(g, 0.0, factors, prices)
    if free_value(f, factors, scores) == -np.inf:
        return
    kind = factors.kind[f]
    if kind == CountingKind.PARITY:
        parity_prices(f, factors, scores, prices)
    elif kind == CountingKind.COST:
        cost_prices(f, factors, scores, prices)
    elif kind == CountingKind.FAN:
        fan_prices(f, factors, scores, prices)
    elif reachable(f, factors, scores):
        low, high = row_multipliers(f, factors, scores)
        tau = 0.5 * (low + high)
        if factors.penalty[f] < np.inf:
            tau = affordable(f, tau, factors, scores)
        row_prices(f, tau, factors, scores, prices)


@bare
def row_prices(f: int, tau: float, factors: CountingFactors, scores: GroupScores, prices: Floats) -> None:
    """Set prices proportional to weights; with a penalty, limited by the gain or loss of a group."""
    soft = factors.penalty[f] < np.inf
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
            price = tau * factors.weight[j]
            prices[j] = limited(price, gain_of(g, factors, scores)) if soft else price


@inlined
def limited(price: float, gain: float) -> float:
    """Clip a price to between 0 and the gain."""
    return min(price, max(0.0, gain)) if price > 0.0 else max(price, min(0.0, gain))


@bare
def affordable(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the largest multiplier of a row, at most `tau`, at whose prices a violation does not pay."""
    low, high = 0.0, tau
    if violation_gain(f, tau, factors, scores) <= 0.0:
        return tau
    for _ in range(ROUNDS):
        at = 0.5 * (low + high)
        if violation_gain(f, at, factors, scores) <= 0.0:
            low = at
        else:
            high = at
    return low


@bare
def violation_gain(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the advantage of a violation over satisfying a row, at the prices of a multiplier."""
    total: float = -factors.penalty[f] - tau * factors.upper[f]
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        push = tau * factors.weight[factors.item_ptr[g]]
        price = limited(push, gain_of(g, factors, scores))
        total += max(0.0, price) - max(0.0, price - push)
    return total


@bare
def cost_prices(f: int, factors: CountingFactors, scores: GroupScores, prices: Floats) -> None:
    """Distribute the factor's penalty by gains, and half of the remainder equally."""
    first, last, penalty = factors.group_ptr[f], factors.group_ptr[f + 1], factors.penalty[f]
    total = 0.0
    for g in range(first, last):
        total += max(0.0, gain_of(g, factors, scores))
    if total == np.inf:
        return
    part = min(1.0, penalty / total) if total > 0.0 else 1.0
    left = 0.5 * max(0.0, penalty - total) / (last - first)
    for g in range(first, last):
        put_price(g, part * max(0.0, gain_of(g, factors, scores)) + left, factors, prices)


@bare
def fan_prices(f: int, factors: CountingFactors, scores: GroupScores, prices: Floats) -> None:
    """Shift part of the inputs' gains to the output: enough to turn it on, if that pays, and half of the rest."""
    first, last, penalty = factors.group_ptr[f], factors.group_ptr[f + 1] - 1, factors.penalty[f]
    total, need = 0.0, max(0.0, -gain_of(last, factors, scores))
    for g in range(first, last):
        total += max(0.0, gain_of(g, factors, scores))
    if total == 0.0 or total == np.inf or need == np.inf:
        return
    part = min(1.0, need / total)
    part = min(0.5 * (1.0 + part), penalty / total)
    for g in range(first, last):
        put_price(g, part * max(0.0, gain_of(g, factors, scores)), factors, prices)
    put_price(last, -part * total, factors, prices)


@bare
def parity_prices(f: int, factors: CountingFactors, scores: GroupScores, prices: Floats) -> None:
    """If the parity is wrong, shift all groups towards the other choice by the cost of the cheapest change."""
    sums = parity_sums(f, factors, scores)
    push = min(sums.first, factors.penalty[f])
    if not sums.wrong or push == np.inf:
        return
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        put_price(g, push if gain_of(g, factors, scores) > 0.0 else -push, factors, prices)
