"""Choosing clusters: short cycles, frustrated cycles of the projected graph, gains, and triangulation.

Regions and cycles are laid out as in `kernels.clusters`. Pairs are given by their place in a list of pairs where it
says so, and otherwise by their number in the region list.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.messages.mplp_kernels import pair_entry
from mapmrf.kernels.jit import compiled, inlined
from mapmrf.kernels.parity import root_of


@compiled
def gains(
    begin: int, end: int, cyc_ptr: Ints, cyc_pair: Ints, cyc_flip: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints,
    state_at: Ints, card_e: Ints, edge_ptr: Ints, lam: Floats, belief: Floats, way: Floats, gain: Floats,
) -> None:  # fmt: skip
    """How far the bound would fall at once if a cycle were a cluster: sum of the pairs' maxima minus the cycle's."""
    for c in range(begin, end):
        lo, hi = cyc_ptr[c], cyc_ptr[c + 1]
        k0 = card_e[scope_ptr[cyc_pair[lo]] + cyc_flip[lo]]
        top, total = -np.inf, 0.0
        for z in range(k0):
            here = 0
            for x in range(k0):
                way[0, x] = 0.0 if x == z else -np.inf
            for t in range(lo, hi):
                a, flip = cyc_pair[t], cyc_flip[t]
                first = scope_ptr[a]
                kx, ky, k2 = card_e[first + flip], card_e[first + 1 - flip], card_e[first + 1]
                most = -np.inf
                for y in range(ky):
                    best = -np.inf
                    for x in range(kx):
                        s1, s2 = (y, x) if flip else (x, y)
                        at = table_at[a] + s1 * k2 + s2
                        value = pair_entry(at, first, s1, s2, theta, state_at, edge_ptr, lam, belief)
                        most = max(most, value)
                        best = max(best, way[here, x] + value)
                    way[1 - here, y] = best
                here = 1 - here
                if z == 0:
                    total += most
            top = max(top, way[here, z])
        gain[c] = total - top if total > -np.inf else 0.0


@compiled
def short_cycles(
    adj_ptr: Ints, adj_var: Ints, adj_pair: Ints, adj_flip: Ints, mark: Ints, out_pair: Ints, out_flip: Ints,
    out_size: Ints, max_work: int,
) -> int:  # fmt: skip
    """All triangles and all cycles of four without a chord, as far as they fit; return how many.

    The pairs of variable i are the places adj_ptr[i]:adj_ptr[i + 1]: the other variable, the pair, and whether i is its
    second variable. mark : per variable, filled with -1. out_pair, out_flip : (n, 4); out_size : (n,).
    """
    count, work = 0, 0
    for i in range(len(adj_ptr) - 1):
        for q in range(adj_ptr[i], adj_ptr[i + 1]):
            mark[adj_var[q]] = q
        for q in range(adj_ptr[i], adj_ptr[i + 1]):
            a = adj_var[q]
            if a < i:
                continue
            for r in range(adj_ptr[a], adj_ptr[a + 1]):
                k = adj_var[r]
                if k <= i:
                    continue
                if mark[k] >= 0:
                    if k > a and count < len(out_size):
                        m = mark[k]
                        out_pair[count, 0], out_flip[count, 0] = adj_pair[q], adj_flip[q]
                        out_pair[count, 1], out_flip[count, 1] = adj_pair[r], adj_flip[r]
                        out_pair[count, 2], out_flip[count, 2] = adj_pair[m], 1 - adj_flip[m]
                        out_size[count] = 3
                        count += 1
                    continue
                for s in range(adj_ptr[k], adj_ptr[k + 1]):
                    b = adj_var[s]
                    work += 1
                    if b <= a or mark[b] < 0:
                        continue
                    chord = False
                    for u in range(adj_ptr[a], adj_ptr[a + 1]):
                        chord = chord or adj_var[u] == b
                    if not chord and count < len(out_size):
                        m = mark[b]
                        out_pair[count, 0], out_flip[count, 0] = adj_pair[q], adj_flip[q]
                        out_pair[count, 1], out_flip[count, 1] = adj_pair[r], adj_flip[r]
                        out_pair[count, 2], out_flip[count, 2] = adj_pair[s], adj_flip[s]
                        out_pair[count, 3], out_flip[count, 3] = adj_pair[m], 1 - adj_flip[m]
                        out_size[count] = 4
                        count += 1
        for q in range(adj_ptr[i], adj_ptr[i + 1]):
            mark[adj_var[q]] = -1
        if count == len(out_size) or work > max_work:
            break
    return count


@compiled
def project(
    pairs: Ints, weight_ptr: Ints, node_ptr: Ints, node_state: Ints, theta: Floats, table_at: Ints, scope_ptr: Ints,
    scope: Ints, state_at: Ints, card_e: Ints, edge_ptr: Ints, lam: Floats, belief: Floats, weight: Floats,
) -> None:  # fmt: skip
    """Weights of the projected pairs: how much better it is if both variables are, or both are not, in their states.

    A node stands for a state of a variable against all its others. The weight of two nodes is the best entry of the
    pair's reparametrised table where both agree in being in or out of their states, minus the best where they do not.
    """
    for q in range(len(pairs)):
        p = pairs[q]
        first = scope_ptr[p]
        i, j = scope[first], scope[first + 1]
        n1, n2 = node_ptr[i + 1] - node_ptr[i], node_ptr[j + 1] - node_ptr[j]
        k2 = card_e[first + 1]
        for c1 in range(n1):
            for c2 in range(n2):
                same, apart = -np.inf, -np.inf
                in1, in2 = node_state[node_ptr[i] + c1], node_state[node_ptr[j] + c2]
                for s1 in range(card_e[first]):
                    for s2 in range(k2):
                        at = table_at[p] + s1 * k2 + s2
                        value = pair_entry(at, first, s1, s2, theta, state_at, edge_ptr, lam, belief)
                        if (s1 == in1) == (s2 == in2):
                            same = max(same, value)
                        else:
                            apart = max(apart, value)
                weight[weight_ptr[q] + c1 * n2 + c2] = 0.0 if same == apart else same - apart


@compiled
def bottleneck(rank: Ints, weight: Floats, node1: Ints, node2: Ints, parent: Ints, parity: Ints) -> float:
    """The largest t such that the projected pairs of weight at least t (by size) hold a frustrated cycle.

    rank : projected pairs by falling size of the weight. A negative weight wants its nodes to differ, and a cycle with
    an odd number of these cannot have them all. parent, parity : scratch per node.
    """
    for u in range(len(parent)):
        parent[u], parity[u] = u, 0
    for q in range(len(rank)):
        w = weight[rank[q]]
        if w == 0.0:
            break
        u, odd1 = root_of(node1[rank[q]], parent, parity)
        v, odd2 = root_of(node2[rank[q]], parent, parity)
        odd = odd1 ^ odd2 ^ (1 if w < 0 else 0)
        if u != v:
            parent[u], parity[u] = v, odd
        elif odd:
            return float(abs(w))
    return 0.0


@compiled
def inconsistent_pairs(
    threshold: float, rank: Ints, weight: Floats, node1: Ints, node2: Ints, parent: Ints, parity: Ints, out: Ints
) -> int:  # fmt: skip
    """Projected pairs of weight at least the threshold that disagree with a spanning forest of the strongest ones.

    Every frustrated cycle holds an odd number of them. Returns how many there are, in `out` by falling weight.
    """
    for u in range(len(parent)):
        parent[u], parity[u] = u, 0
    count = 0
    for q in range(len(rank)):
        w = weight[rank[q]]
        if w == 0.0 or abs(w) < threshold:
            break
        u, odd1 = root_of(node1[rank[q]], parent, parity)
        v, odd2 = root_of(node2[rank[q]], parent, parity)
        odd = odd1 ^ odd2 ^ (1 if w < 0 else 0)
        if u != v:
            parent[u], parity[u] = v, odd
        elif odd:
            out[count] = rank[q]
            count += 1
    return count


@compiled
def frustrated_cycles(
    begin: int, threshold: float, max_length: int, max_work: int, starts: Ints, weight: Floats, weight_ptr: Ints,
    pair_of: Ints, node1: Ints, node2: Ints, node_ptr: Ints, node_var: Ints, adj_ptr: Ints, adj_var: Ints,
    adj_place: Ints, adj_flip: Ints, stamp: Ints, came_from: Ints, came_by: Ints, queue: Ints, place_of: Ints,
    out_ptr: Ints, out_place: Ints, out_flip: Ints, count: Ints,
) -> int:  # fmt: skip
    """Shortest frustrated cycles through one projected pair after another, of weights at least the threshold.

    Goes through `starts` from `begin` on until the work or the space is used up, and returns where it stopped.
    Breadth-first search in the double cover: a node is reached with an even or an odd number of disagreements. A way
    that comes to a variable twice is cut down to the part between.

    pair_of : pair (by its place in the list of pairs) of every projected pair. adj_* : the pairs of every variable, by
    their place. stamp, came_from, came_by, queue : twice per node; place_of : per variable; stamp and place_of come
    filled with -1. Cycle c has the pairs out_place[out_ptr[c]:out_ptr[c + 1]]; count[0] is how many there are.
    """
    n_out = count[0]
    work = 0
    q = begin
    while q < len(starts) and work < max_work and n_out < len(out_ptr) - 1:
        start = starts[q]
        goal = 2 * node2[start] + (0 if weight[start] < 0 else 1)
        queue[0] = 2 * node1[start]
        stamp[queue[0]] = q
        came_from[queue[0]] = -1
        head, tail, level_end, depth = 0, 1, 1, 0
        while head < tail and stamp[goal] != q:
            if head == level_end:
                depth += 1
                level_end = tail
                if depth >= max_length - 1:
                    break
            here = queue[head]
            head += 1
            u = here >> 1
            i = node_var[u]
            c1, n1 = u - node_ptr[i], node_ptr[i + 1] - node_ptr[i]
            for at in range(adj_ptr[i], adj_ptr[i + 1]):
                place, j = adj_place[at], adj_var[at]
                n2 = node_ptr[j + 1] - node_ptr[j]
                for c2 in range(n2):
                    e = weight_ptr[place] + (c2 * n1 + c1 if adj_flip[at] else c1 * n2 + c2)
                    work += 1
                    if e == start or abs(weight[e]) < threshold:
                        continue
                    there = 2 * (node_ptr[j] + c2) + ((here & 1) ^ (1 if weight[e] < 0 else 0))
                    if stamp[there] != q:
                        stamp[there] = q
                        came_from[there] = here
                        came_by[there] = 2 * place + 1 - adj_flip[at]
                        queue[tail] = there
                        tail += 1
        if stamp[goal] == q:
            size = walk_back(
                goal, pair_of[start], came_from, came_by, node_var, place_of, queue, out_ptr[n_out], out_place, out_flip
            )
            if size >= 3:
                out_ptr[n_out + 1] = out_ptr[n_out] + size
                n_out += 1
        q += 1
    count[0] = n_out
    return q


@inlined
def walk_back(goal, closing, came_from, came_by, node_var, place_of, queue, base, out_place, out_flip):
    """Write down the cycle that ends at `goal` and is closed by a pair; return its length. place_of stays as it is."""
    size = 0
    here = goal
    first = 0
    while True:
        i = node_var[here >> 1]
        queue[size] = i
        if place_of[i] >= 0:
            first = place_of[i]
            break
        place_of[i] = size
        if came_from[here] < 0:
            out_place[base + size], out_flip[base + size] = closing, 0
            size += 1
            break
        out_place[base + size], out_flip[base + size] = came_by[here] >> 1, came_by[here] & 1
        size += 1
        here = came_from[here]
    for t in range(size):
        place_of[queue[t]] = -1
    for t in range(first, size):
        out_place[base + t - first], out_flip[base + t - first] = out_place[base + t], out_flip[base + t]
    return size - first


@compiled
def triangulate(known: Ints, cost: Floats, cut: Ints, triangles: Ints) -> None:
    """Cut a cycle into triangles with as few chords as possible that are no pairs yet, short ones first.

    known : (n, n), the pair of two variables of the cycle or -1. cost, cut : (n, n), scratch. triangles : (n - 2, 3).
    """
    n = len(known)
    for span in range(1, n):
        for i in range(n - span):
            j = i + span
            if span == 1:
                cost[i, j] = 0.0
                continue
            best = np.inf
            for k in range(i + 1, j):
                if cost[i, k] + cost[k, j] < best:
                    best = cost[i, k] + cost[k, j]
                    cut[i, j] = k
            fresh = known[i, j] < 0 and span < n - 1
            cost[i, j] = best + (1.0 + 1e-3 * min(span, n - span) if fresh else 0.0)
    # The triangles are also the list of what is left to cut: (i, k, j) leaves (i, k) and (k, j).
    count = 1
    triangles[0, 0], triangles[0, 1], triangles[0, 2] = 0, cut[0, n - 1], n - 1
    for t in range(n - 2):
        i, k, j = triangles[t, 0], triangles[t, 1], triangles[t, 2]
        if k - i > 1:
            triangles[count, 0], triangles[count, 1], triangles[count, 2] = i, cut[i, k], k
            count += 1
        if j - k > 1:
            triangles[count, 0], triangles[count, 1], triangles[count, 2] = k, cut[k, j], j
            count += 1
