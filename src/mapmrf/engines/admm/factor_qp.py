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

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, inlined

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


# The factor subproblem of any table: an active set with a dense Gram matrix. See `factor_qp` for the notation. An entry
# of the Gram matrix M^T M is the number of variables that agree in two configurations; M itself is never built.


class DenseFactor(NamedTuple):
    """One factor: its potentials ``weight * theta[theta_at:]``, its configurations, and offsets of variables' states.

    ridge, pull
        Add ``ridge/2 ||y||^2 - pull . y`` to the objective, for a sphere on the factors; 0 and an empty array without.
    """

    theta: Floats
    theta_at: int
    weight: float
    config: Ints
    state_at: Ints
    ridge: float
    pull: Floats


class DenseScratch(NamedTuple):
    """Scratch for one subproblem: prices u - M y of all states, a square matrix, and vectors over the support."""

    price: Floats
    first: Floats
    second: Floats
    goal: Floats
    square: Floats


@bare
def dense_qp(u: Floats, factor: DenseFactor, rho: float, support: Support, n: int, scratch: DenseScratch) -> int:
    """Solve the subproblem of any table; return the new size of the support.

    u : scaled targets, the states of each variable from ``state_at[k]`` on. support : in and out, n slots on entry.
    """
    if n == 0:
        n = _seed(u, factor, rho, support)
    for _ in range(20 * len(u) + 4 * len(factor.config) + 20):
        _gram(factor, support, n, scratch.square)
        _factorise(scratch.square, n)
        tau = _minimise(u, factor, rho, support, n, scratch)
        blocked = retreat(support, scratch.goal, n)
        if blocked >= 0:
            n = drop(support, n, blocked)
            continue
        _prices(u, factor, support, n, scratch.price)
        entering = _entering(scratch.price, factor, support, n, tau + TOLERANCE * (abs(tau) + rho))
        if entering < 0:
            break
        n = _enter(entering, factor, support, n, scratch)
    return n


@inlined
def _linear(t: int, u: Floats, factor: DenseFactor) -> float:
    """Return the linear coefficient of configuration t: theta + sum of targets (+ pull)."""
    value: float = factor.weight * factor.theta[factor.theta_at + t]
    for k in range(factor.config.shape[1]):
        value += u[factor.state_at[k] + factor.config[t, k]]
    if len(factor.pull):
        value += factor.pull[t]
    return value


@bare
def _seed(u: Floats, factor: DenseFactor, rho: float, support: Support) -> int:
    """Start from the vertex with the best price."""
    best = -np.inf
    for t in range(len(factor.config)):
        value = _linear(t, u, factor)
        if value > best:
            best = value
            support.slots[support.at] = t
    support.y[support.at] = rho
    return 1


@inlined
def _agreement(config: Ints, s: int, t: int) -> int:
    """Return the number of variables with the same state in two configurations: an entry of M^T M."""
    same = 0
    for k in range(config.shape[1]):
        same += config[s, k] == config[t, k]
    return same


@bare
def _gram(factor: DenseFactor, support: Support, n: int, square: Floats) -> None:
    """Compute the Gram matrix of the support, lower triangle."""
    config, slots, at = factor.config, support.slots, support.at
    for a in range(n):
        for b in range(a):
            square[a, b] = _agreement(config, slots[at + a], slots[at + b])
        square[a, a] = config.shape[1] + factor.ridge


@bare
def _factorise(square: Floats, n: int) -> None:
    """Cholesky-factorise in place, lower triangle."""
    for a in range(n):
        for b in range(a + 1):
            value = square[a, b]
            for k in range(b):
                value -= square[a, k] * square[b, k]
            square[a, b] = np.sqrt(max(value, 1e-300)) if a == b else value / square[b, b]


@bare
def _solve(square: Floats, n: int, x: Floats) -> None:
    """Solve with the Cholesky factor in place."""
    for a in range(n):
        value = x[a]
        for k in range(a):
            value -= square[a, k] * x[k]
        x[a] = value / square[a, a]
    for a in range(n - 1, -1, -1):
        value = x[a]
        for k in range(a + 1, n):
            value -= square[k, a] * x[k]
        x[a] = value / square[a, a]


@bare
def _minimise(u: Floats, factor: DenseFactor, rho: float, support: Support, n: int, scratch: DenseScratch) -> float:
    """Compute the minimiser on the support into `scratch.goal`, from G y = linear - tau, sum(y) = rho; return tau."""
    linear, ones, goal = scratch.first, scratch.second, scratch.goal
    for e in range(n):
        linear[e] = _linear(support.slots[support.at + e], u, factor)
        ones[e] = 1.0
    _solve(scratch.square, n, linear)
    _solve(scratch.square, n, ones)
    above, below = -rho, 0.0
    for e in range(n):
        above += linear[e]
        below += ones[e]
    tau = above / below
    for e in range(n):
        goal[e] = linear[e] - tau * ones[e]
    return tau


@bare
def _prices(u: Floats, factor: DenseFactor, support: Support, n: int, price: Floats) -> None:
    """Compute the prices u - M y of all states of all variables."""
    config, at = factor.config, support.at
    for v in range(len(u)):
        price[v] = u[v]
    for e in range(n):
        for k in range(config.shape[1]):
            price[factor.state_at[k] + config[support.slots[at + e], k]] -= support.y[at + e]


@bare
def _entering(price: Floats, factor: DenseFactor, support: Support, n: int, limit: float) -> int:
    """Return the configuration outside the support with the largest price above the limit, or -1."""
    entering, best = -1, limit
    for t in range(len(factor.config)):
        value = _linear(t, price, factor)
        if value > best:
            inside = False
            for e in range(n):
                inside |= support.slots[support.at + e] == t
            if not inside:
                entering, best = t, value
    return entering


@bare
def _enter(entering: int, factor: DenseFactor, support: Support, n: int, scratch: DenseScratch) -> int:
    """Add a configuration; if its column depends on the support's, move along the null direction first."""
    along, column = scratch.first, scratch.second
    slots, y, at = support.slots, support.y, support.at
    for e in range(n):
        along[e] = _agreement(factor.config, slots[at + e], entering)
        column[e] = along[e]
    _solve(scratch.square, n, along)
    rest = factor.config.shape[1] + factor.ridge
    for e in range(n):
        rest -= along[e] * column[e]
    mass = 0.0
    if rest < 1e-9:
        gone = -1
        for e in range(n):
            if along[e] > 1e-9 and (gone < 0 or y[at + e] < mass * along[e]):
                mass, gone = y[at + e] / along[e], e
        for e in range(n):
            y[at + e] = max(0.0, y[at + e] - mass * along[e])
        n = drop(support, n, gone)
    slots[at + n] = entering
    y[at + n] = mass
    return n + 1


# -- The factor subproblem of 2x2x2 tables: the dense active set with tabulated inverses ------------------------------
# A support of such a table is a set of at most four of eight configurations, so the inverse Gram matrices of all
# supports fit in a small table indexed by the set's bits. It works in differences like the closed form of 2x2 tables;
# see `factor_qp` for the subproblem and the notation.


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
        entering = _entering_triple(mask, price, tau, rho, d)
        if entering < 0:
            break
        mask, n = _enter_triple(mask, n, entering, support, scratch.along)
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
def _entering_triple(mask: int, price: Floats, tau: float, rho: float, d: Floats) -> int:
    """Return the best-priced configuration outside the support at M y = d, or -1."""
    m0, m1, m2 = d[0], d[1], d[2]
    entering, best = -1, tau + 1.5 * rho + TOLERANCE * (abs(tau) + rho)
    for t in range(8):
        value = price[t] - 0.5 * ((m0 if t & 4 else -m0) + (m1 if t & 2 else -m1) + (m2 if t & 1 else -m2))
        if value > best and not (mask >> t) & 1:
            entering, best = t, value
    return entering


@bare
def _enter_triple(mask: int, n: int, entering: int, support: Support, along: Floats) -> tuple[int, int]:
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
