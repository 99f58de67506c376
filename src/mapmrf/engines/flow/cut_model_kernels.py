"""Pairs of binary variables as arcs of a network, after flips that make all of them submodular.

A pair is submodular if ``t00 + t11 >= t01 + t10``: it favours equal states. A pair that favours different states
becomes submodular when the states of one of its variables are swapped. A state that does not exist, or that is
forbidden by its unary potential, is forbidden in every table.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.flow.network_kernels import Wiring, add_capacity
from mapmrf.kernels.factor_tables import weight_of
from mapmrf.kernels.parity import root_of

EITHER, EQUAL, DIFFERENT = 0, 1, -1
"""The states that a pair favours."""
ROUND_OFF = 4 * sys.float_info.epsilon
"""Couplings below this fraction of the table's entries count as round-off."""
NONE = -1

Table = tuple[float, float, float, float]


class BinaryPairs(NamedTuple):
    """Pairs of variables of at most two states.

    Attributes
    ----------
    scope : (2 n_factors,)
        The variables of every pair.
    table_at : (n_factors,)
        Where its table starts in `theta_t`.
    theta_t
        The tables.
    weight : (n_factors,)
        Weights of the tables; empty if all weights are 1.
    card : (n_vars,)
        Number of states.
    theta_v : (n_vars, 2)
        Unary potentials, -inf for a state that does not exist.
    """

    scope: Ints
    table_at: Ints
    theta_t: Floats
    weight: Floats
    card: Ints
    theta_v: Floats


@inlined
def table_of_pair(pairs: BinaryPairs, a: int) -> Table:
    """Return the four entries t00, t01, t10, t11 of a pair, -inf where a state is forbidden."""
    i, j, at = pairs.scope[2 * a], pairs.scope[2 * a + 1], pairs.table_at[a]
    theta_t, theta_v, r, weight = pairs.theta_t, pairs.theta_v, pairs.card[j], weight_of(pairs.weight, a)
    t00 = weight * theta_t[at]
    t01 = weight * theta_t[at + 1] if r == 2 else -np.inf
    t10 = weight * theta_t[at + r] if pairs.card[i] == 2 else -np.inf
    t11 = weight * theta_t[at + 3] if pairs.card[i] == 2 and r == 2 else -np.inf
    if theta_v[i, 0] == -np.inf:
        t00 = t01 = -np.inf
    if theta_v[i, 1] == -np.inf:
        t10 = t11 = -np.inf
    if theta_v[j, 0] == -np.inf:
        t00 = t10 = -np.inf
    if theta_v[j, 1] == -np.inf:
        t01 = t11 = -np.inf
    return t00, t01, t10, t11


@inlined
def favours(table: Table) -> int:
    """Return whether a pair favours EQUAL or DIFFERENT states, or EITHER if it is a sum of unary potentials."""
    t00, t01, t10, t11 = table
    if max(t00, t01) == -np.inf or max(t10, t11) == -np.inf or max(t00, t10) == -np.inf or max(t01, t11) == -np.inf:
        return EITHER
    if min(t00, t11) == -np.inf:
        return DIFFERENT
    if min(t01, t10) == -np.inf:
        return EQUAL
    coupling = (t00 - t01) + (t11 - t10)
    if abs(coupling) <= ROUND_OFF * (abs(t00) + abs(t01) + abs(t10) + abs(t11)):
        return EITHER
    return EQUAL if coupling > 0.0 else DIFFERENT


@bare
def find_flips(pairs: BinaryPairs, parent: Ints, flip: Ints) -> int:
    """Find variables whose flips make all pairs submodular; return a pair that violates this, or NONE.

    `flip` is 1 for these variables; `parent` is scratch.
    """
    n_pairs, n_different = len(pairs.table_at), 0
    for i in range(len(flip)):
        flip[i] = 0
        parent[i] = i
    for a in range(n_pairs):
        n_different += favours(table_of_pair(pairs, a)) == DIFFERENT
    if n_different == 0:
        return NONE
    for a in range(n_pairs):
        wish = favours(table_of_pair(pairs, a))
        if wish == EITHER:
            continue
        odd = 1 if wish == DIFFERENT else 0
        u, odd1 = root_of(pairs.scope[2 * a], parent, flip)
        v, odd2 = root_of(pairs.scope[2 * a + 1], parent, flip)
        if u != v:
            parent[u] = v
            flip[u] = odd1 ^ odd2 ^ odd
        elif odd1 ^ odd2 != odd:
            return a
    for i in range(len(flip)):
        root, odd = root_of(i, parent, flip)
        parent[i] = root
        flip[i] = odd
    return NONE


@inlined
def flipped(table: Table, flip_i: int, flip_j: int) -> Table:
    """Return a table after the flips of its variables."""
    t00, t01, t10, t11 = table
    if flip_i:
        t00, t01, t10, t11 = t10, t11, t00, t01
    if flip_j:
        t00, t01, t10, t11 = t01, t00, t11, t10
    return t00, t01, t10, t11


@inlined
def add_unaries(unary: Floats, i: int, j: int, table: Table) -> None:
    """Add a pair that reduces to unary potentials because a variable has one state left."""
    t00, t01, t10, t11 = table
    if max(t00, t01) == -np.inf:
        unary[i, 0] = -np.inf
        unary[j, 0] += t10
        unary[j, 1] += t11
    elif max(t10, t11) == -np.inf:
        unary[i, 1] = -np.inf
        unary[j, 0] += t00
        unary[j, 1] += t01
    elif max(t00, t10) == -np.inf:
        unary[j, 0] = -np.inf
        unary[i, 0] += t01
        unary[i, 1] += t11
    else:
        unary[j, 1] = -np.inf
        unary[i, 0] += t00
        unary[i, 1] += t10


@inlined
def split(table: Table) -> tuple[float, float, float, float]:
    """Split a table into unary terms of state 1 for both variables, and arc capacities: the costs of 01 and 10."""
    t00, t01, t10, t11 = table
    if t01 == -np.inf and t10 == -np.inf:
        half = (t11 - t00) / 2.0
        return half, half, np.inf, np.inf
    if t01 == -np.inf:
        return t10 - t00, t11 - t10, np.inf, 0.0
    if t10 == -np.inf:
        return t11 - t01, t01 - t00, 0.0, np.inf
    both, apart = (t11 - t00) / 2.0, (t10 - t01) / 2.0
    coupling = max(0.0, ((t00 - t01) + (t11 - t10)) / 2.0)
    return both + apart, both - apart, coupling, coupling


@inlined
def is_unary(table: Table) -> bool:
    """Return whether a variable of a pair has only one state left."""
    t00, t01, t10, t11 = table
    return max(t00, t01) == -np.inf or max(t10, t11) == -np.inf or max(t00, t10) == -np.inf or max(t01, t11) == -np.inf


@bare
def lay_out_cut(pairs: BinaryPairs, flip: Ints, unary: Floats, wiring: Wiring) -> None:
    """Turn pairs into capacities and unary potentials (n_vars, 2) of the flipped variables."""
    for i in range(len(flip)):
        unary[i, flip[i]] = pairs.theta_v[i, 0]
        unary[i, 1 - flip[i]] = pairs.theta_v[i, 1]
    guess = 0
    for a in range(len(pairs.table_at)):
        i, j = pairs.scope[2 * a], pairs.scope[2 * a + 1]
        given = table_of_pair(pairs, a)
        table = flipped(given, flip[i], flip[j])
        if is_unary(table):
            add_unaries(unary, i, j, table)
            continue
        half, (more_i, more_j, forward, backward) = table[0] / 2.0, split(table)
        unary[i, 0] += half
        unary[j, 0] += half
        unary[i, 1] += half + more_i
        unary[j, 1] += half + more_j
        if favours(given) != EITHER:
            guess = add_capacity(wiring, a, guess, forward, backward)


@bare
def set_excess(unary: Floats, excess: Floats) -> float:
    """Set the loss of state 1 against state 0 as terminal capacities; return the sum of the best unary potentials."""
    total = lost = 0.0
    for i in range(len(excess)):
        best = max(unary[i, 0], unary[i, 1])
        if best == -np.inf:
            return -np.inf
        excess[i] = unary[i, 0] - unary[i, 1]
        sum_now = total + best  # compensated summation
        lost += (total - sum_now) + best if abs(total) >= abs(best) else (best - sum_now) + total
        total = sum_now
    return total + lost
