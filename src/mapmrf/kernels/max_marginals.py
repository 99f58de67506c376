"""Max-marginals of one factor, for message passing, dual ascent and bounds.

The edge states of a factor stand side by side, as in `problem.edge_ptr`: `given` and `out` hold one entry for each of
them, and ``card_e[e]`` is the number of states of the variable at edge `e`. `given` is added to the table; its entries
are finite or -inf.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import inlined


class FactorScratch(NamedTuple):
    """Working memory for one factor.

    Attributes
    ----------
    given, out : (edge states of the widest factor,)
        What is added to a table, and its max-marginals.
    state, start : (largest arity,)
        A configuration, and where the states of each variable start in `given`.
    """

    given: Floats
    out: Floats
    state: Ints
    start: Ints

    @classmethod
    def allocate(cls, n_edge_states: int, arity: int) -> FactorScratch:
        """Room for factors of at most so many edge states and variables."""
        given, out = np.zeros((2, n_edge_states))
        state, start = np.zeros((2, arity), dtype=np.int64)
        return cls(given, out, state, start)


@inlined
def pair_max_marginals(theta_t: Floats, at: int, k1: int, k2: int, scratch: FactorScratch) -> float:
    """Fill `out` with the maxima of the table plus `given` for each state of two variables; return the largest."""
    given, out = scratch.given, scratch.out
    for s in range(k2):
        out[k1 + s] = -np.inf
    top = -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = given[s1]
        best = -np.inf
        for s2 in range(k2):
            value = theta_t[row + s2] + (mine + given[k1 + s2])
            best = max(best, value)
            out[k1 + s2] = max(out[k1 + s2], value)
        out[s1] = best
        top = max(top, best)
    return top


@inlined
def table_max_marginals(
    theta_t: Floats, at: int, card_e: Ints, first: int, arity: int, scratch: FactorScratch
) -> float:
    """The same for any arity; the factor's edges are those from `first` on."""
    given, out, state, start = scratch.given, scratch.out, scratch.state, scratch.start
    n_configs = 1
    place = 0
    for k in range(arity):
        state[k] = 0
        start[k] = place
        size = card_e[first + k]
        for s in range(size):
            out[place + s] = -np.inf
        place += size
        n_configs *= size
    top = -np.inf
    for t in range(n_configs):
        value = theta_t[at + t]
        for k in range(arity):
            value += given[start[k] + state[k]]
        top = max(top, value)
        for k in range(arity):
            place = start[k] + state[k]
            out[place] = max(out[place], value)
        next_configuration(state, card_e, first, arity)
    return top


@inlined
def next_configuration(state: Ints, card_e: Ints, first: int, arity: int) -> None:
    """Step to the next configuration of a factor, last variable fastest."""
    k = arity - 1
    while k >= 0:
        state[k] += 1
        if state[k] < card_e[first + k]:
            break
        state[k] = 0
        k -= 1


@inlined
def max_marginals(theta_t: Floats, at: int, card_e: Ints, first: int, arity: int, scratch: FactorScratch) -> float:
    """Max-marginals of a factor of any arity, by the quickest way."""
    if arity == 2:
        return pair_max_marginals(theta_t, at, card_e[first], card_e[first + 1], scratch)
    return table_max_marginals(theta_t, at, card_e, first, arity, scratch)
