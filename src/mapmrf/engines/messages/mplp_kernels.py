"""Block coordinate descent on the dual of the local polytope, factor by factor, and decoding from it.

A factor's reparametrised table is its weight times its table, minus its messages `lam`; `belief` holds theta_i plus all
messages to i. A state that is proven impossible has the belief -inf for good; messages are always finite.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.kernels.max_marginals import FactorScratch, max_marginals, pair_max_marginals, table_top, weight_of
from mapmrf.kernels.pair_transforms import StructuredPairs, form_max_marginals, form_of, form_top
from mapmrf.model.structured_pairs import NO_FORM


class Regions(NamedTuple):
    var_ptr: Ints  # (n_vars + 1,): offsets of the variables' blocks in `belief`
    # theta, table_at: the tables, and where each factor's starts; factors may share a table
    theta: Floats
    table_at: Ints
    weight: Floats  # what the factors' tables are multiplied by; empty if all weights are 1
    # scope_ptr, scope: edges of every factor, and the variable of every edge
    scope_ptr: Ints
    scope: Ints
    # state_at, card_e, edge_ptr: per edge: where its variable's block starts in `belief`, the number of its states, and
    # where its own block starts in `lam`
    state_at: Ints
    card_e: Ints
    edge_ptr: Ints
    # lam, belief: the messages, and theta_i plus all messages to i
    lam: Floats
    belief: Floats


class PassOrder(NamedTuple):
    """Iterations `begin` to `end`: passes over the factors `visit`, every other one backward if they alternate."""

    visit: Ints
    begin: int
    end: int
    alternate: bool


@inlined
def pair_entry(regions: Regions, weight: float, at: int, e: int, s1: int, s2: int) -> float:
    """Entry of a pair's reparametrised table, by its weight and its place in `theta`; `e` is the pair's first edge."""
    belief, state_at, lam, edge_ptr = regions.belief, regions.state_at, regions.lam, regions.edge_ptr
    if belief[state_at[e] + s1] == -np.inf or belief[state_at[e + 1] + s2] == -np.inf:
        return -np.inf  # messages of impossible states are stale
    entry: float = weight * regions.theta[at] - (lam[edge_ptr[e] + s1] + lam[edge_ptr[e + 1] + s2])
    return entry


@inlined
def give_pair2(
    at: int, i_at: int, j_at: int, base: int, weight: float, theta: Floats, lam: Floats, belief: Floats
) -> None:
    """Take the messages of a 2x2 table without -inf back and share its max-marginals out equally."""
    # Arrays are passed individually: a tuple of ten in such a small loop costs more than the arithmetic.
    g0 = belief[i_at] - lam[base]
    g1 = belief[i_at + 1] - lam[base + 1]
    h0 = belief[j_at] - lam[base + 2]
    h1 = belief[j_at + 1] - lam[base + 3]
    t00 = weight * theta[at] + (g0 + h0)
    t01 = weight * theta[at + 1] + (g0 + h1)
    t10 = weight * theta[at + 2] + (g1 + h0)
    t11 = weight * theta[at + 3] + (g1 + h1)
    p0, p1 = 0.5 * max(t00, t01), 0.5 * max(t10, t11)
    q0, q1 = 0.5 * max(t00, t10), 0.5 * max(t01, t11)
    belief[i_at], belief[i_at + 1], belief[j_at], belief[j_at + 1] = p0, p1, q0, q1
    lam[base], lam[base + 1], lam[base + 2], lam[base + 3] = p0 - g0, p1 - g1, q0 - h0, q1 - h1


@inlined
def pass_pairs2(regions: Regions, visit: Ints, backward: bool) -> None:
    """One pass over pairs of binary variables without -inf; factor `a` has the edges 2a and 2a + 1."""
    table_at, state_at, weight = regions.table_at, regions.state_at, regions.weight
    theta, lam, belief = regions.theta, regions.lam, regions.belief
    n = len(visit)
    if len(weight) == 0:  # a separate loop: even this test costs several percent per pair
        for q in range(n):
            a = visit[n - 1 - q] if backward else visit[q]
            i_at, j_at = state_at[2 * a], state_at[2 * a + 1]
            give_pair2(table_at[a], i_at, j_at, 4 * a, 1.0, theta, lam, belief)
        return
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        i_at, j_at = state_at[2 * a], state_at[2 * a + 1]
        give_pair2(table_at[a], i_at, j_at, 4 * a, weight[a], theta, lam, belief)


@inlined
def take_back(states: int, held: int, place: int, n: int, belief: Floats, lam: Floats, given: Floats) -> None:
    """Fill `given` from `place` on with the beliefs of one variable, without what a factor has sent it."""
    for s in range(n):
        given[place + s] = belief[states + s] - lam[held + s]


@inlined
def give_out(
    share: float, states: int, held: int, place: int, n: int, belief: Floats, lam: Floats, scratch: FactorScratch
) -> None:
    """Send a variable its share of the max-marginals in `out` from `place` on."""
    given, out = scratch.given, scratch.out
    for s in range(n):
        if out[place + s] == -np.inf:
            belief[states + s] = -np.inf
        else:
            mine = share * out[place + s]
            belief[states + s] = mine
            lam[held + s] = mine - given[place + s]


@inlined
def give_pair(a: int, plain: bool, regions: Regions, pairs: StructuredPairs, scratch: FactorScratch) -> None:
    """Take the messages of a pair of any variables back and share its max-marginals out equally."""
    # `plain` says that there are no weights and no forms at all.
    state_at, card_e, lam, belief = regions.state_at, regions.card_e, regions.lam, regions.belief
    first = regions.scope_ptr[a]
    base, at = regions.edge_ptr[first], regions.table_at[a]
    i_at, j_at, k1, k2 = state_at[first], state_at[first + 1], card_e[first], card_e[first + 1]
    take_back(i_at, base, 0, k1, belief, lam, scratch.given)
    take_back(j_at, base + k1, k1, k2, belief, lam, scratch.given)
    weight, form = 1.0, NO_FORM
    if not plain:
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
    if form >= 0:
        form_max_marginals(pairs, form, weight, k1, scratch)
    elif weight == 1.0:
        pair_max_marginals(regions.theta, at, k1, k2, 1.0, scratch)
    else:
        pair_max_marginals(regions.theta, at, k1, k2, weight, scratch)
    give_out(0.5, i_at, base, 0, k1, belief, lam, scratch)
    give_out(0.5, j_at, base + k1, k1, k2, belief, lam, scratch)


@inlined
def pass_factors(
    regions: Regions, visit: Ints, toward: Ints, backward: bool, pairs: StructuredPairs, scratch: FactorScratch
) -> None:
    """One pass over factors of any shape: each takes its messages back and shares its max-marginals out."""
    # All go `toward` one place of its scope (from hanging trees to their roots), or in equal shares if `toward` is
    # empty.
    scope_ptr, state_at, card_e = regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given = regions.lam, regions.belief, scratch.given
    plain = len(regions.weight) == 0 and len(pairs.forms.of) == 0
    n = len(visit)
    for q in range(n):
        a = visit[n - 1 - q] if backward else visit[q]
        first = scope_ptr[a]
        base = regions.edge_ptr[first]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and len(toward) == 0:
            give_pair(a, plain, regions, pairs, scratch)
            continue
        place = 0
        for e in range(first, scope_ptr[a + 1]):
            take_back(state_at[e], base + place, place, card_e[e], belief, lam, given)
            place += card_e[e]
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
        if form >= 0:
            form_max_marginals(pairs, form, weight, card_e[first], scratch)
        else:
            max_marginals(regions.theta, regions.table_at[a], card_e, first, arity, weight, scratch)
        place = 0
        for e in range(first, scope_ptr[a + 1]):
            share = 1.0 / arity
            if len(toward) > 0:
                share = 1.0 if e - first == toward[q] else 0.0
            give_out(share, state_at[e], base + place, place, card_e[e], belief, lam, scratch)
            place += card_e[e]


@bare
def passes_pairs2(regions: Regions, sweeps: PassOrder) -> None:
    """Iterations on pairs of binary variables without -inf."""
    for iteration in range(sweeps.begin, sweeps.end):
        pass_pairs2(regions, sweeps.visit, sweeps.alternate and iteration % 2 == 1)


@bare
def passes_factors(
    regions: Regions, sweeps: PassOrder, toward: Ints, pairs: StructuredPairs, scratch: FactorScratch
) -> None:
    """Iterations on factors of any shape; see `pass_factors`."""
    for iteration in range(sweeps.begin, sweeps.end):
        pass_factors(regions, sweeps.visit, toward, sweeps.alternate and iteration % 2 == 1, pairs, scratch)


@bare
def bound_of(regions: Regions, begin: int, end: int, pairs: StructuredPairs, scratch: FactorScratch) -> float:
    """Sum the maxima of the reparametrised tables of some factors, and those of all beliefs with the first ones."""
    var_ptr, scope_ptr, state_at, card_e = regions.var_ptr, regions.scope_ptr, regions.state_at, regions.card_e
    lam, belief, given = regions.lam, regions.belief, scratch.given
    total = 0.0
    for i in range(len(var_ptr) - 1 if begin == 0 else 0):
        top = -np.inf
        for s in range(var_ptr[i], var_ptr[i + 1]):
            top = max(top, belief[s])
        total += top
    for a in range(begin, end):
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        if arity == 2 and card_e[first] == 2 and card_e[first + 1] == 2:
            total += pair2_top(a, regions)
            continue
        place = 0
        for e in range(first, first + arity):
            for s in range(card_e[e]):
                gone = belief[state_at[e] + s] == -np.inf
                given[place] = -np.inf if gone else -lam[regions.edge_ptr[e] + s]
                place += 1
        weight, form = weight_of(regions.weight, a), form_of(pairs.forms, a)
        if form >= 0:
            total += form_top(pairs, form, weight, card_e[first], scratch)
        else:
            total += table_top(regions.theta, regions.table_at[a], card_e, first, arity, weight, scratch)
    return total


@inlined
def pair2_top(a: int, regions: Regions) -> float:
    """The largest entry of the reparametrised table of two binary variables."""
    belief, lam, theta, at = regions.belief, regions.lam, regions.theta, regions.table_at[a]
    first, weight = regions.scope_ptr[a], weight_of(regions.weight, a)
    i_at, j_at, base = regions.state_at[first], regions.state_at[first + 1], regions.edge_ptr[first]
    g0 = -lam[base] if belief[i_at] > -np.inf else -np.inf
    g1 = -lam[base + 1] if belief[i_at + 1] > -np.inf else -np.inf
    h0 = -lam[base + 2] if belief[j_at] > -np.inf else -np.inf
    h1 = -lam[base + 3] if belief[j_at + 1] > -np.inf else -np.inf
    top0 = max(weight * theta[at] + (g0 + h0), weight * theta[at + 1] + (g0 + h1))
    top1 = max(weight * theta[at + 2] + (g1 + h0), weight * theta[at + 3] + (g1 + h1))
    best: float = max(top0, top1)
    return best


@compiled
def peel_factors(scope_ptr: Ints, scope: Ints, neighbours: Neighbours, live: Ints, peeled: Ints, toward: Ints) -> int:
    """Strip factors that share at most one variable with the rest, again and again; return how many."""
    # `peeled` gets them in this order, and `toward` the place of the shared variable in the scope of each. `live`
    # counts the variables of a factor that others still share; a stripped factor has live -1.
    degree = np.empty(len(neighbours.ptr) - 1, dtype=np.int64)
    tail = 0
    for i in range(len(degree)):
        degree[i] = neighbours.ptr[i + 1] - neighbours.ptr[i]
    for a in range(len(live)):
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
            if degree[i] == 1:
                tail = release(i, neighbours, live, peeled, tail)
        head += 1
    return tail


@inlined
def release(i: int, neighbours: Neighbours, live: Ints, peeled: Ints, tail: int) -> int:
    """The one factor left at a variable shares it with no other any more; return the new end of `peeled`."""
    for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
        b = neighbours.factor_of[neighbours.edge[at]]
        if live[b] > 0:
            live[b] -= 1
            if live[b] == 1:
                peeled[tail] = b
                tail += 1
    return tail


@bare
def decode(decide: Ints, regions: Regions, neighbours: Neighbours, labels: Ints, scratch: FactorScratch) -> None:
    """Decide variables one by one: belief plus the best of every factor that has a decided variable."""
    # `labels` are -1 where a variable is not decided yet.
    var_ptr, scope_ptr, scope, score = regions.var_ptr, regions.scope_ptr, regions.scope, scratch.given
    for q in range(len(decide)):
        i = decide[q]
        n_states = var_ptr[i + 1] - var_ptr[i]
        for s in range(n_states):
            score[s] = regions.belief[var_ptr[i] + s]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            a = neighbours.factor_of[neighbours.edge[at]]
            first = scope_ptr[a]
            if scope_ptr[a + 1] - first == 2:
                is_first = scope[first] == i
                label = labels[scope[first + 1 if is_first else first]]
                if label >= 0:
                    add_row(a, is_first, label, n_states, regions, score)
                continue
            known = 0
            for e in range(first, scope_ptr[a + 1]):
                known += 1 if labels[scope[e]] >= 0 else 0
            if known > 0:
                add_best(i, a, n_states, regions, labels, scratch)
        best = 0
        for s in range(1, n_states):
            if score[s] > score[best]:
                best = s
        labels[i] = best


@inlined
def add_row(a: int, is_first: bool, label: int, n_states: int, regions: Regions, score: Floats) -> None:
    """Add a pair's reparametrised table to the states of one variable, given the label of the other one."""
    lam, edge_ptr, weight = regions.lam, regions.edge_ptr, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    mine, other = edge_ptr[first], edge_ptr[first + 1] + label
    at, step = regions.table_at[a] + label, regions.card_e[first + 1]
    if not is_first:
        mine, other = edge_ptr[first + 1], edge_ptr[first] + label
        at, step = regions.table_at[a] + label * regions.card_e[first + 1], 1
    for s in range(n_states):
        score[s] += weight * regions.theta[at + s * step] - (lam[mine + s] + lam[other])


@inlined
def add_best(i: int, a: int, n_states: int, regions: Regions, labels: Ints, scratch: FactorScratch) -> None:
    """Add to every state of `i` the best entry of factor `a`'s reparametrised table that agrees with the labels."""
    scope, card_e, lam, edge_ptr = regions.scope, regions.card_e, regions.lam, regions.edge_ptr
    score, state, most, weight = scratch.given, scratch.state, scratch.start, weight_of(regions.weight, a)
    first = regions.scope_ptr[a]
    arity = regions.scope_ptr[a + 1] - first
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
                if most[k] > 1 and regions.belief[regions.state_at[first + k] + state[k]] == -np.inf:
                    taken = np.inf  # messages of impossible states are stale
            top = max(top, weight * regions.theta[regions.table_at[a] + place] - taken)
            k = arity - 1
            while k >= 0:
                if most[k] > 1:
                    state[k] += 1
                    if state[k] < most[k]:
                        break
                    state[k] = 0
                k -= 1
        score[s] += top
