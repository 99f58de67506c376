"""The lazy flipper: the best change of every small connected set of variables, each set looked at once per change.

A variable whose surrounding has changed waits in the queue. When its turn comes, all connected sets that hold it and
none who still waits are searched: so a set is searched when the last of its members leaves the queue, and no list of
sets is ever stored. The search of one variable's sets can stop after any of them and be taken up again.
"""

from __future__ import annotations

from typing import NamedTuple

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

LEVEL, REACH, SIZE = 0, 1, 2
"""Places in `Sets.count`: variables of the present set that are flipped (-1: no search), size up to which sets are
searched, and size of the best change found."""


class Sets(NamedTuple):
    """The search of the sets that hold one variable.

    Attributes
    ----------
    cand, listed
        Variables that may join the set, in the order of the search, and who is among them.
    spot, end, state, old, top : (depth + 1,)
        For every level: the candidate that is tried, where its successors end, its trial state, its label before, and
        where its log begins.
    total, size : (depth + 1,)
        Gain of all flips below a level, and the size of what it is a difference of.
    best_var, best_state : (depth,)
        The best change so far.
    best
        Its gain.
    count
        See the constants of this module.
    """

    cand: Array
    listed: Array
    spot: Array
    end: Array
    state: Array
    old: Array
    top: Array
    total: Array
    size: Array
    best_var: Array
    best_state: Array
    best: Array
    count: Array


@inlined
def weigh(f, s, level, u, k):
    """Gain of the present set with `u` in state `k`; the best is remembered. Returns the size of the scores."""
    row = f.var_ptr[u]
    new, now = f.score[row + k], f.score[row + f.labels[u]]
    gain = s.total[level] + (new - now)
    size = s.size[level] + abs(new) + abs(now)
    if gain > s.best[0] and gain > HINT * size:
        s.best[0] = gain
        s.count[SIZE] = level + 1
        for at in range(level):
            s.best_var[at] = s.cand[s.spot[at]]
            s.best_state[at] = s.state[at]
        s.best_var[level], s.best_state[level] = u, k
    return gain, size


@inlined
def list_neighbours(f, w, s, level, u):
    """Append the neighbours of `u` that are neither listed nor waiting: who may join after it."""
    end = s.end[level]
    for e in range(f.nbr_ptr[u], f.nbr_ptr[u + 1]):
        a = f.factor_of[e]
        for p in range(f.scope_ptr[a], f.scope_ptr[a + 1]):
            j = f.scope[p]
            if not s.listed[j] and not w.queued[j] and f.card[j] > 1:
                s.listed[j] = True
                s.cand[end] = j
                end += 1
    s.end[level + 1] = end


@inlined
def look(f, w, s):
    """Look at the next set, or the next state of its last member; returns the number of entries."""
    level = s.count[LEVEL]
    u = s.cand[s.spot[level]]
    n_k, x = f.card[u], f.labels[u]
    deepest = level == s.count[REACH] - 1
    if s.state[level] < 0 and not deepest:
        list_neighbours(f, w, s, level, u)
    k = s.state[level] + 1
    gain = size = 0.0
    while k < n_k:
        if k != x:
            gain, size = weigh(f, s, level, u, k)
            if not deepest:
                break
        k += 1
    s.state[level] = k
    if k < n_k and s.spot[level] + 1 < s.end[level + 1]:
        s.old[level] = x
        s.top[level + 1] = set_state(f, u, k, s.top[level])
        s.total[level + 1], s.size[level + 1] = gain, size
        s.spot[level + 1], s.state[level + 1] = s.spot[level] + 1, -1
        s.count[LEVEL] = level + 1
        return 2 * (s.top[level + 1] - s.top[level])
    if k >= n_k:
        if not deepest:
            for at in range(s.end[level], s.end[level + 1]):
                s.listed[s.cand[at]] = False
        s.spot[level] += 1
        s.state[level] = -1
        if s.spot[level] == s.end[level]:
            level -= 1
            s.count[LEVEL] = level
            if level >= 0:
                take_back(f, s.cand[s.spot[level]], s.old[level], s.top[level], s.top[level + 1])
    return n_k


@compiled
def flip_sets(f, w, s, budget, max_visits):
    """Make improving changes until there is none or a budget is spent; returns entries and variables looked at."""
    work, visits = 0, 0
    while work < budget:
        if s.count[LEVEL] >= 0:
            work += look(f, w, s)
            if s.count[LEVEL] < 0:
                s.listed[s.cand[0]] = False
                if s.count[SIZE] > 0:
                    work += make_change(f, w, s.best_var, s.best_state, s.old, s.top, s.count[SIZE])
        elif visits >= max_visits:
            break
        elif w.count[HEAP] > 0:
            work += flip_best(f, w)
            visits += 1
        elif w.count[LENGTH] > 0:
            v = dequeue(w.queue, w.queued, w.count)
            s.cand[0] = v
            s.listed[v] = True
            s.spot[0], s.end[0], s.state[0], s.top[0] = 0, 1, -1, 0
            s.total[0], s.size[0], s.best[0] = 0.0, 0.0, 0.0
            s.count[LEVEL], s.count[SIZE] = 0, 0
            visits += 1
        else:
            break
    return work, visits
