"""Roof duality: the network of a binary model with two nodes per variable.

Node `i` stands for variable `i`, node ``n + i`` for its complement: on the source's side a variable has state 0, its
complement state 1. A pair that favours equal states joins `i` with `j` and the complements with each other; one that
favours different states joins each variable with the complement of the other. Every pair thus becomes submodular, but
variable and complement may disagree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.flow.cut_model_kernels import (
    DIFFERENT,
    EITHER,
    BinaryPairs,
    add_unaries,
    favours,
    flipped,
    is_unary,
    split,
    table_of_pair,
)
from mapmrf.engines.flow.maximum_flow_kernels import NO_LIMIT, PAUSED, change_terminals, send_flow
from mapmrf.engines.flow.network_kernels import Network, Wiring, add_capacity
from mapmrf.engines.flow.search_tree_kernels import FREE, SearchTrees

UNDECIDED = -1
"""Takes the place of a state where roof duality does not fix the variable."""


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


@bare
def read_persistent(on_sink_side: Bools, states: Ints) -> int:
    """Set the states on which variable and complement agree, and UNDECIDED elsewhere; return how many are decided.

    The nodes that can reach the sink are the mirror image of those reachable from the source.
    """
    n, decided = len(states), 0
    for i in range(n):
        one, zero = on_sink_side[i], on_sink_side[n + i]
        states[i] = UNDECIDED if one == zero else 1 if one else 0
        decided += one != zero
    return decided


class Hold(NamedTuple):
    """Scratch for fixing a variable at its state: its two nodes, and what is added to their capacities, (2,)."""

    nodes: Ints
    source: Floats
    sink: Floats


@inlined
def can_reach_sink(trees: SearchTrees, i: int) -> bool:
    """Return whether a node is on the sink's side."""
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
