"""Max-product message passing in the log domain: belief propagation and its tree-reweighted form share these loops.

b_i     = theta_i + sum_a u_ai                                                   belief of a variable
n_ia    = rho_a b_i - u_ai                                                       message of a variable to a factor
u_ai(k) = max over x_a with x_i = k of theta_a(x_a) + sum_{j != i} n_ja(x_j)     message of a factor

theta_a is the factor's table times its weight.

Messages are normalised to maximum 0. With all rho_a = 1 this is belief propagation. With rho_a the appearance
probability of a in spanning forests, it is the tree-reweighted form; its messages as usually written are u_ai / rho_a.

Messages `u` are laid out like `lam_e` and always finite. A state that a factor can only extend to forbidden
configurations is *dead*: it permanently gets -inf in `theta_v`, and thereby in its belief; its messages are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.kernels.max_marginals import FactorScratch, table_max_marginals, table_top, weight_of
from mapmrf.kernels.pair_transforms import StructuredPairs, form_messages, form_of, form_top


class FactorTables(NamedTuple):
    """The factors of a problem: its arrays of these names, and the states (`card_e`) and strides of every edge."""

    scope_ptr: Ints
    scope: Ints
    card_e: Ints
    stride_e: Ints
    var_ptr: Ints
    edge_ptr: Ints
    table_at: Ints
    theta_t: Floats
    weight: Floats


class Beliefs(NamedTuple):
    """Weights of the factors, unary potentials, beliefs, and messages of the factors; see the equations above."""

    rho: Floats
    theta_v: Floats
    b: Floats
    u: Floats


class MessageSchedule(NamedTuple):
    """Update schedule: all at once (flooding) or factor by factor in an order; damping; and tolerance."""

    flooding: bool
    damping: float
    tol: float


class BeliefScratch(NamedTuple):
    spare: Floats  # (n_states,): for the beliefs
    factor: FactorScratch  # for one factor
    pairs: StructuredPairs  # the forms of pairs, with working memory


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
def factor_messages(f: int, tables: FactorTables, scratch: BeliefScratch) -> None:
    """Messages of factor `f`, before their maximum is taken off; -inf for a state without support."""
    theta_t, card_e, at, weight = tables.theta_t, tables.card_e, tables.table_at[f], weight_of(tables.weight, f)
    sent, out = scratch.factor.given, scratch.factor.out
    first = tables.scope_ptr[f]
    arity = tables.scope_ptr[f + 1] - first
    if arity == 2:
        form = form_of(scratch.pairs.forms, f)
        if form >= 0:
            form_messages(scratch.pairs, form, weight, card_e[first], scratch.factor)
            return
        pair_messages(theta_t, at, card_e[first], card_e[first + 1], weight, sent, out)
        return
    if arity == 3:
        card = (card_e[first], card_e[first + 1], card_e[first + 2])
        triple_messages(theta_t, at, card, weight, sent, out)
        return
    table_max_marginals(theta_t, at, card_e, first, arity, weight, scratch.factor)
    n_states = 0
    for k in range(arity):
        n_states += card_e[first + k]
    for s in range(n_states):
        if sent[s] > -np.inf:
            out[s] -= sent[s]


@inlined
def update_factor(
    f: int, tables: FactorTables, beliefs: Beliefs, schedule: MessageSchedule, after: Floats, keeping: bool,
    scratch: BeliefScratch,
) -> float:  # fmt: skip
    """Send new messages from factor `f`; return the largest change asked for, inf if a state dies."""
    # `after` are beliefs to be kept up, if `keeping`: sums to which new messages are added if flooding, or else the
    # current beliefs.
    scope_ptr, scope, edge_ptr = tables.scope_ptr, tables.scope, tables.edge_ptr
    theta_v, u, out = beliefs.theta_v, beliefs.u, scratch.factor.out
    flooding = schedule.flooding
    share, sent, base = beliefs.rho[f], scratch.factor.given, edge_ptr[scope_ptr[f]]
    for e in range(scope_ptr[f], scope_ptr[f + 1]):
        shift = tables.var_ptr[scope[e]] - edge_ptr[e]
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            sent[at - base] = share * beliefs.b[shift + at] - u[at]
    factor_messages(f, tables, scratch)
    worst = 0.0
    for e in range(scope_ptr[f], scope_ptr[f + 1]):
        top = -np.inf
        for at in range(edge_ptr[e], edge_ptr[e + 1]):
            top = max(top, out[at - base])
        shift = tables.var_ptr[scope[e]] - edge_ptr[e]
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
    tables: FactorTables, beliefs: Beliefs, order: Ints, schedule: MessageSchedule, begin: int, end: int,
    scratch: BeliefScratch,
) -> tuple[int, float]:  # fmt: skip
    """Run iterations `begin` to `end`, or to convergence; return how many, and the largest change of the last."""
    # Flooding takes all messages of an iteration from the beliefs before it. Otherwise each is from the current
    # beliefs, factors in their order, in even iterations backwards. A state that dies is an infinite change.
    theta_v, b, spare = beliefs.theta_v, beliefs.b, scratch.spare
    flooding = schedule.flooding
    worst = np.inf
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
            worst = max(worst, update_factor(f, tables, beliefs, schedule, after, True, scratch))
        if flooding:
            for s in range(len(b)):
                b[s] = spare[s]
        k += 1
    if not flooding:  # add the beliefs up without the round-off that many small changes have left
        for s in range(len(b)):
            b[s] = theta_v[s]
        for e in range(len(tables.scope)):
            shift = tables.var_ptr[tables.scope[e]] - tables.edge_ptr[e]
            for at in range(tables.edge_ptr[e], tables.edge_ptr[e + 1]):
                b[shift + at] += beliefs.u[at]
    return k - begin, worst


@bare
def send_messages(
    tables: FactorTables, beliefs: Beliefs, schedule: MessageSchedule, begin: int, end: int, scratch: BeliefScratch
) -> float:
    """The messages of factors `begin` to `end` from beliefs that stay as they are; return the largest change."""
    worst = 0.0
    for f in range(begin, end):
        worst = max(worst, update_factor(f, tables, beliefs, schedule, scratch.spare, False, scratch))
    return worst


@bare
def gather_beliefs(tables: FactorTables, neighbours: Neighbours, beliefs: Beliefs, begin: int, end: int) -> None:
    """The beliefs of variables `begin` to `end` from the messages: the sums of flooding, in the same order."""
    for i in range(begin, end):
        first, last = tables.var_ptr[i], tables.var_ptr[i + 1]
        for s in range(first, last):
            beliefs.b[s] = beliefs.theta_v[s]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            shift = tables.edge_ptr[neighbours.edge[at]] - first
            for s in range(first, last):
                beliefs.b[s] += beliefs.u[shift + s]


@inlined
def best_completions(
    e: int, f: int, at: int, n_free: int, tables: FactorTables, beliefs: Beliefs, labels: Ints, scratch: FactorScratch
) -> None:
    """Factor `f`'s message along edge `e` from entry `at` of its table on, variables that have a label fixed at it."""
    scope, card_e, stride_e = tables.scope, tables.card_e, tables.stride_e
    best, state, weight = scratch.out, scratch.state, weight_of(tables.weight, f)
    first, last = tables.scope_ptr[f], tables.scope_ptr[f + 1]
    for edge in range(first, last):
        state[edge - first] = 0
    for s in range(card_e[e]):
        best[s] = -np.inf
    for _ in range(n_free):
        value = 0.0
        place = at
        for edge in range(first, last):
            if edge != e and labels[scope[edge]] < 0:
                s = state[edge - first]
                sent = beliefs.rho[f] * beliefs.b[tables.var_ptr[scope[edge]] + s]
                value += sent - beliefs.u[tables.edge_ptr[edge] + s]
                place += stride_e[edge] * s
        for s in range(card_e[e]):
            best[s] = max(best[s], value + weight * tables.theta_t[place + s * stride_e[e]])
        for edge in range(first, last):  # the next configuration of the free variables
            if edge != e and labels[scope[edge]] < 0:
                state[edge - first] += 1
                if state[edge - first] < card_e[edge]:
                    break
                state[edge - first] = 0


@inlined
def fixed_message(
    e: int, tables: FactorTables, neighbours: Neighbours, beliefs: Beliefs, labels: Ints, scratch: FactorScratch
) -> None:
    """Fill `out` with the message along an edge, given the labels that its factor's other variables have so far."""
    stride_e, best = tables.stride_e, scratch.out
    f = neighbours.factor_of[e]
    at = np.int64(tables.table_at[f])
    known, n_free = False, np.int64(1)
    for edge in range(tables.scope_ptr[f], tables.scope_ptr[f + 1]):
        label = labels[tables.scope[edge]]
        if label >= 0:
            known = True
            at += stride_e[edge] * label
        elif edge != e:
            n_free *= tables.card_e[edge]
    if not known:
        for s in range(tables.card_e[e]):
            best[s] = beliefs.u[tables.edge_ptr[e] + s]
    elif n_free == 1:
        for s in range(tables.card_e[e]):
            best[s] = weight_of(tables.weight, f) * tables.theta_t[at + s * stride_e[e]]
    else:
        best_completions(e, f, int(at), int(n_free), tables, beliefs, labels, scratch)


@bare
def decode_in_order(
    tables: FactorTables, neighbours: Neighbours, beliefs: Beliefs, var_order: Ints, labels: Ints,
    scratch: FactorScratch,
) -> None:  # fmt: skip
    """Choose one state after another, each by the messages given the states chosen before."""
    var_ptr, score, best, broken = tables.var_ptr, scratch.given, scratch.out, scratch.start
    for i in range(len(labels)):
        labels[i] = -1
    for turn in range(len(var_order)):
        i = var_order[turn]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            theta = beliefs.theta_v[var_ptr[i] + s]
            broken[s] = 1 if theta == -np.inf else 0
            score[s] = 0.0 if theta == -np.inf else theta
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            fixed_message(neighbours.edge[at], tables, neighbours, beliefs, labels, scratch)
            for s in range(n_states):
                hard = best[s] == -np.inf
                broken[s] += 1 if hard else 0
                score[s] += 0.0 if hard else best[s]
        # the first of the states of highest score among those with the fewest broken constraints
        chosen = 0
        for s in range(1, n_states):
            if broken[s] < broken[chosen] or (broken[s] == broken[chosen] and score[s] > score[chosen]):
                chosen = s
        labels[i] = chosen


@bare
def value_of_tables(tables: FactorTables, theta_v: Floats, labels: Ints) -> float:
    """Log potential of a labelling, without the constant."""
    total = 0.0
    for i in range(len(labels)):
        total += theta_v[tables.var_ptr[i] + labels[i]]
    for f in range(len(tables.table_at)):
        at = tables.table_at[f]
        for e in range(tables.scope_ptr[f], tables.scope_ptr[f + 1]):
            at += tables.stride_e[e] * labels[tables.scope[e]]
        total += weight_of(tables.weight, f) * tables.theta_t[at]
    return total


@bare
def bound_of_tables(tables: FactorTables, beliefs: Beliefs, parent: Floats, scratch: BeliefScratch) -> float:
    """Upper bound on every labelling, without the constant: the dual at lam_ia = (rho_a - parent_ia) b_i - u_ai."""
    # The dual of the local polytope is a bound for any multipliers. With parent_ia the share of the forests in which a
    # is a child of i, and omega_i the share of those with root i, the variables are left with omega_i b_i. At a fixed
    # point ``theta_a + sum_i n_ia`` has the max-marginals rho_a b_i plus a constant, so all terms are largest where the
    # beliefs are, and the bound is the combined value of the forests. Dead states are ignored.
    scope_ptr, var_ptr, edge_ptr = tables.scope_ptr, tables.var_ptr, tables.edge_ptr
    rho, b, given, left = beliefs.rho, beliefs.b, scratch.factor.given, scratch.spare
    for s in range(len(left)):
        left[s] = beliefs.theta_v[s]
    total = 0.0
    for f in range(len(tables.table_at)):
        first = scope_ptr[f]
        base = edge_ptr[first]
        for e in range(first, scope_ptr[f + 1]):
            shift = var_ptr[tables.scope[e]] - edge_ptr[e]
            for at in range(edge_ptr[e], edge_ptr[e + 1]):
                s = shift + at
                lam = -np.inf
                if b[s] > -np.inf:
                    lam = (rho[f] - parent[e]) * b[s] - beliefs.u[at]
                    left[s] -= lam
                given[at - base] = lam
        arity, card_e = scope_ptr[f + 1] - first, tables.card_e
        weight, form = weight_of(tables.weight, f), form_of(scratch.pairs.forms, f)
        if form >= 0:
            total += form_top(scratch.pairs, form, weight, card_e[first], scratch.factor)
        else:
            total += table_top(tables.theta_t, tables.table_at[f], card_e, first, arity, weight, scratch.factor)
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
