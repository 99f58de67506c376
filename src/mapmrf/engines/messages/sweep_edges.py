"""The pairs of a model sorted along the visits, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import compiled


class PairLinks(NamedTuple):
    """Pairs as edges between visits: variables are numbered in the order in which they are visited."""

    # ptr, up, factor: where the edges of each earlier end start, the later end of every edge, and twice its factor,
    # plus 1 if the first variable of the factor is the later end
    ptr: Ints
    up: Ints
    factor: Ints
    # back_ptr, down, id: the same edges by their later end: where those of each later end start, the earlier end, and
    # the edge's number
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


class Turns(NamedTuple):
    """The order of the visits, and where the variables stand in the arrays of passes."""

    rank: Ints  # (n_vars,): the place of every variable in the order
    # (n_vars,): the place of every variable in the arrays; the rank, unless threads have parts of the arrays of their
    # own
    place: Ints
    at: Ints  # (n_vars,): the places in the order of the visits; empty if they are 0, 1, 2, ...


@compiled
def sort_links(scope: Ints, turns: Turns, links: PairLinks) -> None:
    """Fill in the links of the factors whose variables are given in `scope`, two by two.

    The lists of an end are in the order of the factors or of the visits, wherever variables stand: sums over them do
    not depend on that.
    """
    ptr, up, factor, back_ptr, down, id = links
    rank, place, at = turns
    n_vars, n_edges = len(ptr) - 1, len(up)
    for a in range(n_edges):
        i, j = scope[2 * a], scope[2 * a + 1]
        ptr[place[i if rank[i] < rank[j] else j] + 1] += 1
        back_ptr[place[j if rank[i] < rank[j] else i] + 1] += 1
    for s in range(n_vars):
        ptr[s + 1] += ptr[s]
        back_ptr[s + 1] += back_ptr[s]
    for a in range(n_edges):
        i, j = scope[2 * a], scope[2 * a + 1]
        s = place[i if rank[i] < rank[j] else j]
        e = ptr[s]
        ptr[s] += 1  # for now where the next edge goes
        up[e] = place[j if rank[i] < rank[j] else i]
        factor[e] = 2 * a if rank[i] < rank[j] else 2 * a + 1
    for s in range(n_vars - 1, -1, -1):
        ptr[s + 1] = ptr[s]
    ptr[0] = 0
    for turn in range(n_vars):
        s = at[turn] if len(at) > 0 else turn
        for e in range(ptr[s], ptr[s + 1]):
            k = back_ptr[up[e]]
            back_ptr[up[e]] += 1
            down[k] = s
            id[k] = e
    for s in range(n_vars - 1, -1, -1):
        back_ptr[s + 1] = back_ptr[s]
    back_ptr[0] = 0
