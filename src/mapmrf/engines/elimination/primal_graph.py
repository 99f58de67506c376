"""The primal graph of a problem, which joins variables that share a factor."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mapmrf.arrays import Ints, offsets
from mapmrf.model.problem import Problem


@dataclass(frozen=True, eq=False)
class PrimalGraph:
    """A graph in CSR form: the neighbours of `i` are ``nbr[ptr[i]:ptr[i + 1]]``, ascending."""

    ptr: Ints
    nbr: Ints

    @property
    def n(self) -> int:
        """Number of variables."""
        return len(self.ptr) - 1

    @classmethod
    def of(cls, problem: Problem) -> PrimalGraph:
        """Build the graph from the scopes of all factors."""
        n = problem.n_vars
        keys = [np.zeros(0, dtype=np.int64)]
        for batch in problem.batches:
            scope = batch.scope.astype(np.int64)
            for j, k in combinations(range(batch.arity), 2):
                keys.append(scope[:, j] * n + scope[:, k])
                keys.append(scope[:, k] * n + scope[:, j])
        pairs = np.sort(np.concatenate(keys))  # np.unique hashes first, which takes several times as long
        if len(pairs):
            pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])]
        return cls(offsets(np.bincount(pairs // max(n, 1), minlength=n)), (pairs % max(n, 1)).astype(np.int32))
