"""A binary pairwise model in spins of -1 (state 0) and 1 (state 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from mapmrf.arrays import Floats, Ints, short
from mapmrf.compilation.jit import bare
from mapmrf.model.granularity import Granularity
from mapmrf.model.graph import ROUND_OFF
from mapmrf.model.problem import Problem

LOSS = 2.5
"""Loss of a forbidden entry, relative to the sum of all potentials: above 2, no labelling can compensate it."""


@dataclass(frozen=True, eq=False)
class CoupledSpins:
    """Couplings of spins plus a constant, to be maximised; fields couple to an additional last spin fixed at 1."""

    n_vars: int  # Variables of the model
    n: int  # Number of spins: one more than variables if there are fields
    couplings: SpinCouplings  # The pairs of spins, listed at both ends
    constant: float  # Constant part of the value of every labelling

    @classmethod
    def of(cls, problem: Problem) -> CoupledSpins:
        """Convert a pairwise model of binary variables.

        Forbidden entries get such a large loss that any labelling with one is worse than all without: if there is a
        feasible labelling, the optimum is the same, and bounds hold for both.
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
        """Whether the last spin represents the fields."""
        return self.n > self.n_vars

    @property
    def work(self) -> int:
        """Number of couplings and spins visited by a sweep, at least 1."""
        return max(1, self.n + len(self.couplings.nbr))

    def labels(self, spin: Floats) -> Ints:
        """Convert spins to labels."""
        sign = spin[self.n_vars] if self.has_fields else 1.0
        return np.asarray(spin[: self.n_vars] * sign > 0, dtype=np.int64)

    def spins(self, labels: Ints) -> Floats:
        """Convert labels to spins."""
        spin = np.ones(self.n)
        spin[: self.n_vars] = 2.0 * labels - 1.0
        return spin

    def matrix(self) -> Floats:
        """The couplings as a matrix, (n, n)."""
        strength, nbr, ptr = self.couplings.strength, self.couplings.nbr, self.couplings.ptr
        return np.asarray(sparse.csr_array((strength, nbr, ptr), shape=(self.n, self.n)).toarray())

    def unit(self) -> float:
        """Values of labellings differ by multiples of this; 0 if no such number was found."""
        strength = self.couplings.strength
        size = float(np.abs(strength).sum())
        return Granularity.of(2.0 * strength, len(strength), ROUND_OFF * size, 0.0).step


def _couplings(n: int, i: Ints, j: Ints, strength: Floats) -> SpinCouplings:
    """List each pair at both ends, in ascending order, and drop those of zero strength."""
    half = sparse.coo_array((strength, (i, j)), shape=(n, n))
    both = (half + half.T).tocsr()
    both.sum_duplicates()
    both.eliminate_zeros()
    return SpinCouplings(both.indptr.astype(np.int64), short(both.indices), both.data.astype(np.float64))


# -- Pairwise couplings of spins: the layout shared by all kernels of this engine -------------------------------------


class SpinCouplings(NamedTuple):
    """Couplings in CSR form: those of spin i are in ``ptr[i] : ptr[i + 1]``."""

    # ptr, nbr: Offsets of the spins' lists, and the neighbouring spins
    ptr: Ints
    nbr: Ints
    strength: Floats  # Value of a pair if its spins are equal; the negative if they are not


@bare
def set_gains(couplings: SpinCouplings, spin: Floats, gain: Floats) -> float:
    """Compute the gain of every flip, and return the sum of all couplings."""
    total = 0.0
    for i in range(len(spin)):
        pull = 0.0
        for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
            pull += couplings.strength[e] * spin[couplings.nbr[e]]
        gain[i] = -2.0 * spin[i] * pull
        total += spin[i] * pull
    return 0.5 * total
