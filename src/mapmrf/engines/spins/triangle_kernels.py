"""Triangle inequalities: of three spins two are equal, so that a sum of their three products is never below -1."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import bare, inlined

N_BINS = 64
"""Classes of violation by which the most violated inequalities are found."""


class Triangles(NamedTuple):
    """Inequalities ``1 + x_jk a + x_ik b + x_ij ab >= 0`` over the products x of spins, with signs a and b.

    Attributes
    ----------
    corners : (n, 3)
        The spins i < j < k.
    kind : (n,)
        0 to 3: a is -1 for 1 and 3, b is -1 for 2 and 3.
    """

    corners: Ints
    kind: Ints


@inlined
def first_sign(kind: int) -> float:
    """The sign of the product of the second and the third spin."""
    return 1.0 - 2.0 * (kind & 1)


@inlined
def second_sign(kind: int) -> float:
    """The sign of the product of the first and the third spin."""
    return 1.0 - 2.0 * (kind >> 1)


@bare
def set_slack(triangles: Triangles, gram: Floats, slack: Floats) -> None:
    """By how much every inequality holds; below 0 it is violated."""
    for t in range(len(slack)):
        i, j, k = triangles.corners[t, 0], triangles.corners[t, 1], triangles.corners[t, 2]
        a, b = first_sign(triangles.kind[t]), second_sign(triangles.kind[t])
        slack[t] = 1.0 + a * gram[j, k] + b * gram[i, k] + a * b * gram[i, j]


@bare
def add_triangles(triangles: Triangles, multiplier: Floats, matrix: Floats, load: Floats) -> None:
    """Add the inequalities times their multipliers to a matrix of couplings, and to `load` at their corners."""
    for t in range(len(multiplier)):
        m = multiplier[t]
        if m != 0.0:
            i, j, k = triangles.corners[t, 0], triangles.corners[t, 1], triangles.corners[t, 2]
            a, b = first_sign(triangles.kind[t]), second_sign(triangles.kind[t])
            matrix[j, k] += m * a
            matrix[k, j] += m * a
            matrix[i, k] += m * b
            matrix[k, i] += m * b
            matrix[i, j] += m * a * b
            matrix[j, i] += m * a * b
            load[i] += 1.0
            load[j] += 1.0
            load[k] += 1.0


@bare
def count_violated(gram: Floats, least: float, begin: int, end: int, bins: Ints) -> None:
    """How many inequalities are violated by at least `least`, in classes from 0 to 2; of some first corners."""
    n = len(gram)
    for i in range(begin, end):
        for j in range(i + 1, n):
            x = gram[i, j]
            for k in range(j + 1, n):
                y, z = gram[j, k], gram[i, k]
                for slack in (1.0 + x + y + z, 1.0 - x - y + z, 1.0 - x + y - z, 1.0 + x - y - z):
                    if slack < -least:
                        bins[min(int(-slack * N_BINS / 2), N_BINS - 1)] += 1


@bare
def list_violated(
    gram: Floats, least: float, begin: int, end: int, found: Triangles, violation: Floats, count: int
) -> int:
    """List inequalities of some first corners violated by more than `least`, behind `count` others.

    Those that there is no room for are left out. Returns how many are listed now.
    """
    n = len(gram)
    for i in range(begin, end):
        for j in range(i + 1, n):
            x = gram[i, j]
            for k in range(j + 1, n):
                y, z = gram[j, k], gram[i, k]
                for kind, slack in enumerate((1.0 + x + y + z, 1.0 - x - y + z, 1.0 - x + y - z, 1.0 + x - y - z)):
                    if slack < -least and count < len(violation):
                        found.corners[count, 0], found.corners[count, 1], found.corners[count, 2] = i, j, k
                        found.kind[count] = kind
                        violation[count] = -slack
                        count += 1
    return count
