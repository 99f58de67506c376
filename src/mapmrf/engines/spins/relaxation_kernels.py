"""The semidefinite relaxation with triangle inequalities: an augmented Lagrangian over unit vectors."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.engines.spins.mixing_kernels import mix_dense, set_gram
from mapmrf.engines.spins.triangle_kernels import Triangles, add_triangles, set_slack
from mapmrf.kernels.jit import bare

INERTIA = 0.2
"""How much a vector resists, for every inequality at it that is pressed on, relative to the penalty."""


class RelaxedSpins(NamedTuple):
    """Unit vectors for spins, and scratch.

    Attributes
    ----------
    base, matrix : (n, n)
        SpinCouplings of the model, and with the inequalities times their prices.
    vectors : (n, rank)
        A unit vector for every spin.
    gram : (n, n)
        Their inner products.
    strength, inertia : (n,)
        Length of the pull on every vector, and how much it resists.
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
    """Of every inequality the multiplier, the slack, and the price: the multiplier that the penalty makes of it."""

    multiplier: Floats
    slack: Floats
    price: Floats


@bare
def set_matrix(spins: RelaxedSpins, triangles: Triangles, price: Floats) -> None:
    """Add the inequalities at their prices to the couplings; `inertia` counts those that have one at every spin."""
    n = len(spins.base)
    for i in range(n):
        spins.inertia[i] = 0.0
        for j in range(n):
            spins.matrix[i, j] = spins.base[i, j]
    add_triangles(triangles, price, spins.matrix, spins.inertia)


@bare
def press(spins: RelaxedSpins, triangles: Triangles, prices: Prices, penalty: float, sweeps: int) -> None:
    """Sweeps of coordinate ascent, each at prices of its own."""
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
