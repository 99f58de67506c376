"""Orders of the variables of a factor graph: trees peeled off, and breadth first.

`factor_of` names the factor of every edge, laid out by variable from `nbr_ptr` on.
"""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import compiled


@compiled
def peel(scope_ptr, scope, nbr_ptr, factor_of, removed, peeled, hanging):
    """Take away variables with one factor left, again and again; return how many.

    `removed` gets them in the order in which they went, `peeled` marks them, and `hanging` marks the factors all of
    whose variables but one went. What is left of a tree is a single variable.
    """
    n_vars = len(nbr_ptr) - 1
    left = np.empty(n_vars, dtype=np.int64)
    width = np.empty(len(scope_ptr) - 1, dtype=np.int64)
    queue = np.empty(n_vars, dtype=np.int64)
    n_queued = 0
    for a in range(len(width)):
        width[a] = scope_ptr[a + 1] - scope_ptr[a]
    for i in range(n_vars):
        left[i] = nbr_ptr[i + 1] - nbr_ptr[i]
        if left[i] == 1:
            queue[n_queued] = i
            n_queued += 1
    n_removed = 0
    at = 0
    while at < n_queued:
        i = queue[at]
        at += 1
        if left[i] != 1:
            continue  # its last factor hangs on it: the root of a tree
        peeled[i] = True
        removed[n_removed] = i
        n_removed += 1
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            a = factor_of[e]
            if hanging[a]:
                continue
            width[a] -= 1
            if width[a] > 1:
                break
            hanging[a] = True
            for k in range(scope_ptr[a], scope_ptr[a + 1]):
                root = scope[k]
                if not peeled[root]:
                    left[root] -= 1
                    if left[root] == 1:
                        queue[n_queued] = root
                        n_queued += 1
            break
    return n_removed


@compiled
def breadth_first(scope_ptr, scope, nbr_ptr, factor_of, seq):
    """Fill `seq` with all variables, each part of the graph breadth first from an outermost variable of it."""
    n_vars = len(nbr_ptr) - 1
    seen = np.zeros(n_vars, dtype=np.int64)
    n = 0
    for i in range(n_vars):
        if seen[i] > 0:
            continue
        begin = n
        root = i
        for turn in range(1, 4):  # twice to find an outermost variable, once for the order
            n = begin
            seq[n] = root
            seen[root] = turn
            n += 1
            at = begin
            while at < n:
                j = seq[at]
                at += 1
                for e in range(nbr_ptr[j], nbr_ptr[j + 1]):
                    for k in range(scope_ptr[factor_of[e]], scope_ptr[factor_of[e] + 1]):
                        if seen[scope[k]] != turn:
                            seen[scope[k]] = turn
                            seq[n] = scope[k]
                            n += 1
            root = seq[n - 1]
