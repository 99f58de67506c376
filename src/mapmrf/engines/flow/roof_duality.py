"""Roof duality: a bound for any binary pairwise model, and persistent states."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.flow.cut_model import (
    DIFFERENT,
    EITHER,
    NONE,
    BinaryPairs,
    CutModel,
    add_unaries,
    binary_pairs,
    favours,
    flipped,
    flips_of,
    is_unary,
    set_excess,
    split,
    table_of_pair,
    why_not_binary_pairs,
)
from mapmrf.engines.flow.maximum_flow import (
    FREE,
    NO_LIMIT,
    PAUSED,
    MaximumFlow,
    SearchTrees,
    change_terminals,
    send_flow,
)
from mapmrf.engines.flow.network import MAX_ARCS, Network, Wiring, add_capacity, sparse_wiring
from mapmrf.model.problem import Problem


class RoofDual:
    """A binary model as a flow network with two nodes per variable."""

    def __init__(self, pairs: BinaryPairs, constant: float = 0.0) -> None:
        n = self.n_vars = len(pairs.theta_v)
        scope = np.empty(4 * len(pairs.table_at), dtype=np.int32)
        join_complements(pairs, scope)
        wiring = sparse_wiring(2 * n, scope)
        unary, excess = pairs.theta_v.copy(), np.zeros(2 * n)
        lay_out_roof(pairs, unary, wiring)
        self.constant = constant + float(set_excess(unary, excess[:n]))  # the upper bound is this minus half the flow
        excess[n:] = -excess[:n]
        self.flow = MaximumFlow(wiring, excess)

    @property
    def bound(self) -> float:
        return self.constant - self.flow.value / 2 if self.constant > -math.inf else -math.inf

    @property
    def states(self) -> Ints:
        """After a maximum flow, the persistent states of variables, or UNDECIDED, (n_vars,).

        No labelling gets worse when all decided variables take these states, those on which variable and complement
        agree. The nodes that can reach the sink are the mirror image of those reachable from the source.
        """
        if self.bound == -math.inf:
            return np.full(self.n_vars, UNDECIDED, dtype=np.int64)
        one, zero = self.flow.on_sink_side.reshape(2, -1)
        return np.where(one == zero, UNDECIDED, one.astype(np.int64))


class Persistency(NamedTuple):
    """Persistent states of variables, UNDECIDED (-1) for others, and an upper bound."""

    states: Ints
    bound: float


def why_no_roof(problem: Problem) -> str | None:
    reason = why_not_binary_pairs(problem)
    if reason is None and 4 * problem.n_factors > MAX_ARCS:
        return f"it has {problem.n_factors} factors, more than {MAX_ARCS // 4}"
    return reason


def relax(problem: Problem) -> CutModel | RoofDual:
    """Return the flow of a binary pairwise model: a minimum cut if flips make it submodular, else the roof dual."""
    if flips_of(problem)[1] == NONE:
        return CutModel(problem)
    return RoofDual(binary_pairs(problem), problem.graph.constant)


def persistent_states(problem: Problem) -> Persistency:
    """Compute persistent states and an upper bound by roof duality.

    If flips make the model submodular, all variables are fixed at the optimum. In an infeasible model none are, and the
    bound is -inf.
    """
    model = relax(problem)
    model.flow.run(NO_LIMIT)
    if model.bound == -math.inf:
        return Persistency(np.full(problem.n_vars, UNDECIDED), -math.inf)
    return Persistency(model.labels if isinstance(model, CutModel) else model.states, model.bound)


def excluded_by_roof(problem: Problem) -> Bools:
    """Return the states that are not needed for optimality, (n_states,), by roof duality; none if infeasible."""
    states = persistent_states(problem).states
    excluded: Bools = np.zeros(problem.n_states, dtype=bool)
    decided = np.flatnonzero(states != UNDECIDED)
    excluded[2 * decided + 1 - states[decided]] = True
    return excluded


# -- Roof duality: the network of a binary model with two nodes per variable ------------------------------------------
# Node `i` stands for variable `i`, node ``n + i`` for its complement: on the source's side a variable has state 0, its
# complement state 1. A pair that favours equal states joins `i` with `j` and the complements with each other; one that
# favours different states joins each variable with the complement of the other. Every pair thus becomes submodular, but
# variable and complement may disagree.

UNDECIDED = -1  # takes the place of a state where roof duality does not fix the variable


@bare
def join_complements(pairs: BinaryPairs, scope: Ints) -> None:
    """List the nodes of two arcs for every pair, (4 n_pairs,): the pair itself, and its mirror image."""
    n = len(pairs.theta_v)
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        apart = favours(table_of_pair(pairs, a)) == DIFFERENT
        scope[4 * a] = i
        scope[4 * a + 1] = n + j if apart else j
        scope[4 * a + 2] = j if apart else n + j
        scope[4 * a + 3] = n + i


@bare
def lay_out_roof(pairs: BinaryPairs, unary: Floats, wiring: Wiring) -> None:
    """Turn pairs into capacities, and add their unary parts to the unary potentials (n_vars, 2)."""
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        table = table_of_pair(pairs, a)
        if is_unary(table):
            add_unaries(unary, i, j, table)
            continue
        wish = favours(table)
        one = 0 if wish == DIFFERENT else 1  # the state of j that corresponds to 1 in the complement
        table = flipped(table, 0, 1 - one)
        half, (more_i, more_j, forward, backward) = table[0] / 2.0, split(table)
        unary[i, 0] += half
        unary[i, 1] += half + more_i
        unary[j, 1 - one] += half
        unary[j, one] += half + more_j
        if wish != EITHER:
            add_capacity(wiring, 2 * a, 0, forward, backward)
            add_capacity(wiring, 2 * a + 1, 0, forward, backward)


class Hold(NamedTuple):
    """Scratch for fixing a variable at its state: its two nodes, and what is added to their capacities, (2,)."""

    nodes: Ints
    source: Floats
    sink: Floats


@inlined
def can_reach_sink(trees: SearchTrees, i: int) -> bool:
    reaches: bool = trees.in_sink[i] and trees.parent[i] != FREE
    return reaches


@bare
def hold_in_turn(
    network: Network, trees: SearchTrees, labels: Ints, order: Ints, begin: int, max_work: int, hold: Hold
) -> int:
    """Fix variables at their states, one after another, and augment the flow each time, which may decide others.

    Variables that are decided when their turn comes are skipped. Returns the position reached in `order` for the work;
    an unfinished flow is completed first.
    """
    n, end = len(labels), trees.cursor.work + max_work
    if send_flow(network, trees, max_work, NO_LIMIT) == PAUSED:
        return begin
    for k in range(begin, len(order)):
        i = order[k]
        if can_reach_sink(trees, i) != can_reach_sink(trees, n + i):
            continue
        hold.nodes[labels[i]], hold.nodes[1 - labels[i]] = i, n + i  # the first is tied to the source
        hold.source[0], hold.source[1] = np.inf, 0.0
        hold.sink[0], hold.sink[1] = 0.0, np.inf
        change_terminals(network, trees, hold.nodes, hold.source, hold.sink)
        if send_flow(network, trees, max(1, end - trees.cursor.work), NO_LIMIT) == PAUSED:
            return k + 1
    return len(order)


# -- Improvement of labellings by roof duality (QPBO-I; Rother, Kolmogorov, Lempitsky and Szummer, 2007) --------------


class Improvement:
    """Rounds in which undecided variables are fixed at their states in random order until all others are decided.

    Decisions of roof duality while some variables are fixed at the states of a labelling never make that labelling
    worse. So the labelling at the end of a round is at least as good as the one at its start, up to round-off.
    """

    def __init__(self, roof: RoofDual, random: np.random.Generator) -> None:
        self.roof, self.random = roof, random
        self.undecided = np.flatnonzero(roof.states == UNDECIDED)
        trees = roof.flow.trees
        arrays: list[Any] = [roof.flow.network.residual, *trees[:-1]]
        self._kept = [(array, array.copy()) for array in arrays]
        self._cursor = {name: getattr(trees.cursor, name) for name in trees.cursor.dtype.names}  # type: ignore[attr-defined]
        self._hold = Hold(np.zeros(2, dtype=np.int64), np.zeros(2), np.zeros(2))
        self.order = np.zeros(0, dtype=np.int64)
        self.at = 0

    def begin(self, labels: Ints) -> None:
        """Start a round from a labelling in which all decided variables have their states."""
        for array, kept in self._kept:
            array[:] = kept
        for name, value in self._cursor.items():
            setattr(self.roof.flow.trees.cursor, name, value)
        self.labels = np.array(labels, dtype=np.int64)
        self.order, self.at = self.random.permutation(self.undecided), 0

    def run(self, max_work: int) -> bool:
        """Continue for about this much work; return whether the round has ended."""
        flow = self.roof.flow
        self.at = hold_in_turn(flow.network, flow.trees, self.labels, self.order, self.at, max_work, self._hold)
        return self.at == len(self.order)

    def improved(self) -> Ints:
        states = self.roof.states
        return np.asarray(np.where(states == UNDECIDED, self.labels, states))
