"""The smoothed counterpart of `srmp`, and points of the local polytope read from its multipliers.

Maxima are replaced by ``rho log sum exp(. / rho)``, always with the maximum taken out. The passes minimise the dual of

    <theta, mu> + rho (sum_a H(mu_a) - sum_i (n_i - 1 / omega_i) H(mu_i)),   mu in L_G,

which is smooth, so that they do not come to rest before its minimum. n_i is the number of factors of a variable.
"""

from __future__ import annotations

import math

import numpy as np

from mapmrf.engines.messages.srmp_kernels import (
    BEGIN,
    END,
    FIRST,
    LAM,
    LAST,
    N_OTHER,
    N_OWN,
    OTHER,
    ROLE,
    STEP_OTHER,
    STEP_OWN,
    TABLE,
    THETA_AT,
    collect,
    settle,
    spread,
)
from mapmrf.kernels.jit import bare, compiled, inlined

NOTHING = 40.0
"""A term so many temperatures below the largest adds nothing that a number could hold."""
NO_MASS = 1e-6
"""Mass that a forbidden entry may have, as round-off."""


@inlined
def soften_pair(rho, tables, at, n_other, step_other, step_own, lam, other, out, n_own, mass):
    """Weigh the entries of a pair's table, for every state of this variable, against the best one."""
    for k in range(n_own):
        mass[k] = 0.0
    for j in range(n_other):
        for k in range(n_own):
            below = (tables[at + j * step_other + k * step_own] + lam[other + j] - out[k]) / rho
            if below > -NOTHING:
                mass[k] += math.exp(below)


@inlined
def soften_table(rho, tables, at, first, arity, place, edge_ptr, out, sums, mass):
    """The same for a table of any arity; `sums` as `collect_table` left it."""
    own = first + place
    size = edge_ptr[own + 1] - edge_ptr[own]
    n_outer, n_inner = 1, 1
    for e in range(first, first + arity):
        if e < own:
            n_outer *= edge_ptr[e + 1] - edge_ptr[e]
        elif e > own:
            n_inner *= edge_ptr[e + 1] - edge_ptr[e]
    for k in range(size):
        mass[k] = 0.0
    for o in range(n_outer):
        for k in range(size):
            for i in range(n_inner):
                below = (tables[at] + (sums[o] + sums[n_outer + i]) - out[k]) / rho
                if below > -NOTHING:
                    mass[k] += math.exp(below)
                at += 1


@inlined
def soften(rho, link, tables, edge_ptr, lam, out, n_own, sums, mass):
    """Sum up what all entries weigh beside the best ones, which `collect` has filled in."""
    at, n_other, other = link[TABLE], link[N_OTHER], link[OTHER]
    if n_other > 0:
        soften_pair(rho, tables, at, n_other, link[STEP_OTHER], link[STEP_OWN], lam, other, out, n_own, mass)
        return
    if edge_ptr is None:
        return
    soften_table(rho, tables, at, other, link[STEP_OTHER], link[STEP_OWN], edge_ptr, out, sums, mass)


@inlined
def add_logs(rho, out, mass, n):
    """Close a log-sum-exp; a state without any possible entry stays at -inf."""
    for k in range(n):
        if mass[k] > 0.0:
            out[k] += rho * math.log(mass[k])


@bare
def soft_sweep(forward, rho, visits, links, tables, edge_ptr, theta, omega, keep, lam, mu, scratch, width):
    """Visit all variables in one direction; return the smoothed bound (backward) and fill in the marginals `mu`."""
    n_vars = len(visits)
    belief, mass, work, sums = scratch, scratch[width:], scratch[3 * width :], scratch[4 * width :]
    total = 0.0
    skip, end = (FIRST, LAST) if forward else (LAST, FIRST)
    for v in range(n_vars):
        p = v if forward else n_vars - 1 - v
        visit = visits[p]
        theta_at, n_own = visit[THETA_AT], visit[N_OWN]
        for k in range(n_own):
            belief[k] = theta[theta_at + k]
        for row in range(visit[BEGIN], visit[END]):
            link = links[row]
            mine = link[LAM]
            if link[ROLE] == skip:
                for k in range(n_own):
                    belief[k] -= lam[mine + k]
                continue
            collect(link, tables, edge_ptr, lam, work, n_own, sums)
            soften(rho, link, tables, edge_ptr, lam, work, n_own, sums, mass)
            add_logs(rho, work, mass, n_own)
            top = work[0]
            for k in range(1, n_own):
                top = max(top, work[k])
            if not forward and link[ROLE] == FIRST:
                total += top
            for k in range(n_own):
                belief[k] += work[k] - top
                lam[mine + k] = top - work[k]
        best = settle(visit, links, theta, lam, belief)
        if best == -np.inf:
            return -np.inf
        partition = 0.0
        for k in range(n_own):
            mu[theta_at + k] = math.exp(omega[p] * (belief[k] - best) / rho)
            partition += mu[theta_at + k]
        for k in range(n_own):
            mu[theta_at + k] /= partition
        total += best + keep[p] / omega[p] * rho * math.log(partition)
        for row in range(visit[BEGIN], visit[END]):
            if links[row, ROLE] != end:
                mine = links[row, LAM]
                for k in range(n_own):
                    lam[mine + k] += omega[p] * (belief[k] - best)
    return total


@compiled
def soft_iterate(n_iterations, rho, visits, links, tables, edge_ptr, theta, omega, keep, lam, mu, scratch, width):
    """Run smoothed iterations; return the smoothed bound, without the constant, that the last one proves."""
    total = 0.0
    for half in range(2 * n_iterations):
        total = soft_sweep(half % 2 == 0, rho, visits, links, tables, edge_ptr, theta, omega, keep, lam, mu, scratch,
                           width)  # fmt: skip
    return total


@inlined
def scale_axis(w, n, inner, size, by, at):
    """Multiply a table by ``by[at + s]`` for every state s of one of its variables."""
    t = 0
    while t < n:
        for s in range(size):
            for _ in range(inner):
                w[t] *= by[at + s]
                t += 1


@inlined
def sum_axis(w, n, inner, size, out):
    """Marginal of a table over one of its variables."""
    for s in range(size):
        out[s] = 0.0
    t = 0
    while t < n:
        for s in range(size):
            for _ in range(inner):
                out[s] += w[t]
                t += 1


@bare
def soft_table(rho, theta_t, at, first, last, edge_ptr, turn, mu_at, lam, mu, w):
    """The factor's smoothed distribution: a softmax of its table, given the marginal of its first variable."""
    n = spread(first, last, edge_ptr, lam, w, 0)
    top = -np.inf
    for t in range(n):
        w[t] += theta_t[at + t]
        top = max(top, w[t])
    root = first
    for e in range(first, last):
        root = e if turn[e] < turn[root] else root
    inner = 1
    for e in range(root + 1, last):
        inner *= edge_ptr[e + 1] - edge_ptr[e]
    size = edge_ptr[root + 1] - edge_ptr[root]
    total = 0.0
    for t in range(n):
        w[t] = mu[mu_at[root] + t // inner % size] * math.exp((w[t] - top) / rho)
        total += w[t]
    for t in range(n):
        w[t] = w[t] / total if total > 0.0 else 0.0
    return n


@bare
def couple(rho, theta_t, at, first, last, edge_ptr, turn, mu_at, lam, mu, w, extra, margin):
    """Fill `w` with a joint distribution of a factor whose marginals are exactly those of its variables.

    The smoothed distribution is scaled down along each variable where it has too much; what is then missing is
    filled up by the product of the marginals that are missing.
    """
    n = soft_table(rho, theta_t, at, first, last, edge_ptr, turn, mu_at, lam, mu, w)
    inner = n
    for e in range(first, last):
        size = edge_ptr[e + 1] - edge_ptr[e]
        inner //= size
        sum_axis(w, n, inner, size, margin)
        for s in range(size):
            margin[s] = min(1.0, mu[mu_at[e] + s] / margin[s]) if margin[s] > 0.0 else 1.0
        scale_axis(w, n, inner, size, margin, 0)
    missing = 1.0
    for t in range(n):
        missing -= w[t]
    if missing <= 0.0:
        return n
    for t in range(n):
        extra[t] = missing
    inner = n
    for e in range(first, last):
        size = edge_ptr[e + 1] - edge_ptr[e]
        inner //= size
        sum_axis(w, n, inner, size, margin)
        for s in range(size):
            margin[s] = max(0.0, mu[mu_at[e] + s] - margin[s]) / missing
        scale_axis(extra, n, inner, size, margin, 0)
    for t in range(n):
        w[t] += extra[t]
    return n


@inlined
def best_pair(theta_t, at, p, q, w):
    """The best joint distribution of two binary variables that are 1 with probabilities p and q."""
    together = theta_t[at] + theta_t[at + 3] - theta_t[at + 1] - theta_t[at + 2]
    both = min(p, q) if together >= 0.0 else max(0.0, p + q - 1.0)
    w[0], w[1], w[2], w[3] = max(0.0, 1.0 - p - q + both), q - both, p - both, both


@inlined
def joint_value(theta_t, at, w, n):
    """<theta, w>, -inf with mass on a forbidden entry; the same with a finite price of such mass; the entropy of w."""
    value, entropy = 0.0, 0.0
    forbidden, most = 0.0, 0.0
    low, high = np.inf, -np.inf
    for t in range(n):
        if theta_t[at + t] > -np.inf:
            value += theta_t[at + t] * w[t]
            low = min(low, theta_t[at + t])
            high = max(high, theta_t[at + t])
        else:
            forbidden += w[t]
            most = max(most, w[t])
        if w[t] > 0.0:
            entropy -= w[t] * math.log(w[t])
    priced = value + forbidden * (2.0 * low - high) if forbidden > 0.0 else value
    return -np.inf if most > NO_MASS else value, priced, entropy


@compiled
def project(begin, end, rho, theta_t, table_at, scope_ptr, edge_ptr, turn, mu_at, lam, mu, w, out):
    """Extend marginals of variables to factors, by `couple` or better; return the value of the extension.

    Also the value and the entropy of `couple` alone. Two binary variables have a best extension in closed form. Where
    `out` has room for it, the extension itself is written there. `w` is scratch for three tables.
    """
    third = len(w) // 3
    extra, margin = w[third:], w[2 * third :]
    total, soft, entropy = 0.0, 0.0, 0.0
    place = 0
    for a in range(begin, end):
        at, first, last = table_at[a], scope_ptr[a], scope_ptr[a + 1]
        n = couple(rho, theta_t, at, first, last, edge_ptr, turn, mu_at, lam, mu, w, extra, margin)
        value, of_soft, uncertainty = joint_value(theta_t, at, w, n)
        soft += of_soft
        entropy += uncertainty
        if n == 4 and last - first == 2 and edge_ptr[first + 1] - edge_ptr[first] == 2:
            best_pair(theta_t, at, mu[mu_at[first] + 1], mu[mu_at[first + 1] + 1], extra)
            best, _, _ = joint_value(theta_t, at, extra, n)
            if best > value:
                value = best
                w[0], w[1], w[2], w[3] = extra[0], extra[1], extra[2], extra[3]
        total += value
        if len(out) > 0:
            for t in range(n):
                out[place + t] = w[t]
            place += n
    return total, soft, entropy
