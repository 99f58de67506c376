"""Elimination orders: min-fill with random ties, and front sweeps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np

from mapmrf.arrays import Floats, Ints, distinct, offsets
from mapmrf.compilation.jit import bare, compiled
from mapmrf.kernels.heaps_and_forests import sift
from mapmrf.model.problem import Problem

MAX_LISTED = 10_000_000  # growth of the neighbour lists at which an order is abandoned: its tables would not fit anyway


@dataclass(frozen=True, eq=False)
class Order:
    order: Ints  # the variables, the first eliminated first
    n_known: int  # variables with a known context; the rest are in arbitrary order, as their tables would not fit
    width: int  # induced width: the largest number of neighbours at elimination, among the known
    entries: float  # total entries of all tables, each over a variable and its neighbours at elimination

    def cost(self) -> tuple[int, float]:
        """Key by which orders are compared: variables without a known context, then entries."""
        return -self.n_known, self.entries

    def better_than(self, other: Order | None) -> bool:
        """Return whether this order has more known contexts, or as many with smaller tables."""
        if other is None:
            return True
        return (-self.n_known, self.entries, self.width) < (-other.n_known, other.entries, other.width)


def find_order(
    graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10, max_entries: float = math.inf
) -> Order:
    """Return the order with the smallest tables among `fill_orders` and `front_orders`."""
    best: Order | None = None
    for found in chain(fill_orders(graph, card, seed, restarts, max_entries), front_orders(graph, card)):
        best = found if found.better_than(best) else best
    assert best is not None
    return best


def fill_orders(
    graph: PrimalGraph, card: Ints, seed: int = 0, restarts: int = 10, max_entries: float = math.inf
) -> Iterator[Order]:
    """Yield min-fill orders, unweighted and weighted by the logarithms of the cardinalities, with random ties.

    There are `restarts` of each, fewer on large models. An order is abandoned as soon as its tables exceed those of the
    best so far, or `max_entries`.
    """
    random = np.random.default_rng(seed)
    log_card = np.log2(card.astype(np.float64))
    weights = [np.ones(graph.n)] if len(distinct(card)) <= 1 else [np.ones(graph.n), np.maximum(log_card, 1.0)]
    smallest, work = float(max_entries), 0  # an integer would compile another kernel
    max_listed = 2 * len(graph.nbr) + 4 * graph.n + MAX_LISTED
    for turn in range(restarts * len(weights)):
        noise, weight = random.random(graph.n), weights[turn % len(weights)]
        # induced width at which an order is abandoned
        found = Order(*fill_order(graph.ptr, graph.nbr, weight, log_card, noise, max_listed, 300, smallest))
        if found.n_known == graph.n:
            smallest = min(smallest, found.entries)
        yield found
        work += len(graph.nbr) + graph.n
        # total number of variables and neighbours over the restarts after which no further restart begins
        if work > 300_000 or found.width <= 1:
            break


def min_fill_order(graph: PrimalGraph, card: Ints, noise: Floats, max_entries: float) -> Order:
    """Compute one order by weighted min-fill, ties broken by `noise`; abandoned if its tables exceed `max_entries`."""
    log_card = np.log2(card.astype(np.float64))
    weight = np.maximum(log_card, 1.0)
    return Order(*fill_order(graph.ptr, graph.nbr, weight, log_card, noise, 2**62, 2**62, max_entries))


def front_orders(graph: PrimalGraph, card: Ints) -> Iterator[Order]:
    """Yield sweeps over the graph from either end, if it is small enough: narrow on grids and long graphs."""
    # Maximum number of variables for front sweeps, which take time proportional to variables times front size
    if not 0 < graph.n <= 20_000:
        return
    one = int(ball(graph.ptr, graph.nbr, 0, graph.n)[-1])
    for first in (one, int(ball(graph.ptr, graph.nbr, one, graph.n)[-1])):
        yield measured(graph, card, front_order(graph.ptr, graph.nbr, first))


def measured(graph: PrimalGraph, card: Ints, order: Ints) -> Order:
    complete, ptr, context, _ = contexts(graph.ptr, graph.nbr, order, graph.n, MAX_LISTED)
    if not complete:
        return Order(order, 0, 0, math.inf)
    log_card = np.log2(card.astype(np.float64))
    sizes = log_card[order] + segment_sums(log_card[context], ptr)
    entries = float(np.exp2(np.minimum(sizes, 1000.0)).sum())
    return Order(order, graph.n, int(np.diff(ptr).max(initial=0)), entries)


def segment_sums(values: Floats, ptr: Ints) -> Floats:
    total = np.concatenate([[0.0], np.cumsum(values)])
    return np.asarray(total[ptr[1:]] - total[ptr[:-1]])


# -- Elimination orders and their structure ---------------------------------------------------------------------------
# Graphs are in CSR form: the neighbours of `v` are ``nbr[ptr[v]:ptr[v + 1]]``, both directions listed.


@bare
def missing_weight(
    v: int, pool: Ints, start: Ints, count: Ints, weight: Floats, mark: Ints, stamp: int
) -> tuple[float, int]:
    """Weight of the edges that are missing among the neighbours of `v`, and the last stamp used."""
    total = 0.0
    for a_at in range(start[v], start[v] + count[v]):
        a = pool[a_at]
        stamp += 1
        for c_at in range(start[a], start[a] + count[a]):
            mark[pool[c_at]] = stamp
        for b_at in range(a_at + 1, start[v] + count[v]):
            b = pool[b_at]
            if mark[b] != stamp:
                total += weight[a] * weight[b]
    return total, stamp


@compiled
def append(p: int, q: int, pool: Ints, start: Ints, count: Ints, room: Ints, free: int) -> tuple[Ints, int]:
    """Append `q` to the list of `p`, which may move to the free end of the pool, and the pool to more memory."""
    if count[p] == room[p]:
        if free + 2 * room[p] > len(pool):
            bigger = np.empty(2 * len(pool) + 2 * room[p], np.int32)
            for at in range(free):
                bigger[at] = pool[at]
            pool = bigger
        for at in range(count[p]):
            pool[free + at] = pool[start[p] + at]
        start[p] = free
        room[p] *= 2
        free += room[p]
    pool[start[p] + count[p]] = q
    count[p] += 1
    return pool, free


@bare
def list_changed(c: int, touched: Ints, time: int, changed: Ints, n_changed: int) -> int:
    """Put `c` on the list of vertices whose score has changed, once per elimination; return the list's length."""
    if touched[c] != time:
        touched[c] = time
        changed[n_changed] = c
        n_changed += 1
    return n_changed


@compiled
def fill_order(
    ptr: Ints, nbr: Ints, weight: Floats, log_card: Floats, noise: Floats, max_pool: int, max_width: int,
    max_entries: float,
) -> tuple[Ints, int, int, float]:  # fmt: skip
    """Repeatedly eliminate the vertex whose neighbours lack edges of the least total weight (weighted min-fill).

    Weights are at least 1; an edge weighs the product of its ends. Stops early when the lists of neighbours outgrow
    `max_pool`, a list `max_width`, or the tables `max_entries`; the rest of the order is then arbitrary. Returns the
    order, how much of it is by min-fill, the induced width and the entries of all tables.
    """
    n, free = len(ptr) - 1, 0
    start, count, room = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    pool: Ints = np.empty(2 * len(nbr) + 4 * n + 16, np.int32)  # the lists of neighbours, with room to grow
    for v in range(n):
        start[v], count[v] = free, ptr[v + 1] - ptr[v]
        room[v] = 2 * count[v] + 4
        for at in range(ptr[v], ptr[v + 1]):
            pool[free + at - ptr[v]] = nbr[at]
        free += room[v]
    score, strength = np.zeros(n), np.zeros(n)  # weight of the edges missing among a vertex's neighbours, and of these
    mark, touched, changed = np.zeros(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    heap, place = np.empty(n, np.int64), np.empty(n, np.int64)
    stamp = 0
    for v in range(n):
        for at in range(ptr[v], ptr[v + 1]):
            strength[v] += weight[nbr[at]]
        score[v], stamp = missing_weight(v, pool, start, count, weight, mark, stamp)
        sift(v, v, heap, place, v + 1, score, noise)
    order = np.empty(n, np.int64)
    width, entries, done = 0, 0.0, 0
    while done < n:
        v = heap[0]
        log_size = log_card[v]
        for at in range(start[v], start[v] + count[v]):
            log_size += log_card[pool[at]]
        entries += 2.0 ** min(log_size, 1000.0)
        if entries > max_entries or free > max_pool or count[v] > max_width:
            break
        width = max(width, count[v])
        order[done] = v
        done += 1
        last = heap[n - done]
        place[v] = -1
        if last != v:
            sift(last, 0, heap, place, n - done, score, noise)
        n_changed = 0
        complete = score[v] < 0.5  # no edge is missing: the least that one can weigh is 1
        for a_at in range(count[v]):
            a = pool[start[v] + a_at]
            n_changed = list_changed(a, touched, done, changed, n_changed)
            if complete:
                continue
            stamp += 1
            for at in range(start[a], start[a] + count[a]):
                mark[pool[at]] = stamp
            for b_at in range(a_at + 1, count[v]):
                b = pool[start[v] + b_at]
                if mark[b] == stamp:
                    continue
                common = 0.0
                for at in range(start[b], start[b] + count[b]):  # the edge a-b changes common neighbours, a and b
                    c = pool[at]
                    if mark[c] == stamp:
                        n_changed = list_changed(c, touched, done, changed, n_changed)
                        common += weight[c]
                        score[c] -= weight[a] * weight[b]
                score[a] += weight[b] * (strength[a] - common)
                score[b] += weight[a] * (strength[b] - common)
                strength[a] += weight[b]
                strength[b] += weight[a]
                pool, free = append(a, b, pool, start, count, room, free)
                pool, free = append(b, a, pool, start, count, room, free)
                mark[b] = stamp
        for a_at in range(start[v], start[v] + count[v]):  # its neighbours are all joined by now
            a = pool[a_at]
            score[a] -= weight[v] * (strength[a] - weight[v] - (strength[v] - weight[a]))
            strength[a] -= weight[v]
            for at in range(start[a], start[a] + count[a]):
                if pool[at] == v:
                    pool[at] = pool[start[a] + count[a] - 1]
                    break
            count[a] -= 1
        for k in range(n_changed):
            u = changed[k]
            if place[u] >= 0:
                sift(u, place[u], heap, place, n - done, score, noise)
    for k in range(n - done):
        order[done + k] = heap[k]
    return order, done, width, entries


@compiled
def front_order(ptr: Ints, nbr: Ints, first: int) -> Ints:
    """Sweep the graph from `first`: the next vertex is the oldest of the front among those that add the fewest others.

    Good on long and narrow graphs and on grids, where it attains the width of the narrow side.
    """
    n = len(ptr) - 1
    order, front, state = np.empty(n, np.int64), np.empty(n, np.int64), np.zeros(n, np.int8)
    fresh = np.empty(n, np.int64)
    for v in range(n):
        fresh[v] = ptr[v + 1] - ptr[v]
    n_front, done, seek = 0, 0, 0
    while done < n:
        if n_front == 0:
            v = first
            while state[v] > 0:
                v = seek
                seek += 1
            front[0], n_front, state[v] = v, 1, 1
            for at in range(ptr[v], ptr[v + 1]):
                fresh[nbr[at]] -= 1
        best = 0
        for k in range(1, n_front):
            if fresh[front[k]] < fresh[front[best]]:
                best = k
        v = front[best]
        for k in range(best, n_front - 1):
            front[k] = front[k + 1]
        n_front -= 1
        state[v] = 2
        order[done] = v
        done += 1
        for at in range(ptr[v], ptr[v + 1]):
            u = nbr[at]
            if state[u] == 0:
                state[u] = 1
                front[n_front] = u
                n_front += 1
                for w_at in range(ptr[u], ptr[u + 1]):
                    fresh[nbr[w_at]] -= 1
    return order


@compiled
def ball(ptr: Ints, nbr: Ints, first: int, size: int) -> Ints:
    """The first vertices that a breadth-first search from `first` reaches, at most `size` of them."""
    n, at, end = len(ptr) - 1, 0, 1
    seen, queue = np.zeros(n, np.bool_), np.empty(min(n, size), np.int64)
    queue[0], seen[first] = first, True
    while at < end:
        v = queue[at]
        at += 1
        for u_at in range(ptr[v], ptr[v + 1]):
            u = nbr[u_at]
            if not seen[u] and end < len(queue):
                seen[u], queue[end] = True, u
                end += 1
    return queue[:end]


@compiled
def contexts(ptr: Ints, nbr: Ints, order: Ints, n_known: int, max_len: int) -> tuple[bool, Ints, Ints, Ints]:
    """Neighbours of every vertex at the moment of its elimination, and the one of them that is eliminated first.

    Only for the first `n_known` of the order; the others have no context and form a chain. The first value returned
    is whether the contexts fitted into `max_len` places.
    """
    n = len(order)
    rank = np.empty(n, np.int64)
    for t in range(n):
        rank[order[t]] = t
    context_ptr = np.zeros(n + 1, np.int64)
    pool = np.empty(max(16, 4 * n + len(nbr)), np.int32)
    parent = np.full(n, -1, np.int64)
    head, after = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    mark = np.full(n, -1, np.int64)
    end = 0
    for t in range(n):
        v = order[t]
        if t >= n_known:
            context_ptr[t + 1] = end
            if t + 1 < n:
                parent[v] = order[t + 1]
            continue
        begin = end
        mark[v] = t
        most = ptr[v + 1] - ptr[v]
        child = head[v]
        while child >= 0:
            at = rank[child]
            most += context_ptr[at + 1] - context_ptr[at]
            child = after[child]
        if end + most > len(pool):
            bigger = np.empty(2 * len(pool) + most, np.int32)
            for at in range(end):
                bigger[at] = pool[at]
            pool = bigger
        if end > max_len:
            return False, context_ptr, pool[:end], parent
        for at in range(ptr[v], ptr[v + 1]):
            u = nbr[at]
            if rank[u] > t and mark[u] != t:
                mark[u] = t
                pool[end] = u
                end += 1
        child = head[v]
        while child >= 0:
            for at in range(context_ptr[rank[child]], context_ptr[rank[child] + 1]):
                u = pool[at]
                if mark[u] != t:
                    mark[u] = t
                    pool[end] = u
                    end += 1
            child = after[child]
        context_ptr[t + 1] = end
        if end > begin:
            first = pool[begin]
            for at in range(begin + 1, end):
                if rank[pool[at]] < rank[first]:
                    first = pool[at]
            parent[v] = first
            after[v] = head[first]
            head[first] = v
    return True, context_ptr, pool[:end], parent


@compiled
def child_lists(order: Ints, parent: Ints) -> tuple[Ints, Ints]:
    """The children of every vertex, in the order given; those without a parent are the children of vertex n."""
    n = len(order)
    ptr, fill = np.zeros(n + 2, np.int64), np.zeros(n + 1, np.int64)
    for v in order:
        ptr[(parent[v] if parent[v] >= 0 else n) + 1] += 1
    for v in range(n + 1):
        ptr[v + 1] += ptr[v]
        fill[v] = ptr[v]
    child = np.empty(n, np.int64)
    for v in order:
        p = parent[v] if parent[v] >= 0 else n
        child[fill[p]] = v
        fill[p] += 1
    return ptr, child


@bare
def sort_children(begin: int, end: int, child: Ints, surplus: Floats) -> None:
    """Put children with the largest surplus first; of very many only the one with the largest."""
    # maximum number of children of a vertex for which they are sorted
    if end - begin > 64:
        best = begin
        for c in range(begin, end):
            if surplus[child[c]] > surplus[child[best]]:
                best = c
        child[begin], child[best] = child[best], child[begin]
        return
    for c in range(begin + 1, end):
        v = child[c]
        at = c
        while at > begin and surplus[v] > surplus[child[at - 1]]:
            child[at] = child[at - 1]
            at -= 1
        child[at] = v


@compiled
def preorder(order: Ints, parent: Ints, size: Floats) -> tuple[Ints, float]:
    """Number the trees of `parent` from the roots down, every subtree a range; return the vertices and the peak.

    Read backwards it is an elimination order whose messages (of the sizes given) live on a stack. The children of a
    vertex are arranged so that the stack stays low: those that need most and leave least are eliminated first.
    """
    n = len(order)
    ptr, child = child_lists(order, parent)
    surplus, peak = np.zeros(n + 1), np.zeros(n + 1)
    for t in range(n + 1):
        v = order[t] if t < n else n
        sort_children(ptr[v], ptr[v + 1], child, surplus)
        held = 0.0
        for c in range(ptr[v], ptr[v + 1]):
            peak[v] = max(peak[v], held + peak[child[c]])
            held += size[child[c]]
        if v < n:
            peak[v] = max(peak[v], held + size[v])
            surplus[v] = peak[v] - size[v]
    numbered, stack = np.empty(n, np.int64), np.empty(n + 1, np.int64)
    stack[0] = n
    height, done = 1, 0
    while height > 0:
        height -= 1
        v = stack[height]
        if v < n:
            numbered[done] = v
            done += 1
        for c in range(ptr[v], ptr[v + 1]):  # the last one put on the stack is numbered first
            stack[height] = child[c]
            height += 1
    return numbered, peak[n]


# -- The primal graph of a problem, which joins variables that share a factor -----------------------------------------


@dataclass(frozen=True, eq=False)
class PrimalGraph:
    """A graph in CSR form: the neighbours of `i` are ``nbr[ptr[i]:ptr[i + 1]]``, ascending."""

    ptr: Ints
    nbr: Ints

    @property
    def n(self) -> int:
        return len(self.ptr) - 1

    @classmethod
    def of(cls, problem: Problem) -> PrimalGraph:
        n = problem.n_vars
        keys = [np.zeros(0, dtype=np.int64)]
        for batch in problem.batches:
            scope = batch.scope.astype(np.int64)
            for j, k in combinations(range(batch.arity), 2):
                keys.append(scope[:, j] * n + scope[:, k])
                keys.append(scope[:, k] * n + scope[:, j])
        pairs = np.sort(np.concatenate(keys))  # np.unique hashes first, which takes several times as long
        if len(pairs):
            pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
        return cls(offsets(np.bincount(pairs // max(n, 1), minlength=n)), (pairs % max(n, 1)).astype(np.int32))
