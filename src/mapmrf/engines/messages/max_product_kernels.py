"""Max-product message passing in the log domain: belief propagation and its tree-reweighted form share these loops.

b_i     = theta_i + sum_a u_ai                                                   belief of a variable
n_ia    = rho_a b_i - u_ai                                                       what a variable tells a factor
u_ai(k) = max over x_a with x_i = k of theta_a(x_a) + sum_{j != i} n_ja(x_j)     message of a factor

Messages have their maximum taken off. With all rho_a = 1 this is belief propagation. With rho_a the share of spanning
forests that hold a it is the tree-reweighted form; its messages as they are usually written are u_ai / rho_a.

Messages `u` are laid out like `lam_e` and always finite. A state that a factor can only extend by forbidden
configurations is *dead*: it gets -inf in `theta_v`, and thereby in its belief, for good; its messages count no longer.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.jit import bare, inlined
from mapmrf.kernels.max_marginals import max_marginals, table_max_marginals

# -- one factor -------------------------------------------------------------------------------------------------------


@inlined
def tell(f, share, scope_ptr, scope, var_ptr, edge_ptr, b, u, told):
    """What the variables tell factor `f`, its edge states side by side; `share` is rho."""
    first = scope_ptr[f]
    base = edge_ptr[first]
    for e in range(first, scope_ptr[f + 1]):
        shift = var_ptr[scope[e]] - edge_ptr[e]
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            told[at - base] = share * b[shift + at] - u[at]


@inlined
def pair_messages(theta_t, at, k1, k2, told, out):
    """Messages of a table of two variables, each from what the other one told."""
    for s in range(k1 + k2):
        out[s] = -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = told[s1]
        best = -np.inf
        for s2 in range(k2):
            theta = theta_t[row + s2]
            best = max(best, theta + told[k1 + s2])
            out[k1 + s2] = max(out[k1 + s2], theta + mine)
        out[s1] = best


@inlined
def triple_messages(theta_t, at, k1, k2, k3, told, out):
    """Messages of a table of three variables."""
    third = k1 + k2
    for s in range(third + k3):
        out[s] = -np.inf
    for s1 in range(k1):
        for s2 in range(k2):
            told1, told2 = told[s1], told[k1 + s2]
            row = at + (s1 * k2 + s2) * k3
            best = -np.inf
            for s3 in range(k3):
                theta = theta_t[row + s3]
                best = max(best, theta + told[third + s3])
                out[third + s3] = max(out[third + s3], theta + (told1 + told2))
            out[s1] = max(out[s1], best + told2)
            out[k1 + s2] = max(out[k1 + s2], best + told1)


@inlined
def factor_messages(f, scope_ptr, card_e, table_at, theta_t, told, out, state, start):
    """Messages of factor `f`, before their maximum is taken off; -inf for a state without support."""
    first = scope_ptr[f]
    arity = scope_ptr[f + 1] - first
    if arity == 2:
        pair_messages(theta_t, table_at[f], card_e[first], card_e[first + 1], told, out)
        return
    if arity == 3:
        triple_messages(theta_t, table_at[f], card_e[first], card_e[first + 1], card_e[first + 2], told, out)
        return
    table_max_marginals(theta_t, table_at[f], arity, first, card_e, told, 0, out, state, start)
    n_states = 0
    for k in range(arity):
        n_states += card_e[first + k]
    for s in range(n_states):
        if told[s] > -np.inf:
            out[s] -= told[s]


# -- an iteration -----------------------------------------------------------------------------------------------------


@bare
def pass_messages(
    scope_ptr: Ints, scope: Ints, card_e: Ints, var_ptr: Ints, edge_ptr: Ints, table_at: Ints, theta_t: Floats,
    rho: Floats, theta_v: Floats, b: Floats, scratch: Floats, u: Floats, told: Floats, out: Floats, state: Ints,
    start: Ints, order: Ints, flooding: bool, damping: float, tol: float, begin: int, end: int,
) -> tuple[int, float]:  # fmt: skip
    """Iterations `begin` to `end`, or to convergence; return how many, and the largest change that the last asked for.

    Flooding takes all messages of an iteration from the beliefs before it. Otherwise each is from the beliefs of the
    moment, factors in their order, in even iterations backwards. A state that dies is an infinite change.
    """
    worst = np.inf
    m = len(table_at)
    k = begin
    while k < end and worst > tol:
        if flooding:
            for s in range(len(b)):
                scratch[s] = theta_v[s]
        after = scratch if flooding else b
        worst = 0.0
        for place in range(m):
            f = place
            if not flooding:
                f = order[m - 1 - place if k % 2 == 0 else place]
            tell(f, rho[f], scope_ptr, scope, var_ptr, edge_ptr, b, u, told)
            factor_messages(f, scope_ptr, card_e, table_at, theta_t, told, out, state, start)
            base = edge_ptr[scope_ptr[f]]
            for e in range(scope_ptr[f], scope_ptr[f + 1]):
                top = -np.inf
                for at in range(edge_ptr[e], edge_ptr[e + 1]):
                    top = max(top, out[at - base])
                shift = var_ptr[scope[e]] - edge_ptr[e]
                for at in range(edge_ptr[e], edge_ptr[e + 1]):
                    new = out[at - base]
                    if new == -np.inf:
                        worst = np.inf if theta_v[shift + at] > -np.inf else worst
                        theta_v[shift + at] = after[shift + at] = -np.inf
                        continue
                    new -= top
                    old = u[at]
                    worst = max(worst, abs(new - old))
                    new += damping * (old - new)
                    u[at] = new
                    after[shift + at] += new if flooding else new - old
        if flooding:
            for s in range(len(b)):
                b[s] = scratch[s]
        k += 1
    if not flooding:
        add_up(edge_ptr, scope, var_ptr, theta_v, u, b)
    return k - begin, worst


@bare
def add_up(edge_ptr, scope, var_ptr, theta_v, u, b):
    """The beliefs, from the messages: without the round-off that many small changes have left."""
    for s in range(len(b)):
        b[s] = theta_v[s]
    for e in range(len(scope)):
        shift = var_ptr[scope[e]] - edge_ptr[e]
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            b[shift + at] += u[at]


# -- labels -----------------------------------------------------------------------------------------------------------


@inlined
def best_state(n_states, score, broken):
    """The smallest of the states of highest score among those with the fewest broken constraints."""
    best = 0
    for s in range(1, n_states):
        if broken[s] < broken[best] or (broken[s] == broken[best] and score[s] > score[best]):
            best = s
    return best


@inlined
def best_completions(
    e, f, at, n_free, rho, scope_ptr, scope, card_e, stride_e, var_ptr, edge_ptr, theta_t, b, u, labels, best, state
):
    """Factor `f`'s message along edge `e` from entry `at` of its table on, variables that have a label fixed at it."""
    first = scope_ptr[f]
    for edge in range(first, scope_ptr[f + 1]):
        state[edge - first] = 0
    for s in range(card_e[e]):
        best[s] = -np.inf
    for _ in range(n_free):
        value = 0.0
        place = at
        for edge in range(first, scope_ptr[f + 1]):
            if edge != e and labels[scope[edge]] < 0:
                s = state[edge - first]
                value += rho[f] * b[var_ptr[scope[edge]] + s] - u[edge_ptr[edge] + s]
                place += stride_e[edge] * s
        for s in range(card_e[e]):
            best[s] = max(best[s], value + theta_t[place + s * stride_e[e]])
        for edge in range(first, scope_ptr[f + 1]):  # the next configuration of the free variables
            if edge != e and labels[scope[edge]] < 0:
                state[edge - first] += 1
                if state[edge - first] < card_e[edge]:
                    break
                state[edge - first] = 0


@bare
def decode_in_order(
    scope_ptr: Ints, scope: Ints, card_e: Ints, stride_e: Ints, owner: Ints, var_ptr: Ints, edge_ptr: Ints,
    table_at: Ints, theta_t: Floats, rho: Floats, theta_v: Floats, b: Floats, u: Floats, var_order: Ints,
    nbr_ptr: Ints, nbr: Ints, labels: Ints, score: Floats, best: Floats, state: Ints, broken: Ints,
) -> None:  # fmt: skip
    """Choose one state after another, each by the messages given the states chosen before."""
    for i in range(len(labels)):
        labels[i] = -1
    for turn in range(len(var_order)):
        i = var_order[turn]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            theta = theta_v[var_ptr[i] + s]
            broken[s] = 1 if theta == -np.inf else 0
            score[s] = 0.0 if theta == -np.inf else theta
        for e_at in range(nbr_ptr[i], nbr_ptr[i + 1]):
            e = nbr[e_at]
            f = owner[e]
            at = np.int64(table_at[f])
            known, n_free = False, np.int64(1)
            for edge in range(scope_ptr[f], scope_ptr[f + 1]):
                label = labels[scope[edge]]
                if label >= 0:
                    known = True
                    at += stride_e[edge] * label
                elif edge != e:
                    n_free *= card_e[edge]
            if not known:
                for s in range(n_states):
                    best[s] = u[edge_ptr[e] + s]
            elif n_free == 1:
                for s in range(n_states):
                    best[s] = theta_t[at + s * stride_e[e]]
            else:
                best_completions(
                    e, f, at, n_free, rho, scope_ptr, scope, card_e, stride_e, var_ptr, edge_ptr, theta_t, b, u, labels,
                    best, state,
                )  # fmt: skip
            for s in range(n_states):
                hard = best[s] == -np.inf
                broken[s] += 1 if hard else 0
                score[s] += 0.0 if hard else best[s]
        labels[i] = best_state(n_states, score, broken)


@bare
def value_of_tables(
    scope_ptr: Ints, scope: Ints, stride_e: Ints, var_ptr: Ints, table_at: Ints, theta_t: Floats, theta_v: Floats,
    labels: Ints,
) -> float:  # fmt: skip
    """Log potential of a labelling, but for the constant."""
    total = 0.0
    for i in range(len(labels)):
        total += theta_v[var_ptr[i] + labels[i]]
    for f in range(len(table_at)):
        at = table_at[f]
        for e in range(scope_ptr[f], scope_ptr[f + 1]):
            at += stride_e[e] * labels[scope[e]]
        total += theta_t[at]
    return total


# -- the bound --------------------------------------------------------------------------------------------------------


@bare
def bound_of_tables(
    scope_ptr: Ints, scope: Ints, card_e: Ints, var_ptr: Ints, edge_ptr: Ints, table_at: Ints, theta_t: Floats,
    rho: Floats, parent: Floats, theta_v: Floats, b: Floats, u: Floats, left: Floats, told: Floats, out: Floats,
    state: Ints, start: Ints,
) -> float:  # fmt: skip
    """Upper bound on every labelling, but for the constant: the dual at lam_ia = (rho_a - parent_ia) b_i - u_ai.

    The dual of the local polytope is a bound for any multipliers. With parent_ia the share of the forests in which a
    hangs on i, and omega_i the share of those with root i, the variables are left with omega_i b_i. At a fixed point
    ``theta_a + sum_i n_ia`` has the max-marginals rho_a b_i plus a constant, so all terms are largest where the beliefs
    are, and the bound is what the forests are worth together. Dead states have no part in it.
    """
    for s in range(len(left)):
        left[s] = theta_v[s]
    total = 0.0
    for f in range(len(table_at)):
        first = scope_ptr[f]
        base = edge_ptr[first]
        for e in range(first, scope_ptr[f + 1]):
            shift = var_ptr[scope[e]] - edge_ptr[e]
            for at in range(edge_ptr[e], edge_ptr[e + 1]):
                s = shift + at
                lam = -np.inf
                if b[s] > -np.inf:
                    lam = (rho[f] - parent[e]) * b[s] - u[at]
                    left[s] -= lam
                told[at - base] = lam
        arity = scope_ptr[f + 1] - first
        total += max_marginals(theta_t, table_at[f], arity, first, card_e, told, 0, out, state, start)
    for i in range(len(var_ptr) - 1):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, left[s])
        total += top
    return total


# -- the walk ---------------------------------------------------------------------------------------------------------


@bare
def walk(
    nbr_ptr: Ints, nbr: Ints, owner: Ints, scope_ptr: Ints, scope: Ints, taken: Bools, seen: Bools,
    var_order: Ints, factor_order: Ints, parent_edge: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Variables and taken factors in breadth-first order from the first variable of every connected part.

    `parent_edge` says through which edge a factor was reached, -1 for those not taken. Returns the numbers of parts
    and of factors.
    """
    for f in range(len(parent_edge)):
        parent_edge[f] = -1
    for i in range(len(seen)):
        seen[i] = False
    head = tail = n_factors = n_parts = 0
    for root in range(len(var_order)):
        if seen[root]:
            continue
        n_parts += 1
        seen[root] = True
        var_order[tail] = root
        tail += 1
        while head < tail:
            i = var_order[head]
            head += 1
            for e_at in range(nbr_ptr[i], nbr_ptr[i + 1]):
                f = owner[nbr[e_at]]
                if not taken[f] or parent_edge[f] >= 0:
                    continue
                parent_edge[f] = nbr[e_at]
                factor_order[n_factors] = f
                n_factors += 1
                for e in range(scope_ptr[f], scope_ptr[f + 1]):
                    if not seen[scope[e]]:
                        seen[scope[e]] = True
                        var_order[tail] = scope[e]
                        tail += 1
    return n_parts, n_factors


@inlined
def part_of(root, i):
    """The variable that stands for the part of `i`; halves the way to it for the next time."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


@bare
def grow_forest(candidates: Ints, scope_ptr: Ints, scope: Ints, root: Ints, taken: Bools) -> None:
    """Take one factor after another, if it closes no cycle: if its variables are in different parts so far."""
    for i in range(len(root)):
        root[i] = i
    for place in range(len(candidates)):
        f = candidates[place]
        apart = True
        for e in range(scope_ptr[f], scope_ptr[f + 1]):
            for other in range(scope_ptr[f], e):
                apart = apart and part_of(root, scope[e]) != part_of(root, scope[other])
        taken[f] = apart
        if apart:
            stands = part_of(root, scope[scope_ptr[f]])
            for e in range(scope_ptr[f] + 1, scope_ptr[f + 1]):
                root[part_of(root, scope[e])] = stands
