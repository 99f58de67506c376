"""Messages of all buckets: up to the roots, down again to max-marginals, and labellings by rank."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.elimination.elimination_kernels import (
    BLOCK,
    MARGINAL,
    NOWHERE,
    PLAIN,
    Buckets,
    FoldedSum,
    FoldTarget,
    FunctionTables,
    MatchedTable,
    fold,
    score_bucket,
)


class CollectCursor(NamedTuple):
    """The bucket to continue with, and the block of its message."""

    position: int
    block: int


class StateMarginals(NamedTuple):
    """Max-marginals of single variables: those of position `p` start at ``value[at[p]]``."""

    at: Ints
    value: Floats


@compiled
def collect(cursor: CollectCursor, budget: int, fns: FunctionTables, buckets: Buckets, inner: Ints) -> CollectCursor:
    """Compute the messages to the roots, the last position first, until some `budget` of additions is spent."""
    unmatched = MatchedTable(np.zeros(0, np.int64), np.zeros(1), NOWHERE)
    no_choice = np.zeros(1, np.uint8)
    p, block = cursor.position, cursor.block
    while p >= 0 and budget > 0:
        mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
        message = fns.n_given + p
        dims = fns.var[fns.ptr[message] : fns.ptr[message + 1]]
        cost = BLOCK * fns.card[p] * len(mine)
        n_blocks = 1 + budget // cost
        target = FoldTarget(fns.at[message], no_choice, NOWHERE)
        block = fold(PLAIN, fns, FoldedSum(mine, dims, p), unmatched, target, block, n_blocks, inner)
        size = fns.at[message + 1] - fns.at[message]
        budget -= min(n_blocks * cost, size * fns.card[p] * len(mine) + 100)
        if block < 0:
            p, block = p - 1, 0
    return CollectCursor(p, block)


@compiled
def add_up_clique(p: int, fns: FunctionTables, buckets: Buckets, inner: Ints) -> int:
    """Tabulate the sum of all functions of a bucket and of the message from above; return the table's size.

    It becomes the last function, over the bucket's context and its own variable.
    """
    n, last = len(fns.card), len(fns.ptr) - 2
    first, end = fns.ptr[fns.n_given + p], fns.ptr[fns.n_given + p + 1]
    at = fns.ptr[last]
    for d in range(first, end):
        fns.var[at + d - first] = fns.var[d]
    fns.var[at + end - first] = p
    fns.ptr[last + 1] = at + end - first + 1
    size = 1
    for d in range(fns.ptr[last + 1] - 1, at - 1, -1):
        fns.stride[d] = size
        size *= fns.card[fns.var[d]]
    mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
    members = np.empty(len(mine) + 1, np.int64)
    members[:-1] = mine
    members[-1] = fns.n_given + n + p
    project(members, fns.var[at : fns.ptr[last + 1]], fns.arena, fns.at[last], fns, inner)
    return size


@compiled
def project(members: Ints, scope: Ints, table: Floats, at: int, fns: FunctionTables, inner: Ints) -> None:
    """Write the max-marginals of a sum over a bucket's clique on some of its variables, its own variable the last.

    The clique is that of the last function.
    """
    last = len(fns.ptr) - 2
    clique = fns.var[fns.ptr[last] : fns.ptr[last + 1]]
    size = 1
    for d in range(len(scope)):
        size *= fns.card[scope[d]]
    table[at : at + size] = -np.inf
    terms = FoldedSum(members, clique[:-1], clique[-1])
    target = FoldTarget(NOWHERE, np.zeros(1, np.uint8), NOWHERE)
    fold(MARGINAL, fns, terms, MatchedTable(scope, table, at), target, NOWHERE, 2**62, inner)


@compiled
def distribute(
    p: int, budget: int, fns: FunctionTables, buckets: Buckets, marginals: StateMarginals, inner: Ints
) -> int:
    """Compute the messages from the roots and the max-marginals, position by position; return the next position.

    What is taken off a message that is -inf does not matter: nothing below it is possible.
    """
    n, last = len(fns.card), len(fns.ptr) - 2
    summed = np.array([last])
    while p < n and budget > 0:
        size = add_up_clique(p, fns, buckets, inner)
        mine = buckets.member[buckets.ptr[p] : buckets.ptr[p + 1]]
        budget -= (2 * len(mine) + 1) * size + 100
        own = fns.var[fns.ptr[last + 1] - 1 : fns.ptr[last + 1]]
        project(summed, own, marginals.value, marginals.at[p], fns, inner)
        for m in range(len(mine)):
            up = mine[m]
            if up < fns.n_given:
                continue
            down = up + n
            project(summed, fns.var[fns.ptr[down] : fns.ptr[down + 1]], fns.arena, fns.at[down], fns, inner)
            for j in range(fns.at[up + 1] - fns.at[up]):
                message = fns.arena[fns.at[up] + j]
                if message > -np.inf:
                    fns.arena[fns.at[down] + j] -= message
                else:
                    fns.arena[fns.at[down] + j] = -np.inf
        p += 1
    return p


@inlined
def first_best(score: Floats, n: int) -> int:
    """The first state of the largest score."""
    best = 0
    for k in range(1, n):
        if score[k] > score[best]:
            best = k
    return best


@compiled
def complete(first: int, end: int, rank: int, fns: FunctionTables, buckets: Buckets, labels: Ints) -> None:
    """Give position `first` its state of this rank (0: the best), and those after it, up to `end`, the best."""
    score = np.empty(fns.card.max())
    for p in range(first, end):
        score_bucket(p, fns, buckets, labels, score)
        if p == first and rank > 0:
            labels[p] = np.argsort(-score[: fns.card[p]], kind="mergesort")[rank]
        else:
            labels[p] = first_best(score, fns.card[p])


@compiled
def losses(first: int, rank: int, fns: FunctionTables, buckets: Buckets, labels: Ints, loss: Floats) -> None:
    """Compute the loss of the next-ranked state at every position from `first` on, given those before; inf if none.

    Position `first` has its state of the given rank, all after it have their best.
    """
    score = np.empty(fns.card.max())
    for p in range(first, len(labels)):
        n = fns.card[p]
        loss[p] = np.inf
        if n < 2:
            continue
        score_bucket(p, fns, buckets, labels, score)
        if p == first and rank > 0:
            if rank + 1 < n:
                falling = np.sort(-score[:n])
                best, other = -falling[rank], -falling[rank + 1]
            else:
                best, other = 0.0, -np.inf
        else:
            k = first_best(score, n)
            best, score[k] = score[k], -np.inf
            other = score[first_best(score, n)]
        if other > -np.inf:
            loss[p] = best - other
