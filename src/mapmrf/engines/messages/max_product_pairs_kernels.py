"""Message passing where all variables are binary and all factors are finite 2x2 tables: one number per message.

With x = -1 or +1 for the two states a table is ``const + a1 x1 + a2 x2 + (c / 2) x1 x2``. The linear parts belong to
the fields `h` of the variables, and a message `d` is its entry for state 1 minus that for state 0. The equations of
`mapmrf.engines.messages.max_product_kernels` become

b_i = h_i + sum_a d_ai,   n_ia = rho_a b_i - d_ai,   d_ai = sign(c_a) clip(n_ja, -|c_a|, |c_a|)

for the two variables i and j of a. Factor `f` has the edges 2 f and 2 f + 1, so the other end of an edge is ``e ^ 1``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.messages.max_product_kernels import MessageSchedule
from mapmrf.engines.messages.visit_order import Neighbours


class PairBeliefs(NamedTuple):
    """A binary pairwise model in fields and couplings, with its messages."""

    scope: Ints  # (n_edges,): the variable of every edge
    # c, rho: (n_factors,): couplings and weights of the factors
    c: Floats
    rho: Floats
    # h, b: (n_vars,): fields and beliefs
    h: Floats
    b: Floats
    d: Floats  # (n_edges,): messages to the variables


@inlined
def clipped(c: float, sent: float) -> float:
    """The message of a factor of strength `c` to one variable, given what the other one sent."""
    width = abs(c)
    return max(-width, min(width, math.copysign(1.0, c) * sent))


@bare
def flood_pairs(pairs: PairBeliefs, scratch: Floats, schedule: MessageSchedule, n: int) -> tuple[int, float]:
    """Some iterations, all messages of each from the beliefs before it.

    Ends early when the largest change that an iteration asks for is at most the tolerance; returns (iterations,
    change).
    """
    scope, c, rho, h, b, d = pairs
    damping = schedule.damping
    worst = np.inf
    done = 0
    while done < n and worst > schedule.tol:
        now, after = (b, scratch) if done % 2 == 0 else (scratch, b)
        for i in range(len(h)):
            after[i] = h[i]
        worst = 0.0
        for f in range(len(c)):
            e1, e2 = 2 * f, 2 * f + 1
            i1, i2 = scope[e1], scope[e2]
            old1, old2 = d[e1], d[e2]
            new1 = clipped(c[f], rho[f] * now[i2] - old2)
            new2 = clipped(c[f], rho[f] * now[i1] - old1)
            worst = max(worst, max(abs(new1 - old1), abs(new2 - old2)))
            new1 += damping * (old1 - new1)
            new2 += damping * (old2 - new2)
            d[e1] = new1
            d[e2] = new2
            after[i1] += new1
            after[i2] += new2
        done += 1
    if done % 2 == 1:
        for i in range(len(h)):
            b[i] = scratch[i]
    return done, worst


@bare
def send_pairs(pairs: PairBeliefs, schedule: MessageSchedule, begin: int, end: int) -> float:
    """The messages of factors `begin` to `end` from beliefs that stay as they are; return the largest change."""
    scope, c, rho, _, b, d = pairs
    worst = 0.0
    for f in range(begin, end):
        e1, e2 = 2 * f, 2 * f + 1
        old1, old2 = d[e1], d[e2]
        new1 = clipped(c[f], rho[f] * b[scope[e2]] - old2)
        new2 = clipped(c[f], rho[f] * b[scope[e1]] - old1)
        worst = max(worst, max(abs(new1 - old1), abs(new2 - old2)))
        d[e1] = new1 + schedule.damping * (old1 - new1)
        d[e2] = new2 + schedule.damping * (old2 - new2)
    return worst


@bare
def gather_pairs(pairs: PairBeliefs, neighbours: Neighbours, begin: int, end: int) -> None:
    """The beliefs of variables `begin` to `end` from the messages: the sums of flooding, in the same order."""
    for i in range(begin, end):
        total = pairs.h[i]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            total += pairs.d[neighbours.edge[at]]
        pairs.b[i] = total


@bare
def sweep_pairs(pairs: PairBeliefs, order: Ints, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
    """The same, each message from the current beliefs; even iterations take the factors in reverse order."""
    scope, c, rho, h, b, d = pairs
    damping = schedule.damping
    worst = np.inf
    m = len(order)
    k = begin
    while k < end and worst > schedule.tol:
        worst = 0.0
        for place in range(m):
            f = order[m - 1 - place if k % 2 == 0 else place]
            e1, e2 = 2 * f, 2 * f + 1
            i1, i2 = scope[e1], scope[e2]
            old1, old2 = d[e1], d[e2]
            new1 = clipped(c[f], rho[f] * b[i2] - old2)
            new2 = clipped(c[f], rho[f] * b[i1] - old1)
            worst = max(worst, max(abs(new1 - old1), abs(new2 - old2)))
            new1 += damping * (old1 - new1)
            new2 += damping * (old2 - new2)
            d[e1] = new1
            d[e2] = new2
            b[i1] += new1 - old1
            b[i2] += new2 - old2
        k += 1
    for i in range(len(h)):  # without the round-off that many small changes have left
        b[i] = h[i]
    for e in range(len(d)):
        b[scope[e]] += d[e]
    return k - begin, worst


@bare
def decode_pairs(pairs: PairBeliefs, neighbours: Neighbours, var_order: Ints, labels: Ints) -> None:
    """The best state of one variable after another, given those before it; 0 on ties."""
    for i in range(len(labels)):
        labels[i] = -1
    for place in range(len(var_order)):
        i = var_order[place]
        score = pairs.h[i]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            e = neighbours.edge[at]
            label = labels[pairs.scope[e ^ 1]]
            score += pairs.d[e] if label < 0 else pairs.c[e >> 1] * (2 * label - 1)
        labels[i] = 1 if score > 0.0 else 0


@bare
def value_of_pairs(pairs: PairBeliefs, labels: Ints) -> float:
    """Log potential of a labelling, but for the constant."""
    scope, c, h = pairs.scope, pairs.c, pairs.h
    total = 0.0
    for i in range(len(h)):
        total += h[i] if labels[i] else -h[i]
    for f in range(len(c)):
        total += c[f] if labels[scope[2 * f]] == labels[scope[2 * f + 1]] else -c[f]
    return 0.5 * total


@bare
def bound_of_pairs(pairs: PairBeliefs, parent: Floats, left: Floats) -> float:
    """Upper bound on every labelling, but for the constant; see `max_product_kernels.bound_of_tables`."""
    scope, c, rho, h, b, d = pairs
    for i in range(len(h)):
        left[i] = h[i]
    total = 0.0
    for f in range(len(c)):
        e1, e2 = 2 * f, 2 * f + 1
        i1, i2 = scope[e1], scope[e2]
        lam1 = (rho[f] - parent[e1]) * b[i1] - d[e1]
        lam2 = (rho[f] - parent[e2]) * b[i2] - d[e2]
        left[i1] -= lam1
        left[i2] -= lam2
        total += max(c[f] + abs(lam1 + lam2), abs(lam1 - lam2) - c[f])
    for i in range(len(h)):
        total += abs(left[i])
    return 0.5 * total
