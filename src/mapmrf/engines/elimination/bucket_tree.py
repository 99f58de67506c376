"""Bucket trees: the variables of an elimination order, numbered by position, roots first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.engines.elimination.order_kernels import contexts, preorder
from mapmrf.engines.elimination.orders import Order, segment_sums
from mapmrf.engines.elimination.primal_graph import PrimalGraph


@dataclass(frozen=True, eq=False)
class BucketTree:
    """The variables numbered by position in a tree of buckets: roots first, every subtree a range of positions.

    Buckets are eliminated from the last position to the first. Variables below are given by position.

    Attributes
    ----------
    var_of : (n,)
        The variable at every position.
    card : (n,)
        Number of states at every position.
    parent, end : (n,)
        The position of the parent (-1 for a root), and the end of the subtree's range.
    context_ptr, context
        The ancestors that the subtree of a position depends on, ascending; empty if `known` is false.
    known : (n,)
        Whether the context is known.
    peak
        Upper bound on the total entries of simultaneously live messages in exact elimination.
    entries
        Total entries of all messages of exact elimination.
    """

    var_of: Ints
    card: Ints
    parent: Ints
    end: Ints
    context_ptr: Ints
    context: Ints
    known: Ints
    peak: float
    entries: float

    @property
    def n(self) -> int:
        """Number of variables."""
        return len(self.var_of)

    @classmethod
    def build(cls, graph: PrimalGraph, card: Ints, order: Order) -> BucketTree:
        """Compute the contexts along an order and number the positions."""
        n = graph.n
        _, ptr, context, parent = contexts(graph.ptr, graph.nbr, order.order, order.n_known, 2**62)
        log_size = np.zeros(n)
        log_size[order.order] = segment_sums(np.log2(card.astype(np.float64))[context], ptr)
        size = np.exp2(np.minimum(log_size, 1000.0)) if order.n_known == n else np.full(n, math.inf)
        size[(parent < 0) & (log_size == 0)] = 1.0
        var_of, peak = preorder(order.order, parent, size if order.n_known == n else np.ones(n))
        position, rank = inverse(var_of), inverse(order.order)
        by_rank = rank[var_of]
        lengths = np.diff(ptr)[by_rank]
        context = position[context[ranges(ptr[by_rank], lengths)]]
        context = context[np.lexsort((context, np.repeat(np.arange(n), lengths)))]
        up = np.where(parent[var_of] >= 0, position[parent[var_of]], -1)
        return cls(
            var_of=var_of,
            card=card[var_of].astype(np.int64),
            parent=up,
            end=subtree_ends(up),
            context_ptr=offsets(lengths),
            context=context,
            known=by_rank < order.n_known,
            peak=peak if order.n_known == n else math.inf,
            entries=float(size.sum()),
        )

    def by_variable(self, labels: Ints) -> Ints:
        """Convert labels by position to labels by variable."""
        result = np.empty_like(labels)
        result[self.var_of] = labels
        return result


def inverse(permutation: Ints) -> Ints:
    """Return the inverse of a permutation."""
    result = np.empty(len(permutation), dtype=np.int64)
    result[permutation] = np.arange(len(permutation))
    return result


def subtree_ends(parent: Ints) -> Ints:
    """Return the end of every subtree's range: the next position that is not below it."""
    n = len(parent)
    end = np.arange(1, n + 1)
    for p in range(n - 1, -1, -1):
        if parent[p] >= 0:
            end[parent[p]] = max(end[parent[p]], end[p])
    return end


def row_major(card: Ints, ptr: Ints, var: Ints) -> tuple[Ints, Ints]:
    """Return strides of tables over the given scopes, last variable fastest, and their sizes (0: 2^62 or more)."""
    first, lengths = int(ptr[0]), np.diff(ptr)
    stride = np.ones(int(ptr[-1]) - first, dtype=np.int64)
    sizes = np.ones(len(lengths), dtype=np.int64)
    for back in range(1, int(lengths.max(initial=0)) + 1):
        of = np.flatnonzero(lengths >= back)
        at = ptr[1:][of] - back
        stride[at - first] = sizes[of]
        times = card[var[at]]
        sizes[of] = np.where(sizes[of] <= 2**62 // times, sizes[of] * times, 0)
    return stride, sizes
