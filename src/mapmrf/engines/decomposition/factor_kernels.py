"""Single-factor subproblems: the best entry of each factor, given the potentials of its copies of the variables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.decomposition.tree_kernels import Chosen, Legs, form_up, leg_form, next_state, sum_of
from mapmrf.kernels.factor_tables import weight_of
from mapmrf.kernels.structured_pairs import StructuredPairs


class FactorCache(NamedTuple):
    """Cached choices of the factors, and scratch.

    Attributes
    ----------
    stale, top_f : (n_factors,)
        Whether a factor's potentials have changed since its last choice, and its maximum then.
    state
        A configuration.
    inner
        For each state of one variable, the best state of the other.
    pairs
        The forms of pairs.
    """

    stale: Bools
    top_f: Floats
    state: Ints
    inner: Floats
    pairs: StructuredPairs


@inlined
def _best_binary_pair(
    theta_t: Floats, at: int, weight: float, theta_c: Floats, first: int, second: int, slack: float
) -> tuple[float, int]:
    """Return the maximum of a 2x2 table and its best entry."""
    low, high = theta_c[second], theta_c[second + 1]
    v0, v1 = weight * theta_t[at] + low, weight * theta_t[at + 1] + high
    v2, v3 = weight * theta_t[at + 2] + low, weight * theta_t[at + 3] + high
    top0, top1 = theta_c[first] + max(v0, v1), theta_c[first + 1] + max(v2, v3)
    s0, s1 = (1 if v1 > v0 + slack else 0), (3 if v3 > v2 + slack else 2)
    return max(top0, top1), (s1 if top1 > top0 + slack else s0)


@inlined
def _best_row(theta_t: Floats, theta_c: Floats, legs: Legs, a: int, weight: float, slack: float) -> tuple[float, int]:
    """Return the maximum of a pairwise table, and its row."""
    begin = legs.ptr[a]
    at, first, second = legs.table_at[a], legs.at[begin], legs.at[begin + 1]
    n_second = legs.card[begin + 1]
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(legs.card[begin]):
        row = at + s1 * n_second
        inner = -np.inf
        for s2 in range(n_second):
            inner = max(inner, weight * theta_t[row + s2] + theta_c[second + s2])
        value = theta_c[first + s1] + inner
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    return top, best


@inlined
def _best_row_of_form(theta_c: Floats, legs: Legs, a: int, cache: FactorCache, slack: float) -> tuple[float, int]:
    """Return the same for a structured pair."""
    inner, first, begin = cache.inner, legs.at[legs.ptr[a]], legs.ptr[a]
    form_up(leg_form(legs, a), legs, a, theta_c, inner, cache.pairs)
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(legs.card[begin]):
        value = theta_c[first + s1] + inner[s1]
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    return top, best


@inlined
def _best_pair(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, cache: FactorCache, slack: float
) -> tuple[float, int]:
    """Return the maximum of a pairwise table and its best entry."""
    weight = weight_of(legs.weight, a)
    if leg_form(legs, a) >= 0:
        top, best = _best_row_of_form(theta_c, legs, a, cache, slack)
    elif weight == 1.0:
        top, best = _best_row(theta_t, theta_c, legs, a, 1.0, slack)
    else:
        top, best = _best_row(theta_t, theta_c, legs, a, weight, slack)
    begin = legs.ptr[a]
    second, n_second = legs.at[begin + 1], legs.card[begin + 1]
    row = legs.table_at[a] + best * n_second
    last, chosen = 0, weight * theta_t[row] + theta_c[second]
    for s2 in range(1, n_second):
        value = weight * theta_t[row + s2] + theta_c[second + s2]
        if value > chosen + slack:
            chosen, last = value, s2
    return top, best * n_second + last


@inlined
def _best_table(
    theta_t: Floats, theta_c: Floats, legs: Legs, a: int, label_c: Ints, state: Ints, slack: float
) -> tuple[float, int]:
    """Return the maximum of a table of any arity and its best entry, row by row; also labels the copies."""
    begin, last, weight = legs.ptr[a], legs.ptr[a + 1] - 1, weight_of(legs.weight, a)
    table_at, last_at, n_last, stride = legs.table_at[a], legs.at[last], legs.card[last], legs.stride[last]
    for leg in range(begin, last):
        state[leg - begin] = 0
    top, best, chosen = -np.inf, 0, -np.inf
    row = 0
    while row >= 0:
        others = sum_of(legs, begin, last, state, theta_c)
        for s in range(n_last):
            place = row + s * stride
            value = weight * theta_t[table_at + place] + (others + theta_c[last_at + s])
            top = max(top, value)
            if value > chosen + slack:
                chosen, best = value, place
        row = next_state(legs, begin, last, state, row)
    for leg in range(begin, last + 1):
        label_c[legs.copy[leg]] = best // legs.stride[leg] % legs.card[leg]
    return top, best


@bare
def solve_factors(
    theta_t: Floats, theta_c: Floats, legs: Legs, choices: Chosen, cache: FactorCache, slack: float
) -> float:
    """Choose the best entry of every factor whose potentials have changed; return the sum of the maxima.

    Among entries within `slack` of each other, the first is chosen, so that round-off decides nothing.
    """
    stale, top_f, label_c = cache.stale, cache.top_f, choices.label_c
    total = 0.0
    for a in range(len(stale)):
        if stale[a]:
            stale[a] = False
            first = legs.ptr[a]
            if legs.ptr[a + 1] - first == 2:
                n_second = legs.card[first + 1]
                if legs.card[first] == 2 and n_second == 2:
                    at, weight, one, two = (
                        legs.table_at[a],
                        weight_of(legs.weight, a),
                        legs.at[first],
                        legs.at[first + 1],
                    )
                    top, t = _best_binary_pair(theta_t, at, weight, theta_c, one, two, slack)
                else:
                    top, t = _best_pair(theta_t, theta_c, legs, a, cache, slack)
                label_c[legs.copy[first]] = t // n_second
                label_c[legs.copy[first + 1]] = t % n_second
            else:
                top, t = _best_table(theta_t, theta_c, legs, a, label_c, cache.state, slack)
            top_f[a] = top
            choices.config[a] = t
        total += top_f[a]
    return total
