"""Max-product message passing in the log domain: belief propagation and its tree-reweighted form share these loops.

b_i     = theta_i + sum_a u_ai                                                   belief of a variable
n_ia    = rho_a b_i - u_ai                                                       message of a variable to a factor
u_ai(k) = max over x_a with x_i = k of theta_a(x_a) + sum_{j != i} n_ja(x_j)     message of a factor

theta_a is the factor's table times its weight.

Messages are normalised to maximum 0. With all rho_a = 1 this is belief propagation. With rho_a the appearance
probability of a in spanning forests, it is the tree-reweighted form; its messages as usually written are u_ai / rho_a.

Messages `u`, the `lam` of `FactorMessages`, are always finite. A state that a factor can only extend to forbidden
configurations is *dead*: it permanently gets -inf in `theta_v`, and thereby in its belief; its messages are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.messages.factor_messages import FactorMessages, factor_top
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.kernels.max_marginals import FactorScratch, form_messages, table_max_marginals, weight_of
from mapmrf.kernels.pair_transforms import form_of


class MessageSchedule(NamedTuple):
    """Update schedule: all at once (flooding) or factor by factor in an order; damping; and tolerance."""

    flooding: bool
    damping: float
    tol: float


@inlined
def pair_messages(theta_t: Floats, at: int, k1: int, k2: int, weight: float, sent: Floats, out: Floats) -> None:
    """Messages of a table of two variables, each from what the other one sent."""
    for s in range(k1 + k2):
        out[s] = -np.inf
    for s1 in range(k1):
        row = at + s1 * k2
        mine = sent[s1]
        best = -np.inf
        for s2 in range(k2):
            theta = weight * theta_t[row + s2]
            best = max(best, theta + sent[k1 + s2])
            out[k1 + s2] = max(out[k1 + s2], theta + mine)
        out[s1] = best


@inlined
def triple_messages(
    theta_t: Floats, at: int, card: tuple[int, int, int], weight: float, sent: Floats, out: Floats
) -> None:
    k1, k2, k3 = card
    third = k1 + k2
    for s in range(third + k3):
        out[s] = -np.inf
    for s1 in range(k1):
        for s2 in range(k2):
            sent1, sent2 = sent[s1], sent[k1 + s2]
            row = at + (s1 * k2 + s2) * k3
            best = -np.inf
            for s3 in range(k3):
                theta = weight * theta_t[row + s3]
                best = max(best, theta + sent[third + s3])
                out[third + s3] = max(out[third + s3], theta + (sent1 + sent2))
            out[s1] = max(out[s1], best + sent2)
            out[k1 + s2] = max(out[k1 + s2], best + sent1)


@inlined
def factor_messages(f: int, tables: FactorMessages, scratch: FactorScratch) -> None:
    """Messages of factor `f`, before their maximum is taken off; -inf for a state without support."""
    theta_t, card_e, at, weight = tables.theta_t, tables.card_e, tables.table_at[f], weight_of(tables.weight, f)
    sent, out = scratch.given, scratch.out
    first = tables.scope_ptr[f]
    arity = tables.scope_ptr[f + 1] - first
    if arity == 2:
        form = form_of(scratch.pairs.forms, f)
        if form >= 0:
            form_messages(form, weight, card_e[first], scratch)
            return
        pair_messages(theta_t, at, card_e[first], card_e[first + 1], weight, sent, out)
        return
    if arity == 3:
        card = (card_e[first], card_e[first + 1], card_e[first + 2])
        triple_messages(theta_t, at, card, weight, sent, out)
        return
    table_max_marginals(theta_t, at, card_e, first, arity, weight, scratch)
    n_states = 0
    for k in range(arity):
        n_states += card_e[first + k]
    for s in range(n_states):
        if sent[s] > -np.inf:
            out[s] -= sent[s]


@inlined
def update_factor(
    f: int, tables: FactorMessages, theta_v: Floats, rho: Floats, schedule: MessageSchedule, after: Floats,
    keeping: bool, scratch: FactorScratch,
) -> float:  # fmt: skip
    """Send new messages from factor `f`; return the largest change asked for, inf if a state dies."""
    # `after` are beliefs to be kept up, if `keeping`: sums to which new messages are added if flooding, or else the
    # current beliefs.
    scope_ptr, edge_ptr, u, out = tables.scope_ptr, tables.edge_ptr, tables.lam, scratch.out
    flooding = schedule.flooding
    share, sent, base = rho[f], scratch.given, edge_ptr[scope_ptr[f]]
    for e in range(scope_ptr[f], scope_ptr[f + 1]):
        shift = tables.state_at[e] - edge_ptr[e]
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            sent[at - base] = share * tables.belief[shift + at] - u[at]
    factor_messages(f, tables, scratch)
    worst = 0.0
    for e in range(scope_ptr[f], scope_ptr[f + 1]):
        top = -np.inf
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            top = max(top, out[at - base])
        shift = tables.state_at[e] - edge_ptr[e]
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            new = out[at - base]
            if new == -np.inf:
                worst = np.inf if theta_v[shift + at] > -np.inf else worst
                theta_v[shift + at] = -np.inf
                if keeping:
                    after[shift + at] = -np.inf
                continue
            new -= top
            old = u[at]
            worst = max(worst, abs(new - old))
            new += schedule.damping * (old - new)
            u[at] = new
            if keeping:
                after[shift + at] += new if flooding else new - old
    return worst


@bare
def pass_messages(
    tables: FactorMessages, theta_v: Floats, rho: Floats, order: Ints, schedule: MessageSchedule, begin: int, end: int,
    spare: Floats, scratch: FactorScratch,
) -> tuple[int, float]:  # fmt: skip
    """Run iterations `begin` to `end`, or to convergence; return how many, and the largest change of the last."""
    # Flooding takes all messages of an iteration from the beliefs before it. Otherwise each is from the current
    # beliefs, factors in their order, in even iterations backwards. A state that dies is an infinite change.
    b, flooding, worst = tables.belief, schedule.flooding, np.inf
    m = len(tables.table_at)
    k = begin
    while k < end and worst > schedule.tol:
        if flooding:
            for s in range(len(b)):
                spare[s] = theta_v[s]
        after = spare if flooding else b
        worst = 0.0
        for place in range(m):
            f = place
            if not flooding:
                f = order[m - 1 - place if k % 2 == 0 else place]
            worst = max(worst, update_factor(f, tables, theta_v, rho, schedule, after, True, scratch))
        if flooding:
            for s in range(len(b)):
                b[s] = spare[s]
        k += 1
    if not flooding:  # add the beliefs up without the round-off that many small changes have left
        for s in range(len(b)):
            b[s] = theta_v[s]
        for e in range(len(tables.scope)):
            shift = tables.state_at[e] - tables.edge_ptr[e]
            for at in range(tables.edge_ptr[e], tables.edge_ptr[e + 1]):
                b[shift + at] += tables.lam[at]
    return k - begin, worst


@bare
def send_messages(
    tables: FactorMessages, theta_v: Floats, rho: Floats, schedule: MessageSchedule, begin: int, end: int,
    scratch: FactorScratch,
) -> float:  # fmt: skip
    """The messages of factors `begin` to `end` from beliefs that stay as they are; return the largest change."""
    worst = 0.0
    for f in range(begin, end):
        worst = max(worst, update_factor(f, tables, theta_v, rho, schedule, theta_v, False, scratch))
    return worst


@bare
def gather_beliefs(tables: FactorMessages, theta_v: Floats, neighbours: Neighbours, begin: int, end: int) -> None:
    """The beliefs of variables `begin` to `end` from the messages: the sums of flooding, in the same order."""
    for i in range(begin, end):
        first, last = tables.var_ptr[i], tables.var_ptr[i + 1]
        for s in range(first, last):
            tables.belief[s] = theta_v[s]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            shift = tables.edge_ptr[neighbours.edge[at]] - first
            for s in range(first, last):
                tables.belief[s] += tables.lam[shift + s]


@inlined
def best_completions(
    e: int, f: int, at: int, n_free: int, tables: FactorMessages, share: float, labels: Ints, scratch: FactorScratch
) -> None:
    """Factor `f`'s message along edge `e` from entry `at` of its table on, variables that have a label fixed at it."""
    scope, card_e, edge_ptr = tables.scope, tables.card_e, tables.edge_ptr
    best, state, stride, weight = scratch.out, scratch.state, scratch.start, weight_of(tables.weight, f)
    first, last = tables.scope_ptr[f], tables.scope_ptr[f + 1]
    step = 1
    for edge in range(last - 1, first - 1, -1):
        state[edge - first], stride[edge - first] = 0, step
        step *= card_e[edge]
    for s in range(card_e[e]):
        best[s] = -np.inf
    for _ in range(n_free):
        value, place = 0.0, at
        for edge in range(first, last):
            if edge != e and labels[scope[edge]] < 0:
                s = state[edge - first]
                value += share * tables.belief[tables.state_at[edge] + s] - tables.lam[edge_ptr[edge] + s]
                place += stride[edge - first] * s
        for s in range(card_e[e]):
            best[s] = max(best[s], value + weight * tables.theta_t[place + s * stride[e - first]])
        for edge in range(first, last):  # the next configuration of the free variables
            if edge != e and labels[scope[edge]] < 0:
                state[edge - first] += 1
                if state[edge - first] < card_e[edge]:
                    break
                state[edge - first] = 0


@inlined
def fixed_message(e: int, f: int, tables: FactorMessages, share: float, labels: Ints, scratch: FactorScratch) -> None:
    """Fill `out` with factor `f`'s message along edge `e`, given the labels that its other variables have so far."""
    best, at, stride, step, known, n_free = scratch.out, np.int64(tables.table_at[f]), 1, 1, False, 1
    for edge in range(tables.scope_ptr[f + 1] - 1, tables.scope_ptr[f] - 1, -1):
        label = labels[tables.scope[edge]]
        if edge == e:
            step = stride
        elif label < 0:
            n_free *= tables.card_e[edge]
        else:
            known = True
            at += stride * label
        stride *= tables.card_e[edge]
    if not known:
        for s in range(tables.card_e[e]):
            best[s] = tables.lam[tables.edge_ptr[e] + s]
    elif n_free == 1:  # nothing to maximise over: twice as fast as by `best_completions`
        for s in range(tables.card_e[e]):
            best[s] = weight_of(tables.weight, f) * tables.theta_t[at + s * step]
    else:
        best_completions(e, f, int(at), n_free, tables, share, labels, scratch)


@bare
def decode_in_order(
    tables: FactorMessages, theta_v: Floats, rho: Floats, neighbours: Neighbours, var_order: Ints, labels: Ints,
    scratch: FactorScratch,
) -> None:  # fmt: skip
    """Choose one state after another, each by the messages given the states chosen before."""
    var_ptr, score, broken, best = tables.var_ptr, scratch.score[0], scratch.score[1], scratch.out
    for i in range(len(labels)):
        labels[i] = -1
    for turn in range(len(var_order)):
        i = var_order[turn]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            theta = theta_v[var_ptr[i] + s]
            broken[s] = 1.0 if theta == -np.inf else 0.0
            score[s] = 0.0 if theta == -np.inf else theta
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            e = neighbours.edge[at]
            f = neighbours.factor_of[e]
            fixed_message(e, f, tables, rho[f], labels, scratch)
            for s in range(n_states):
                hard = best[s] == -np.inf
                broken[s] += 1.0 if hard else 0.0
                score[s] += 0.0 if hard else best[s]
        # the first of the states of highest score among those with the fewest broken constraints
        chosen = 0
        for s in range(1, n_states):
            if broken[s] < broken[chosen] or (broken[s] == broken[chosen] and score[s] > score[chosen]):
                chosen = s
        labels[i] = chosen


@bare
def value_of_tables(tables: FactorMessages, theta_v: Floats, labels: Ints) -> float:
    """Log potential of a labelling, without the constant."""
    total = 0.0
    for i in range(len(labels)):
        total += theta_v[tables.var_ptr[i] + labels[i]]
    for f in range(len(tables.table_at)):
        place = 0
        for e in range(tables.scope_ptr[f], tables.scope_ptr[f + 1]):
            place = place * tables.card_e[e] + labels[tables.scope[e]]
        total += weight_of(tables.weight, f) * tables.theta_t[tables.table_at[f] + place]
    return total


@bare
def bound_of_tables(
    tables: FactorMessages, theta_v: Floats, rho: Floats, parent: Floats, left: Floats, scratch: FactorScratch
) -> float:
    """Upper bound on every labelling, without the constant: the dual at lam_ia = (rho_a - parent_ia) b_i - u_ai."""
    # The dual of the local polytope is a bound for any multipliers. With parent_ia the share of the forests in which a
    # is a child of i, and omega_i the share of those with root i, the variables are left with omega_i b_i. At a fixed
    # point ``theta_a + sum_i n_ia`` has the max-marginals rho_a b_i plus a constant, so all terms are largest where the
    # beliefs are, and the bound is the combined value of the forests. Dead states are ignored. `left` is scratch.
    scope_ptr, var_ptr, edge_ptr, b = tables.scope_ptr, tables.var_ptr, tables.edge_ptr, tables.belief
    for s in range(len(left)):
        left[s] = theta_v[s]
    total = 0.0
    for f in range(len(tables.table_at)):
        first, arity = scope_ptr[f], scope_ptr[f + 1] - scope_ptr[f]
        base = edge_ptr[first]
        for e in range(first, first + arity):
            shift = tables.state_at[e] - edge_ptr[e]
            for at in range(edge_ptr[e], edge_ptr[e + 1]):
                s = shift + at
                lam = -np.inf
                if b[s] > -np.inf:
                    lam = (rho[f] - parent[e]) * b[s] - tables.lam[at]
                    left[s] -= lam
                scratch.given[at - base] = lam
        total += factor_top(f, first, arity, tables, scratch)
    for i in range(len(var_ptr) - 1):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, left[s])
        total += top
    return total


@bare
def walk(
    neighbours: Neighbours, scope_ptr: Ints, scope: Ints, taken: Bools, seen: Bools, var_order: Ints,
    factor_order: Ints, parent_edge: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Variables and taken factors in breadth-first order from the first variable of every connected part."""
    # `parent_edge` says through which edge a factor was reached, -1 for those not taken. Returns the numbers of parts
    # and of factors.
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
            for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
                f = neighbours.factor_of[neighbours.edge[at]]
                if not taken[f] or parent_edge[f] >= 0:
                    continue
                parent_edge[f] = neighbours.edge[at]
                factor_order[n_factors] = f
                n_factors += 1
                for e in range(scope_ptr[f], scope_ptr[f + 1]):
                    if not seen[scope[e]]:
                        seen[scope[e]] = True
                        var_order[tail] = scope[e]
                        tail += 1
    return n_parts, n_factors
