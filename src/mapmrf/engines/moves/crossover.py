"""Partition crossover of two labellings of a problem.

The variables in which two labellings differ form connected parts that share no factor, so that the gain of a part does
not depend on the others: the better choice for each part gives the best of all combinations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints, largest_size
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.moves.flip_state import MoveModel, lay_out
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem


class Crossover:
    # Minimum gain of a part, relative to the size of the potentials; less counts as round-off
    def __init__(self, problem: Problem, tol: float = 1e-12) -> None:
        self._model = lay_out(problem)
        self._scratch = new_part_scratch(problem)
        self._all = np.arange(problem.n_vars)
        # the largest finite potential of a factor; an upper limit if tables have weights
        size = largest_size(problem.graph.theta_t) * (largest_size(problem.weight) if len(problem.weight) else 1.0)
        self._tol = tol * size if tol > 0 else 0.0

    def fuse(self, labels: Ints, other: Ints, region: Ints | None = None) -> float:
        """Take over all better parts of another labelling, in place; return the gain."""
        # If all variables that differ lie in a region, passing it avoids a scan of all others.
        among = self._all if region is None else region
        return float(fuse(self._model, labels, other, among, self._scratch, self._tol))


def new_part_scratch(problem: Problem) -> PartScratch:
    n = problem.n_vars
    return PartScratch(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), np.zeros(problem.n_factors, dtype=bool))


class PartScratch(NamedTuple):
    members: Ints  # the variables of the parts
    seen: Bools  # variables that the search has met; none between calls
    met: Bools  # factors likewise


@inlined
def gather_part(
    model: MoveModel, old: Ints, new: Ints, scratch: PartScratch, first: int, begin: int
) -> tuple[int, int, float]:
    """List the part that holds `first` from `begin` on."""
    # Returns its end, and what it gains if `new` takes the place of `old`: forbidden entries mended, and the finite
    # sum.
    members, seen, met, theta_t = scratch.members, scratch.seen, scratch.met, model.theta_t
    members[begin] = first
    seen[first] = True
    at, end = begin, begin + 1
    mended, gain = 0, 0.0
    while at < end:
        v = members[at]
        at += 1
        now, was = model.theta_v[model.var_ptr[v] + new[v]], model.theta_v[model.var_ptr[v] + old[v]]
        mended += int(was == -np.inf) - int(now == -np.inf)
        gain += (now if now > -np.inf else 0.0) - (was if was > -np.inf else 0.0)
        for e in range(model.nbr_ptr[v], model.nbr_ptr[v + 1]):
            a = model.factor_of[e]
            if met[a]:
                continue
            met[a] = True
            here = there = np.int64(model.table_at[a])
            for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
                u = model.scope[p]
                here += model.scope_stride[p] * old[u]
                there += model.scope_stride[p] * new[u]
                if old[u] != new[u] and not seen[u]:
                    seen[u] = True
                    members[end] = u
                    end += 1
            weight = weight_of(model.weight, a)
            now, was = weight * theta_t[there], weight * theta_t[here]
            mended += int(was == -np.inf) - int(now == -np.inf)
            gain += (now if now > -np.inf else 0.0) - (was if was > -np.inf else 0.0)
    return end, mended, gain


@inlined
def forget_parts(model: MoveModel, scratch: PartScratch, end: int) -> None:
    """Clear what the search of all parts up to `end` has met."""
    for at in range(end):
        v = scratch.members[at]
        scratch.seen[v] = False
        for e in range(model.nbr_ptr[v], model.nbr_ptr[v + 1]):
            scratch.met[model.factor_of[e]] = False


@compiled
def fuse(model: MoveModel, labels: Ints, other: Ints, among: Ints, scratch: PartScratch, tol: float) -> float:
    """Take every part of `other` into `labels` that raises the value; returns the gain."""
    # A part counts if it gains more than `tol`. A part that mends forbidden entries (-inf) counts before everything
    # finite. All variables that differ are `among` those given.
    total, end = 0.0, 0
    for first in among:
        if labels[first] == other[first] or scratch.seen[first]:
            continue
        begin = end
        end, mended, gain = gather_part(model, labels, other, scratch, first, begin)
        if mended > 0 or (mended == 0 and gain > tol):
            for at in range(begin, end):
                labels[scratch.members[at]] = other[scratch.members[at]]
            total += gain
    forget_parts(model, scratch, end)
    return total
