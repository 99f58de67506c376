"""Max-marginals of one factor, for message passing, dual ascent and bounds.

The edge states of a factor are contiguous, as in `problem.edge_ptr`: `given` and `out` hold one entry for each of them,
and ``card_e[e]`` is the number of states of the variable at edge `e`. `given` is added to the table times the factor's
weight; its entries are finite or -inf. A weight of 1 is special-cased where that is cheap: a product in the innermost
loop costs several percent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import inlined
from mapmrf.kernels.pair_transforms import StructuredPairs, form_message
from mapmrf.model.structured_pairs import PairForms


class FactorScratch(NamedTuple):
    # given, out: (edge states of the widest factor,): values added to a table, and its max-marginals
    given: Floats
    out: Floats
    # state, start: (largest arity,): A configuration, and where the states of each variable start in `given`
    state: Ints
    start: Ints
    score: Floats  # (2, most states of a variable): scores of a variable's states, and the constraints that they break
    pairs: StructuredPairs  # the forms of pairs, with scratch

    @classmethod
    def allocate(cls, n_edge_states: int, arity: int, forms: PairForms, n_states: int) -> FactorScratch:
        given, out = np.zeros((2, n_edge_states))
        state, start = np.zeros((2, arity), dtype=np.int64)
        score, pairs = np.zeros((2, n_states)), StructuredPairs.allocate(forms, n_states)
        return cls(given, out, state, start, score, pairs)


@inlined
def pair_max_marginals(theta_t: Floats, at: int, k1: int, k2: int, weight: float, scratch: FactorScratch) -> float:
    """Fill `out` with the max-marginals of the table plus `given` for two variables; return the largest entry."""
    given, out = scratch.given, scratch.out
    for s in range(k2):
        out[k1 + s] = -np.inf
    top = -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = given[s1]
        best = -np.inf
        for s2 in range(k2):
            value = weight * theta_t[row + s2] + (mine + given[k1 + s2])
            best = max(best, value)
            out[k1 + s2] = max(out[k1 + s2], value)
        out[s1] = best
        top = max(top, best)
    return top


@inlined
def triple_max_marginals(
    theta_t: Floats, at: int, card: tuple[int, int, int], weight: float, scratch: FactorScratch
) -> float:
    """Fill `out` with the max-marginals of the table plus `given` for three variables; return the largest entry."""
    given, out = scratch.given, scratch.out
    k1, k2, k3 = card
    for s in range(k1 + k2 + k3):
        out[s] = -np.inf
    top = -np.inf
    row = at
    for s1 in range(k1):
        mine, best1 = given[s1], -np.inf
        for s2 in range(k1, k1 + k2):
            second, best2 = given[s2], -np.inf
            for s3 in range(k1 + k2, k1 + k2 + k3):
                value = weight * theta_t[row] + mine + second + given[s3]
                best2 = max(best2, value)
                out[s3] = max(out[s3], value)
                row += 1
            out[s2] = max(out[s2], best2)
            best1 = max(best1, best2)
        out[s1] = best1
        top = max(top, best1)
    return top


@inlined
def table_max_marginals(
    theta_t: Floats, at: int, card_e: Ints, first: int, arity: int, weight: float, scratch: FactorScratch
) -> float:
    """Fill `out` for a factor of any arity, whose edges are those from `first` on; return the largest entry."""
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
    # Row by row: a loop over single entries takes 1.5 times as long. A range with a step can raise an exception, and
    # that possibility costs passes over pairs 5 %.
    last, top = arity - 1, -np.inf
    size, place = card_e[first + last], start[last]
    for i in range(n_configs // size):
        row, best = at + i * size, -np.inf
        for s in range(size):
            value = weight * theta_t[row + s]
            for k in range(last):
                value += given[start[k] + state[k]]
            value += given[place + s]
            best = max(best, value)
            out[place + s] = max(out[place + s], value)
        for k in range(last):
            out[start[k] + state[k]] = max(out[start[k] + state[k]], best)
        top = max(top, best)
        next_configuration(state, card_e, first, last)
    return top


@inlined
def next_configuration(state: Ints, card_e: Ints, first: int, arity: int) -> None:
    k = arity - 1
    while k >= 0:
        state[k] += 1
        if state[k] < card_e[first + k]:
            break
        state[k] = 0
        k -= 1


@inlined
def form_messages(f: int, weight: float, n: int, scratch: FactorScratch) -> None:
    """Fill `out` with both messages of a structured pair: the maxima of table plus `given` of the other variable."""
    for side in range(2):
        form_message(scratch.pairs, f, weight, side == 0, scratch.given, (1 - side) * n, scratch.out, side * n, n)


@inlined
def form_max_marginals(f: int, weight: float, n: int, scratch: FactorScratch) -> None:
    """Fill `out` with the max-marginals of a structured pair plus `given`."""
    form_messages(f, weight, n, scratch)
    for s in range(2 * n):
        scratch.out[s] += scratch.given[s]


@inlined
def max_marginals(
    theta_t: Floats, at: int, card_e: Ints, first: int, arity: int, weight: float, scratch: FactorScratch
) -> float:
    """Fill `out` with the max-marginals of a table plus `given`; return the largest entry."""
    if arity == 2:
        k1, k2 = card_e[first], card_e[first + 1]
        if weight == 1.0:
            return pair_max_marginals(theta_t, at, k1, k2, 1.0, scratch)
        return pair_max_marginals(theta_t, at, k1, k2, weight, scratch)
    if arity == 3:
        card = (card_e[first], card_e[first + 1], card_e[first + 2])
        return triple_max_marginals(theta_t, at, card, weight, scratch)
    return table_max_marginals(theta_t, at, card_e, first, arity, weight, scratch)


@inlined
def form_top(f: int, weight: float, n: int, scratch: FactorScratch) -> float:
    """Return the largest entry of a structured pair plus `given`; overwrites the first half of `out`."""
    given, out, top = scratch.given, scratch.out, -np.inf
    form_message(scratch.pairs, f, weight, True, given, n, out, 0, n)
    for s in range(n):
        top = max(top, out[s] + given[s])
    return top


@inlined
def table_top(
    theta_t: Floats, at: int, card_e: Ints, first: int, arity: int, weight: float, scratch: FactorScratch
) -> float:
    """Return the largest entry of a table of any arity times a weight, plus `given`."""
    if arity != 2:
        return max_marginals(theta_t, at, card_e, first, arity, weight, scratch)
    given, k1, k2, top = scratch.given, card_e[first], card_e[first + 1], -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = given[s1]
        best = -np.inf  # per row, so that rows do not depend on each other
        for s2 in range(k2):
            best = max(best, weight * theta_t[row + s2] + (mine + given[k1 + s2]))
        top = max(top, best)
    return top


@inlined
def weight_of(weight: Floats, a: int) -> float:
    """Return the weight of a factor's table; `weight` is empty if all factors have weight 1."""
    return weight[a] if len(weight) > 0 else 1.0
