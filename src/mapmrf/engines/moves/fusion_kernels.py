"""Partition crossover of two labellings."""

from __future__ import annotations

import numpy as np

from mapmrf.kernels.jit import compiled


@compiled
def fuse(
    labels, other, among, seen, looked, var_ptr, theta_v, theta_t, nbr_ptr, factor_of, factor_ptr, factor_scope,
    factor_stride, table_at, tol,
):  # fmt: skip
    """Take every part of `other` into `labels` that raises the value; returns the gain and how many parts were taken.

    The variables in which two labellings differ fall into connected parts that share no factor, so that each part is
    worth the same whatever becomes of the others: the result is the best of all combinations. A part counts if it gains
    more than `tol`. A part that mends forbidden entries (-inf) counts before everything finite.

    All variables that differ are `among` those given. `seen` (variables) and `looked` (factors) are scratch, all false
    before and after.
    """
    part = np.empty(len(among), np.int64)
    total, taken, end = 0.0, 0, 0
    for first in among:
        if labels[first] == other[first] or seen[first]:
            continue
        part[end] = first
        seen[first] = True
        begin = at = end
        end += 1
        gain, mended = 0.0, 0
        while at < end:
            v = part[at]
            at += 1
            new, old = theta_v[var_ptr[v] + other[v]], theta_v[var_ptr[v] + labels[v]]
            mended += int(old == -np.inf) - int(new == -np.inf)
            gain += (new if new > -np.inf else 0.0) - (old if old > -np.inf else 0.0)
            for e in range(nbr_ptr[v], nbr_ptr[v + 1]):
                a = factor_of[e]
                if looked[a]:
                    continue
                looked[a] = True
                here = there = table_at[a]
                for p in range(factor_ptr[a], factor_ptr[a + 1]):
                    u = factor_scope[p]
                    here += factor_stride[p] * labels[u]
                    there += factor_stride[p] * other[u]
                    if labels[u] != other[u] and not seen[u]:
                        seen[u] = True
                        part[end] = u
                        end += 1
                new, old = theta_t[there], theta_t[here]
                mended += int(old == -np.inf) - int(new == -np.inf)
                gain += (new if new > -np.inf else 0.0) - (old if old > -np.inf else 0.0)
        if mended > 0 or (mended == 0 and gain > tol):
            for k in range(begin, end):
                labels[part[k]] = other[part[k]]
            total += gain
            taken += 1
    for k in range(end):
        v = part[k]
        seen[v] = False
        for e in range(nbr_ptr[v], nbr_ptr[v + 1]):
            looked[factor_of[e]] = False
    return total, taken
