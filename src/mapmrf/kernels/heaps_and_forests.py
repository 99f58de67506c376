"""Heaps, and spanning forests of factor graphs, grown factor by factor."""

from __future__ import annotations

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined


@inlined
def part_of(root: Ints, i: int) -> int:
    """Return the representative of the component of `i`, halving the path to it."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


@bare
def grow_forest(candidates: Ints, scope_ptr: Ints, scope: Ints, root: Ints, taken: Bools) -> None:
    """Greedily take candidates that close no cycle: those whose variables are in different components so far."""
    # `taken` is set for every candidate. `root` is scratch, one entry per variable.
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
            joined = part_of(root, scope[scope_ptr[f]])
            for e in range(scope_ptr[f] + 1, scope_ptr[f + 1]):
                root[part_of(root, scope[e])] = joined


# -- Union-find with parities: whether nodes are connected, and whether the path between them is odd ------------------


@inlined
def root_of(u: int, parent: Ints, parity: Ints) -> tuple[int, int]:
    """Return the root of a node's tree and the parity of the path to it, halving the path. A root has parity 0."""
    odd = 0
    while parent[u] != u:
        above = parent[u]
        parity[u] ^= parity[above]
        parent[u] = parent[above]
        odd ^= parity[u]
        u = parent[u]
    return u, odd


# -- Binary heaps, the smallest first ---------------------------------------------------------------------------------


@inlined
def precedes(u: int, v: int, key: Floats, tie: Floats | None) -> bool:
    """Return whether `u` comes before `v`: the smaller key; ties by `tie`, or by number without one."""
    if key[u] == key[v]:
        return u < v if tie is None else bool(tie[u] < tie[v])
    return bool(key[u] < key[v])


@inlined
def sift(v: int, at: int, heap: Ints, place: Ints, size: int, key: Floats, tie: Floats | None) -> None:
    """Move an item from the free position `at` up or down to where its key belongs; `place` are the positions."""
    while at > 0:
        up = heap[(at - 1) // 2]
        if not precedes(v, up, key, tie):
            break
        heap[at], place[up] = up, at
        at = (at - 1) // 2
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and precedes(heap[child + 1], heap[child], key, tie):
            child += 1
        down = heap[child]
        if not precedes(down, v, key, tie):
            break
        heap[at], place[down] = down, at
        at = child
    heap[at], place[v] = v, at


@inlined
def push(size: int, key: float, item: int, heap_key: Floats, heap_item: Ints | None) -> int:
    """Push an item, or a key alone, on a heap whose items have no positions; return the heap's size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if heap_key[up] <= key:
            break
        heap_key[at] = heap_key[up]
        if heap_item is not None:
            heap_item[at] = heap_item[up]
        at = up
    heap_key[at] = key
    if heap_item is not None:
        heap_item[at] = item
    return size + 1


@inlined
def pop(size: int, heap_key: Floats, heap_item: Ints | None) -> int:
    """Remove the first item, which the caller has read; return the heap's size."""
    size -= 1
    key, at = heap_key[size], 0
    while True:
        down = 2 * at + 1
        if down >= size:
            break
        if down + 1 < size and heap_key[down + 1] < heap_key[down]:
            down += 1
        if heap_key[down] >= key:
            break
        heap_key[at] = heap_key[down]
        if heap_item is not None:
            heap_item[at] = heap_item[down]
        at = down
    heap_key[at] = key
    if heap_item is not None:
        heap_item[at] = heap_item[size]
    return size
