"""A binary pairwise model as spins of -1 (state 0) and 1 (state 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from mapmrf.arrays import Floats, Ints, short
from mapmrf.engines.spins.couplings_kernels import SpinCouplings
from mapmrf.problem import Problem

DECIMALS = 6
"""Decimals of weights up to which it is found out of what unit they are multiples."""

WHOLE = 1e-9
"""How far from a whole number a multiple of a unit may be: that is round-off."""

LOSS = 2.5
"""Loss of a forbidden entry, relative to all potentials: above 2, no labelling can make up for it."""


@dataclass(frozen=True, eq=False)
class CoupledSpins:
    """Maximise a constant and the couplings of spins; a field is a coupling to one more spin, the last, which is 1.

    Attributes
    ----------
    n_vars
        Variables of the model.
    n
        Spins: one more than variables if there are fields.
    couplings
        The pairs of spins, each at both of its ends.
    constant
        What every labelling is worth beside the couplings.
    """

    n_vars: int
    n: int
    couplings: SpinCouplings
    constant: float

    @classmethod
    def of(cls, problem: Problem) -> CoupledSpins:
        """The spins of a model of pairs of binary variables.

        Forbidden entries get so large a loss that no labelling with one is as good as any without: the best labelling
        is the same, if there is a feasible one, and bounds hold for both.
        """
        graph, n = problem.graph, problem.n_vars
        floor = -LOSS * max(graph.size, 1.0)
        i, j = problem.scope.reshape(-1, 2).astype(np.int64).T
        weight = problem.weight if len(problem.weight) else 1.0
        t00, t01, t10, t11 = (np.maximum(weight * graph.theta_t[problem.table_at + c], floor) / 4 for c in range(4))
        unary = np.maximum(graph.theta_v.reshape(-1, 2), floor)
        field = (unary[:, 1] - unary[:, 0]) / 2
        field += np.bincount(i, t10 + t11 - t00 - t01, n) + np.bincount(j, t01 + t11 - t00 - t10, n)
        constant = graph.constant + math.fsum(unary.ravel()) / 2 + math.fsum(t00 + t01 + t10 + t11)
        strength = t00 + t11 - t01 - t10
        with_field = np.flatnonzero(field)
        if len(with_field):
            i, j = np.append(i, with_field), np.append(j, np.full(len(with_field), n))
            strength = np.append(strength, field[with_field])
        n_spins = n + int(len(with_field) > 0)
        return cls(n, n_spins, _couplings(n_spins, i, j, strength), constant)

    @property
    def has_fields(self) -> bool:
        """Whether the last spin is that of the fields."""
        return self.n > self.n_vars

    @property
    def work(self) -> int:
        """SpinCouplings and spins that a sweep looks at, at least 1."""
        return max(1, self.n + len(self.couplings.nbr))

    def labels(self, spin: Floats) -> Ints:
        """The labelling of spins."""
        sign = spin[self.n_vars] if self.has_fields else 1.0
        return np.asarray(spin[: self.n_vars] * sign > 0, dtype=np.int64)

    def spins(self, labels: Ints) -> Floats:
        """The spins of a labelling."""
        spin = np.ones(self.n)
        spin[: self.n_vars] = 2.0 * labels - 1.0
        return spin

    def matrix(self) -> Floats:
        """The strengths of all pairs, (n, n)."""
        strength, nbr, ptr = self.couplings.strength, self.couplings.nbr, self.couplings.ptr
        return np.asarray(sparse.csr_array((strength, nbr, ptr), shape=(self.n, self.n)).toarray())

    def unit(self) -> float:
        """Values of labellings differ by multiples of this; 0 if no such number was found."""
        weight = 2.0 * np.abs(self.couplings.strength)
        for scale in 10.0 ** np.arange(DECIMALS + 1):
            scaled = weight * scale
            whole = np.round(scaled)
            if scaled.max(initial=0.0) < 2.0**53 and np.abs(scaled - whole).max(initial=0.0) <= WHOLE:
                common = int(np.gcd.reduce(whole.astype(np.int64), initial=0))
                return common / float(scale)
        return 0.0


def _couplings(n: int, i: Ints, j: Ints, strength: Floats) -> SpinCouplings:
    """Each pair once in the lists of both ends, in ascending order; those of no strength are left out."""
    half = sparse.coo_array((strength, (i, j)), shape=(n, n))
    both = (half + half.T).tocsr()
    both.sum_duplicates()
    both.eliminate_zeros()
    return SpinCouplings(both.indptr.astype(np.int64), short(both.indices), both.data.astype(np.float64))
