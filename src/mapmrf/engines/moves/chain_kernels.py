"""Chains of flips: one is forced, the best of its neighbours follow, and the best beginning of the chain is kept."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.engines.moves.gain_kernels import (
    HEAP,
    HINT,
    LENGTH,
    Array,
    dequeue,
    flip_best,
    make_change,
    set_state,
    take_back,
)
from mapmrf.kernels.jit import compiled, inlined

VARIABLE, STATE, SECOND, IMPROVED = 0, 1, 2, 3
"""Places in `Chain.count`: the variable that chains start from (-1: none), the state that it is forced to, how many
second flips have been tried, and whether a chain has helped since somebody last asked."""

FREE, LISTED, USED = 0, 1, 2
"""What a variable is to the present chain."""


class Chain(NamedTuple):
    """A chain under way.

    Attributes
    ----------
    cand, kind
        Variables beside the chain, and what every variable is to it.
    gain, flip
        Gain and state of the best flip of every listed variable.
    who, state, old : (length,)
        The flips of the chain.
    top : (length + 1,)
        Where their logs begin.
    count
        See the constants of this module.
    """

    cand: Array
    kind: Array
    gain: Array
    flip: Array
    who: Array
    state: Array
    old: Array
    top: Array
    count: Array


@inlined
def list_beside(f, c, i, n_cand):
    """Find the best flips of the neighbours of `i`, and list those who are not yet; returns how many are listed."""
    for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
        a = f.factor_of[e]
        for p in range(f.scope_ptr[a], f.scope_ptr[a + 1]):
            j = f.scope[p]
            if c.kind[j] == USED or f.card[j] == 1:
                continue
            if c.kind[j] == FREE:
                c.kind[j] = LISTED
                c.cand[n_cand] = j
                n_cand += 1
            row, old = f.var_ptr[j], f.labels[j]
            best, top = -1, -np.inf
            for k in range(f.card[j]):
                if k != old and f.score[row + k] > top:
                    best, top = k, f.score[row + k]
            c.gain[j], c.flip[j] = top - f.score[row + old], best
    return n_cand


@inlined
def choose(c, n_cand, skipped):
    """The listed variable of the highest gain, after so many that are skipped; -1 if there is none."""
    last_gain, last_at, best_at = np.inf, -1, -1
    for _ in range(skipped + 1):
        best_at = -1
        best = -np.inf
        for at in range(n_cand):
            j = c.cand[at]
            gain = c.gain[j]
            after = gain < last_gain or (gain == last_gain and at > last_at)
            if c.kind[j] == LISTED and after and gain > best:
                best_at, best = at, gain
        last_gain, last_at = best, best_at
    return c.cand[best_at] if best_at >= 0 else -1


@inlined
def try_chain(f, c, v, k, second, length):
    """Flip `v` to `k`, then the best of the neighbours one by one, and take all back.

    Returns the length of the best beginning, 0 if none gains, and the number of entries. The flips are left in `c`.
    """
    i = v
    n = n_cand = best_n = work = 0
    total = size = best = 0.0
    c.top[0] = 0
    while i >= 0 and n < length:
        row, old = f.var_ptr[i], f.labels[i]
        new, now = f.score[row + k], f.score[row + old]
        total += new - now
        size += abs(new) + abs(now)
        c.who[n], c.state[n], c.old[n] = i, k, old
        c.kind[i] = USED
        c.top[n + 1] = set_state(f, i, k, c.top[n])
        n += 1
        if total > best and total > HINT * size:
            best, best_n = total, n
        n_cand = list_beside(f, c, i, n_cand)
        i = choose(c, n_cand, second if n == 1 else 0)
        k = c.flip[i] if i >= 0 else 0
        work += n_cand
    work += 3 * c.top[n]
    for at in range(n - 1, -1, -1):
        take_back(f, c.who[at], c.old[at], c.top[at], c.top[at + 1])
        c.kind[c.who[at]] = FREE
    for at in range(n_cand):
        c.kind[c.cand[at]] = FREE
    if n == 1 and second > 0:  # there is no other second flip than those tried before
        c.count[SECOND] = 1 << 30
    return best_n, work


@compiled
def follow_chains(f, w, c, breadth, budget, max_visits):
    """Make best flips and improving chains until there is none or a budget is spent.

    Returns entries and variables looked at.
    """
    work, visits = 0, 0
    while work < budget:
        if c.count[VARIABLE] >= 0:
            v, k = c.count[VARIABLE], c.count[STATE]
            if k >= f.card[v]:
                c.count[VARIABLE] = -1
                continue
            if k == f.labels[v] or c.count[SECOND] >= breadth:
                c.count[STATE] += 1
                c.count[SECOND] = 0
                continue
            c.count[SECOND] += 1
            n, entries = try_chain(f, c, v, k, c.count[SECOND] - 1, len(c.who))
            work += entries
            if n > 0:
                work += make_change(f, w, c.who, c.state, c.old, c.top, n)
                c.count[IMPROVED] = 1
                c.count[VARIABLE] = -1
        elif visits >= max_visits:
            break
        elif w.count[HEAP] > 0:
            work += flip_best(f, w)
            visits += 1
        elif w.count[LENGTH] > 0:
            c.count[VARIABLE] = dequeue(w.queue, w.queued, w.count)
            c.count[STATE] = c.count[SECOND] = 0
            visits += 1
        else:
            break
    return work, visits
