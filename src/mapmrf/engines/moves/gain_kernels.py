"""What every single flip would gain, kept up to date: the ground that flips, chains and restarts stand on.

The table of scores holds, for every state of every variable, the sum of all potentials of that variable if it took that
state and all others stayed. A flip changes the scores of neighbours alone. Trial flips are logged and taken back to the
last bit; committed ones add round-off, so that a row is summed afresh after as many commits as it has factors.

Forbidden entries (-inf) count as `floor`, which is lower than any finite sum of one move. It serves to find moves; a
move is made only if its exact gain says so: fewer forbidden entries first, then the finite sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.kernels.jit import compiled, inlined

Array = Any
"""An array, of a kind that numba finds out."""

MARGIN = 1e-13
"""Gains below this part of the entries that they are a difference of are round-off."""
HINT = 1e-12
"""The same for gains that are read off the table of scores."""
OVERHEAD = 16
"""Table entries that take as long as finding a variable's place in heap and queue."""
FRESH = 16
"""Commits after which a row is summed afresh, at least."""

LENGTH, HEAD, HEAP, NOTED = 0, 1, 2, 3
"""Places in `Front.count`: length and begin of the queue, size of the heap, number of noted variables."""


class Field(NamedTuple):
    """A model with a labelling, and what each flip would gain.

    Attributes
    ----------
    nbr_ptr, factor_of, stride_of
        Factors of every variable, and the variable's stride in the table of each.
    scope_ptr, scope, scope_stride
        Variables of every factor, and their strides.
    floor
        What a forbidden entry counts as; -inf if there is none.
    labels, place, score, age
        The labelling; the entry of `theta_t` that each factor takes under it; the table of scores; commits since a
        variable's row was summed.
    log_at, log_score
        Entries of `score` before trial flips, for taking them back.
    """

    card: Array
    var_ptr: Array
    theta_v: Array
    theta_t: Array
    nbr_ptr: Array
    factor_of: Array
    stride_of: Array
    scope_ptr: Array
    scope: Array
    scope_stride: Array
    floor: float
    labels: Array
    place: Array
    score: Array
    age: Array
    log_at: Array
    log_score: Array


class Front(NamedTuple):
    """Where to look next: a heap of variables whose flip gains, and a queue of those with a changed surrounding.

    Attributes
    ----------
    heap, where, key, flip
        Variables in a binary heap, their places in it (-1 if not there), and the gain and the state of each one's best
        flip.
    queue, queued
        A ring of variables, and who is in it.
    noted, origin, is_noted
        Variables that changed since the notes were cleared, and their labels before.
    count
        Lengths; see the constants of this module.
    """

    heap: Array
    where: Array
    key: Array
    flip: Array
    queue: Array
    queued: Array
    noted: Array
    origin: Array
    is_noted: Array
    count: Array


# -- scores -----------------------------------------------------------------------------------------------------------


@inlined
def sum_row(f, i):
    """Sum the scores of a variable afresh; returns the number of entries."""
    row, n_k = f.var_ptr[i], f.card[i]
    for k in range(n_k):
        f.score[row + k] = max(f.theta_v[row + k], f.floor)
    for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
        stride = f.stride_of[e]
        at = f.place[f.factor_of[e]] - stride * f.labels[i]
        for k in range(n_k):
            f.score[row + k] += max(f.theta_t[at + k * stride], f.floor)
    f.age[i] = 0
    return n_k * (1 + f.nbr_ptr[i + 1] - f.nbr_ptr[i])


@inlined
def set_state(f, i, k, top):
    """Set a variable and the scores of its neighbours; what these were goes to the log from `top`. Returns its end."""
    old = f.labels[i]
    for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
        a = f.factor_of[e]
        here = f.place[a]
        shift = f.stride_of[e] * (k - old)
        f.place[a] = here + shift
        for p in range(f.scope_ptr[a], f.scope_ptr[a + 1]):
            j = f.scope[p]
            if j != i:
                stride = f.scope_stride[p]
                at = here - stride * f.labels[j]
                row = f.var_ptr[j]
                for s in range(row, row + f.card[j]):
                    f.log_at[top] = s
                    f.log_score[top] = f.score[s]
                    top += 1
                    f.score[s] += max(f.theta_t[at + shift], f.floor) - max(f.theta_t[at], f.floor)
                    at += stride
    f.labels[i] = k
    return top


@inlined
def take_back(f, i, old, begin, top):
    """Undo the last `set_state`, whose log began at `begin` and ended at `top`."""
    for t in range(top - 1, begin - 1, -1):
        f.score[f.log_at[t]] = f.log_score[t]
    for e in range(f.nbr_ptr[i], f.nbr_ptr[i + 1]):
        f.place[f.factor_of[e]] += f.stride_of[e] * (old - f.labels[i])
    f.labels[i] = old


@inlined
def exact_gain(f, i, k):
    """What a flip gains: forbidden entries mended, the finite sum, and what of that sum may be round-off."""
    row, old = f.var_ptr[i], f.labels[i]
    mended, gain, size = 0, 0.0, 0.0
    was, new = f.theta_v[row + old], f.theta_v[row + k]
    for e in range(f.nbr_ptr[i] - 1, f.nbr_ptr[i + 1]):
        if e >= f.nbr_ptr[i]:
            at = f.place[f.factor_of[e]]
            was, new = f.theta_t[at], f.theta_t[at + f.stride_of[e] * (k - old)]
        if was == -np.inf:
            mended += 1
            was = 0.0
        if new == -np.inf:
            mended -= 1
            new = 0.0
        gain += new - was
        size += abs(new) + abs(was)
    return mended, gain, MARGIN * size


# -- the heap and the queue -------------------------------------------------------------------------------------------


@inlined
def rank(f, w, i, stay):
    """Find a variable's best flip, and put it into the heap where that gains and it may `stay`; else take it out."""
    row, old = f.var_ptr[i], f.labels[i]
    best, top = -1, -np.inf
    for k in range(f.card[i]):
        if k != old and f.score[row + k] > top:
            best, top = k, f.score[row + k]
    now = f.score[row + old]
    at, who = w.where[i], i
    w.flip[i] = best
    w.key[i] = top - now
    if stay and best >= 0 and top - now > HINT * (abs(top) + abs(now)):
        if at < 0:
            at = w.count[HEAP]
            w.count[HEAP] += 1
    elif at >= 0:
        w.where[i] = -1
        w.count[HEAP] -= 1
        who = w.heap[w.count[HEAP]]
        at = at if who != i else -1
    if at >= 0:
        sift(w, who, at)


@inlined
def sift(w, i, at):
    """Let variable `i`, for which there is room at `at`, find its place in the heap: best gain first, then number."""
    heap, where, key, n = w.heap, w.where, w.key, w.count[HEAP]
    while at > 0:
        up = heap[(at - 1) // 2]
        if key[up] > key[i] or (key[up] == key[i] and up < i):
            break
        heap[at] = up
        where[up] = at
        at = (at - 1) // 2
    while 2 * at + 1 < n:
        child = 2 * at + 1
        down = heap[child]
        if child + 1 < n:
            other = heap[child + 1]
            if key[other] > key[down] or (key[other] == key[down] and other < down):
                child, down = child + 1, other
        if key[down] < key[i] or (key[down] == key[i] and down > i):
            break
        heap[at] = down
        where[down] = at
        at = child
    heap[at] = i
    where[i] = at


@inlined
def enqueue(queue, queued, count, i):
    """Put a variable at the end of the queue, unless it is in it."""
    if not queued[i]:
        queued[i] = True
        queue[(count[HEAD] + count[LENGTH]) % len(queue)] = i
        count[LENGTH] += 1


@inlined
def dequeue(queue, queued, count):
    """Take the first variable off the queue."""
    i = queue[count[HEAD]]
    queued[i] = False
    count[HEAD] = (count[HEAD] + 1) % len(queue)
    count[LENGTH] -= 1
    return i


@inlined
def commit(f, w, i, old):
    """Make a flip final: note it, and rank and queue the variable and its neighbours. Returns the entries read."""
    if not w.is_noted[i]:
        w.is_noted[i] = True
        w.origin[i] = old
        w.noted[w.count[NOTED]] = i
        w.count[NOTED] += 1
    work = 0
    a = -1
    p, end = 0, 1
    e = f.nbr_ptr[i] - 1
    while True:
        j = i if a < 0 else f.scope[p]
        if a < 0 or j != i:
            f.age[j] += 0 if a < 0 else 1
            # what came and went by the floor leaves more round-off than a few sums
            if f.age[j] > 0 and (f.floor > -np.inf or f.age[j] > max(FRESH, f.nbr_ptr[j + 1] - f.nbr_ptr[j])):
                work += sum_row(f, j)
            rank(f, w, j, True)
            enqueue(w.queue, w.queued, w.count, j)
            work += f.card[j] + OVERHEAD
        p += 1
        if p == end:
            e += 1
            if e == f.nbr_ptr[i + 1]:
                break
            a = f.factor_of[e]
            p, end = f.scope_ptr[a], f.scope_ptr[a + 1]
    return work


@inlined
def flip_best(f, w):
    """Make the best single flip of the heap, if its exact gain bears it out; returns the number of entries."""
    i = w.heap[0]
    k, old = w.flip[i], f.labels[i]
    mended, gain, margin = exact_gain(f, i, k)
    if mended < 0 or (mended == 0 and gain <= margin):
        rank(f, w, i, False)
        return 1
    top = set_state(f, i, k, 0)
    return 2 * top + commit(f, w, i, old)


@inlined
def make_change(f, w, who, state, old, top, n):
    """Make `n` flips, if their exact gain together bears it out; returns the entries. `old` and `top` are scratch."""
    mended, gain, margin = 0, 0.0, 0.0
    top[0] = 0
    for at in range(n):
        part_mended, part_gain, part_margin = exact_gain(f, who[at], state[at])
        mended, gain, margin = mended + part_mended, gain + part_gain, margin + part_margin
        old[at] = f.labels[who[at]]
        top[at + 1] = set_state(f, who[at], state[at], top[at])
    work = 2 * top[n]
    good = mended > 0 or (mended == 0 and gain > margin)
    for t in range(n):
        at = t if good else n - 1 - t
        if good:
            work += commit(f, w, who[at], old[at])
        else:
            take_back(f, who[at], old[at], top[at], top[at + 1])
    return work


@compiled
def freshen(f, w, least):
    """Sum all rows that have aged by `least`, rank them, and note that nothing has changed; returns the entries.

    With `least` 0 that is a new beginning: every row is summed, and everybody queued.
    """
    work = 0
    for i in range(len(f.card)):
        if least == 0:
            enqueue(w.queue, w.queued, w.count, i)
        if f.age[i] >= least:
            work += sum_row(f, i)
            rank(f, w, i, True)
    return work
