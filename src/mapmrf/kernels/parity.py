"""Union-find with parities: whether nodes are connected, and whether the path between them is odd."""

from __future__ import annotations

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import inlined


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
