"""The semidefinite relaxation with triangle inequalities: an augmented Lagrangian over unit vectors."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare
from mapmrf.engines.spins.mixing_kernels import mix_dense, set_gram
from mapmrf.engines.spins.triangle_kernels import Triangles, add_triangles, set_slack

INERTIA = 0.2
"""Damping of a vector per active inequality at it, relative to the penalty."""


class RelaxedSpins(NamedTuple):
    """Unit vectors for spins, and scratch.

    Attributes
    ----------
    base, matrix : (n, n)
        Couplings of the model, and the same plus the inequalities times their prices.
    vectors : (n, rank)
        A unit vector for every spin.
    gram : (n, n)
        Their Gram matrix.
    strength, inertia : (n,)
        Norm of the gradient at every vector, and its damping.
    pull : (rank,)
        Scratch.
    """

    base: Floats
    matrix: Floats
    vectors: Floats
    gram: Floats
    strength: Floats
    inertia: Floats
    pull: Floats


class Prices(NamedTuple):
    """Multiplier, slack and price of every inequality; the price is the multiplier updated by the penalty."""

    multiplier: Floats
    slack: Floats
    price: Floats


@bare
def set_matrix(spins: RelaxedSpins, triangles: Triangles, price: Floats) -> None:
    """Add the inequalities at their prices to the couplings; `inertia` counts the active ones at every spin."""
    n = len(spins.base)
    for i in range(n):
        spins.inertia[i] = 0.0
        for j in range(n):
            spins.matrix[i, j] = spins.base[i, j]
    add_triangles(triangles, price, spins.matrix, spins.inertia)


@bare
def press(spins: RelaxedSpins, triangles: Triangles, prices: Prices, penalty: float, sweeps: int) -> None:
    """Run sweeps of coordinate ascent, with prices updated before each."""
    multiplier, slack, price = prices
    for _ in range(sweeps):
        set_gram(spins.vectors, spins.gram)
        set_slack(triangles, spins.gram, slack)
        for t in range(len(price)):
            price[t] = max(0.0, multiplier[t] - penalty * slack[t])
        set_matrix(spins, triangles, price)
        for i in range(len(spins.inertia)):
            spins.inertia[i] *= INERTIA * penalty
        mix_dense(spins.matrix, spins.vectors, spins.inertia, spins.strength, spins.pull, 1)
