"""Spanning forests of factor graphs, grown factor by factor."""

from __future__ import annotations

from mapmrf.arrays import Bools, Ints
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
