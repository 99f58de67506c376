"""Bucket trees for models with constraints: the variables of a constraint lie on one path."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mapmrf.arrays import Ints, offsets
from mapmrf.engines.elimination.bucket_tree import BucketTree, inverse, subtree_ends
from mapmrf.engines.elimination.order_kernels import preorder
from mapmrf.engines.elimination.orders import Order
from mapmrf.engines.elimination.primal_graph import PrimalGraph

LARGEST_CLIQUE = 40
"""Maximum number of variables of a constraint for which they are made neighbours in the elimination order."""

MOST_CONTEXTS = 20_000_000
"""Maximum total size of contexts for which they are listed; without them the search has no cache."""


def with_cliques(graph: PrimalGraph, scopes: Sequence[Ints]) -> PrimalGraph:
    """Add an edge for each pair of variables of the same small constraint."""
    n = graph.n
    owner = np.repeat(np.arange(n), np.diff(graph.ptr))
    keys = [owner * n + graph.nbr]
    for scope in scopes:
        if 1 < len(scope) <= LARGEST_CLIQUE:
            first, second = (scope[at].astype(np.int64) for at in np.triu_indices(len(scope), 1))
            keys += [first * n + second, second * n + first]
    pairs = np.unique(np.concatenate(keys).astype(np.int64))
    return PrimalGraph(offsets(np.bincount(pairs // max(n, 1), minlength=n)), (pairs % max(n, 1)).astype(np.int32))


def tree_with_paths(graph: PrimalGraph, card: Ints, order: Order, scopes: Sequence[Ints]) -> BucketTree:
    """Build the tree of an order such that the variables of each scope lie on one path.

    A variable's parent is the next in the order that is in a table, or a constraint, of its subtree. Contexts are those
    of the tables.
    """
    n, rank = graph.n, inverse(order.order)
    above, parent = _climb(graph, order.order, rank, scopes)
    var_of, _ = preorder(order.order, parent, np.ones(n))
    position = inverse(var_of)
    lengths = np.array([above[r].bit_count() for r in rank[var_of].tolist()], dtype=np.int64)
    listed = int(lengths.sum()) <= MOST_CONTEXTS
    context = np.zeros(0, dtype=np.int64)
    if listed:
        rows = [np.sort(position[order.order[_bits(above[r])]]) for r in rank[var_of].tolist()]
        context = np.concatenate([context, *rows])
    up = np.where(parent[var_of] >= 0, position[parent[var_of]], -1)
    return BucketTree(
        var_of=var_of,
        card=card[var_of].astype(np.int64),
        parent=up,
        end=subtree_ends(up),
        context_ptr=offsets(lengths if listed else np.zeros(n, dtype=np.int64)),
        context=context,
        known=np.full(n, listed),
        peak=math.inf,
        entries=math.inf,
    )


def _climb(graph: PrimalGraph, order: Ints, rank: Ints, scopes: Sequence[Ints]) -> tuple[list[int], Ints]:
    """Return, by rank, the ranks above a subtree that its tables reach, as bits; and the parent of every variable."""
    n = graph.n
    later = [0] * n
    for scope in scopes:
        ranks = rank[scope].tolist()
        later[min(ranks)] |= sum(1 << r for r in ranks)
    above, parent = [0] * n, np.full(n, -1, dtype=np.int64)
    for r, i in enumerate(order.tolist()):
        for j in rank[graph.nbr[graph.ptr[i] : graph.ptr[i + 1]]].tolist():
            above[r] |= (j > r) << j
        above[r] &= ~(1 << r)
        later[r] &= ~(1 << r)
        both = above[r] | later[r]
        if both:
            up = (both & -both).bit_length() - 1
            parent[i] = order[up]
            above[up] |= above[r]
            later[up] |= later[r]
            later[r] = 0  # long, and not needed any more
    return above, parent


def _bits(mask: int) -> Ints:
    """Return the positions of the set bits."""
    data = np.frombuffer(mask.to_bytes(mask.bit_length() // 8 + 1, "little"), dtype=np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))
