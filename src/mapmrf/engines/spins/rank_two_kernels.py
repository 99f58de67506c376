"""Rank-2 relaxation: coordinate ascent on the circle, and the best cut through it (Burer, Monteiro, Zhang 2002)."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.moves.random_kernels import UNIT, Bits, next_bits
from mapmrf.engines.spins.couplings_kernels import SpinCouplings
from mapmrf.engines.spins.tabu_kernels import flip


@bare
def disturb_angles(spin: Floats, noise: float, vectors: Floats, random: Bits) -> None:
    """Set unit vectors (n, 2) to angle 0 or pi according to the spins, perturbed by up to `noise` times pi."""
    for i in range(len(spin)):
        turn = 2.0 * float(next_bits(random) >> np.uint64(11)) / UNIT - 1.0
        angle = math.pi * noise * turn
        vectors[i, 0] = spin[i] * math.cos(angle)
        vectors[i, 1] = spin[i] * math.sin(angle)


@bare
def turn_vectors(couplings: SpinCouplings, vectors: Floats, sweeps: int, tolerance: float) -> int:
    """Run coordinate ascent over the vectors until a sweep gains little; return the number of sweeps."""
    total = 0.0
    for sweep in range(sweeps):
        gained, pulls = 0.0, 0.0
        for i in range(len(vectors)):
            x, y = 0.0, 0.0
            for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
                j, w = couplings.nbr[e], couplings.strength[e]
                x += w * vectors[j, 0]
                y += w * vectors[j, 1]
            pull = math.sqrt(x * x + y * y)
            if pull > 0.0:
                gained += pull - x * vectors[i, 0] - y * vectors[i, 1]
                pulls += pull
                vectors[i, 0] = x / pull
                vectors[i, 1] = y / pull
        total = pulls
        if gained <= tolerance * total:
            return sweep + 1
    return sweeps


@compiled
def best_cut(couplings: SpinCouplings, vectors: Floats, spin: Floats, gain: Floats) -> float:
    """Rotate a line through the circle and keep the best of all cuts; return its gain over the first one.

    `spin` and `gain` hold the first cut, by the sign of the second coordinate, and finally the best one.
    """
    n = len(spin)
    angle = np.empty(n)
    for i in range(n):
        angle[i] = math.atan2(vectors[i, 1], vectors[i, 0])
        if angle[i] < 0.0:
            angle[i] += math.pi
    order = np.argsort(angle)
    total, best, at = 0.0, 0.0, 0
    for step in range(n):  # the line passes one vector after another
        total += gain[order[step]]
        flip(couplings, spin, gain, order[step])
        if total > best:
            best, at = total, step + 1
    for step in range(n - 1, at - 1, -1):
        flip(couplings, spin, gain, order[step])
    return best
