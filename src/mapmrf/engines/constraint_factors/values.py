"""Best values of counting factors, and roundings that satisfy them.

Every group has a score for being off in addition to those of its items; -inf if it cannot be off. Rows are maximised
through their multiplier: ``min over tau of tau limit + sum over groups of max(off, score - tau weight)``. With equal
weights that is exact; otherwise it is the optimum over the box with the row, an upper bound.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_max
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind, CountingModel
from mapmrf.model.graph import ROUND_OFF, FactorGraph

ROUNDS, DOUBLINGS = 100, 60  # maximum number of bisection steps, and of doublings before that to find an interval
SLACK = 1e-9  # relative tolerance for round-off by which a sum of weights may exceed a limit


class GroupScores(NamedTuple):
    """Scores: a number for every item being on, and one for every group being off."""

    on: Floats
    off: Floats


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
    """Return the maximum of one factor, with what round-off may have taken from it."""
    kind = factors.kind[f]
    penalty: float = factors.penalty[f]
    free = free_value(f, factors, scores)
    error = round_off(f, 0.0, factors, scores)
    if penalty < np.inf:
        error += ROUND_OFF * penalty
    if kind == CountingKind.PARITY:
        return parity_value(f, factors, scores) + error
    if kind == CountingKind.ROW:
        if free == -np.inf:
            return free
        top = -np.inf
        low, high = activity_limits(f, factors, scores)
        if within(low, high, f, factors):
            top = np.inf
            for tau in row_multipliers(f, factors, scores):
                top = min(top, row_range(f, tau, factors, scores)[0] + round_off(f, tau, factors, scores))
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
def row_range(f: int, tau: float, factors: CountingFactors, scores: GroupScores) -> tuple[float, float, float]:
    """Return a row's value at a multiplier, an upper bound for any, and the extreme weights that attain it."""
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
    return value, low, high


@bare
def row_multipliers(f: int, factors: CountingFactors, scores: GroupScores) -> tuple[float, float]:
    """Return the smallest and largest multiplier that minimise a row's value."""
    lower, upper = factors.lower[f], factors.upper[f]
    _, low, high = row_range(f, 0.0, factors, scores)
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
    if low >= upper:  # moving up costs nothing
        tau_high = last_multiplier(f, unit, factors, scores)
    if high <= lower:
        tau_low = last_multiplier(f, -unit, factors, scores)
    if low > upper:  # zero is no minimiser
        tau_low = first_multiplier(f, tau_high, factors, scores)
    elif high < lower:
        tau_high = first_multiplier(f, tau_low, factors, scores)
    return tau_low, tau_high


@bare
def last_multiplier(f: int, step: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Move away from zero, first by `step`, as long as a row's value does not rise, or at least past all its kinks."""
    near, far = 0.0, step
    least, most = activity_limits(f, factors, scores)
    for _ in range(DOUBLINGS):
        if rises_before(f, far, factors, scores):
            break
        _, low, high = row_range(f, far, factors, scores)
        if high <= least if step > 0.0 else low >= most:
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
    _, low, high = row_range(f, tau, factors, scores)
    rises: bool = high < factors.upper[f] if tau > 0.0 else low > factors.lower[f]
    return rises


@bare
def first_multiplier(f: int, far: float, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the minimiser of a row's value closest to zero, given one that is further away."""
    near, up = 0.0, far > 0.0
    for _ in range(ROUNDS):
        at = 0.5 * (near + far)
        if not min(near, far) < at < max(near, far):
            break
        _, low, high = row_range(f, at, factors, scores)
        if low > factors.upper[f] if up else high < factors.lower[f]:  # it falls
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
def parity_value(f: int, factors: CountingFactors, scores: GroupScores) -> float:
    """Return the value of the best choices of all groups, less the cheapest change if their parity is wrong."""
    value, count, cheapest = 0.0, 0, np.inf
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        item, off = best_item(g, 0.0, factors, scores), scores.off[g]
        value += max(item, off)
        count += item > off
        cheapest = min(cheapest, 0.0 if item == off else abs(item - off))
    wrong = value > -np.inf and count % 2 != int(factors.lower[f])
    return value - (min(cheapest, factors.penalty[f]) if wrong else 0.0)


# -- Rounding of relaxed solutions to labellings that satisfy the hard constraints of a model -------------------------

MOST_RESTARTS = 30  # maximum number of restarts in which a variable that had no state left is moved to the front


class LegalRounding:
    """Heuristic rounding of preferences for states to labels that satisfy all hard constraints.

    Variables are decided in order of how clear their preference is. A variable without a feasible state is moved to the
    front, and the rounding restarts.
    """

    def __init__(self, graph: FactorGraph, model: CountingModel) -> None:
        self.graph, self.model = graph, model
        factors, of_group = model.factors, model.group_var
        low, high = np.zeros((2, model.n_factors))
        self.work = RoundingWork(
            var_ptr=offsets(np.bincount(of_group, minlength=graph.n_vars)).astype(np.int64),
            group=np.argsort(of_group, kind="stable").astype(np.int64),
            factor=np.repeat(np.arange(model.n_factors), np.diff(factors.group_ptr)),
            state=model.state,
            at=graph.var_ptr.astype(np.int64),
            possible=GroupScores(np.zeros(model.n_items), np.where(factors.complete, -np.inf, 0.0)),
            low=low,
            high=high,
            left=np.zeros(model.n_factors, dtype=np.int64),
            tried=np.zeros(len(graph.theta_v), dtype=bool),
        )
        self.allowed = graph.theta_v > -np.inf

    def round(self, prefer: Floats) -> Ints | None:
        """Return labels, or None if none are found; `prefer` has a number for every state, the larger the better."""
        prefer, constraints = np.where(self.allowed, prefer, -np.inf), self.graph.constraints
        labels = np.zeros(self.graph.n_vars, dtype=np.int64)
        order = np.argsort(-segment_max(prefer, self.graph.var_ptr), kind="stable").astype(np.int64)
        for _ in range(MOST_RESTARTS):
            at = round_in_order(order, prefer, self.model.factors, self.work, labels)
            if at < 0:  # the kernel treats a fan that shares a variable in parts
                legal = constraints is None or not np.any(constraints.violated(labels) & constraints.hard)
                return labels if legal else None
            order[: at + 1] = np.roll(order[: at + 1], 1)
        return None


# -- Rounding that respects hard constraints: no variable takes a state that makes a factor infeasible ----------------


UNKNOWN = -1.0  # marks an undecided output of a fan


class RoundingWork(NamedTuple):
    """Mapping between groups, variables and states, and what the decided groups leave open for every factor."""

    # var_ptr, group: the groups of every variable
    var_ptr: Ints
    group: Ints
    factor: Ints  # (n_groups,): the factor of every group
    state: Ints  # (n_items,): the state of every item
    at: Ints  # (n_vars + 1,): where the states of every variable start in the arrays per state
    possible: GroupScores  # which items and groups can be on and off
    # low, high: (n_factors,): the minimum and maximum sum of weights; for a fan, the number of inputs that are on, and
    # whether the output is; for a parity, the number of groups that are on
    low: Floats
    high: Floats
    left: Ints  # (n_factors,): number of undecided groups
    tried: Bools  # (n_states,): states that were tried for the current variable


@inlined
def weight_of_state(g: int, k: int, factors: CountingFactors, work: RoundingWork) -> tuple[bool, float]:
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        if work.state[j] == k:
            return True, factors.weight[j]
    return False, 0.0


@bare
def keeps_reach(i: int, k: int, factors: CountingFactors, work: RoundingWork) -> bool:
    """Return whether the hard factors of a variable can still be satisfied after it takes a state."""
    for at in range(work.var_ptr[i], work.var_ptr[i + 1]):
        g = work.group[at]
        f = work.factor[g]
        if factors.penalty[f] < np.inf:
            continue
        on, weight = weight_of_state(g, k, factors, work)
        kind, fits = factors.kind[f], True
        if kind == CountingKind.ROW:
            least, most = weight_limits(g, factors, work.possible)
            fits = within(work.low[f] - least + weight, work.high[f] - most + weight, f, factors)
        elif kind == CountingKind.PARITY:
            fits = work.left[f] > 1 or (work.low[f] + on) % 2.0 == factors.lower[f]
        elif kind == CountingKind.FAN and g == factors.group_ptr[f + 1] - 1:
            fits = on or work.low[f] == 0.0
        elif kind == CountingKind.FAN:
            fits = not on or work.high[f] != 0.0
        if not fits:
            return False
    return True


@bare
def decide(i: int, k: int, factors: CountingFactors, work: RoundingWork) -> None:
    for at in range(work.var_ptr[i], work.var_ptr[i + 1]):
        g = work.group[at]
        f = work.factor[g]
        on, weight = weight_of_state(g, k, factors, work)
        work.left[f] -= 1
        if factors.kind[f] == CountingKind.ROW:
            least, most = weight_limits(g, factors, work.possible)
            work.low[f] += weight - least
            work.high[f] += weight - most
        elif factors.kind[f] == CountingKind.FAN and g == factors.group_ptr[f + 1] - 1:
            work.high[f] = 1.0 if on else 0.0
        else:
            work.low[f] += on


@bare
def round_in_order(order: Ints, prefer: Floats, factors: CountingFactors, work: RoundingWork, labels: Ints) -> int:
    """Assign the variables their preferred feasible states; return the position of the first without one, or -1."""
    # A state of preference -inf is never taken.
    for f in range(len(factors.kind)):
        first, last = factors.group_ptr[f], factors.group_ptr[f + 1]
        work.low[f], work.high[f], work.left[f] = 0.0, 0.0, last - first
        if factors.kind[f] == CountingKind.FAN:
            work.high[f] = UNKNOWN
        elif factors.kind[f] == CountingKind.ROW:
            for g in range(first, last):
                least, most = weight_limits(g, factors, work.possible)
                work.low[f] += least
                work.high[f] += most
    for place in range(len(order)):
        i = order[place]
        begin, end = work.at[i], work.at[i + 1]
        work.tried[begin:end] = False
        chosen = -1
        while chosen < 0:
            best = -1
            for s in range(begin, end):
                if not work.tried[s] and prefer[s] > -np.inf and (best < 0 or prefer[s] > prefer[best]):
                    best = s
            if best < 0:
                return place
            work.tried[best] = True
            if keeps_reach(i, best - begin, factors, work):
                chosen = best - begin
        decide(i, chosen, factors, work)
        labels[i] = chosen
    return -1
