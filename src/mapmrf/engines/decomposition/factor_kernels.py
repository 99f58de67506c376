"""Subproblems of one factor each: its best entry, given the potentials of its copies of the variables."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.decomposition.tree_kernels import next_state, sum_of
from mapmrf.kernels.jit import bare, inlined


@inlined
def _best_binary_pair(theta_t, at, theta_c, first, second, slack):
    low, high = theta_c[second], theta_c[second + 1]
    v0, v1 = theta_t[at] + low, theta_t[at + 1] + high
    v2, v3 = theta_t[at + 2] + low, theta_t[at + 3] + high
    top0, top1 = theta_c[first] + max(v0, v1), theta_c[first + 1] + max(v2, v3)
    s0, s1 = (1 if v1 > v0 + slack else 0), (3 if v3 > v2 + slack else 2)
    return max(top0, top1), (s1 if top1 > top0 + slack else s0)


@inlined
def _best_pair(theta_t, at, theta_c, first, n_first, second, n_second, slack):
    top, best, chosen = -np.inf, 0, -np.inf
    for s1 in range(n_first):
        row = at + s1 * n_second
        inner = -np.inf
        for s2 in range(n_second):
            inner = max(inner, theta_t[row + s2] + theta_c[second + s2])
        value = theta_c[first + s1] + inner
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, s1
    row = at + best * n_second
    last, chosen = 0, theta_t[row] + theta_c[second]
    for s2 in range(1, n_second):
        value = theta_t[row + s2] + theta_c[second + s2]
        if value > chosen + slack:
            chosen, last = value, s2
    return top, best * n_second + last


@inlined
def _best_table(theta_t, legs, a, theta_c, label_c, state, slack):
    begin, end = legs.ptr[a], legs.ptr[a + 1]
    for leg in range(begin, end):
        state[leg - begin] = 0
        label_c[legs.copy[leg]] = 0
    top, best, chosen = -np.inf, 0, -np.inf
    place = 0
    while place >= 0:
        value = theta_t[legs.table_at[a] + place] + sum_of(legs, begin, end, state, theta_c)
        top = max(top, value)
        if value > chosen + slack:
            chosen, best = value, place
            for leg in range(begin, end):
                label_c[legs.copy[leg]] = state[leg - begin]
        place = next_state(legs, begin, end, state, place)
    return top, best


@bare
def solve_factors(theta_t, theta_c, legs, stale, top_f, state, label_c, config, slack):
    """Let every factor choose its best entry, if its potentials have changed; return the sum of the maxima.

    Of entries that differ by `slack` or less, the first counts as the best: round-off decides nothing.
    """
    total = 0.0
    for a in range(len(stale)):
        if stale[a]:
            stale[a] = False
            first = legs.ptr[a]
            if legs.ptr[a + 1] - first == 2:
                n_first, n_second = legs.card[first], legs.card[first + 1]
                at, at_1, at_2 = legs.table_at[a], legs.at[first], legs.at[first + 1]
                if n_first == 2 and n_second == 2:
                    top, t = _best_binary_pair(theta_t, at, theta_c, at_1, at_2, slack)
                else:
                    top, t = _best_pair(theta_t, at, theta_c, at_1, n_first, at_2, n_second, slack)
                label_c[legs.copy[first]] = t // n_second
                label_c[legs.copy[first + 1]] = t % n_second
            else:
                top, t = _best_table(theta_t, legs, a, theta_c, label_c, state, slack)
            top_f[a] = top
            config[a] = t
        total += top_f[a]
    return total
