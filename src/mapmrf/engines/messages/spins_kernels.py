"""Sequential tree-reweighted passes over binary pairwise models, in spins.

A table of two binary variables is ``c + a s + b t + J s t`` with spins s, t = -1 (state 0) or +1 (state 1). The linear
parts are moved into the fields `h` of the variables, so a factor is its coupling `J` alone and a message is one
number: half the difference between its two entries. Variables are numbered in the order in which they are visited.

up, ptr       the later end of every edge, and where the edges of each earlier end start.
down, id, back_ptr   the same edges by their later end: the earlier end, and the number of the edge.
d             the message on every edge: to its earlier end after a backward pass, to its later end after a forward one.
from_low, from_up    sums of the messages that a variable has from earlier and from later variables.
"""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import bare, compiled, inlined

# Entries of `par`, the scalars of a run that are read and written here and by `srmp`.
BOUND, VALUE, CONSTANT, TOL, GAP_TOL, CALM = range(6)
PAR_SIZE = 6
# Why a kernel stopped.
LIMIT, CLOSED, AT_REST, INFEASIBLE = range(4)
TINY = 1e-300
"""Taken off a sum before its sign is read, so that 0 counts as negative: ties go to the state 0."""
PATIENCE = 5
"""Iterations in a row that must improve the bound by less than the tolerance before a run has converged."""


@compiled
def lay_out(scope, rank, theta_t, table_at, h, up, ptr, down, id, back_ptr, coupling):
    """Turn 2x2 tables into couplings and fields (added to `h`) and sort the edges both ways; return the constant."""
    n_edges = len(table_at)
    for a in range(n_edges):
        s, t = rank[scope[2 * a]], rank[scope[2 * a + 1]]
        ptr[min(s, t) + 1] += 1
        back_ptr[max(s, t) + 1] += 1
    for s in range(len(h)):
        ptr[s + 1] += ptr[s]
        back_ptr[s + 1] += back_ptr[s]
    constant = 0.0
    for a in range(n_edges):
        s, t, at = rank[scope[2 * a]], rank[scope[2 * a + 1]], table_at[a]
        t00, t01, t10, t11 = theta_t[at], theta_t[at + 1], theta_t[at + 2], theta_t[at + 3]
        constant += (t00 + t01 + t10 + t11) / 4.0
        h[s] += (t10 + t11 - t00 - t01) / 4.0
        h[t] += (t01 + t11 - t00 - t10) / 4.0
        e = ptr[min(s, t)]
        ptr[min(s, t)] += 1  # for now where the next edge goes
        up[e] = max(s, t)
        coupling[e] = (t00 + t11 - t01 - t10) / 4.0
    for s in range(len(h) - 1, -1, -1):
        ptr[s + 1] = ptr[s]
    ptr[0] = 0
    for s in range(len(h)):
        for e in range(ptr[s], ptr[s + 1]):
            k = back_ptr[up[e]]
            back_ptr[up[e]] += 1
            down[k] = s
            id[k] = e
    for s in range(len(h) - 1, -1, -1):
        back_ptr[s + 1] = back_ptr[s]
    back_ptr[0] = 0
    return constant


@bare
def forward(h, omega, up, ptr, coupling, d, from_low, from_up, fixed, labels, decode, constant):
    """Pass messages to later variables; return the value of the labelling that is fixed on the way, if any.

    Each label is the best given those that are fixed already (`fixed`: their couplings) and the messages of the others.
    """
    value = constant
    for s in range(len(h)):
        field = h[s]
        late = from_up[s]
        spin = 0.0
        if decode:
            known = field + fixed[s]
            fixed[s] = 0.0
            spin = np.copysign(1.0, known + late - TINY)
            labels[s] = spin > 0.0
            value += known * spin
        share = omega[s] * (field + from_low[s] + late)
        from_up[s] = 0.0
        for e in range(ptr[s], ptr[s + 1]):
            t = up[e]
            j = coupling[e]
            most = abs(j)
            sent = min(max(np.copysign(1.0, j) * (share - d[e]), -most), most)
            d[e] = sent
            from_low[t] += sent
            if decode:
                fixed[t] += j * spin
    return value


@bare
def backward(h, omega, keep, down, id, back_ptr, coupling, d, from_low, from_up, fixed, labels, decode, constant):
    """Pass messages to earlier variables; return the upper bound that they prove, and the value as in `forward`."""
    bound, value = constant, constant
    for s in range(len(h) - 1, -1, -1):
        field = h[s]
        early = from_low[s]
        spin = 0.0
        if decode:
            known = field + fixed[s]
            fixed[s] = 0.0
            spin = np.copysign(1.0, known + early - TINY)
            labels[s] = spin > 0.0
            value += known * spin
        belief = field + early + from_up[s]
        from_low[s] = 0.0
        bound += keep[s] * abs(belief)
        share = omega[s] * belief
        for k in range(back_ptr[s], back_ptr[s + 1]):
            e = id[k]
            u = down[k]
            j = coupling[e]
            most = abs(j)
            rest = share - d[e]
            bound += max(abs(rest), most)
            sent = min(max(np.copysign(1.0, j) * rest, -most), most)
            d[e] = sent
            from_up[u] += sent
            if decode:
                fixed[u] += j * spin
    return bound, value


@inlined
def keep_best(par, value, labels, best):
    """Keep a labelling if it is worth more than the best so far."""
    if value > par[VALUE]:
        par[VALUE] = value
        for s in range(len(best)):
            best[s] = labels[s]


@bare
def at_rest(par, bound):
    """Take a bound over; return CLOSED, AT_REST, or LIMIT when there is more to do."""
    gain = par[BOUND] - bound
    par[BOUND] = min(par[BOUND], bound)
    if par[VALUE] > -np.inf and bound - par[VALUE] <= par[GAP_TOL] * abs(par[VALUE]):
        return CLOSED
    par[CALM] = par[CALM] + 1.0 if gain <= par[TOL] * abs(bound) else 0.0
    return AT_REST if par[CALM] >= PATIENCE else LIMIT


@compiled
def iterate_binary(
    n_iterations, done, decode_every, par, h, omega, keep, up, ptr, down, id, back_ptr, coupling, d, from_low, from_up,
    fixed, labels, best,
):  # fmt: skip
    """Run iterations until a limit, a closed gap or rest; return how many, and why it stopped."""
    for n in range(n_iterations):
        decode = (done + n) % decode_every == 0
        value = forward(h, omega, up, ptr, coupling, d, from_low, from_up, fixed, labels, decode, par[CONSTANT])
        if decode:
            keep_best(par, value, labels, best)
        bound, value = backward(h, omega, keep, down, id, back_ptr, coupling, d, from_low, from_up, fixed, labels,
                                decode, par[CONSTANT])  # fmt: skip
        if decode:
            keep_best(par, value, labels, best)
        why = at_rest(par, bound)
        if why != LIMIT:
            return n + 1, why
    return n_iterations, LIMIT
