"""The factor subproblem of LS-LP and AD3, solved exactly by active sets.

For one factor with scope i_1 ... i_m the subproblem is, in scaled masses y = rho mu_a,

    minimise  1/2 sum_k || u_k - M_k y ||^2 - theta . y   over  y >= 0, sum(y) = rho,

with u_k = rho t_k the scaled targets. Its optimality condition is that the *price*

    theta(t) + sum_k (u_k - M_k y)(t_k)

is the same number tau on the support of y and nowhere larger. A configuration of -inf is never priced, so it never
enters. This file contains the closed form for 2x2 tables and what the active-set methods share; `forest_qp`,
`triple_qp` and `dense_qp` are the methods for K1 x K2, 2x2x2 and general tables. They keep a support whose columns of M
are independent, compute the minimiser on that support, step back to feasibility if it leaves the simplex, and let the
best-priced configuration enter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import inlined

TOLERANCE = 1e-12
"""A configuration enters if its price exceeds tau by this much, relative to the magnitude of the numbers involved."""


class Support(NamedTuple):
    """The support of one factor's y: configurations in ``slots[at:]``, their masses in ``y[at:]``.

    Its size n is passed separately, as it changes constantly.
    """

    slots: NDArray[np.int32]
    y: Floats
    at: int


@inlined
def pair2_step(t1: float, t2: float, strength: float) -> tuple[float, float]:
    """Closed form for a 2x2 table without linear parts, in differences m = mu(1) - mu(0).

    Maximises ``-|J| |s1 - sign(J) s2| - r/2 ((t1 - s1)^2 + (t2 - s2)^2)`` over the square, with ``strength = J / r``
    and ``r = rho / 2``: the proximal step of the total variation of two points, followed by clipping.
    """
    size = abs(strength)
    sign = np.copysign(1.0, strength)  # a select here would prevent the callers' loops from vectorising
    turned = sign * t2
    shift = min(max(0.5 * (t1 - turned), -size), size)
    s1 = min(max(t1 - shift, -1.0), 1.0)
    s2 = sign * min(max(turned + shift, -1.0), 1.0)
    return s1, s2


@inlined
def retreat(support: Support, goal: Floats, n: int) -> int:
    """Move y towards the goal as far as it stays non-negative; return the blocking slot, or -1 at the goal."""
    y, at = support.y, support.at
    step, blocked = 1.0, -1
    for e in range(n):
        if goal[e] < 0.0:
            ratio = y[at + e] / (y[at + e] - goal[e])
            if blocked < 0 or ratio < step:
                step, blocked = ratio, e
    for e in range(n):
        y[at + e] += step * (goal[e] - y[at + e])
    if blocked >= 0:
        y[at + blocked] = 0.0
    return blocked


@inlined
def drop(support: Support, n: int, gone: int) -> int:
    """Remove a slot, keeping the order of the others; return the new size."""
    slots, y, at = support.slots, support.y, support.at
    for e in range(at + gone, at + n - 1):
        slots[e] = slots[e + 1]
        y[e] = y[e + 1]
    return n - 1
