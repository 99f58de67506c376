"""Orders of the variables of a factor graph: trees peeled off, and breadth first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.neighbours import Neighbours


class EndCounts(NamedTuple):
    """In how many factors a variable is the first, the last, and the first of one that hangs on it."""

    first: Ints
    last: Ints
    loose: Ints


@compiled
def count_factors(scope: Ints, degree: Ints) -> None:
    """Count the factors of every variable, on top of what is there."""
    for e in range(len(scope)):
        degree[scope[e]] += 1


@compiled
def count_ends(scope_ptr: Ints, scope: Ints, rank: Ints, hanging: Bools, counts: EndCounts) -> None:
    """Count the factors at whose ends variables are, in the order of their ranks."""
    for a in range(len(scope_ptr) - 1):
        first = last = scope[scope_ptr[a]]
        for k in range(scope_ptr[a] + 1, scope_ptr[a + 1]):
            first = scope[k] if rank[scope[k]] < rank[first] else first
            last = scope[k] if rank[scope[k]] > rank[last] else last
        counts.first[first] += 1
        counts.last[last] += 1
        counts.loose[first] += hanging[a]


@compiled
def peel_variables(
    scope_ptr: Ints, scope: Ints, neighbours: Neighbours, removed: Ints, peeled: Bools, hanging: Bools
) -> int:
    """Repeatedly remove variables with one remaining factor; return how many.

    `removed` receives them in order of removal, `peeled` marks them, and `hanging` marks the factors all of whose
    variables but one were removed. A tree is reduced to a single variable.
    """
    n_vars = len(neighbours.ptr) - 1
    left, queue = np.empty(n_vars, dtype=np.int64), np.empty(n_vars, dtype=np.int64)
    width = np.empty(len(scope_ptr) - 1, dtype=np.int64)
    n_queued = 0
    for a in range(len(width)):
        width[a] = scope_ptr[a + 1] - scope_ptr[a]
    for i in range(n_vars):
        left[i] = neighbours.ptr[i + 1] - neighbours.ptr[i]
        if left[i] == 1:
            queue[n_queued] = i
            n_queued += 1
    n_removed = 0
    at = 0
    while at < n_queued:
        i = queue[at]
        at += 1
        if left[i] != 1:
            continue  # its last factor is pendant: the root of a tree
        peeled[i] = True
        removed[n_removed] = i
        n_removed += 1
        a = last_factor(i, neighbours, hanging)
        width[a] -= 1
        if width[a] > 1:
            continue
        hanging[a] = True
        for k in range(scope_ptr[a], scope_ptr[a + 1]):
            root = scope[k]
            if not peeled[root]:
                left[root] -= 1
                if left[root] == 1:
                    queue[n_queued] = root
                    n_queued += 1
    return n_removed


@inlined
def last_factor(i: int, neighbours: Neighbours, hanging: Bools) -> int:
    """The one factor of a variable that does not hang."""
    for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
        a = neighbours.factor_of[neighbours.edge[at]]
        if not hanging[a]:
            return int(a)
    return -1


@compiled
def breadth_first(scope_ptr: Ints, scope: Ints, neighbours: Neighbours, seq: Ints) -> None:
    """Fill `seq` with all variables, each component breadth first from a peripheral variable."""
    n_vars = len(neighbours.ptr) - 1
    seen = np.zeros(n_vars, dtype=np.int64)
    n = 0
    for i in range(n_vars):
        if seen[i] > 0:
            continue
        begin = n
        root = i
        for turn in range(1, 4):  # twice to find a peripheral variable, once for the order
            seq[begin] = root
            seen[root] = turn
            n = visit_part(begin, turn, scope_ptr, scope, neighbours, seen, seq)
            root = seq[n - 1]


@inlined
def visit_part(
    begin: int, turn: int, scope_ptr: Ints, scope: Ints, neighbours: Neighbours, seen: Ints, seq: Ints
) -> int:
    """Append all variables connected to the one at position `begin`, breadth first; return the end."""
    n, at = begin + 1, begin
    while at < n:
        j = seq[at]
        at += 1
        for e in range(neighbours.ptr[j], neighbours.ptr[j + 1]):
            a = neighbours.factor_of[neighbours.edge[e]]
            for k in range(scope_ptr[a], scope_ptr[a + 1]):
                if seen[scope[k]] != turn:
                    seen[scope[k]] = turn
                    seq[n] = scope[k]
                    n += 1
    return n
