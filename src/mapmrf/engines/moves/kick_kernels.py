"""Kicks: draw a small region anew, repair it, and keep of what has changed the parts that are worth it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.engines.moves.chain_kernels import VARIABLE, follow_chains
from mapmrf.engines.moves.flip_kernels import LEVEL, flip_sets
from mapmrf.engines.moves.gain_kernels import HEAD, HEAP, LENGTH, NOTED, Array, commit, set_state
from mapmrf.engines.moves.local_search_kernels import draw
from mapmrf.kernels.jit import bare, compiled

KICKED, KICKS, TAKEN = 0, 1, 2
"""Places in `Kick.count`: whether a kick waits for its verdict, kicks so far, and kicks of which something was kept."""

UNTOLD = 1 << 60


class Kick(NamedTuple):
    """Scratch and count of kicks.

    Attributes
    ----------
    random
        State of the random numbers.
    part, seen, looked
        A connected part of what has changed; variables and factors that the search for it has met.
    count
        See the constants of this module.
    """

    random: Array
    part: Array
    seen: Array
    looked: Array
    count: Array


@bare
def kick(f, w, r, largest):
    """Draw labels for a random variable and those nearest to it, `largest` variables at most; returns the entries."""
    for t in range(w.count[NOTED]):
        w.is_noted[w.noted[t]] = False
    w.count[NOTED] = 0
    size = 1 + draw(r.random, largest)
    r.part[0] = draw(r.random, len(f.card))
    r.seen[r.part[0]] = True
    at, end, work = 0, 1, 0
    while at < end:
        i = r.part[at]
        at += 1
        for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
            a = f.factor_of[e]
            for p in range(f.scope_ptr[a], f.scope_ptr[a + 1]):
                j = f.scope[p]
                if not r.seen[j] and end < size:
                    r.seen[j] = True
                    r.part[end] = j
                    end += 1
        old = f.labels[i]
        k = draw(r.random, f.card[i])
        if k != old:
            work += 2 * set_state(f, i, k, 0) + commit(f, w, i, old)
    for at in range(end):
        r.seen[r.part[at]] = False
    return work + end


@bare
def gather(f, w, r, first):
    """Collect the changed variables that hang together with `first`, and what their change has gained.

    Returns their number, the forbidden entries mended, and the finite gain.
    """
    r.part[0] = first
    r.seen[first] = True
    at, end = 0, 1
    mended, gain = 0, 0.0
    while at < end:
        i = r.part[at]
        at += 1
        new, was = f.theta_v[f.var_ptr[i] + f.labels[i]], f.theta_v[f.var_ptr[i] + w.origin[i]]
        mended += int(was == -np.inf) - int(new == -np.inf)
        gain += (new if new > -np.inf else 0.0) - (was if was > -np.inf else 0.0)
        for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
            a = f.factor_of[e]
            if r.looked[a]:
                continue
            r.looked[a] = True
            before = f.place[a]
            for p in range(f.scope_ptr[a], f.scope_ptr[a + 1]):
                j = f.scope[p]
                if w.is_noted[j] and f.labels[j] != w.origin[j]:
                    before += f.scope_stride[p] * (w.origin[j] - f.labels[j])
                    if not r.seen[j]:
                        r.seen[j] = True
                        r.part[end] = j
                        end += 1
            new, was = f.theta_t[f.place[a]], f.theta_t[before]
            mended += int(was == -np.inf) - int(new == -np.inf)
            gain += (new if new > -np.inf else 0.0) - (was if was > -np.inf else 0.0)
    return end, mended, gain


@bare
def settle(f, w, r, temperature):
    """Take back every part of the change that is worse, or keep it with the Metropolis probability.

    Returns the number of entries. Where nothing is kept, nobody has to be looked at again.
    """
    kept = work = 0
    n = w.count[NOTED]
    for t in range(n):
        first = w.noted[t]
        if r.seen[first] or f.labels[first] == w.origin[first]:
            continue
        end, mended, gain = gather(f, w, r, first)
        level = (draw(r.random, 1 << 53) + 1.0) / (1 << 53)
        good = mended > 0 or (mended == 0 and (gain >= 0.0 or gain > temperature * np.log(level)))
        kept += int(good)
        for at in range(end):
            i = r.part[at]
            work += f.card[i]
            if not good:
                old = f.labels[i]
                work += 2 * set_state(f, i, w.origin[i], 0) + commit(f, w, i, old)
    for t in range(n):
        i = w.noted[t]
        r.seen[i] = False
        for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
            r.looked[f.factor_of[e]] = False
    if kept == 0:
        for t in range(w.count[LENGTH]):
            w.queued[w.queue[(w.count[HEAD] + t) % len(w.queue)]] = False
        w.count[LENGTH] = 0
    r.count[TAKEN] += int(kept > 0)
    return work


@bare
def next_kick(f, w, r, largest, temperature, max_kicks):
    """Judge the last kick if that is due, else kick again; returns the entries, -1 if there is no kick left."""
    if r.count[KICKED] == 1:
        r.count[KICKED] = 0
        r.count[KICKS] += 1
        return settle(f, w, r, temperature)
    if r.count[KICKS] >= max_kicks:
        return -1
    r.count[KICKED] = 1
    return kick(f, w, r, largest)


@compiled
def kick_and_flip(f, w, s, r, largest, temperature, budget, max_kicks):
    """Kick and repair by flips of sets, until a budget is spent or all kicks are done; returns the entries."""
    work = 0
    while work < budget:
        entries, _ = flip_sets(f, w, s, budget - work, np.int64(UNTOLD))
        work += entries
        if s.count[LEVEL] < 0 and w.count[HEAP] == 0 and w.count[LENGTH] == 0:
            entries = next_kick(f, w, r, largest, temperature, max_kicks)
            if entries < 0:
                break
            work += entries
    return work


@compiled
def kick_and_chain(f, w, c, r, largest, temperature, breadth, budget, max_kicks):
    """Kick and repair by chains, until a budget is spent or all kicks are done; returns the entries."""
    work = 0
    while work < budget:
        entries, _ = follow_chains(f, w, c, breadth, budget - work, np.int64(UNTOLD))
        work += entries
        if c.count[VARIABLE] < 0 and w.count[HEAP] == 0 and w.count[LENGTH] == 0:
            entries = next_kick(f, w, r, largest, temperature, max_kicks)
            if entries < 0:
                break
            work += entries
    return work
