"""The factor subproblem of any table: an active set with a dense Gram matrix. See `factor_qp` for the notation.

An entry of the Gram matrix M^T M is the number of variables that agree in two configurations; M itself is never built.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.admm.factor_qp import TOLERANCE, Support, drop, retreat


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
def dense_qp(
    u: Floats, factor: DenseFactor, rho: float, support: Support, n: int, scratch: DenseScratch
) -> tuple[int, float]:
    """Solve the subproblem of any table; return the new size of the support and tau.

    u : scaled targets, the states of each variable from ``state_at[k]`` on. support : in and out, n slots on entry.
    On return ``scratch.price`` holds the prices.
    """
    if n == 0:
        n = _seed(u, factor, rho, support)
    tau = 0.0
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
    return n, tau


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
