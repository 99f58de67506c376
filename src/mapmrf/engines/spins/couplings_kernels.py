"""Spins that are coupled in pairs: the layout that all kernels of this engine share."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import bare


class SpinCouplings(NamedTuple):
    """The couplings of every spin, those of spin i in ``ptr[i] : ptr[i + 1]``.

    Attributes
    ----------
    ptr, nbr
        Offsets of the spins' lists, and the spins at the other ends.
    strength
        What a pair of equal spins is worth; minus that is what a pair of unequal ones is worth.
    """

    ptr: Ints
    nbr: Ints
    strength: Floats


@bare
def set_gains(couplings: SpinCouplings, spin: Floats, gain: Floats) -> float:
    """Set what flips would gain, and return what all couplings are worth."""
    total = 0.0
    for i in range(len(spin)):
        pull = 0.0
        for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
            pull += couplings.strength[e] * spin[couplings.nbr[e]]
        gain[i] = -2.0 * spin[i] * pull
        total += spin[i] * pull
    return 0.5 * total
