"""Max-marginals of one factor: what message passing, dual ascent and decoding all need.

A factor's edge states stand side by side (`problem.edge_ptr`): `base` is where its block starts in `given` and `out`,
and `card_e[edge]` is the number of states of the variable at each of its `arity` edges from `first` on. `given` is
added to the table; every entry of it must be finite or -inf.
"""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import inlined


@inlined
def pair_max_marginals(theta_t, at, k1, k2, given, base, out):
    """Fill `out` with max over the table plus `given`, for each state of two variables; return the overall maximum."""
    second = base + k1
    for s in range(k2):
        out[second + s] = -np.inf
    top = -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = given[base + s1]
        best = -np.inf
        for s2 in range(k2):
            value = theta_t[row + s2] + (mine + given[second + s2])
            best = max(best, value)
            out[second + s2] = max(out[second + s2], value)
        out[base + s1] = best
        top = max(top, best)
    return top


@inlined
def table_max_marginals(theta_t, at, arity, first, card_e, given, base, out, state, start):
    """The same for any arity; `state` and `start` are scratch of at least `arity` whole numbers."""
    n_configs = 1
    place = base
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
        k = arity - 1
        while k >= 0:
            state[k] += 1
            if state[k] < card_e[first + k]:
                break
            state[k] = 0
            k -= 1
    return top


@inlined
def max_marginals(theta_t, at, arity, first, card_e, given, base, out, state, start):
    """Max-marginals of a factor of any arity, by the quickest way."""
    if arity == 2:
        return pair_max_marginals(theta_t, at, card_e[first], card_e[first + 1], given, base, out)
    return table_max_marginals(theta_t, at, arity, first, card_e, given, base, out, state, start)
