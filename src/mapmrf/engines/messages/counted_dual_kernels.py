"""Passes of MPLP over constraints: each takes back its prices and finds new ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare
from mapmrf.engines.counting.marginal_kernels import GroupScores, activity_limits, best_value, weight_limits, within
from mapmrf.engines.counting.price_kernels import find_prices
from mapmrf.engines.counting.structs import CountingFactors, CountingKind


class PricedItems(NamedTuple):
    """Positions of items, and their prices.

    Attributes
    ----------
    at : (n_items,)
        Index of the item in the arrays per state.
    begin, end : (n_groups,)
        The states of the group's variable in these arrays.
    share : (n_groups,)
        Share of the variable's scores in the group: 1, or less if a factor has several groups of a variable.
    price : (n_items,)
        Price of the item, subtracted from its score by a factor.
    listed : (n_states,)
        Scratch: which states are items of the current group.
    """

    at: Ints
    begin: Ints
    end: Ints
    share: Floats
    price: Floats
    listed: Bools


@bare
def load_scores(
    g: int, own: bool, factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores
) -> None:
    """Load the scores of a group: its variable's beliefs, or only prices and feasibility (`own` prices)."""
    first, last, listed, share = factors.item_ptr[g], factors.item_ptr[g + 1], items.listed, items.share[g]
    for j in range(first, last):
        listed[items.at[j]] = True
        score = share * belief[items.at[j]]
        scores.on[j] = items.price[j] if own and score > -np.inf else score
    top = -np.inf
    for s in range(items.begin[g], items.end[g]):
        if not listed[s]:
            top = max(top, belief[s])
    scores.off[g] = 0.0 if own and top > -np.inf else share * top
    for j in range(first, last):
        listed[items.at[j]] = False


@bare
def forbid_others(g: int, factors: CountingFactors, items: PricedItems, belief: Floats) -> None:
    """Forbid all states of a group's variable that are no items."""
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        items.listed[items.at[j]] = True
    for s in range(items.begin[g], items.end[g]):
        if not items.listed[s]:
            belief[s] = -np.inf
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        items.listed[items.at[j]] = False


@bare
def forbid_choices(f: int, factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> None:
    """Forbid the choices with which no choice of the other groups satisfies a hard row.

    Prices would only discourage them, more and more in every pass, until round-off swamps the potentials.
    """
    low, high = activity_limits(f, factors, scores)
    if not within(low, high, f, factors):
        return
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        least, most = weight_limits(g, factors, scores)
        if scores.off[g] > -np.inf and not within(low - least, high - most, f, factors):
            scores.off[g] = -np.inf
            forbid_others(g, factors, items, belief)
        for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
            weight = factors.weight[j]
            if scores.on[j] > -np.inf and not within(low - least + weight, high - most + weight, f, factors):
                scores.on[j] = belief[items.at[j]] = -np.inf


@bare
def pass_counting(factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> None:
    """One pass over all constraints."""
    for f in range(len(factors.kind)):
        first, last = factors.group_ptr[f], factors.group_ptr[f + 1]
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            belief[items.at[j]] += items.price[j]
        for g in range(first, last):
            load_scores(g, False, factors, items, belief, scores)
        if factors.kind[f] == CountingKind.ROW and factors.penalty[f] == np.inf:
            forbid_choices(f, factors, items, belief, scores)
        find_prices(f, factors, scores, items.price)
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            belief[items.at[j]] -= items.price[j]


@bare
def counting_bound(factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> float:
    """Return the constraints' part of the dual."""
    total = 0.0
    for f in range(len(factors.kind)):
        for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
            load_scores(g, True, factors, items, belief, scores)
        total += best_value(f, factors, scores)
    return total
