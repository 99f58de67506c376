"""Iterated local search: perturb a neighbourhood, descend again, keep what is not worse."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.jit import bare, compiled, inlined


@inlined
def draw(random, n):
    """A whole number below `n` (xorshift; the state is ``random[0]``, never 0)."""
    x = random[0]
    x ^= x << np.uint64(13)
    x ^= x >> np.uint64(7)
    x ^= x << np.uint64(17)
    random[0] = x
    return np.int64((x >> np.uint64(11)) % np.uint64(n))


@inlined
def weigh(i, label, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score):
    """Hard entries and finite sum that every state of variable `i` would have, all others as they are."""
    n_k = card[i]
    for k in range(n_k):
        theta = theta_v[var_ptr[i] + k]
        broken[k] = 1 if theta == -np.inf else 0
        score[k] = 0.0 if theta == -np.inf else theta
    for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
        stride = stride_of[e]
        at = place[factor_of[e]] - stride * label
        for k in range(n_k):
            theta = theta_t[at + k * stride]
            if theta == -np.inf:
                broken[k] += 1
            else:
                score[k] += theta


@bare
def move(i, k, labels, nbr_ptr, scope_ptr, scope, factor_of, stride_of, place, queue, queued, state):
    """Set variable `i` to `k` and queue the variables beside it; `state` holds the queue's begin and length."""
    n = len(labels)
    for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
        a = factor_of[e]
        place[a] += stride_of[e] * (k - labels[i])
        for at in range(scope_ptr[a], scope_ptr[a + 1]):
            j = scope[at]
            if j != i and not queued[j]:
                queued[j] = True
                queue[(state[0] + state[1]) % n] = j
                state[1] += 1
    labels[i] = k


@compiled
def perturb_and_descend(
    budget: int, random: Ints, largest: int, labels: Ints, place: Ints, card: Ints, var_ptr: Ints, theta_v: Floats,
    theta_t: Floats, nbr_ptr: Ints, scope_ptr: Ints, scope: Ints, factor_of: Ints, stride_of: Ints, queue: Ints,
    queued: Bools, state: Ints, log: Ints, broken: Ints, score: Floats, max_trials: int,
) -> int:  # fmt: skip
    """Descend from the queue; then draw neighbourhoods of up to `largest` variables at random and descend again.

    A trial that breaks more hard entries, or as many at a lower sum, is undone. At most `max_trials`, and about
    `budget` table entries; returns the number of trials. `log` has room for the changes of one trial.
    """
    n = len(labels)
    room = len(log) // 2
    trials = 0
    first = state[1] > 0  # what the queue begins with is no trial: nothing of it is undone
    while budget > 0 and (first or trials < max_trials):
        gain, mended, n_log = 0.0, 0, 0
        scale = 0.0
        if not first:
            trials += 1
            size = 1 + draw(random, largest)
            i = draw(random, n)
            for _ in range(size):
                weigh(
                    i, labels[i], card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score
                )
                k = draw(random, card[i])
                gain += score[k] - score[labels[i]]
                mended -= broken[k] - broken[labels[i]]
                log[2 * n_log], log[2 * n_log + 1] = i, labels[i]
                n_log += 1
                move(i, k, labels, nbr_ptr, scope_ptr, scope, factor_of, stride_of, place, queue, queued, state)
                budget -= card[i] * (nbr_ptr[i + 1] - nbr_ptr[i])
                if nbr_ptr[i + 1] == nbr_ptr[i]:
                    break
                a = factor_of[nbr_ptr[i] + draw(random, nbr_ptr[i + 1] - nbr_ptr[i])]
                i = scope[scope_ptr[a] + draw(random, scope_ptr[a + 1] - scope_ptr[a])]
        while state[1] > 0 and (budget > 0 or not first):
            i = queue[state[0]]
            state[0] = (state[0] + 1) % n
            state[1] -= 1
            queued[i] = False
            old = labels[i]
            weigh(i, old, card, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, stride_of, place, broken, score)
            budget -= card[i] * (1 + nbr_ptr[i + 1] - nbr_ptr[i])
            k = old
            for s in range(card[i]):
                # a margin above round-off, so that equal states do not take turns for ever
                margin = 1e-13 * (abs(score[s]) + abs(score[k]))
                if broken[s] < broken[k] or (broken[s] == broken[k] and score[s] > score[k] + margin):
                    k = s
            if k == old or (not first and n_log == room):
                continue
            gain += score[k] - score[old]
            mended -= broken[k] - broken[old]
            scale += abs(score[k]) + abs(score[old])
            if not first:
                log[2 * n_log], log[2 * n_log + 1] = i, old
                n_log += 1
            move(i, k, labels, nbr_ptr, scope_ptr, scope, factor_of, stride_of, place, queue, queued, state)
        if not first and (mended < 0 or (mended == 0 and gain < -1e-13 * scale)):
            for at in range(n_log - 1, -1, -1):
                i = log[2 * at]
                for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                    place[factor_of[e]] += stride_of[e] * (log[2 * at + 1] - labels[i])
                labels[i] = log[2 * at + 1]
        first = False
    return trials
