"""Pairwise couplings of spins: the layout shared by all kernels of this engine."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare


class SpinCouplings(NamedTuple):
    """Couplings in CSR form: those of spin i are in ``ptr[i] : ptr[i + 1]``.

    Attributes
    ----------
    ptr, nbr
        Offsets of the spins' lists, and the neighbouring spins.
    strength
        Value of a pair if its spins are equal; the negative if they are not.
    """

    ptr: Ints
    nbr: Ints
    strength: Floats


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
