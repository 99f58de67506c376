"""Odd cycles of the cut polytope: separation by shortest paths in the double graph, and rounding along a tree.

A labelling x of binary variables cuts the pair (i, j) if x_i != x_j; ``cut`` holds these numbers, 0 to 1, of a relaxed
solution. In every cycle C an even number of pairs is cut, so that for every odd subset F of C

    sum_F (1 - cut) + sum_{C without F} cut >= 1.

The double graph has the nodes 2 v and 2 v + 1 for every variable v; a pair leads from v to w on the same side at the
price `cut`, and to the other side, for a pair in F, at the price 1 - `cut`. A closed walk from 2 v to 2 v + 1 of length
below 1 is a violated inequality (Barahona and Mahjoub 1986).
"""

from __future__ import annotations

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import compiled, inlined
from mapmrf.kernels.parity import root_of


@inlined
def push(size, key, node, heap_key, heap_node):
    """Put a node on the heap; return how many are on it."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if heap_key[up] <= key:
            break
        heap_key[at], heap_node[at] = heap_key[up], heap_node[up]
        at = up
    heap_key[at], heap_node[at] = key, node
    return size + 1


@inlined
def pop(size, heap_key, heap_node):
    """Take the first node, which the caller has read, off the heap; return how many are left."""
    size -= 1
    key, node = heap_key[size], heap_node[size]
    at = 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and heap_key[down + 1] < heap_key[down]:
            down += 1
        if heap_key[down] >= key:
            break
        heap_key[at], heap_node[at] = heap_key[down], heap_node[down]
        at = down
    heap_key[at], heap_node[at] = key, node
    return size


@inlined
def simple_cycle(n_walk, walk_var, walk_edge, walk_odd, place_of):
    """Cut a closed odd walk down to a simple odd cycle, in place; return its length.

    The pair walk_edge[t] leads from walk_var[t] to the next variable. Even loops are left out; the first odd one is the
    answer. place_of : per variable, -1, and left so.
    """
    size, begin = 0, 0
    for t in range(n_walk + 1):
        v = walk_var[t] if t < n_walk else walk_var[0]
        first = place_of[v] if t < n_walk else 0
        if t > 0 and first >= 0:
            odd = 0
            for k in range(first, size):
                odd ^= walk_odd[k]
            if odd or t == n_walk:
                begin = first
                break
            for k in range(first, size):
                place_of[walk_var[k]] = -1
            size = first
        place_of[v] = size
        # What is kept moves to the front: never past the place where the walk is read.
        walk_var[size], walk_edge[size], walk_odd[size] = v, walk_edge[t], walk_odd[t]
        size += 1
    for k in range(size):
        place_of[walk_var[k]] = -1
    for k in range(begin, size):
        walk_var[k - begin] = walk_var[k]
        walk_edge[k - begin], walk_odd[k - begin] = walk_edge[k], walk_odd[k]
    return size - begin


@inlined
def cycle_length(begin, end, cyc_edge, cyc_odd, cut):
    """Left side of the inequality over some pairs of a cycle."""
    total = 0.0
    for k in range(begin, end):
        total += 1.0 - cut[cyc_edge[k]] if cyc_odd[k] else cut[cyc_edge[k]]
    return total


@inlined
def halve(size, ptr, nbr, edge_of, cut, cyc_var, cyc_edge, cyc_odd, place_of):
    """Cut an odd cycle at a chord and keep the half of the smaller left side, in place; return its length.

    Returns the length unchanged where there is no chord. The two halves' left sides add up to 1 plus that of the whole.
    """
    for k in range(size):
        place_of[cyc_var[k]] = k
    first, last, chord = -1, -1, -1
    for k in range(size):
        for q in range(ptr[cyc_var[k]], ptr[cyc_var[k] + 1]):
            other = place_of[nbr[q]]
            if other > k + 1 and other - k < size - 1:
                first, last, chord = k, other, edge_of[q]
                break
        if chord >= 0:
            break
    for k in range(size):
        place_of[cyc_var[k]] = -1
    if chord < 0:
        return size
    odd = 0
    for k in range(first, last):
        odd ^= cyc_odd[k]
    inner = cycle_length(first, last, cyc_edge, cyc_odd, cut)
    outer = cycle_length(0, size, cyc_edge, cyc_odd, cut) - inner
    inner += cut[chord] if odd else 1.0 - cut[chord]
    outer += 1.0 - cut[chord] if odd else cut[chord]
    if inner <= outer:
        for k in range(first, last + 1):
            cyc_var[k - first], cyc_edge[k - first], cyc_odd[k - first] = cyc_var[k], cyc_edge[k], cyc_odd[k]
        cyc_edge[last - first], cyc_odd[last - first] = chord, 1 - odd
        return last - first + 1
    cyc_edge[first], cyc_odd[first] = chord, odd
    for k in range(last, size):
        at = first + 1 + k - last
        cyc_var[at], cyc_edge[at], cyc_odd[at] = cyc_var[k], cyc_edge[k], cyc_odd[k]
    return size - (last - first) + 1


@compiled
def odd_cycles(
    begin: int, max_work: int, violation: float, hop: float, sources: Ints, ptr: Ints, nbr: Ints, edge_of: Ints,
    cut: Floats, dist: Floats, stamp: Ints, came_from: Ints, came_by: Ints, heap_key: Floats, heap_node: Ints,
    place_of: Ints, walk_var: Ints, walk_edge: Ints, walk_odd: Ints, out_ptr: Ints, out_var: Ints, out_edge: Ints,
    out_odd: Ints, out_violation: Floats, count: Ints,
) -> int:  # fmt: skip
    """The shortest odd cycle through one source after another, if it is violated by more than `violation`.

    Goes through the variables `sources` from place `begin` on until the work or the space is used up, and returns where
    it stopped. Only the ways up to half the length are followed: two of them that meet at the ends of a pair close the
    walk. Every pair costs `hop` more than its price, so that of equal cycles the one with fewer pairs is found. Chords
    are cut off.

    The pairs of v are ``edge_of[ptr[v]:ptr[v + 1]]``, their other variables ``nbr``. dist, stamp, came_from, came_by :
    per node of the double graph, stamp filled with -1. heap_* : room for 4 entries per pair and one more. place_of :
    per variable, filled with -1. walk_* : room for 4 entries per variable and one more. Cycle c is
    ``out_ptr[c]:out_ptr[c + 1]`` of out_var, out_edge and out_odd (whether the pair is in F); count[0] of them.
    """
    n_out, work, turn = count[0], 0, begin
    while turn < len(sources) and work < max_work and n_out < len(out_violation):
        s = sources[turn]
        best = 1.0 - violation
        meet_from, meet_to, meet_by = -1, -1, -1
        size = push(0, 0.0, 2 * s, heap_key, heap_node)
        dist[2 * s], stamp[2 * s], came_from[2 * s] = 0.0, s, -1
        while size > 0 and 2.0 * heap_key[0] < best:
            key, here = heap_key[0], heap_node[0]
            size = pop(size, heap_key, heap_node)
            if key > dist[here]:
                continue
            u, side = here >> 1, here & 1
            work += ptr[u + 1] - ptr[u]
            for q in range(ptr[u], ptr[u + 1]):
                price = cut[edge_of[q]]
                for flip in range(2):
                    there = 2 * nbr[q] + (side ^ flip)
                    way = key + hop + (1.0 - price if flip else price)
                    mirror = there ^ 1
                    if stamp[mirror] == s and way + dist[mirror] < best:
                        best = way + dist[mirror]
                        meet_from, meet_to, meet_by = here, mirror, edge_of[q]
                    if 2.0 * way < best and (stamp[there] != s or way < dist[there]):
                        stamp[there], dist[there] = s, way
                        came_from[there], came_by[there] = here, edge_of[q]
                        size = push(size, way, there, heap_key, heap_node)
        if meet_from >= 0:
            n_walk = write_walk(meet_from, meet_to, meet_by, came_from, came_by, walk_var, walk_edge, walk_odd)
            n_cyc = simple_cycle(n_walk, walk_var, walk_edge, walk_odd, place_of)
            whole = n_cyc + 1
            while n_cyc < whole:
                whole = n_cyc
                n_cyc = halve(whole, ptr, nbr, edge_of, cut, walk_var, walk_edge, walk_odd, place_of)
            violated = 1.0 - cycle_length(0, n_cyc, walk_edge, walk_odd, cut)
            at = out_ptr[n_out]
            if violated > violation and at + n_cyc <= len(out_edge):
                for k in range(n_cyc):
                    out_var[at + k], out_edge[at + k], out_odd[at + k] = walk_var[k], walk_edge[k], walk_odd[k]
                out_ptr[n_out + 1] = at + n_cyc
                out_violation[n_out] = violated
                n_out += 1
        turn += 1
    count[0] = n_out
    return turn


@inlined
def write_walk(meet_from, meet_to, meet_by, came_from, came_by, walk_var, walk_edge, walk_odd):
    """Write down the closed walk of two ways from one node that meet at the ends of a pair; return its length.

    It begins at one end of that pair, goes back to where both ways began, out to the other end and over the pair.
    """
    size = 0
    here = meet_from
    while came_from[here] >= 0:
        walk_var[size], walk_edge[size] = here >> 1, came_by[here]
        walk_odd[size] = (here ^ came_from[here]) & 1
        size += 1
        here = came_from[here]
    here, turned = meet_to, size
    while came_from[here] >= 0:
        walk_var[size], walk_edge[size] = came_from[here] >> 1, came_by[here]
        walk_odd[size] = (here ^ came_from[here]) & 1
        size += 1
        here = came_from[here]
    k, end = turned, size - 1
    while k < end:
        walk_var[k], walk_var[end] = walk_var[end], walk_var[k]
        walk_edge[k], walk_edge[end] = walk_edge[end], walk_edge[k]
        walk_odd[k], walk_odd[end] = walk_odd[end], walk_odd[k]
        k, end = k + 1, end - 1
    walk_var[size], walk_edge[size] = meet_to >> 1, meet_by
    # The mirror of meet_to is what the pair leads to.
    walk_odd[size] = 1 ^ ((meet_from ^ meet_to) & 1)
    return size + 1


@compiled
def sources_of(node1: Ints, node2: Ints, cut: Floats, tol: float, parent: Ints, parity: Ints, is_source: Ints) -> None:
    """Mark the variables through which a violated odd cycle may go: is_source is 1 there and 0 elsewhere.

    These are the ends of pairs that are neither cut nor uncut, and all variables of a part, connected by the other
    pairs, in which these contradict one another. A cycle without either holds an even number of cut pairs. parent,
    parity : scratch per variable.
    """
    for u in range(len(parent)):
        parent[u], parity[u], is_source[u] = u, 0, 0
    for e in range(len(cut)):
        if tol < cut[e] < 1.0 - tol:
            is_source[node1[e]], is_source[node2[e]] = 1, 1
            continue
        u, odd1 = root_of(node1[e], parent, parity)
        v, odd2 = root_of(node2[e], parent, parity)
        if u != v:
            parent[u], parity[u] = v, odd1 ^ odd2 ^ (1 if cut[e] > 0.5 else 0)
    for u in range(len(parent)):
        root, odd = root_of(u, parent, parity)
        parent[u], parity[u] = root, odd
    for e in range(len(cut)):
        if not tol < cut[e] < 1.0 - tol:
            odd = parity[node1[e]] ^ parity[node2[e]] ^ (1 if cut[e] > 0.5 else 0)
            if odd:
                is_source[parent[node1[e]]] = 2
    for u in range(len(parent)):
        if is_source[parent[u]] == 2 and parent[u] != u:
            is_source[u] = 1
    for u in range(len(parent)):
        is_source[u] = min(is_source[u], 1)


@compiled
def round_by_tree(order: Ints, node1: Ints, node2: Ints, cut: Floats, parent: Ints, parity: Ints, labels: Ints) -> None:
    """Labels from a spanning tree of the pairs that are surest to be cut or not: `order` has the surest first.

    The last node stands for the label 0: a pair with it is a variable, and its `cut` is that variable's x. parent,
    parity : scratch per node.
    """
    for u in range(len(parent)):
        parent[u], parity[u] = u, 0
    for e in order:
        u, odd1 = root_of(node1[e], parent, parity)
        v, odd2 = root_of(node2[e], parent, parity)
        if u != v:
            parent[u], parity[u] = v, odd1 ^ odd2 ^ (1 if cut[e] > 0.5 else 0)
    _, ground = root_of(len(labels), parent, parity)
    for i in range(len(labels)):
        _, odd = root_of(i, parent, parity)
        labels[i] = odd ^ ground
