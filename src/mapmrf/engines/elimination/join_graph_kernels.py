"""Cost shifting on a join graph: clusters of variables with tables, and separators on which their max-marginals agree.

The clusters are the mini-buckets of a plan: cluster `m` has the variables ``cl_var[cl_ptr[m]:cl_ptr[m + 1]]``, the one
that is eliminated last, and its table at ``cl_at[m]`` of `tables`. It is joined with the cluster that takes its
message, on all its variables but the last, and with the other mini-buckets of its bucket, on what all of them have in
common.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import bare, compiled

WIDTH = 1024
"""Entries of a table whose places in a separator's table are computed once."""


@bare
def inner_places(m, cl_ptr, cl_var, card, sep, n_sep, stride, inner):
    """Strides of a separator's table along a cluster's variables, and its places for the cluster's last variables."""
    first, n_dims = cl_ptr[m], cl_ptr[m + 1] - cl_ptr[m]
    step, s = 1, n_sep - 1
    for d in range(n_dims - 1, -1, -1):
        stride[d] = 0
        if s >= 0 and sep[s] == cl_var[first + d]:
            stride[d] = step
            step *= card[sep[s]]
            s -= 1
    cut, width = n_dims, 1
    inner[0] = 0
    while cut > 0 and width * card[cl_var[first + cut - 1]] <= WIDTH:
        cut -= 1
        n_k = card[cl_var[first + cut]]
        for k in range(n_k - 1, -1, -1):
            for j in range(width):
                inner[k * width + j] = inner[j] + k * stride[cut]
        width *= n_k
    return cut, width


@bare
def next_base(m, cl_ptr, cl_var, card, cut, stride, digit, base):
    """The place in the separator's table where the next run of a cluster's entries starts."""
    d = cut - 1
    while d >= 0:
        digit[d] += 1
        base += stride[d]
        if digit[d] < card[cl_var[cl_ptr[m] + d]]:
            break
        base -= digit[d] * stride[d]
        digit[d] = 0
        d -= 1
    return base


@bare
def max_onto(m, cl_ptr, cl_var, cl_at, card, tables, sep, n_sep, out, out_at, stride, digit, inner):
    """Max-marginals of a cluster on a separator."""
    cut, width = inner_places(m, cl_ptr, cl_var, card, sep, n_sep, stride, inner)
    size = 1
    for s in range(n_sep):
        size *= card[sep[s]]
    for s in range(size):
        out[out_at + s] = -np.inf
    for d in range(cut):
        digit[d] = 0
    base = out_at
    for at in range(cl_at[m], cl_at[m + 1], width):
        for j in range(width):
            out[base + inner[j]] = max(out[base + inner[j]], tables[at + j])
        base = next_base(m, cl_ptr, cl_var, card, cut, stride, digit, base)
    return size


@bare
def add_onto(m, cl_ptr, cl_var, cl_at, card, tables, sep, n_sep, given, given_at, stride, digit, inner):
    """Add a separator's table to a cluster's."""
    cut, width = inner_places(m, cl_ptr, cl_var, card, sep, n_sep, stride, inner)
    for d in range(cut):
        digit[d] = 0
    base = given_at
    for at in range(cl_at[m], cl_at[m + 1], width):
        for j in range(width):
            tables[at + j] += given[base + inner[j]]
        base = next_base(m, cl_ptr, cl_var, card, cut, stride, digit, base)


@bare
def share_out(buffer, size, n_sides, share_of_first):
    """Turn the max-marginals of several clusters into what each gains, so that it has its share of their sum.

    The first has the share given and the others equal ones. A state impossible for one cluster becomes so for all.
    """
    for s in range(size):
        total, possible = 0.0, True
        for r in range(n_sides):
            total += buffer[r * size + s]
            possible = possible and buffer[r * size + s] > -np.inf
        for r in range(n_sides):
            share = share_of_first if r == 0 else (1.0 - share_of_first) / (n_sides - 1)
            buffer[r * size + s] = share * total - buffer[r * size + s] if possible else -np.inf


@bare
def agree(
    sides, n_sides, share_of_first, sep, n_sep, cl_ptr, cl_var, cl_at, card, tables, buffer, stride, digit, inner
):
    """Make the max-marginals of some clusters on a separator shares of their sum."""
    size = 1
    for r in range(n_sides):
        size = max_onto(
            sides[r], cl_ptr, cl_var, cl_at, card, tables, sep, n_sep, buffer, r * size, stride, digit, inner
        )
    share_out(buffer, size, n_sides, share_of_first)
    for r in range(n_sides):
        add_onto(sides[r], cl_ptr, cl_var, cl_at, card, tables, sep, n_sep, buffer, r * size, stride, digit, inner)


@compiled
def fill_clusters(
    cl_ptr: Ints, cl_var: Ints, cl_at: Ints, card: Ints, member_ptr: Ints, member: Ints, n_given: int, fn_ptr: Ints,
    fn_var: Ints, fn_stride: Ints, fn_at: Ints, theta: Floats, tables: Floats, digit: Ints, stride: Ints,
) -> None:  # fmt: skip
    """Sum up the given functions of every cluster."""
    for m in range(len(cl_ptr) - 1):
        for at in range(cl_at[m], cl_at[m + 1]):
            tables[at] = 0.0
        n_dims = cl_ptr[m + 1] - cl_ptr[m]
        for b in range(member_ptr[m], member_ptr[m + 1]):
            f = member[b]
            if f >= n_given:
                continue
            v = fn_ptr[f]
            for d in range(n_dims):
                digit[d], stride[d] = 0, 0
                if v < fn_ptr[f + 1] and fn_var[v] == cl_var[cl_ptr[m] + d]:
                    stride[d] = fn_stride[v]
                    v += 1
            base = fn_at[f]
            for at in range(cl_at[m], cl_at[m + 1]):
                tables[at] += theta[base]
                base = next_base(m, cl_ptr, cl_var, card, n_dims, stride, digit, base)


@compiled
def sweep_clusters(
    cursor: Ints, budget: int, mini_ptr: Ints, parent_of: Ints, child_ptr: Ints, child: Ints, cl_ptr: Ints,
    cl_var: Ints, cl_at: Ints, card: Ints, tables: Floats, buffer: Floats, scratch: Ints, inner: Ints,
) -> None:  # fmt: skip
    """Sweeps over the buckets to the roots and back, until some `budget` of table entries is spent.

    On the way to the roots every cluster hands its max-marginals on to the cluster above; on the way back it shares
    with each cluster below. The mini-buckets of a bucket agree on what they have in common, both times. The sum of the
    tables' maxima does not rise. `cursor` holds the bucket, the direction, and the sweeps done.
    """
    n = len(mini_ptr) - 1
    stride, digit, common, sides = scratch[0], scratch[1], scratch[2], scratch[3]
    while budget > 0:
        t = cursor[0]
        first, last = mini_ptr[t], mini_ptr[t + 1]
        if last - first > 1:
            n_common = 0
            for d in range(cl_ptr[first], cl_ptr[first + 1]):
                everywhere = True
                for m in range(first + 1, last):
                    at = cl_ptr[m]
                    while at < cl_ptr[m + 1] and cl_var[at] < cl_var[d]:
                        at += 1
                    everywhere = everywhere and at < cl_ptr[m + 1] and cl_var[at] == cl_var[d]
                if everywhere:
                    common[n_common] = cl_var[d]
                    n_common += 1
            for r in range(last - first):
                sides[r] = first + r
            agree(
                sides, last - first, 1.0 / (last - first), common, n_common, cl_ptr, cl_var, cl_at, card, tables,
                buffer, stride, digit, inner,
            )  # fmt: skip
        for m in range(first, last):
            budget -= 2 * (cl_at[m + 1] - cl_at[m]) + 100
            c_first, c_last = (m, m + 1) if cursor[1] == 0 else (child_ptr[m], child_ptr[m + 1])
            for c_at in range(c_first, c_last):
                c = m if cursor[1] == 0 else child[c_at]
                if parent_of[c] < 0:
                    continue
                sides[0], sides[1] = c, parent_of[c]
                n_sep = cl_ptr[c + 1] - cl_ptr[c] - 1
                for d in range(n_sep):
                    common[d] = cl_var[cl_ptr[c] + d]
                agree(
                    sides, 2, 0.0 if cursor[1] == 0 else 0.5, common, n_sep, cl_ptr, cl_var, cl_at, card, tables,
                    buffer, stride, digit, inner,
                )  # fmt: skip
                budget -= 2 * (cl_at[c + 1] - cl_at[c] + cl_at[sides[1] + 1] - cl_at[sides[1]])
        cursor[0] += 1 if cursor[1] == 0 else -1
        if cursor[0] == n:
            cursor[0], cursor[1] = n - 1, 1
        elif cursor[0] < 0:
            cursor[0], cursor[1], cursor[2] = 0, 0, cursor[2] + 1
            break
