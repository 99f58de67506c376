"""Messages of belief propagation from constraints to their indicators, by max-marginals."""

from __future__ import annotations

import numpy as np

from mapmrf.compilation.jit import bare
from mapmrf.engines.counting.marginal_kernels import GroupScores, max_marginals
from mapmrf.engines.counting.structs import CountingFactors
from mapmrf.engines.messages.counted_dual_kernels import PricedItems, forbid_others, load_scores
from mapmrf.engines.messages.max_product_kernels import Beliefs


@bare
def send_counted(
    factors: CountingFactors,
    items: PricedItems,
    beliefs: Beliefs,
    damping: float,
    scores: GroupScores,
    out: GroupScores,
) -> float:
    """Send new messages from every constraint; returns the largest change asked for, inf if a state dies.

    A message to an item is relative to the states of its variable that are no items. Messages are kept as negative
    prices, and are part of the unary potentials that tables see.
    """
    worst = 0.0
    for f in range(len(factors.kind)):
        first, last = factors.group_ptr[f], factors.group_ptr[f + 1]
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            beliefs.b[items.at[j]] += items.price[j]
        for g in range(first, last):
            load_scores(g, False, factors, items, beliefs.b, scores)
        max_marginals(f, factors, scores, out)
        for g in range(first, last):
            base = _message_off(g, factors, scores, out)
            if out.off[g] == -np.inf and scores.off[g] > -np.inf:
                forbid_others(g, factors, items, beliefs.theta_v)
                forbid_others(g, factors, items, beliefs.b)
                worst = np.inf
            for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
                s, old = items.at[j], -items.price[j]
                if out.on[j] == -np.inf:
                    worst = np.inf if beliefs.theta_v[s] > -np.inf else worst
                    beliefs.theta_v[s] = beliefs.b[s] = -np.inf
                    continue
                new = out.on[j] - scores.on[j] - base
                worst = max(worst, abs(new - old))
                new += damping * (old - new)
                items.price[j] = -new
                beliefs.theta_v[s] += new - old
                beliefs.b[s] += new
    return worst


@bare
def _message_off(g: int, factors: CountingFactors, scores: GroupScores, out: GroupScores) -> float:
    """The message to being off; where that cannot be, the largest one to an item."""
    if out.off[g] > -np.inf:
        here: float = out.off[g] - scores.off[g]
        return here
    base = -np.inf
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        if out.on[j] > -np.inf:
            base = max(base, out.on[j] - scores.on[j])
    return base
