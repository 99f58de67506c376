"""Sequential reweighted message passing on tables of any shape and arity.

Variables are visited one after another, forward and backward. `lam` holds the multipliers of the rows mu_i = M_ia mu_a,
laid out like `lam_e`: the factors' tables are ``theta_a + sum_i lam_ia`` and the variables' ``theta_i - sum_a lam_ia``.
A visit *collects* from factors: `lam` is set so that all max-marginals of the factor at this variable are equal; what
the factor knew is then in the variable. It then *distributes*: each of the factors that come next gets the share
`omega` of the sum.

visits    a row per variable in the order of the visits, links a row per (variable, factor) pair in the same order; the
          columns are named below. turn: for every edge the place of its variable in the order.
theta     the unary potentials; states that are found to be impossible are set to -inf here.
labels    by place in the order.
A state that is impossible has lam = -inf in all its factors, every other a finite one.
"""

from __future__ import annotations

import numpy as np

from mapmrf.engines.messages.spins_kernels import CONSTANT, INFEASIBLE, LIMIT, at_rest, keep_best
from mapmrf.kernels.jit import bare, compiled, inlined

# Columns of `visits`: where the variable's block of `theta` starts, its states, its rows of `links`.
THETA_AT, N_OWN, BEGIN, END = range(4)
# Columns of `links`. A pair factor: where its table starts, the states of the other variable, where the other's block
# of `lam` starts, what a state of the other and of this variable add to the place in the table, the other's turn.
# Any other factor has n_other = 0; OTHER is its first edge, STEP_OTHER its arity, STEP_OWN its place in the scope.
LAM, TABLE, N_OTHER, OTHER, STEP_OTHER, STEP_OWN, ROLE, OTHER_TURN = range(8)
N_COLUMNS = 8
# Roles: the variable is the first of the factor to be visited in a forward pass, the last, or in between.
FIRST, LAST, BETWEEN = range(3)


@inlined
def collect_pair(tables, at, n_other, step_other, step_own, lam, other, out, n_own):
    """Best entry of a pair's table for every state of this variable, the other's multipliers included."""
    # Unsigned places need no check for negative ones, which would keep the inner loop from being vectorised.
    row, step, n = np.uintp(at), np.uintp(step_other), np.uintp(n_own)
    begin = np.uintp(other)
    for k in range(n):
        out[k] = -np.inf
    if step_own == 1:
        for j in range(np.uintp(n_other)):
            given = lam[begin + j]
            for k in range(n):
                value = tables[row + k] + given
                out[k] = value if value > out[k] else out[k]
            row += step
    else:
        step_own = np.uintp(step_own)
        for j in range(np.uintp(n_other)):
            given = lam[begin + j]
            for k in range(n):
                value = tables[row + k * step_own] + given
                out[k] = value if value > out[k] else out[k]
            row += step


@inlined
def spread(begin, end, edge_ptr, lam, sums, at):
    """Put the sums of multipliers of all joint states of some edges into `sums` from `at` on; return their number."""
    sums[at] = 0.0
    n = 1
    for e in range(begin, end):
        first = edge_ptr[e]
        size = edge_ptr[e + 1] - first
        # From the end, so that nothing is overwritten before it is read.
        for c in range(n - 1, -1, -1):
            base = sums[at + c]
            for s in range(size):
                sums[at + c * size + s] = base + lam[first + s]
        n *= size
    return n


@inlined
def collect_table(tables, at, first, arity, place, edge_ptr, lam, out, sums):
    """The same as `collect_pair` for a table of any arity."""
    own = first + place
    size = edge_ptr[own + 1] - edge_ptr[own]
    n_outer = spread(first, own, edge_ptr, lam, sums, 0)
    n_inner = spread(own + 1, first + arity, edge_ptr, lam, sums, n_outer)
    for s in range(size):
        out[s] = -np.inf
    t = np.uintp(at)
    n, one, begin = np.uintp(n_inner), np.uintp(1), np.uintp(n_outer)
    for o in range(n_outer):
        outer = sums[o]
        for s in range(size):
            best = out[s]
            for i in range(n):
                value = tables[t] + (outer + sums[begin + i])
                best = value if value > best else best
                t += one
            out[s] = best


@inlined
def collect(link, tables, edge_ptr, lam, out, n_own, sums):
    """`collect_pair` or `collect_table`, as the factor needs it; a model of pairs alone gives None as `edge_ptr`."""
    at, n_other, other = link[TABLE], link[N_OTHER], link[OTHER]
    if n_other > 0:
        collect_pair(tables, at, n_other, link[STEP_OTHER], link[STEP_OWN], lam, other, out, n_own)
        return
    if edge_ptr is None:  # known when the kernel is compiled: models of pairs need not wait for what follows
        return
    collect_table(tables, at, other, link[STEP_OTHER], link[STEP_OWN], edge_ptr, lam, out, sums)


@inlined
def fixed_table(forward, tables, at, first, arity, place, edge_ptr, turn, lam, labels, out, sums, places):
    """Best entry for every state of this variable, given the labels of all variables that are visited before it."""
    own = turn[first + place]
    step_own = 0
    step = 1
    n = 1
    places[0] = 0
    sums[0] = 0.0
    for e in range(first + arity - 1, first - 1, -1):
        size = edge_ptr[e + 1] - edge_ptr[e]
        if turn[e] == own:
            step_own = step
        elif (turn[e] < own) == forward:
            at += step * labels[turn[e]]
        else:  # all joint states of the variables to come
            for c in range(n):
                for s in range(size - 1, -1, -1):
                    places[s * n + c] = places[c] + s * step
                    sums[s * n + c] = sums[c] + lam[edge_ptr[e] + s]
            n *= size
        step *= size
    for s in range(edge_ptr[first + place + 1] - edge_ptr[first + place]):
        best = -np.inf
        for c in range(n):
            best = max(best, tables[at + s * step_own + places[c]] + sums[c])
        out[s] = best


@inlined
def fixed(forward, link, tables, edge_ptr, turn, lam, labels, out, n_own, sums, places):
    """Best entries for every state of this variable, given the labels that are fixed already."""
    at = link[TABLE]
    if link[N_OTHER] > 0:
        at += link[STEP_OTHER] * labels[link[OTHER_TURN]]
        for k in range(n_own):
            out[k] = tables[at + k * link[STEP_OWN]]
        return
    if edge_ptr is None:
        return
    fixed_table(forward, tables, at, link[OTHER], link[STEP_OTHER], link[STEP_OWN], edge_ptr, turn, lam, labels, out,
                sums, places)  # fmt: skip


@bare
def choose(forward, visit, links, tables, edge_ptr, turn, theta, lam, labels, scratch, places):
    """Fix a variable's label given those of the variables before it; return it, and what is known of its value."""
    begins, ends = (FIRST, LAST) if forward else (LAST, FIRST)
    n_own, width = visit[N_OWN], (len(scratch) - len(places)) // 4
    score, known, work, sums = scratch[width:], scratch[2 * width :], scratch[3 * width :], scratch[4 * width :]
    for k in range(n_own):
        known[k] = theta[visit[THETA_AT] + k]
        score[k] = 0.0
    for row in range(visit[BEGIN], visit[END]):
        link = links[row]
        if link[ROLE] == begins:
            for k in range(n_own):
                score[k] -= lam[link[LAM] + k]
            continue
        fixed(forward, link, tables, edge_ptr, turn, lam, labels, work, n_own, sums, places)
        to = known if link[ROLE] == ends else score
        for k in range(n_own):
            to[k] += work[k]
    best = 0
    for k in range(1, n_own):
        # An impossible state has -inf in `known` and perhaps not a number in `score`.
        if known[k] > -np.inf and (known[best] == -np.inf or known[k] + score[k] > known[best] + score[best]):
            best = k
    return best, known[best]


@bare
def sweep(forward, decode, visits, links, tables, edge_ptr, turn, theta, omega, lam, labels, scratch, places):
    """Visit all variables in one direction; return the bound that a backward one proves, and the labelling's value.

    The bound is -inf when a variable has no possible state left.
    """
    n_vars, width = len(visits), (len(scratch) - len(places)) // 4
    belief, work, sums = scratch, scratch[3 * width :], scratch[4 * width :]
    bound, value = 0.0, 0.0
    skip, end = (FIRST, LAST) if forward else (LAST, FIRST)
    for v in range(n_vars):
        p = v if forward else n_vars - 1 - v
        visit = visits[p]
        theta_at, n_own = visit[THETA_AT], visit[N_OWN]
        if decode:
            label, known = choose(forward, visit, links, tables, edge_ptr, turn, theta, lam, labels, scratch, places)
            labels[p] = label
            value += known
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
            top = work[0]
            for k in range(1, n_own):
                top = max(top, work[k])
            if top == -np.inf:
                for k in range(n_own):
                    theta[theta_at + k] = -np.inf  # the next sweep must find it too
                return -np.inf, -np.inf
            if link[ROLE] == FIRST:
                bound += top
            for k in range(n_own):
                belief[k] += work[k] - top
                lam[mine + k] = top - work[k]
        best = settle(visit, links, theta, lam, belief)
        if best == -np.inf:
            return -np.inf, -np.inf
        bound += best
        for row in range(visit[BEGIN], visit[END]):
            if links[row, ROLE] != end:
                mine = links[row, LAM]
                for k in range(n_own):
                    lam[mine + k] += omega[p] * (belief[k] - best)
    return bound, value


@inlined
def settle(visit, links, theta, lam, belief):
    """Take impossible states out of a variable and its factors; return the largest belief, -inf if none is left."""
    best = -np.inf
    n_dead = 0
    for k in range(visit[N_OWN]):
        at = visit[THETA_AT] + k
        if theta[at] == -np.inf or belief[k] == -np.inf:
            theta[at] = -np.inf
            belief[k] = -np.inf
            n_dead += 1
        best = max(best, belief[k])
    if n_dead > 0:
        for k in range(visit[N_OWN]):
            if belief[k] == -np.inf:
                for row in range(visit[BEGIN], visit[END]):
                    lam[links[row, LAM] + k] = -np.inf
    return best


@compiled
def iterate(n_iterations, done, decode_every, par, visits, links, tables, edge_ptr, turn, theta, omega, lam, labels,
            best, scratch, places):  # fmt: skip
    """Run iterations until a limit, a closed gap or rest; return how many, and why it stopped."""
    for n in range(n_iterations):
        decode = (done + n) % decode_every == 0
        bound = 0.0
        for half in range(2):
            bound, value = sweep(half == 0, decode, visits, links, tables, edge_ptr, turn, theta, omega, lam, labels,
                                 scratch, places)  # fmt: skip
            if decode:
                keep_best(par, value + par[CONSTANT], labels, best)
        why = at_rest(par, bound + par[CONSTANT])
        if bound == -np.inf:
            return n + 1, INFEASIBLE
        if why != LIMIT:
            return n + 1, why
    return n_iterations, LIMIT
