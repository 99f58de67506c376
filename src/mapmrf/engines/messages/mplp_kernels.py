"""Block coordinate descent on the dual of the local polytope, factor by factor, and decoding from it.

A region list is `table_at` (where a factor's table starts in `theta`), `scope_ptr` (its edges), and per edge `state_at`
(where the variable's block starts in `belief`), `card_e` (its states) and `edge_ptr` (where its block starts in `lam`).
`belief` holds theta_i plus all messages to i, `lam` the messages: the factor's reparametrised table is its table minus
its messages. A state that is proven impossible has the belief -inf for good; messages are always finite.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import compiled, inlined
from mapmrf.kernels.max_marginals import max_marginals

UNIFORM = -1
"""Share a factor's max-marginals equally among its variables."""


@inlined
def pair_entry(at, e, s1, s2, theta, state_at, edge_ptr, lam, belief):
    """Entry of a pair's reparametrised table, at its place in `theta`; `e` is the pair's first edge."""
    if belief[state_at[e] + s1] == -np.inf or belief[state_at[e + 1] + s2] == -np.inf:
        return -np.inf  # messages of impossible states are stale
    return theta[at] - (lam[edge_ptr[e] + s1] + lam[edge_ptr[e + 1] + s2])


@inlined
def give(a, toward, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork):
    """Take a factor's messages back and share its max-marginals out, equally or all `toward` one of its variables.

    work : (2, states of the widest factor) and iwork : (2, largest arity), scratch.
    """
    first = scope_ptr[a]
    arity = scope_ptr[a + 1] - first
    base = edge_ptr[first]
    given, out = work[0], work[1]
    place = 0
    for e in range(first, first + arity):
        for s in range(card_e[e]):
            given[place] = belief[state_at[e] + s] - lam[base + place]
            place += 1
    max_marginals(theta, table_at[a], arity, first, card_e, given, 0, out, iwork[0], iwork[1])
    place = 0
    for k in range(arity):
        e = first + k
        share = 1.0 / arity
        if toward != UNIFORM:
            share = 1.0 if k == toward else 0.0
        for s in range(card_e[e]):
            if out[place] == -np.inf:
                belief[state_at[e] + s] = -np.inf
            else:
                mine = share * out[place]
                belief[state_at[e] + s] = mine
                lam[base + place] = mine - given[place]
            place += 1


@inlined
def give_pair2(at, i_at, j_at, base, theta, lam, belief):
    """`give` for a 2x2 table without -inf, equal shares."""
    g0 = belief[i_at] - lam[base]
    g1 = belief[i_at + 1] - lam[base + 1]
    h0 = belief[j_at] - lam[base + 2]
    h1 = belief[j_at + 1] - lam[base + 3]
    t00 = theta[at] + (g0 + h0)
    t01 = theta[at + 1] + (g0 + h1)
    t10 = theta[at + 2] + (g1 + h0)
    t11 = theta[at + 3] + (g1 + h1)
    p0, p1 = 0.5 * max(t00, t01), 0.5 * max(t10, t11)
    q0, q1 = 0.5 * max(t00, t10), 0.5 * max(t01, t11)
    belief[i_at], belief[i_at + 1], belief[j_at], belief[j_at + 1] = p0, p1, q0, q1
    lam[base], lam[base + 1], lam[base + 2], lam[base + 3] = p0 - g0, p1 - g1, q0 - h0, q1 - h1


@inlined
def pass_pairs2(backward, visit, theta, table_at, state_at, lam, belief):
    """One pass over pairs of binary variables without -inf; factor `a` has the edges 2a and 2a + 1."""
    n = len(visit)
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        give_pair2(table_at[a], state_at[2 * a], state_at[2 * a + 1], 4 * a, theta, lam, belief)


@inlined
def pass_factors(
    backward, visit, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork
):  # fmt: skip
    """One pass over factors of any shape."""
    n = len(visit)
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        give(a, UNIFORM, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork)


@compiled
def passes_pairs2(
    begin: int, end: int, alternate: bool, visit: Ints, theta: Floats, table_at: Ints, state_at: Ints, lam: Floats,
    belief: Floats,
) -> None:  # fmt: skip
    """Iterations `begin` to `end` on pairs of binary variables; every other one backward, if they alternate."""
    for iteration in range(begin, end):
        pass_pairs2(alternate and iteration % 2 == 1, visit, theta, table_at, state_at, lam, belief)


@compiled
def passes_factors(
    begin: int, end: int, alternate: bool, visit: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, state_at: Ints,
    card_e: Ints, edge_ptr: Ints, lam: Floats, belief: Floats, work: Floats, iwork: Ints,
) -> None:  # fmt: skip
    """The same for factors of any shape."""
    for iteration in range(begin, end):
        backward = alternate and iteration % 2 == 1
        pass_factors(
            backward, visit, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork
        )  # fmt: skip


@compiled
def pass_trees(
    peeled: Ints, toward: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, state_at: Ints, card_e: Ints,
    edge_ptr: Ints, lam: Floats, belief: Floats, work: Floats, iwork: Ints,
) -> None:  # fmt: skip
    """Move everything that hanging trees know towards their roots: `toward` is the root's place in each scope."""
    for q in range(len(peeled)):
        a = peeled[q]
        give(a, toward[q], theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork)


@compiled
def bound_of(
    var_ptr: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, state_at: Ints, card_e: Ints, edge_ptr: Ints,
    lam: Floats, belief: Floats, work: Floats, iwork: Ints,
) -> float:  # fmt: skip
    """The dual's value: the sum of the maxima of all beliefs and of all reparametrised tables."""
    given, out = work[0], work[1]
    total = 0.0
    for i in range(len(var_ptr) - 1):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, belief[s])
        total += top
    for a in range(len(table_at)):
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        place = 0
        for e in range(first, first + arity):
            for s in range(card_e[e]):
                gone = belief[state_at[e] + s] == -np.inf
                given[place] = -np.inf if gone else -lam[edge_ptr[e] + s]
                place += 1
        total += max_marginals(theta, table_at[a], arity, first, card_e, given, 0, out, iwork[0], iwork[1])
    return total


@compiled
def peel(
    scope_ptr: Ints, scope: Ints, nbr_ptr: Ints, nbr: Ints, factor_of: Ints, degree: Ints, live: Ints, peeled: Ints,
    toward: Ints,
) -> int:  # fmt: skip
    """Strip factors that share at most one variable with the rest, again and again; return how many.

    nbr : edges by variable, factor_of : factor of every edge. degree and live are scratch: factors left at a variable,
    and variables of a factor that others still share; a stripped factor has live -1.
    """
    n_factors = len(scope_ptr) - 1
    tail = 0
    for i in range(len(degree)):
        degree[i] = nbr_ptr[i + 1] - nbr_ptr[i]
    for a in range(n_factors):
        live[a] = 0
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            live[a] += 1 if degree[scope[e]] > 1 else 0
        if live[a] <= 1:
            peeled[tail] = a
            tail += 1
    head = 0
    while head < tail:
        a = peeled[head]
        toward[head] = 0
        live[a] = -1
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            i = scope[e]
            if degree[i] > 1:
                toward[head] = e - scope_ptr[a]
            degree[i] -= 1
            if degree[i] == 1:  # the one factor left here shares this variable with nobody any more
                for at in range(nbr_ptr[i], nbr_ptr[i + 1]):
                    b = factor_of[nbr[at]]
                    if live[b] > 0:
                        live[b] -= 1
                        if live[b] == 1:
                            peeled[tail] = b
                            tail += 1
        head += 1
    return tail


@compiled
def decode(
    decide: Ints, var_ptr: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, scope: Ints, card_e: Ints,
    state_at: Ints, edge_ptr: Ints, nbr_ptr: Ints, nbr: Ints, factor_of: Ints, lam: Floats, belief: Floats,
    labels: Ints, score: Floats, iwork: Ints,
) -> None:  # fmt: skip
    """Decide variables one by one: belief plus the best of every factor that has a decided variable.

    labels are -1 where a variable is not decided yet. score is scratch for one variable, iwork for one factor.
    """
    state, most = iwork[0], iwork[1]
    for q in range(len(decide)):
        i = decide[q]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            score[s] = belief[var_ptr[i] + s]
        for at in range(nbr_ptr[i], nbr_ptr[i + 1]):
            a = factor_of[nbr[at]]
            known = 0
            for e in range(scope_ptr[a], scope_ptr[a + 1]):
                known += 1 if labels[scope[e]] >= 0 else 0
            if known > 0:
                add_best(
                    i, a, n_states, theta, table_at, scope_ptr, scope, card_e, state_at, edge_ptr, lam, belief, labels,
                    score, state, most,
                )  # fmt: skip
        best = 0
        for s in range(1, n_states):
            if score[s] > score[best]:
                best = s
        labels[i] = best


@inlined
def add_best(
    i, a, n_states, theta, table_at, scope_ptr, scope, card_e, state_at, edge_ptr, lam, belief, labels, score, state,
    most,
):  # fmt: skip
    """Add to every state of `i` the best entry of factor `a`'s reparametrised table that agrees with the labels."""
    first = scope_ptr[a]
    arity = scope_ptr[a + 1] - first
    for s in range(n_states):
        n_configs = 1
        for k in range(arity):
            j = scope[first + k]
            state[k] = 0
            most[k] = 1
            if j == i:
                state[k] = s
            elif labels[j] >= 0:
                state[k] = labels[j]
            else:
                most[k] = card_e[first + k]
                n_configs *= most[k]
        top = -np.inf
        for _ in range(n_configs):
            place = 0
            taken = 0.0
            for k in range(arity):
                place = place * card_e[first + k] + state[k]
                taken += lam[edge_ptr[first + k] + state[k]]
                if most[k] > 1 and belief[state_at[first + k] + state[k]] == -np.inf:
                    taken = np.inf  # messages of impossible states are stale
            top = max(top, theta[table_at[a] + place] - taken)
            k = arity - 1
            while k >= 0:
                if most[k] > 1:
                    state[k] += 1
                    if state[k] < most[k]:
                        break
                    state[k] = 0
                k -= 1
        score[s] += top
