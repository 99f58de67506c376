"""The factor sub-problem of any table: an active set with a dense Gram matrix. See `factor_qp` for the notation.

An entry of the Gram matrix M^T M is the number of variables that agree in two configurations; M itself is never built.
"""

from __future__ import annotations

import numpy as np

from mapmrf.engines.admm.factor_qp import TOLERANCE, drop, retreat
from mapmrf.kernels.jit import bare


@bare
def dense_qp(u, state_at, config, theta, theta_at, rho, ridge, pull, slots, y, n, work, square):
    """Solve the sub-problem of any table; returns the new size of the support and tau.

    u : scaled targets, the states of each variable from ``state_at[k]`` on. config : (n_configs, arity). ridge, pull :
    adds ``ridge/2 ||y||^2 - pull . y`` (a sphere on the factors; 0 and an empty array without). slots, y : support and
    masses, in and out. work : (6, max(states, support + 1)) scratch, prices in ``work[0]`` on return. square :
    (support, support) scratch.
    """
    n_configs = config.shape[0]
    price = work[0]
    if n == 0:
        n = _dense_seed(u, state_at, config, theta, theta_at, pull, rho, slots, y)
    tau = 0.0
    for _ in range(20 * len(u) + 4 * n_configs + 20):
        _gram(config, slots, n, ridge, square)
        _factorise(square, n)
        tau = _dense_minimise(u, state_at, config, theta, theta_at, rho, pull, slots, n, work, square)
        blocked = retreat(y, 0, work[5], n)
        if blocked >= 0:
            n = drop(slots, y, 0, n, blocked)
            continue
        _dense_prices(u, state_at, config, slots, y, n, price)
        tol = TOLERANCE * (abs(tau) + rho)
        entering = _dense_price(price, state_at, config, theta, theta_at, ridge, pull, slots, n, tau + tol)
        if entering < 0:
            break
        n = _dense_enter(entering, config, ridge, slots, y, n, work, square)
    return n, tau


@bare
def _linear(t, u, state_at, config, theta, theta_at, pull):
    """Linear coefficient of configuration t: theta + sum of targets (+ pull)."""
    value = theta[theta_at + t]
    for k in range(config.shape[1]):
        value += u[state_at[k] + config[t, k]]
    if len(pull):
        value += pull[t]
    return value


@bare
def _dense_seed(u, state_at, config, theta, theta_at, pull, rho, slots, y):
    """Start from the vertex of the best price."""
    best = -np.inf
    for t in range(config.shape[0]):
        value = _linear(t, u, state_at, config, theta, theta_at, pull)
        if value > best:
            best = value
            slots[0] = t
    y[0] = rho
    return 1


@bare
def _agreement(config, s, t):
    """Number of variables that have the same state in two configurations: an entry of M^T M."""
    same = 0
    for k in range(config.shape[1]):
        same += config[s, k] == config[t, k]
    return same


@bare
def _gram(config, slots, n, ridge, square):
    """Gram matrix of the support, lower triangle."""
    for a in range(n):
        for b in range(a):
            square[a, b] = _agreement(config, slots[a], slots[b])
        square[a, a] = config.shape[1] + ridge


@bare
def _factorise(square, n):
    """Cholesky factor in place, lower triangle."""
    for a in range(n):
        for b in range(a + 1):
            value = square[a, b]
            for k in range(b):
                value -= square[a, k] * square[b, k]
            square[a, b] = np.sqrt(max(value, 1e-300)) if a == b else value / square[b, b]


@bare
def _solve(square, n, x):
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
def _dense_minimise(u, state_at, config, theta, theta_at, rho, pull, slots, n, work, square):
    """Minimiser on the support into work[5], from G y = linear - tau and sum(y) = rho; returns tau."""
    gain, ones, masses = work[1], work[2], work[5]
    for e in range(n):
        gain[e] = _linear(slots[e], u, state_at, config, theta, theta_at, pull)
        ones[e] = 1.0
    _solve(square, n, gain)
    _solve(square, n, ones)
    above, below = -rho, 0.0
    for e in range(n):
        above += gain[e]
        below += ones[e]
    tau = above / below
    for e in range(n):
        masses[e] = gain[e] - tau * ones[e]
    return tau


@bare
def _dense_prices(u, state_at, config, slots, y, n, price):
    """Prices u - M y of all states of all variables."""
    for v in range(len(u)):
        price[v] = u[v]
    for e in range(n):
        for k in range(config.shape[1]):
            price[state_at[k] + config[slots[e], k]] -= y[e]


@bare
def _dense_price(price, state_at, config, theta, theta_at, ridge, pull, slots, n, limit):
    """Configuration outside the support of the largest price above the limit, or -1."""
    entering, best = -1, limit
    for t in range(config.shape[0]):
        value = _linear(t, price, state_at, config, theta, theta_at, pull)
        if value > best:
            inside = False
            for e in range(n):
                inside |= slots[e] == t
            if not inside:
                entering, best = t, value
    return entering


@bare
def _dense_enter(entering, config, ridge, slots, y, n, work, square):
    """Add a configuration; where its column depends on the support's, push along the null direction first."""
    along = work[1]
    for e in range(n):
        along[e] = _agreement(config, slots[e], entering)
        work[2, e] = along[e]
    _solve(square, n, along)
    rest = config.shape[1] + ridge
    for e in range(n):
        rest -= along[e] * work[2, e]
    mass = 0.0
    if rest < 1e-9:
        gone = -1
        for e in range(n):
            if along[e] > 1e-9 and (gone < 0 or y[e] < mass * along[e]):
                mass, gone = y[e] / along[e], e
        for e in range(n):
            y[e] = max(0.0, y[e] - mass * along[e])
        n = drop(slots, y, 0, n, gone)
    slots[n] = entering
    y[n] = mass
    return n + 1
