"""Single-variable ascent: a marked variable takes its best state, and marks its neighbours if it changes."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.jit import compiled


@compiled
def score_states(
    i: int, label: int, card: Ints, var_ptr: Ints, theta_v: Floats, theta_t: Floats, nbr_ptr: Ints,
    factor_of: Ints, stride_of: Ints, place: Ints, broken: Ints, score: Floats,
) -> None:  # fmt: skip
    """Hard entries and finite sum that every state of variable `i` would have, all other variables as they are."""
    for k in range(card[i]):
        theta = theta_v[var_ptr[i] + k]
        hard = theta == -np.inf
        broken[k] = 1 if hard else 0
        score[k] = 0.0 if hard else theta
    for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
        stride = stride_of[e]
        at = place[factor_of[e]] - stride * label
        for k in range(card[i]):
            theta = theta_t[at + k * stride]
            if theta == -np.inf:
                broken[k] += 1
            else:
                score[k] += theta


@compiled
def best_state(label: int, n_states: int, broken: Ints, score: Floats) -> int:
    """The state to move to: the present one unless another breaks less, or as much and scores higher."""
    best = label
    for k in range(n_states):
        if broken[k] < broken[best]:
            best = k
        elif broken[k] == broken[best]:
            # A margin above round-off, so that equal states do not take turns for ever.
            margin = 1e-13 * (abs(score[k]) + abs(score[best]))
            if score[k] > score[best] + margin:
                best = k
    return best


@compiled
def next_marked(i: int, marked: Bools, marks_in: Ints, block: int) -> int:
    """The first marked variable from `i` on, round the end; there must be one. Blocks without marks are skipped."""
    n = len(marked)
    i = i if i < n else 0
    while not marked[i]:
        b = i // block
        i = i + 1 if marks_in[b] > 0 else (b + 1) * block
        i = i if i < n else 0
    return i


@compiled
def ascend(
    card: Ints, var_ptr: Ints, theta_v: Floats, theta_t: Floats, nbr_ptr: Ints, scope_ptr: Ints, scope: Ints,
    factor_of: Ints, stride_of: Ints, place: Ints, labels: Ints, marked: Bools, marks_in: Ints, cursor: Ints,
    broken: Ints, score: Floats, block: int, max_visits: int, max_entries: int,
) -> int:  # fmt: skip
    """Look at marked variables until none is left or a budget is spent; return how many were looked at."""
    n_marked, i = cursor[0], cursor[1]
    visits = 0
    entries = 0
    while n_marked > 0 and visits < max_visits and entries < max_entries:
        i = next_marked(i, marked, marks_in, block)
        marked[i] = False
        marks_in[i // block] -= 1
        n_marked -= 1
        visits += 1
        entries += card[i] * (1 + nbr_ptr[i + 1] - nbr_ptr[i])
        old = labels[i]
        score_states(i, old, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score)
        new = best_state(old, card[i], broken, score)
        if new != old:
            labels[i] = new
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                a = factor_of[e]
                place[a] += stride_of[e] * (new - old)
                for j_at in range(scope_ptr[a], scope_ptr[a + 1]):
                    j = scope[j_at]
                    if j != i and not marked[j]:
                        marked[j] = True
                        marks_in[j // block] += 1
                        n_marked += 1
        i += 1
    cursor[0], cursor[1] = n_marked, i
    return visits
