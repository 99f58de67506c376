"""Rounding of relaxed solutions to labellings that satisfy the hard constraints of a model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_max
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.constraint_factors.marginal_kernels import GroupScores, weight_limits, within
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind, CountingModel
from mapmrf.model.graph import FactorGraph

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
