"""Tabu search over labellings with constraints: the prices of hard ones rise while they are violated."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.moves.counted_rules_kernels import (
    CountedRules,
    add_touches,
    broken_rules,
    change_of_rules,
    excess,
)
from mapmrf.engines.moves.flip_state_kernels import FlipState, set_state, sum_row
from mapmrf.engines.moves.random_kernels import Bits, draw

ADAPT = 8
"""Changes between updates of the prices."""
DEARER, CHEAPER = 1.3, 0.87
"""Factors on the price of a violated rule, and of a satisfied one."""
NEGLIGIBLE = 1e-6
"""Fraction of the lowest price below which a gain counts as round-off."""
NOTHING = -1e300
"""Less than any gain."""


class CountedTally:
    """Changes so far and since the last improvement; current and best value, relative to the start."""

    clock: int
    vain: int
    value: float
    best: float
    chosen: int
    state: int


class CountedState(NamedTuple):
    """State of a search.

    Attributes
    ----------
    flips
        The labelling, and what each change of a variable gains in the tables.
    rules
        The constraints.
    until : (n_vars,)
        The change from which a variable may change again.
    best : (n_vars,)
        The best labelling without a violation.
    lowest, highest
        Limits of the prices.
    """

    flips: FlipState
    rules: CountedRules
    until: Ints
    best: Ints
    tally: CountedTally
    random: Bits
    lowest: float
    highest: float


class CountedPlan(NamedTuple):
    """Number of variables examined for a change, and the tabu tenure: minimum and maximum addition."""

    scan: int
    least: int
    spread: int


@compiled
def sum_scores(flips: FlipState) -> int:
    """Sum the scores of all variables afresh; returns the number of entries."""
    entries = 0
    for i in range(len(flips.labels)):
        entries += sum_row(flips, i)
    return entries


@inlined
def choose(search: CountedState, i: int, most: float) -> float:
    """Find the best change of a variable, store it in the tally if it beats `most`; return its gain, or `most`."""
    flips, tally = search.flips, search.tally
    row = flips.model.var_ptr[i]
    old = row + flips.labels[i]
    free = search.until[i] <= tally.clock
    for s in range(row, row + flips.model.card[i]):
        if s == old:
            continue
        gain = flips.score[s] - flips.score[old]
        if gain <= most and len(search.rules.kind) == 0:
            continue
        gain -= change_of_rules(search.rules, old, s)
        if gain > most and (free or tally.value + gain > tally.best):
            most = gain
            tally.chosen = i
            tally.state = s - row
    return most


@inlined
def adapt(search: CountedState) -> None:
    """Raise the prices of violated hard rules, and lower those of others."""
    rules = search.rules
    for c in range(len(rules.kind)):
        if rules.hard[c]:
            factor = DEARER if excess(rules, c, rules.total[c], rules.output[c]) > 0.0 else CHEAPER
            rules.price[c] = min(max(rules.price[c] * factor, search.lowest), search.highest)


@inlined
def change(search: CountedState, i: int, k: int) -> None:
    """Set a variable to another state."""
    flips, tally = search.flips, search.tally
    row = flips.model.var_ptr[i]
    old, new = row + flips.labels[i], row + k
    tally.value += flips.score[new] - flips.score[old]
    add_touches(search.rules, old, -1.0)
    add_touches(search.rules, new, 1.0)
    set_state(flips, i, k, 0)


@inlined
def soft_cost(rules: CountedRules) -> float:
    """Return the cost of the violated soft rules."""
    total = 0.0
    for c in range(len(rules.kind)):
        if not rules.hard[c] and excess(rules, c, rules.total[c], rules.output[c]) > 0.0:
            total += rules.price[c]
    return total


@compiled
def run_counted(search: CountedState, plan: CountedPlan, n_changes: int, greedy: bool) -> int:
    """Repeatedly make the best change that is not tabu; return the number of changes.

    A greedy search ends where no change of a variable gains.
    """
    flips, tally = search.flips, search.tally
    n = len(flips.labels)
    for done in range(n_changes):
        tally.clock += 1
        tally.vain += 1
        tally.chosen = -1
        first, most = draw(search.random, n), NEGLIGIBLE * search.lowest if greedy else NOTHING
        for v in range(n if greedy else plan.scan):
            most = choose(search, (first + v) % n, most)
        i = tally.chosen
        if i < 0:
            if greedy:
                return done
            continue
        change(search, i, tally.state)
        search.until[i] = tally.clock + plan.least + draw(search.random, plan.spread)
        if not greedy and tally.clock % ADAPT == 0:
            adapt(search)
        least = tally.best + NEGLIGIBLE * search.lowest  # accumulated gains drift
        if tally.value > least and broken_rules(search.rules) == 0:
            value = tally.value - soft_cost(search.rules)
            if value > least:
                tally.best = value
                tally.vain = 0
                for j in range(n):
                    search.best[j] = flips.labels[j]
    return n_changes
