"""The factor step of ADMM, a function per kind of factor: update mu_a, leave q, and s where `keep` asks for it."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.admm.dense_qp import dense_qp
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.forest_qp import forest_solve, slot_col, slot_row
from mapmrf.engines.admm.penalty import (
    ARITY,
    CONFIG_AT,
    EDGE_AT,
    FACTOR_AT,
    KIND,
    LAST_L,
    LAST_RC,
    N_CONFIGS,
    N_STATES,
    PULL_AT,
    Q_AT,
    Q_WIDTH,
    RELAX,
    RHO,
    RIDGE,
    SHAPE_AT,
    SLOT_AT,
    SLOT_WIDTH,
    WEIGHT,
    B,
    C,
    N,
)  # fmt: skip
from mapmrf.engines.admm.triple_qp import triple_qp
from mapmrf.kernels.jit import bare, compiled, inlined


@compiled
def pair2_compact_step(tasks, batch, par, edge_mu, mu, q, strength):
    """2x2 factors of compact variables."""
    for task in range(len(tasks)):
        _pair2_compact(batch[tasks[task, 0]], tasks[task, 1], tasks[task, 2], par, edge_mu, mu, q, strength)


@compiled
def _pair2_compact(row, begin, end, par, edge_mu, mu, q, strength):
    """2x2 factors of compact variables, in blocks: gather, then a loop without branches that vectorises."""
    n, at, e_at = row[N], row[Q_AT], row[EDGE_AT]
    q1, q2 = q[at : at + n], q[at + n : at + 2 * n]
    v1, v2 = edge_mu[e_at : e_at + n], edge_mu[e_at + n : e_at + 2 * n]
    j = strength[row[FACTOR_AT] : row[FACTOR_AT] + n]
    rho, last_rc = par[RHO], par[LAST_RC]
    b = 1.0 / rho
    per_r = 2.0 / rho
    mix = rho * (1.0 - par[RELAX])
    size = 512
    m1, m2 = np.empty(size), np.empty(size)
    for base in range(begin, end, size):
        count = min(size, end - base)
        for f in range(count):
            m1[f] = mu[v1[base + f]]
        for f in range(count):
            m2[f] = mu[v2[base + f]]
        here1, here2, coupling = q1[base : base + count], q2[base : base + count], j[base : base + count]
        for f in range(count):
            lam1 = last_rc * m1[f] - here1[f]
            lam2 = last_rc * m2[f] - here2[f]
            r1, r2 = pair2_step(m1[f] + b * lam1, m2[f] + b * lam2, per_r * coupling[f])
            here1[f] = rho * r1 - lam1 + mix * (m1[f] - r1)
            here2[f] = rho * r2 - lam2 + mix * (m2[f] - r2)


@compiled
def pair2_step_full(tasks, batch, par, edge_mu, mu, q, s, keep, theta, table_at):
    """2x2 factors of variables with both states stored."""
    for task in range(len(tasks)):
        _pair2_full(
            batch[tasks[task, 0]], tasks[task, 1], tasks[task, 2], par, edge_mu, mu, q, s, keep, theta, table_at
        )


@compiled
def _pair2_full(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at):
    """2x2 factors of variables with both states stored; the closed form needs only differences."""
    rho, c, b, relax = par[RHO], par[C], par[B], par[RELAX]
    last_l, last_rc = par[LAST_L], par[LAST_RC]
    lam = np.empty(4)
    for f in range(begin, end):
        at = row[Q_AT] + 4 * f
        t = table_at[row[FACTOR_AT] + f]
        t00, t01, t10, t11 = theta[t], theta[t + 1], theta[t + 2], theta[t + 3]
        v1, v2 = edge_mu[row[EDGE_AT] + 2 * f], edge_mu[row[EDGE_AT] + 2 * f + 1]
        for k in range(2):
            lam[k] = last_l * (last_rc * mu[v1 + k] - q[at + k])
            lam[2 + k] = last_l * (last_rc * mu[v2 + k] - q[at + 2 + k])
        d1 = c * (mu[v1 + 1] - mu[v1]) + b * (lam[1] - lam[0]) + 0.5 * (t10 + t11 - t00 - t01) / rho
        d2 = c * (mu[v2 + 1] - mu[v2]) + b * (lam[3] - lam[2]) + 0.5 * (t01 + t11 - t00 - t10) / rho
        r1, r2 = pair2_step(d1, d2, 0.5 * (t00 + t11 - t01 - t10) / rho)
        for k in range(2):
            p1, p2 = 0.5 + (k - 0.5) * r1, 0.5 + (k - 0.5) * r2
            q[at + k] = rho * (relax * p1 + (1.0 - relax) * c * mu[v1 + k]) - lam[k]
            q[at + 2 + k] = rho * (relax * p2 + (1.0 - relax) * c * mu[v2 + k]) - lam[2 + k]
            if keep:
                s[at + k] = p1
                s[at + 2 + k] = p2


@bare
def triple2_step(tasks, batch, par, edge_mu, mu, q, s, keep, theta, table_at, slots, x, count, fwork):
    """2x2x2 factors."""
    for task in range(len(tasks)):
        _triple2(
            batch[tasks[task, 0]],
            tasks[task, 1],
            tasks[task, 2],
            par,
            edge_mu,
            mu,
            q,
            s,
            keep,
            theta,
            table_at,
            slots,
            x,
            count,
            fwork,
        )


@bare
def _triple2(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, slots, x, count, fwork):
    """2x2x2 factors, of compact variables or not: like `_active_set`, in differences."""
    rho, c, b, relax = par[RHO], par[C], par[B], par[RELAX]
    last_l, last_rc = par[LAST_L], par[LAST_RC]
    width = row[Q_WIDTH] // 3
    capacity = row[SLOT_WIDTH]
    lam, d, price, goal, along = fwork[0], fwork[1], fwork[2], fwork[3], fwork[4]
    for f in range(begin, end):
        at, e_at, a, slot_at = (
            row[Q_AT] + f * 3 * width,
            row[EDGE_AT] + 3 * f,
            row[FACTOR_AT] + f,
            row[SLOT_AT] + f * capacity,
        )
        for k in range(3):
            v = edge_mu[e_at + k]
            for w in range(width):
                lam[k * width + w] = last_l * (last_rc * mu[v + w] - q[at + k * width + w])
            if width == 1:
                d[k] = rho * (c * mu[v] + b * lam[k])
            else:
                d[k] = rho * (c * (mu[v + 1] - mu[v]) + b * (lam[2 * k + 1] - lam[2 * k]))
        n = count[a]
        for e in range(n):
            x[slot_at + e] *= rho
        n = triple_qp(d, theta, table_at[a], rho, slots, x, slot_at, n, price, goal, along)
        count[a] = n
        for e in range(n):
            x[slot_at + e] /= rho
        for k in range(3):
            v = edge_mu[e_at + k]
            for w in range(width):
                here = d[k] / rho if width == 1 else 0.5 + (w - 0.5) * d[k] / rho
                q[at + k * width + w] = rho * (relax * here + (1.0 - relax) * c * mu[v + w]) - lam[k * width + w]
                if keep:
                    s[at + k * width + w] = here


@bare
def forest_step(tasks, batch, par, edge_mu, mu, q, s, keep, theta, table_at, shape, slots, x, count, fwork, iwork):
    """K1 x K2 factors."""
    for task in range(len(tasks)):
        _forests(
            batch[tasks[task, 0]],
            tasks[task, 1],
            tasks[task, 2],
            par,
            edge_mu,
            mu,
            q,
            s,
            keep,
            theta,
            table_at,
            shape,
            slots,
            x,
            count,
            fwork,
            iwork,
        )


@bare
def _forests(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, shape, slots, x, count, fwork, iwork):
    """Expand the targets, solve the QP from its last support, compress the marginals."""
    width, n_states, capacity = row[Q_WIDTH], row[N_STATES], row[SLOT_WIDTH]
    rho = par[RHO]
    sizes = shape[row[SHAPE_AT] : row[SHAPE_AT] + 2]
    widths = shape[row[SHAPE_AT] + 2 : row[SHAPE_AT] + 4]
    k1, k2 = sizes[0], sizes[1]
    lam, u, marginal, price, pot = fwork[0], fwork[1], fwork[2], fwork[3], fwork[4]
    mass, goal, row_sum, col_sum = fwork[5], fwork[6], fwork[7], fwork[8]
    tree, root, n_rows, n_cols = iwork[0], iwork[1], iwork[2], iwork[3]
    for f in range(begin, end):
        at, e_at, a = row[Q_AT] + f * width, row[EDGE_AT] + 2 * f, row[FACTOR_AT] + f
        slot_at = row[SLOT_AT] + f * capacity
        load_targets(par, edge_mu, e_at, sizes, widths, mu, q, at, lam, u)
        table = theta[table_at[a] : table_at[a] + k1 * k2].reshape(k1, k2)
        for e in range(slot_at, slot_at + count[a]):
            x[e] *= rho
        n, _ = forest_solve(
            u, table, rho, slots, x, slot_at, count[a], price, pot, mass, row_sum, col_sum, goal, tree, n_rows, n_cols,
            root,
        )  # fmt: skip
        count[a] = n
        for v in range(n_states):
            marginal[v] = 0.0
        for e in range(slot_at, slot_at + n):
            x[e] /= rho
            marginal[slot_row(slots[e])] += x[e]
            marginal[k1 + slot_col(slots[e])] += x[e]
        _store(par, edge_mu, e_at, sizes, widths, mu, q, s, at, keep, lam, marginal)


@bare
def dense_step(
    tasks, batch, par, edge_mu, mu, q, s, keep, theta, table_at, shape, config, pull, slots, x, count, fwork, square
):
    """Factors of any shape."""
    for task in range(len(tasks)):
        _dense(
            batch[tasks[task, 0]],
            tasks[task, 1],
            tasks[task, 2],
            par,
            edge_mu,
            mu,
            q,
            s,
            keep,
            theta,
            table_at,
            shape,
            config,
            pull,
            slots,
            x,
            count,
            fwork,
            square,
        )


@bare
def _dense(
    row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, shape, config, pull, slots, x, count, fwork, square
):
    """Like `_forests`, for tables of any arity, with a ridge and a pull where a sphere lies on the factors."""
    arity, width, n_states, capacity = row[ARITY], row[Q_WIDTH], row[N_STATES], row[SLOT_WIDTH]
    rho = par[RHO]
    sizes = shape[row[SHAPE_AT] : row[SHAPE_AT] + arity]
    widths = shape[row[SHAPE_AT] + arity : row[SHAPE_AT] + 2 * arity]
    starts = shape[row[SHAPE_AT] + 2 * arity : row[SHAPE_AT] + 3 * arity]
    n_configs = row[N_CONFIGS]
    table = config[row[CONFIG_AT] : row[CONFIG_AT] + n_configs * arity].reshape(n_configs, arity)
    lam, u, marginal, work = fwork[0], fwork[1, :n_states], fwork[2], fwork[3:9]
    on = row[KIND] == RIDGE and len(pull) > 0
    ridge = par[WEIGHT] if on else 0.0
    size = n_configs if on else 0
    for f in range(begin, end):
        at, e_at, a = row[Q_AT] + f * width, row[EDGE_AT] + f * arity, row[FACTOR_AT] + f
        load_targets(par, edge_mu, e_at, sizes, widths, mu, q, at, lam, u)
        mine = slots[row[SLOT_AT] + f * capacity : row[SLOT_AT] + (f + 1) * capacity]
        mass = x[row[SLOT_AT] + f * capacity : row[SLOT_AT] + (f + 1) * capacity]
        for e in range(count[a]):
            mass[e] *= rho
        mine_pull = pull[row[PULL_AT] + f * size : row[PULL_AT] + (f + 1) * size]
        n, _ = dense_qp(u, starts, table, theta, table_at[a], rho, ridge, mine_pull, mine, mass, count[a], work, square)
        count[a] = n
        for e in range(n):
            mass[e] /= rho
        for v in range(n_states):
            marginal[v] = 0.0
        for e in range(n):
            for k in range(arity):
                marginal[starts[k] + table[mine[e], k]] += mass[e]
        _store(par, edge_mu, e_at, sizes, widths, mu, q, s, at, keep, lam, marginal)


@inlined
def load_targets(par, edge_mu, e_at, sizes, widths, mu, q, at, lam, u):
    """Multipliers and scaled targets u = rho (c mu + b lam) of one factor; compact variables are expanded."""
    rho, c, b, last_l, last_rc = par[RHO], par[C], par[B], par[LAST_L], par[LAST_RC]
    i = o = 0
    for k in range(len(sizes)):
        v = edge_mu[e_at + k]
        for w in range(widths[k]):
            lam[i + w] = last_l * (last_rc * mu[v + w] - q[at + i + w])
            u[o + w] = rho * (c * mu[v + w] + b * lam[i + w])
        if widths[k] < sizes[k]:
            u[o + 1] = 0.5 * u[o]
            u[o] = -u[o + 1]
        i += widths[k]
        o += sizes[k]


@inlined
def _store(par, edge_mu, e_at, sizes, widths, mu, q, s, at, keep, lam, marginal):
    """Write q = rho s - lam of one factor, and s where asked for."""
    rho, c, relax = par[RHO], par[C], par[RELAX]
    i = o = 0
    for k in range(len(sizes)):
        v = edge_mu[e_at + k]
        if widths[k] < sizes[k]:
            marginal[o] = marginal[o + 1] - marginal[o]
        for w in range(widths[k]):
            q[at + i + w] = rho * (relax * marginal[o + w] + (1.0 - relax) * c * mu[v + w]) - lam[i + w]
        if keep:
            for w in range(widths[k]):
                s[at + i + w] = marginal[o + w]
        i += widths[k]
        o += sizes[k]
