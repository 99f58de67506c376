"""Union-find with parities: which nodes hang together, and whether the way between two of them is odd."""

from __future__ import annotations

from mapmrf.kernels.jit import inlined


@inlined
def root_of(u, parent, parity):
    """Root of a node's tree and the parity of the way there; shortens the way for later. A root has parity 0."""
    odd = 0
    while parent[u] != u:
        above = parent[u]
        parity[u] ^= parity[above]
        parent[u] = parent[above]
        odd ^= parity[u]
        u = parent[u]
    return u, odd
