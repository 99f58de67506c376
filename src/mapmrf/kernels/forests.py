"""Spanning forests of factor graphs, grown factor by factor."""

from __future__ import annotations

from mapmrf.arrays import Bools, Ints
from mapmrf.kernels.jit import bare, inlined


@inlined
def part_of(root: Ints, i: int) -> int:
    """The variable that represents the part of `i`; halves the path to it for the next time."""
    while root[i] != i:
        root[i] = root[root[i]]
        i = root[i]
    return i


@bare
def grow_forest(candidates: Ints, scope_ptr: Ints, scope: Ints, root: Ints, taken: Bools) -> None:
    """Take one candidate after another, if it closes no cycle: if its variables are in different parts so far.

    `taken` is set for every candidate. `root` is scratch, one entry per variable.
    """
    for i in range(len(root)):
        root[i] = i
    for place in range(len(candidates)):
        f = candidates[place]
        apart = True
        for e in range(scope_ptr[f], scope_ptr[f + 1]):
            for other in range(scope_ptr[f], e):
                apart = apart and part_of(root, scope[e]) != part_of(root, scope[other])
        taken[f] = apart
        if apart:
            joined = part_of(root, scope[scope_ptr[f]])
            for e in range(scope_ptr[f] + 1, scope_ptr[f + 1]):
                root[part_of(root, scope[e])] = joined
