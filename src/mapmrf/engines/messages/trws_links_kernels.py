"""The pairs of a model sorted along the visits, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.kernels.jit import compiled


class PairLinks(NamedTuple):
    """Pairs as edges between visits: variables are numbered in the order in which they are visited.

    Attributes
    ----------
    ptr, up, factor
        Where the edges of each earlier end start, the later end of every edge, and twice its factor, plus 1 if the
        first variable of the factor is the later end.
    back_ptr, down, id
        The same edges by their later end: where those of each later end start, the earlier end, and the edge's number.
    """

    ptr: Ints
    up: Ints
    factor: Ints
    back_ptr: Ints
    down: Ints
    id: Ints

    @classmethod
    def allocate(cls, n_vars: int, n_edges: int, largest: int) -> PairLinks:
        """Room for so many visits and edges; `largest` is what an entry must be able to hold."""
        dtype: type[np.integer[Any]] = np.uint32 if largest < 2**32 else np.uint64
        ptr, back_ptr = np.zeros((2, n_vars + 1), dtype=dtype)
        up, factor, down, id = (np.empty(n_edges, dtype=dtype) for _ in range(4))
        return cls(ptr, up, factor, back_ptr, down, id)


@compiled
def sort_links(scope: Ints, rank: Ints, links: PairLinks) -> None:
    """Fill in the links of the factors whose variables are given in `scope`, two by two."""
    ptr, up, factor, back_ptr, down, id = links
    n_vars, n_edges = len(ptr) - 1, len(up)
    for a in range(n_edges):
        s, t = rank[scope[2 * a]], rank[scope[2 * a + 1]]
        ptr[min(s, t) + 1] += 1
        back_ptr[max(s, t) + 1] += 1
    for s in range(n_vars):
        ptr[s + 1] += ptr[s]
        back_ptr[s + 1] += back_ptr[s]
    for a in range(n_edges):
        s, t = rank[scope[2 * a]], rank[scope[2 * a + 1]]
        e = ptr[min(s, t)]
        ptr[min(s, t)] += 1  # for now where the next edge goes
        up[e] = max(s, t)
        factor[e] = 2 * a if s < t else 2 * a + 1
    for s in range(n_vars - 1, -1, -1):
        ptr[s + 1] = ptr[s]
    ptr[0] = 0
    for s in range(n_vars):
        for e in range(ptr[s], ptr[s + 1]):
            k = back_ptr[up[e]]
            back_ptr[up[e]] += 1
            down[k] = s
            id[k] = e
    for s in range(n_vars - 1, -1, -1):
        back_ptr[s + 1] = back_ptr[s]
    back_ptr[0] = 0
