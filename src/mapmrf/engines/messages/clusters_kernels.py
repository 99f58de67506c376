"""Message passing with cycle clusters on top of pairs, and with lifts of larger factors on to pairs.

A pair is a factor of two variables in the region list of `kernels.mplp`. A cluster is a cycle of pairs,
``cyc_pair[cyc_ptr[c]:cyc_ptr[c + 1]]``, walked from variable to variable; `cyc_flip` is 1 where a pair is walked from
its second variable to its first. Its reparametrised potential is a sum of tables on its pairs, `own`, each laid out
like the pair's table from `own_at` on; all entries of `own` are finite. What a cluster gives to a pair is added to the
pair's table in `theta`, which therefore must be the pair's alone.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.messages.mplp_kernels import pair_entry, pass_factors, pass_pairs2
from mapmrf.kernels.jit import compiled, inlined


@inlined
def give_cycle2(c, cyc_ptr, cyc_pair, cyc_flip, share, own, theta, table_at, lam, walk, ahead, back):
    """Take a cluster's tables back from its pairs and share its max-marginals out; binary variables, no -inf.

    share : part of every pair of every cluster, 1 in sum for each cluster.

    walk, ahead, back : scratch of 4 numbers per pair: the pairs' tables in walking direction, and the best way from the
    first variable to each (first variable's state first) and from each to the first.
    """
    lo = cyc_ptr[c]
    n = cyc_ptr[c + 1] - lo
    for t in range(n):
        a = cyc_pair[lo + t]
        at, base, o, w = table_at[a], 4 * a, 4 * (lo + t), 4 * t
        l0, l1, r0, r1 = lam[base], lam[base + 1], lam[base + 2], lam[base + 3]
        # The pair's reparametrised table moves into the cluster; what is left in `theta` are the messages alone.
        own[o] += theta[at] - (l0 + r0)
        own[o + 1] += theta[at + 1] - (l0 + r1)
        own[o + 2] += theta[at + 2] - (l1 + r0)
        own[o + 3] += theta[at + 3] - (l1 + r1)
        theta[at], theta[at + 1], theta[at + 2], theta[at + 3] = l0 + r0, l0 + r1, l1 + r0, l1 + r1
        flip = cyc_flip[lo + t]
        walk[w], walk[w + 1], walk[w + 2], walk[w + 3] = own[o], own[o + 1 + flip], own[o + 2 - flip], own[o + 3]
    for k in range(4):
        ahead[4 + k] = walk[k]
        back[4 * (n - 1) + k] = walk[4 * (n - 1) + k]
    for w in range(4, 4 * (n - 1), 4):
        for x in range(2):
            for y in range(2):
                ahead[w + 4 + 2 * x + y] = max(ahead[w + 2 * x] + walk[w + y], ahead[w + 2 * x + 1] + walk[w + 2 + y])
    for w in range(4 * (n - 2), 0, -4):
        for x in range(2):
            for y in range(2):
                back[w + 2 * x + y] = max(walk[w + 2 * x] + back[w + 4 + y], walk[w + 2 * x + 1] + back[w + 6 + y])
    for t in range(n):
        at, o, w, flip = table_at[cyc_pair[lo + t]], 4 * (lo + t), 4 * t, cyc_flip[lo + t]
        for x in range(2):
            for y in range(2):
                if t == 0:
                    rest = back[4 + 2 * y + x]
                elif t == n - 1:
                    rest = ahead[w + 2 * y + x]
                else:
                    rest = max(ahead[w + x] + back[w + 4 + 2 * y], ahead[w + 2 + x] + back[w + 5 + 2 * y])
                mine = share[lo + t] * (walk[w + 2 * x + y] + rest)
                k = 2 * y + x if flip else 2 * x + y
                own[o + k] -= mine
                theta[at + k] += mine


@compiled
def passes_clusters2(
    begin: int, end: int, alternate: bool, visit: Ints, theta: Floats, table_at: Ints, state_at: Ints, lam: Floats,
    belief: Floats, cyc_ptr: Ints, cyc_pair: Ints, cyc_flip: Ints, share: Floats, own: Floats, walk: Floats,
    ahead: Floats, back: Floats,
) -> None:  # fmt: skip
    """Iterations over all clusters and then all pairs, on binary variables without -inf."""
    n = len(cyc_ptr) - 1
    for iteration in range(begin, end):
        backward = alternate and iteration % 2 == 1
        for q in range(n):
            c = n - 1 - q if backward else q
            give_cycle2(c, cyc_ptr, cyc_pair, cyc_flip, share, own, theta, table_at, lam, walk, ahead, back)
        pass_pairs2(backward, visit, theta, table_at, state_at, lam, belief)


@inlined
def best_ways(n, lo, cyc_pair, cyc_flip, scope_ptr, card_e, walk, ahead, back, width):
    """Best ways ahead and back along a cycle whose tables are in `walk`; blocks of width * width numbers per pair."""
    block = width * width
    k0 = card_e[scope_ptr[cyc_pair[lo]] + cyc_flip[lo]]
    for x in range(k0):
        for y in range(k0):
            ahead[x * width + y] = 0.0 if x == y else -np.inf
            back[n * block + x * width + y] = 0.0 if x == y else -np.inf
    for t in range(n):
        first, flip = scope_ptr[cyc_pair[lo + t]], cyc_flip[lo + t]
        kx, ky = card_e[first + flip], card_e[first + 1 - flip]
        for z in range(k0):
            for y in range(ky):
                best = -np.inf
                for x in range(kx):
                    best = max(best, ahead[t * block + z * width + x] + walk[t * block + x * width + y])
                ahead[(t + 1) * block + z * width + y] = best
    for t in range(n - 1, -1, -1):
        first, flip = scope_ptr[cyc_pair[lo + t]], cyc_flip[lo + t]
        kx, ky = card_e[first + flip], card_e[first + 1 - flip]
        for x in range(kx):
            for z in range(k0):
                best = -np.inf
                for y in range(ky):
                    best = max(best, walk[t * block + x * width + y] + back[(t + 1) * block + y * width + z])
                back[t * block + x * width + z] = best
    return k0


@inlined
def give_cycle(
    c, cyc_ptr, cyc_pair, cyc_flip, share, own_at, own, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam,
    belief, walk, ahead, back, width,
):  # fmt: skip
    """`give_cycle2` for any number of states, and with -inf: what proves impossible in a pair stays so."""
    lo = cyc_ptr[c]
    n = cyc_ptr[c + 1] - lo
    block = width * width
    for t in range(n):
        a, o = cyc_pair[lo + t], own_at[lo + t]
        first, flip = scope_ptr[a], cyc_flip[lo + t]
        k1, k2 = card_e[first], card_e[first + 1]
        for s1 in range(k1):
            for s2 in range(k2):
                at = s1 * k2 + s2
                value = pair_entry(table_at[a] + at, first, s1, s2, theta, state_at, edge_ptr, lam, belief)
                walk[t * block + (s2 * width + s1 if flip else s1 * width + s2)] = value + own[o + at]
    k0 = best_ways(n, lo, cyc_pair, cyc_flip, scope_ptr, card_e, walk, ahead, back, width)
    for t in range(n):
        a, o = cyc_pair[lo + t], own_at[lo + t]
        first, flip = scope_ptr[a], cyc_flip[lo + t]
        k1, k2 = card_e[first], card_e[first + 1]
        for s1 in range(k1):
            for s2 in range(k2):
                x, y = (s2, s1) if flip else (s1, s2)
                rest = -np.inf
                for z in range(k0):
                    rest = max(rest, ahead[t * block + z * width + x] + back[(t + 1) * block + y * width + z])
                mine = walk[t * block + x * width + y] + rest
                at = s1 * k2 + s2
                held = lam[edge_ptr[first] + s1] + lam[edge_ptr[first + 1] + s2]
                if mine == -np.inf:
                    theta[table_at[a] + at] = -np.inf
                else:
                    mine *= share[lo + t]
                    own[o + at] += (theta[table_at[a] + at] - held) - mine
                    theta[table_at[a] + at] = held + mine


@inlined
def give_lift(
    q, lift_ptr, lift_factor, lift_pair, lift_axis, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief,
    work, iwork,
):  # fmt: skip
    """Share a larger factor's max-marginals out among pairs of its variables; its table must be its own.

    lift_axis : (n, 2), places in the factor's scope of the pair's first and second variable. work : (2, entries of the
    factor's pairs), iwork : (2, largest arity), scratch.
    """
    lo, hi = lift_ptr[q], lift_ptr[q + 1]
    a = lift_factor[q]
    first = scope_ptr[a]
    arity = scope_ptr[a + 1] - first
    size = 1
    for k in range(arity):
        size *= card_e[first + k]
    held, out, state = work[0], work[1], iwork[0]
    place = 0
    for t in range(lo, hi):
        p = lift_pair[t]
        e = scope_ptr[p]
        for s1 in range(card_e[e]):
            for s2 in range(card_e[e + 1]):
                at = table_at[p] + s1 * card_e[e + 1] + s2
                held[place] = pair_entry(at, e, s1, s2, theta, state_at, edge_ptr, lam, belief)
                out[place] = -np.inf
                place += 1
    share = 1.0 / (hi - lo)
    for stage in range(2):  # first the max-marginals, then what is left in the factor
        for k in range(arity):
            state[k] = 0
        for at in range(table_at[a], table_at[a] + size):
            value = theta[at]
            if stage == 0:
                for k in range(arity):
                    value -= lam[edge_ptr[first + k] + state[k]]
                    if belief[state_at[first + k] + state[k]] == -np.inf:
                        value = -np.inf
            place = 0
            for t in range(lo, hi):
                k2 = card_e[first + lift_axis[t, 1]]
                here = place + state[lift_axis[t, 0]] * k2 + state[lift_axis[t, 1]]
                value += held[here] if stage == 0 else 0.0
                place += card_e[first + lift_axis[t, 0]] * k2
            place = 0
            for t in range(lo, hi):
                k2 = card_e[first + lift_axis[t, 1]]
                here = place + state[lift_axis[t, 0]] * k2 + state[lift_axis[t, 1]]
                if stage == 0:
                    out[here] = max(out[here], value)
                elif out[here] == -np.inf:
                    value = -np.inf
                else:
                    value += held[here] - share * out[here]
                place += card_e[first + lift_axis[t, 0]] * k2
            if stage == 1:
                theta[at] = value
            k = arity - 1
            while k >= 0:
                state[k] += 1
                if state[k] < card_e[first + k]:
                    break
                state[k] = 0
                k -= 1
    place = 0
    for t in range(lo, hi):
        p = lift_pair[t]
        e = scope_ptr[p]
        for at in range(table_at[p], table_at[p] + card_e[e] * card_e[e + 1]):
            if out[place] == -np.inf:
                theta[at] = -np.inf
            else:
                theta[at] += share * out[place] - held[place]
            place += 1


@compiled
def passes_clusters(
    begin: int, end: int, alternate: bool, visit: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, state_at: Ints,
    card_e: Ints, edge_ptr: Ints, lam: Floats, belief: Floats, work: Floats, iwork: Ints, cyc_ptr: Ints, cyc_pair: Ints,
    cyc_flip: Ints, share: Floats, own_at: Ints, own: Floats, walk: Floats, ahead: Floats, back: Floats, width: int,
    lift_ptr: Ints, lift_factor: Ints, lift_pair: Ints, lift_axis: Ints, lift_work: Floats,
) -> None:  # fmt: skip
    """Iterations over all lifts, all clusters and then all factors, of any shape."""
    n, n_lifts = len(cyc_ptr) - 1, len(lift_factor)
    for iteration in range(begin, end):
        backward = alternate and iteration % 2 == 1
        for q in range(n_lifts):
            r = n_lifts - 1 - q if backward else q
            give_lift(
                r, lift_ptr, lift_factor, lift_pair, lift_axis, theta, table_at, scope_ptr, state_at, card_e, edge_ptr,
                lam, belief, lift_work, iwork,
            )  # fmt: skip
        for q in range(n):
            c = n - 1 - q if backward else q
            give_cycle(
                c, cyc_ptr, cyc_pair, cyc_flip, share, own_at, own, theta, table_at, scope_ptr, state_at, card_e,
                edge_ptr, lam, belief, walk, ahead, back, width,
            )  # fmt: skip
        pass_factors(
            backward, visit, theta, table_at, scope_ptr, state_at, card_e, edge_ptr, lam, belief, work, iwork
        )  # fmt: skip


@compiled
def top_of_clusters(
    cyc_ptr: Ints, cyc_pair: Ints, cyc_flip: Ints, own_at: Ints, own: Floats, theta: Floats, table_at: Ints,
    scope_ptr: Ints, card_e: Ints, way: Floats,
) -> float:  # fmt: skip
    """Sum of the maxima of all clusters' potentials; way : (2, states of the widest variable), scratch.

    Entries that are impossible in a pair are impossible in its clusters.
    """
    total = 0.0
    for c in range(len(cyc_ptr) - 1):
        lo, hi = cyc_ptr[c], cyc_ptr[c + 1]
        k0 = card_e[scope_ptr[cyc_pair[lo]] + cyc_flip[lo]]
        top = -np.inf
        for z in range(k0):
            here = 0
            for x in range(k0):
                way[0, x] = 0.0 if x == z else -np.inf
            for t in range(lo, hi):
                first, flip = scope_ptr[cyc_pair[t]], cyc_flip[t]
                kx, ky, k2 = card_e[first + flip], card_e[first + 1 - flip], card_e[first + 1]
                for y in range(ky):
                    best = -np.inf
                    for x in range(kx):
                        at = y * k2 + x if flip else x * k2 + y
                        if theta[table_at[cyc_pair[t]] + at] > -np.inf:
                            best = max(best, way[here, x] + own[own_at[t] + at])
                    way[1 - here, y] = best
                here = 1 - here
            top = max(top, way[here, z])
        total += top
    return total


@compiled
def project_links(
    link_factor: Ints, link_pair: Ints, link_axis: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints, state_at: Ints,
    card_e: Ints, edge_ptr: Ints, lam: Floats, belief: Floats, iwork: Ints,
) -> None:  # fmt: skip
    """Write the max-marginals of larger factors into the tables of pairs that they hold, one pair per link."""
    state = iwork[0]
    for t in range(len(link_factor)):
        a, p = link_factor[t], link_pair[t]
        first = scope_ptr[a]
        arity = scope_ptr[a + 1] - first
        u, v = link_axis[t, 0], link_axis[t, 1]
        k2 = card_e[first + v]
        for at in range(table_at[p], table_at[p] + card_e[first + u] * k2):
            theta[at] = -np.inf
        size = 1
        for k in range(arity):
            state[k] = 0
            size *= card_e[first + k]
        for at in range(table_at[a], table_at[a] + size):
            value = theta[at]
            for k in range(arity):
                value -= lam[edge_ptr[first + k] + state[k]]
                if belief[state_at[first + k] + state[k]] == -np.inf:
                    value = -np.inf
            here = table_at[p] + state[u] * k2 + state[v]
            theta[here] = max(theta[here], value)
            k = arity - 1
            while k >= 0:
                state[k] += 1
                if state[k] < card_e[first + k]:
                    break
                state[k] = 0
                k -= 1
