"""The factor subproblem of 2x2x2 tables: the dense active set with tabulated inverses.

A support of such a table is a set of at most four of eight configurations, so the inverse Gram matrices of all supports
fit in a small table indexed by the set's bits. It works in differences like the closed form of 2x2 tables; see
`factor_qp` for the subproblem and the notation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.admm.factor_qp import TOLERANCE, Support, drop, retreat


def _supports() -> tuple[Ints, Floats, Bools]:
    """Return members, inverse Gram matrices and independence of all 256 supports."""
    bits = (np.arange(8)[:, None] >> np.array([2, 1, 0])) & 1
    gram = (bits[:, None, :] == bits[None, :, :]).sum(axis=2).astype(np.float64)
    members = np.full((256, 4), -1, dtype=np.int64)
    inverse = np.zeros((256, 4, 4))
    independent = np.zeros(256, dtype=np.bool_)
    for mask in range(1, 256):
        inside = np.flatnonzero((mask >> np.arange(8)) & 1)
        n = len(inside)
        block = gram[np.ix_(inside, inside)]
        if n <= 4 and np.linalg.matrix_rank(block) == n:
            members[mask, :n] = inside
            inverse[mask, :n, :n] = np.linalg.inv(block)
            independent[mask] = True
    return members, inverse, independent


MEMBERS, INVERSE, INDEPENDENT = _supports()


class TripleTable(NamedTuple):
    """The potentials of one factor: ``weight * theta[at:]``."""

    theta: Floats
    at: int
    weight: float


class TripleScratch(NamedTuple):
    """Scratch for one subproblem: prices of the eight configurations, masses on the support, a null direction."""

    price: Floats
    goal: Floats
    along: Floats


@inlined
def triple_qp(d: Floats, table: TripleTable, rho: float, support: Support, n: int, scratch: TripleScratch) -> int:
    """Solve the subproblem of a 2x2x2 table; return the new size of the support.

    d : scaled targets as differences, d_k = u_k(1) - u_k(0); on return M y as differences. support : in increasing
    order, in and out, n slots on entry.
    """
    price, slots, at = scratch.price, support.slots, support.at
    d0, d1, d2 = 0.5 * d[0], 0.5 * d[1], 0.5 * d[2]
    theta, theta_at, weight = table
    for t in range(8):
        own = weight * theta[theta_at + t]
        price[t] = own + (d0 if t & 4 else -d0) + (d1 if t & 2 else -d1) + (d2 if t & 1 else -d2)
    if n == 0:
        best = 0
        for t in range(1, 8):
            if price[t] > price[best]:
                best = t
        slots[at], support.y[at], n = best, rho, 1
    mask = 0
    for e in range(n):
        mask |= 1 << slots[at + e]
    for _ in range(200):
        tau = _goal(mask, n, price, rho, scratch.goal)
        blocked = retreat(support, scratch.goal, n)
        if blocked >= 0:
            mask ^= 1 << slots[at + blocked]
            n = drop(support, n, blocked)
            continue
        _marginals(support, n, d)
        entering = _entering(mask, price, tau, rho, d)
        if entering < 0:
            break
        mask, n = _enter(mask, n, entering, support, scratch.along)
    return n


@inlined
def _goal(mask: int, n: int, price: Floats, rho: float, goal: Floats) -> float:
    """Compute the minimiser on the support into `goal`; return its tau."""
    above, below = -rho, 0.0
    for e in range(n):
        value, one = 0.0, 0.0
        for f in range(n):
            value += INVERSE[mask, e, f] * price[MEMBERS[mask, f]]
            one += INVERSE[mask, e, f]
        goal[e] = value
        above += value
        below += one
    tau = above / below
    for e in range(n):
        for f in range(n):
            goal[e] -= tau * INVERSE[mask, e, f]
    return tau


@inlined
def _marginals(support: Support, n: int, d: Floats) -> None:
    """Write M y as differences into d."""
    slots, y, at = support.slots, support.y, support.at
    m0 = m1 = m2 = 0.0
    for e in range(n):
        t = slots[at + e]
        m0 += y[at + e] if t & 4 else -y[at + e]
        m1 += y[at + e] if t & 2 else -y[at + e]
        m2 += y[at + e] if t & 1 else -y[at + e]
    d[0], d[1], d[2] = m0, m1, m2


@inlined
def _entering(mask: int, price: Floats, tau: float, rho: float, d: Floats) -> int:
    """Return the best-priced configuration outside the support at M y = d, or -1."""
    m0, m1, m2 = d[0], d[1], d[2]
    entering, best = -1, tau + 1.5 * rho + TOLERANCE * (abs(tau) + rho)
    for t in range(8):
        value = price[t] - 0.5 * ((m0 if t & 4 else -m0) + (m1 if t & 2 else -m1) + (m2 if t & 1 else -m2))
        if value > best and not (mask >> t) & 1:
            entering, best = t, value
    return entering


@bare
def _enter(mask: int, n: int, entering: int, support: Support, along: Floats) -> tuple[int, int]:
    """Insert a configuration; if it depends on the support, move along the null direction first."""
    slots, y, at = support.slots, support.y, support.at
    mass = 0.0
    if not INDEPENDENT[mask | (1 << entering)]:
        gone = -1
        for e in range(n):
            along[e] = 0.0
            for f in range(n):
                along[e] += INVERSE[mask, e, f] * _agree(MEMBERS[mask, f], entering)
            if along[e] > 1e-9 and (gone < 0 or y[at + e] < mass * along[e]):
                mass, gone = y[at + e] / along[e], e
        for e in range(n):
            y[at + e] = max(0.0, y[at + e] - mass * along[e])
        mask ^= 1 << slots[at + gone]
        n = drop(support, n, gone)
    e = n
    while e > 0 and slots[at + e - 1] > entering:
        slots[at + e], y[at + e] = slots[at + e - 1], y[at + e - 1]
        e -= 1
    slots[at + e], y[at + e] = entering, mass
    return mask | (1 << entering), n + 1


@inlined
def _agree(s: int, t: int) -> int:
    """Return the number of variables with the same state in two configurations."""
    other = s ^ t
    return 3 - (other & 1) - ((other >> 1) & 1) - (other >> 2)
