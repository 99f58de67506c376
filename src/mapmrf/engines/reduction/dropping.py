"""Repeated removal of states that a dual solution excludes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.model.problem import Problem


class StateDrops:
    """Rounds of state removal on one problem, with any messages."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.model = DropModel(
            var_ptr=graph.var_ptr.astype(np.int64),
            theta_v=graph.theta_v,
            scope_ptr=problem.scope_ptr.astype(np.int64),
            edge_ptr=problem.edge_ptr.astype(np.int64),
            state_at=graph.var_ptr[problem.scope].astype(np.int64),
            table_at=graph.table_ptr[graph.table_of[problem.order]].astype(np.int64),
            weight=problem.weight if len(problem.weight) else np.ones(problem.n_factors),
            tables=graph.theta_t,
            constant=float(graph.constant),
        )
        n, largest = problem.n_states, int(np.diff(problem.scope_ptr).max(initial=1))
        best, digit = np.zeros(problem.n_edge_states), np.zeros(largest, dtype=np.int64)
        self.room = DropRoom(np.zeros(n), np.zeros(n), np.zeros(n), best, digit)

    @property
    def reach(self) -> Floats:
        """Upper bound on the labellings with each state, (n_states,), after a removal; -inf for removed states."""
        return self.room.reach

    def remove_states(self, lam_e: Floats, left: Bools, target: float) -> float:
        """Remove states from `left` that no labelling above `target` has; return the bound, -inf if nothing is left."""
        return drop_states(self.model, lam_e, left, target, self.room)


# -- Rounds of removing states that a dual solution excludes ----------------------------------------------------------


class DropModel(NamedTuple):
    """The arrays of a model for these rounds."""

    var_ptr: Ints
    theta_v: Floats  # states of the variables, and their potentials
    scope_ptr: Ints  # edges of the factors
    edge_ptr: Ints  # offsets of the edges in the messages
    state_at: Ints  # the first state of each edge's variable
    table_at: Ints  # offset of a factor's table
    weight: Floats
    tables: Floats
    constant: float


class DropRoom(NamedTuple):
    """Scratch: beliefs, losses and bounds of states; max-marginals of edge states; and a configuration."""

    belief: Floats
    lost: Floats
    reach: Floats
    best: Floats
    digit: Ints


@inlined
def factor_best(a: int, model: DropModel, lam: Floats, left: Bools, best: Floats, digit: Ints) -> float:
    """Compute the max-marginals of a factor over the remaining states in `best`; return the maximum."""
    edge_ptr, state_at, tables = model.edge_ptr, model.state_at, model.tables
    first, end = model.scope_ptr[a], model.scope_ptr[a + 1]
    size = 1
    for e in range(first, end):
        digit[e - first] = 0
        size *= edge_ptr[e + 1] - edge_ptr[e]
        for k in range(edge_ptr[e], edge_ptr[e + 1]):
            best[k] = -np.inf
    top = -np.inf
    at, weight = model.table_at[a], model.weight[a]
    for t in range(size):
        entry = weight * tables[at + t] if weight != 1.0 else tables[at + t]
        for e in range(first, end):
            k = digit[e - first]
            entry = entry + lam[edge_ptr[e] + k] if left[state_at[e] + k] else -np.inf
        if entry > -np.inf:
            top = max(top, entry)
            for e in range(first, end):
                k = edge_ptr[e] + digit[e - first]
                best[k] = max(best[k], entry)
        for e in range(end - 1, first - 1, -1):
            digit[e - first] += 1
            if digit[e - first] < edge_ptr[e + 1] - edge_ptr[e]:
                break
            digit[e - first] = 0
    return top


@inlined
def begin_round(model: DropModel, lam: Floats, left: Bools, room: DropRoom) -> float:
    """Compute beliefs and the losses of states; return the sum of the maxima, -inf if a variable has no state."""
    belief, lost = room.belief, room.lost
    for s in range(len(belief)):
        belief[s] = model.theta_v[s]
    for e in range(len(model.state_at)):
        for k in range(model.edge_ptr[e + 1] - model.edge_ptr[e]):
            belief[model.state_at[e] + k] -= lam[model.edge_ptr[e] + k]
    total = model.constant
    for i in range(len(model.var_ptr) - 1):
        top = -np.inf
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            if left[s]:
                top = max(top, belief[s])
        if top == -np.inf:
            return -np.inf
        total += top
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            lost[s] = top - belief[s] if left[s] else np.inf
    return total


@inlined
def end_round(model: DropModel, left: Bools, room: DropRoom, bound: float, target: float) -> tuple[float, bool]:
    """Remove states below the target; return the bound, -inf if nothing is left, and whether any was removed."""
    lowest, dropped = bound, False
    for i in range(len(model.var_ptr) - 1):
        top = -np.inf
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            room.reach[s] = bound - room.lost[s] if left[s] else -np.inf
            top = max(top, room.reach[s])
            if left[s] and room.reach[s] <= target:
                left[s] = False
                dropped = True
        lowest = min(lowest, top)
        if top <= target:
            return -np.inf, True
    return lowest, dropped


@compiled
def drop_states(model: DropModel, lam: Floats, left: Bools, target: float, room: DropRoom) -> float:
    """Remove states that are in no labelling above `target`; return the bound, -inf if a variable has none left."""
    while True:
        bound = begin_round(model, lam, left, room)
        if bound == -np.inf:
            return bound
        dropped = False
        for a in range(len(model.table_at)):
            top = factor_best(a, model, lam, left, room.best, room.digit)
            if top == -np.inf:
                return top
            bound += top
            for e in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
                for k in range(model.edge_ptr[e + 1] - model.edge_ptr[e]):
                    s, best = model.state_at[e] + k, room.best[model.edge_ptr[e] + k]
                    if left[s] and best == -np.inf:
                        left[s] = False
                        dropped = True
                    elif left[s]:
                        room.lost[s] += top - best
        bound, more = end_round(model, left, room, bound, target)
        if bound == -np.inf or not (more or dropped):
            return bound
