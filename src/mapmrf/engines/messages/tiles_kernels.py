"""Depths of the factors of a pass, and of variables in the order of decoding."""

from __future__ import annotations

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare
from mapmrf.engines.messages.neighbours import Neighbours


@bare
def depths_of(visit: Ints, scope_ptr: Ints, scope: Ints, last: Ints, depth: Ints) -> int:
    """Compute the dependency depth of each factor of a pass; return the number of depths.

    last : per variable, initially zero; the least depth of the next factor with this variable.
    """
    n_depths = 0
    for q in range(len(visit)):
        a = visit[q]
        here = 0
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            here = max(here, last[scope[e]])
        depth[q] = here
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            last[scope[e]] = here + 1
        n_depths = max(n_depths, here + 1)
    return n_depths


@bare
def variable_depths(decide: Ints, neighbours: Neighbours, scope_ptr: Ints, scope: Ints, last: Ints, depth: Ints) -> int:
    """Do the same for variables decoded one after another, each given those before it in its factors.

    last : per variable, initially zero; one more than its depth once it is decoded.
    """
    n_depths = 0
    for q in range(len(decide)):
        i = decide[q]
        here = 0
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            a = neighbours.factor_of[neighbours.edge[at]]
            for e in range(scope_ptr[a], scope_ptr[a + 1]):
                here = max(here, last[scope[e]])
        depth[q] = here
        last[i] = here + 1
        n_depths = max(n_depths, here + 1)
    return n_depths
