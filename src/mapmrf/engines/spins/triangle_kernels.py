"""Triangle inequalities: two of any three spins are equal, which bounds signed sums of their products by -1."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined

N_BINS = 64
"""Histogram bins by which the most violated inequalities are selected."""


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
    """Return the sign of the product of the second and third spins."""
    return 1.0 - 2.0 * (kind & 1)


@inlined
def second_sign(kind: int) -> float:
    """Return the sign of the product of the first and third spins."""
    return 1.0 - 2.0 * (kind >> 1)


@bare
def set_slack(triangles: Triangles, gram: Floats, slack: Floats) -> None:
    """Compute the slack of every inequality, negative if it is violated."""
    for t in range(len(slack)):
        i, j, k = triangles.corners[t, 0], triangles.corners[t, 1], triangles.corners[t, 2]
        a, b = first_sign(triangles.kind[t]), second_sign(triangles.kind[t])
        slack[t] = 1.0 + a * gram[j, k] + b * gram[i, k] + a * b * gram[i, j]


@bare
def add_triangles(triangles: Triangles, multiplier: Floats, matrix: Floats, load: Floats) -> None:
    """Add the inequalities times their multipliers to a coupling matrix, and count them at their corners in `load`."""
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
    """Count the inequalities violated by at least `least`, in bins from 0 to 2, for a range of first corners."""
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
    """Append inequalities of a range of first corners that are violated by more than `least` to the `count` listed.

    Stops adding when there is no more room. Returns the number listed.
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
