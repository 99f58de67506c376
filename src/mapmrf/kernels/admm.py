"""The loops of ADMM on a factor graph: factor step, variable step, bound and read-out.

LS-LP (with and without its sphere) and AD3 share them. All state lives in flat arrays:

mu      variables, a block per variable. A binary variable may be *compact*: one number, mu(1) - mu(0).
q       one block per edge, q = rho s - lam, with s = M_ia mu_a. The multiplier is not stored: after the variable step it
        is ``lam = l (rho c mu - q)``, so one array serves for both copies and duals.
s       M_ia mu_a itself, written only when asked for.
pull    with a sphere on the factors (kind RIDGE) what it adds to the factors' potentials, per configuration.
slots, x, count   warm starts of the factor QPs: supports, their masses (summing to 1) and sizes.

`par` holds the scalars of an iteration, `batch` a row of integers per batch of equal factors (names below).
"""

from __future__ import annotations

import numpy as np
from mapmrf.kernels.jit import compiled
from mapmrf.kernels.triple_qp import triple_qp

from mapmrf.kernels.factor_qp import dense_qp, forest_qp, pair2_step, slot_col, slot_row

# Columns of `batch`.
KIND, N, ARITY, Q_AT, Q_WIDTH, FACTOR_AT, EDGE_AT, SLOT_AT, SLOT_WIDTH, SHAPE_AT, CONFIG_AT, N_CONFIGS, N_STATES, PULL_AT = range(14)
BATCH_COLUMNS = 14
# Kinds of factor step.
PAIR2_COMPACT, PAIR2, TRIPLE2, FOREST, DENSE, RIDGE = range(6)
# Entries of `par`: see `set_rho`.
(RHO, C, B, L, G, DEN0, DEN1, LAST_L, LAST_RC, RELAX, RHO_V, B_V, L_V, G_V, ETA, RHO_UPPER, EPSILON, WEIGHT, FREE, SPHERE) = range(20)
PAR_SIZE = 20
# Kinds of sphere.
SPHERE_OFF, SPHERE_VARIABLES, SPHERE_AFFINE = range(3)
CHUNK = 65536
"""Factors per chunk of a reduction; fixed, so that sums do not depend on the number of threads."""


@compiled
def set_rho(par, rho):  # type: ignore[no-untyped-def]
    """Fill in the scalars that follow from rho, for the tied or the free variant."""
    epsilon, weight = par[EPSILON], par[WEIGHT]
    par[RHO] = rho
    par[RHO_V] = weight * rho
    if par[FREE] > 0:
        par[C], par[B], par[B_V] = 1.0, 1.0 / rho - epsilon, 1.0 / par[RHO_V] - epsilon
        par[L], par[L_V] = 1.0 / (1.0 + epsilon * rho), 1.0 / (1.0 + epsilon * par[RHO_V])
        par[G], par[G_V] = par[L], par[L_V]
        par[DEN0], par[DEN1] = epsilon, rho * par[L]
        if par[SPHERE] > 0:
            par[DEN0] += par[RHO_V] * par[L_V]
    else:
        c = 1.0 + epsilon
        par[C], par[B], par[B_V] = c, 1.0 / rho, 1.0 / par[RHO_V]
        par[L], par[L_V], par[G], par[G_V] = 1.0, 1.0, c, c
        par[DEN0], par[DEN1] = epsilon, epsilon + c * c * rho
        if par[SPHERE] > 0:
            par[DEN0] += epsilon + c * c * par[RHO_V]


@compiled
def advance_rho(par, k, update_every):  # type: ignore[no-untyped-def]
    """Close iteration k: remember how its multipliers are read, then raise rho."""
    par[LAST_L], par[LAST_RC] = par[L], par[RHO] * par[C]
    if (k + 1) % update_every == 0:
        set_rho(par, min(par[ETA] * par[RHO], max(par[RHO_UPPER], par[RHO])))


# -- factor step ----------------------------------------------------------------------------------------------------


@compiled
def factor_step(row, begin, end, par, edge_mu, mu, q, s, keep, strength, theta, table_at, shape, config, pull, slots, x, count):  # type: ignore[no-untyped-def]
    """Update mu_a (Eq. of the factor sub-problem) for factors begin:end of one batch; `keep` writes s as well."""
    kind = row[KIND]
    if kind == PAIR2_COMPACT:
        _pair2_compact(row, begin, end, par, edge_mu, mu, q, s, keep, strength)
    elif kind == PAIR2:
        _pair2_full(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at)
    elif kind == TRIPLE2:
        _triple2(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, slots, x, count)
    else:
        _active_set(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, shape, config, pull, slots, x, count)


@compiled
def _pair2_compact(row, begin, end, par, edge_mu, mu, q, s, keep, strength):  # type: ignore[no-untyped-def]
    """2x2 factors of compact variables, in blocks: gather, then a loop without branches that vectorises."""
    n, at, e_at = row[N], row[Q_AT], row[EDGE_AT]
    q1, q2 = q[at : at + n], q[at + n : at + 2 * n]
    s1, s2 = s[at : at + n], s[at + n : at + 2 * n]
    v1, v2 = edge_mu[e_at : e_at + n], edge_mu[e_at + n : e_at + 2 * n]
    j = strength[row[FACTOR_AT] : row[FACTOR_AT] + n]
    rho, last_rc, relax = par[RHO], par[LAST_RC], par[RELAX]
    b = 1.0 / rho
    per_r = 2.0 / rho
    size = 512
    m1, m2 = np.empty(size), np.empty(size)
    for base in range(begin, end, size):
        count = min(size, end - base)
        for f in range(count):
            m1[f] = mu[v1[base + f]]
            m2[f] = mu[v2[base + f]]
        for f in range(count):
            lam1 = last_rc * m1[f] - q1[base + f]
            lam2 = last_rc * m2[f] - q2[base + f]
            r1, r2 = pair2_step(m1[f] + b * lam1, m2[f] + b * lam2, per_r * j[base + f])
            q1[base + f] = rho * (relax * r1 + (1.0 - relax) * m1[f]) - lam1
            q2[base + f] = rho * (relax * r2 + (1.0 - relax) * m2[f]) - lam2
            m1[f], m2[f] = r1, r2
        if keep:
            for f in range(count):
                s1[base + f] = m1[f]
                s2[base + f] = m2[f]


@compiled
def _pair2_full(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at):  # type: ignore[no-untyped-def]
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


@compiled
def _triple2(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, slots, x, count):  # type: ignore[no-untyped-def]
    """2x2x2 factors, of compact variables or not: like `_active_set`, in differences."""
    rho, c, b, relax = par[RHO], par[C], par[B], par[RELAX]
    last_l, last_rc = par[LAST_L], par[LAST_RC]
    width = row[Q_WIDTH] // 3
    capacity = row[SLOT_WIDTH]
    lam, d = np.empty(6), np.empty(3)
    price, goal, along = np.empty(8), np.empty(4), np.empty(4)
    for f in range(begin, end):
        at, e_at, a, slot_at = row[Q_AT] + f * 3 * width, row[EDGE_AT] + 3 * f, row[FACTOR_AT] + f, row[SLOT_AT] + f * capacity
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


@compiled
def _active_set(row, begin, end, par, edge_mu, mu, q, s, keep, theta, table_at, shape, config, pull, slots, x, count):  # type: ignore[no-untyped-def]
    """Any factor: expand the targets, solve the QP from its last support, compress the marginals."""
    arity, width, n_states, capacity = row[ARITY], row[Q_WIDTH], row[N_STATES], row[SLOT_WIDTH]
    rho = par[RHO]
    sizes = shape[row[SHAPE_AT] : row[SHAPE_AT] + arity]
    widths = shape[row[SHAPE_AT] + arity : row[SHAPE_AT] + 2 * arity]
    starts = shape[row[SHAPE_AT] + 2 * arity : row[SHAPE_AT] + 3 * arity]
    n_configs = row[N_CONFIGS] if row[KIND] != FOREST else 0
    table = config[row[CONFIG_AT] : row[CONFIG_AT] + n_configs * arity].reshape(n_configs, arity)
    lam, u, marginal = np.empty(width), np.empty(n_states), np.empty(n_states)
    work = np.empty((6, max(n_states, capacity) + 1))
    iwork = np.empty((5, n_states + 1), dtype=np.int64)
    square = np.empty((capacity, capacity)) if row[KIND] != FOREST else np.empty((0, 0))
    ridge = par[WEIGHT] if row[KIND] == RIDGE else 0.0
    size = row[N_CONFIGS] if row[KIND] == RIDGE else 0
    for f in range(begin, end):
        at, e_at, a = row[Q_AT] + f * width, row[EDGE_AT] + f * arity, row[FACTOR_AT] + f
        load_targets(par, edge_mu[e_at : e_at + arity], sizes, widths, mu, q, at, lam, u)
        mine = slots[row[SLOT_AT] + f * capacity : row[SLOT_AT] + (f + 1) * capacity]
        mass = x[row[SLOT_AT] + f * capacity : row[SLOT_AT] + (f + 1) * capacity]
        for e in range(count[a]):
            mass[e] *= rho
        if row[KIND] == FOREST:
            n, _ = forest_qp(u, theta, table_at[a], sizes[0], sizes[1], rho, mine, mass, count[a], work, iwork)
        else:
            mine_pull = pull[row[PULL_AT] + f * size : row[PULL_AT] + (f + 1) * size]
            n, _ = dense_qp(u, starts, table, theta, table_at[a], rho, ridge, mine_pull, mine, mass, count[a], work, square)
        count[a] = n
        for e in range(n):
            mass[e] /= rho
        for v in range(n_states):
            marginal[v] = 0.0
        for e in range(n):
            if row[KIND] == FOREST:
                marginal[slot_row(mine[e])] += mass[e]
                marginal[sizes[0] + slot_col(mine[e])] += mass[e]
            else:
                for k in range(arity):
                    marginal[starts[k] + table[mine[e], k]] += mass[e]
        _store(par, edge_mu[e_at : e_at + arity], sizes, widths, mu, q, s, at, keep, lam, marginal)


@compiled
def load_targets(par, v, sizes, widths, mu, q, at, lam, u):  # type: ignore[no-untyped-def]
    """Multipliers and scaled targets u = rho (c mu + b lam) of one factor; compact variables are expanded."""
    rho, c, b, last_l, last_rc = par[RHO], par[C], par[B], par[LAST_L], par[LAST_RC]
    i = o = 0
    for k in range(len(v)):
        for w in range(widths[k]):
            lam[i + w] = last_l * (last_rc * mu[v[k] + w] - q[at + i + w])
            u[o + w] = rho * (c * mu[v[k] + w] + b * lam[i + w])
        if widths[k] < sizes[k]:
            u[o + 1] = 0.5 * u[o]
            u[o] = -u[o + 1]
        i += widths[k]
        o += sizes[k]


@compiled
def _store(par, v, sizes, widths, mu, q, s, at, keep, lam, marginal):  # type: ignore[no-untyped-def]
    """Write q = rho s - lam of one factor, and s where asked for."""
    rho, c, relax = par[RHO], par[C], par[RELAX]
    i = o = 0
    for k in range(len(v)):
        if widths[k] < sizes[k]:
            marginal[o] = marginal[o + 1] - marginal[o]
        for w in range(widths[k]):
            q[at + i + w] = rho * (relax * marginal[o + w] + (1.0 - relax) * c * mu[v[k] + w]) - lam[i + w]
            if keep:
                s[at + i + w] = marginal[o + w]
        i += widths[k]
        o += sizes[k]


# -- variable step --------------------------------------------------------------------------------------------------


@compiled
def variable_step(chunk, chunk_size, par, next_b, frozen, scale, norm2, off2, var_at, card, nbr_ptr, nbr_q, theta, mu, lam_v, q):  # type: ignore[no-untyped-def]
    """Update upsilon, mu_i and lam_i of one chunk of variables.

    `scale[chunk]` is the factor of the sphere projection, found when the last iteration left its point's norm; this
    step leaves the squared norm of the next one in `norm2[chunk]` and the squared sphere residual in `off2[chunk]`.
    """
    begin, end = chunk * chunk_size, min((chunk + 1) * chunk_size, len(card))
    if var_at[end] - var_at[begin] == end - begin:
        _compact_variables(begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q)
    else:
        _any_variables(begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q)


@compiled
def _compact_variables(begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q):  # type: ignore[no-untyped-def]
    """Variables of one number each, in blocks: gather the copies, then loops without branches that vectorise."""
    rho_v, c, b_v, l_v, g, g_v = par[RHO_V], par[C], par[B_V], par[L_V], par[G], par[G_V]
    den0, den1 = par[DEN0], par[DEN1]
    grow = scale[chunk]
    shift = var_at[begin] - begin
    size = 256
    pull, inverse, square, rest = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    total, off = 0.0, 0.0
    for base in range(begin, end, size):
        n = min(size, end - base)
        for i in range(n):
            first, last = nbr_ptr[base + i], nbr_ptr[base + i + 1]
            degree = last - first
            if degree == 4:
                total_q = (q[nbr_q[first]] + q[nbr_q[first + 1]]) + (q[nbr_q[first + 2]] + q[nbr_q[first + 3]])
            else:
                total_q = 0.0
                for e in range(first, last):
                    total_q += q[nbr_q[e]]
            pull[i] = total_q
            inverse[i] = den0 + den1 * degree
        for i in range(n):
            inverse[i] = 1.0 / inverse[i]
        at = base + shift
        m, lam, th = mu[at : at + n], lam_v[at : at + n], theta[at : at + n]
        if par[SPHERE] == SPHERE_OFF:
            for i in range(n):
                alone = nbr_ptr[base + i + 1] == nbr_ptr[base + i]
                m[i] = m[i] if alone else (th[i] + g * pull[i]) * inverse[i]
            continue
        keep = 1.0 if frozen else 0.0
        for i in range(n):
            upsilon = grow * (c * m[i] + b_v * lam[i])
            q_v = rho_v * upsilon - lam[i]
            alone = nbr_ptr[base + i + 1] == nbr_ptr[base + i]
            new = m[i] if alone else (th[i] + g * pull[i] + g_v * q_v) * inverse[i]
            new_lam = 0.0 if alone else keep * lam[i] + (1.0 - keep) * l_v * (rho_v * c * new - q_v)
            a = c * new + next_b * new_lam
            m[i] = new
            lam[i] = new_lam
            square[i] = 0.0 if alone else 0.5 * a * a
            rest[i] = 0.0 if alone else 0.5 * (c * new - upsilon) * (c * new - upsilon)
        total += _sum(square, n)
        off += _sum(rest, n)
    norm2[chunk], off2[chunk] = total, off


@compiled
def _sum(values, n):  # type: ignore[no-untyped-def]
    """Sum in four strands: a fixed order that does not wait for every addition."""
    a = b = c = d = 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
    for i in range(whole, n):
        a += values[i]
    return (a + b) + (c + d)


@compiled
def _any_variables(begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q):  # type: ignore[no-untyped-def]
    """Variables of any width."""
    rho_v, c, b_v, l_v, g, g_v = par[RHO_V], par[C], par[B_V], par[L_V], par[G], par[G_V]
    den0, den1 = par[DEN0], par[DEN1]
    sphere = int(par[SPHERE])
    grow = scale[chunk]
    total, off = 0.0, 0.0
    for i in range(begin, end):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        degree = nbr_ptr[i + 1] - nbr_ptr[i]
        if degree == 0:
            continue
        inverse = 1.0 / (den0 + den1 * degree)
        centre, shift = 0.0, 0.0
        if sphere and width > 1:
            centre, shift = _centres(sphere, at, width, c, b_v, mu, lam_v)
        for w in range(at, at + width):
            pull = 0.0
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                pull += q[nbr_q[e] + w - at]
            pull = theta[w] + g * pull
            if sphere:
                upsilon = shift + grow * (c * mu[w] + b_v * lam_v[w] - centre)
                q_v = rho_v * upsilon - lam_v[w]
                mu[w] = (pull + g_v * q_v) * inverse
                if not frozen:
                    lam_v[w] = l_v * (rho_v * c * mu[w] - q_v)
                rest = c * mu[w] - upsilon
                off += rest * rest if width > 1 else 0.5 * rest * rest
            else:
                mu[w] = pull * inverse
        if sphere:
            total += _distance2(sphere, at, width, c, next_b, mu, lam_v)
    norm2[chunk], off2[chunk] = total, off


@compiled
def _centres(sphere, at, width, c, b_v, mu, lam_v):  # type: ignore[no-untyped-def]
    """What is taken from a point before it is scaled, and what is added after: 1/2 and 1/2, or its mean and 1/K."""
    if sphere == SPHERE_VARIABLES:
        return 0.5, 0.5
    mean = 0.0
    for w in range(at, at + width):
        mean += c * mu[w] + b_v * lam_v[w]
    return mean / width, 1.0 / width


@compiled
def _distance2(sphere, at, width, c, b_v, mu, lam_v):  # type: ignore[no-untyped-def]
    """Squared distance of a variable's point from the centre of its sphere; a compact one counts half its square."""
    if width == 1:
        a = c * mu[at] + b_v * lam_v[at]
        return 0.5 * a * a
    centre, _ = _centres(sphere, at, width, c, b_v, mu, lam_v)
    total = 0.0
    for w in range(at, at + width):
        a = c * mu[w] + b_v * lam_v[w] - centre
        total += a * a
    return total


@compiled
def sphere_norms(chunk_size, par, var_at, nbr_ptr, mu, lam_v, norm2):  # type: ignore[no-untyped-def]
    """Squared norms of the first projection, per chunk."""
    norm2[:] = 0.0
    for i in range(len(var_at) - 1):
        if nbr_ptr[i + 1] > nbr_ptr[i]:
            norm2[i // chunk_size] += _distance2(
                int(par[SPHERE]), var_at[i], var_at[i + 1] - var_at[i], par[C], par[B_V], mu, lam_v
            )


@compiled
def sphere_scales(norm2, target2, blocks, scale):  # type: ignore[no-untyped-def]
    """Factors of the projection: one for all chunks, or one each; 1 where the centre itself is to be projected."""
    total, target = 0.0, 0.0
    for chunk in range(len(norm2)):
        total += norm2[chunk]
        target += target2[chunk]
    for chunk in range(len(norm2)):
        if blocks:
            total, target = norm2[chunk], target2[chunk]
        scale[chunk] = np.sqrt(target / total) if total > 0.0 else 1.0


# -- the serial loop ------------------------------------------------------------------------------------------------


@compiled
def iterate(n, k0, keep_all, update_every, freeze_after, par, batch, edge_mu, q, s, strength, theta_t, table_at, shape, config, pull, slots, x, count, chunk_size, blocks, target2, scale, norm2, off2, var_at, card, nbr_ptr, nbr_q, theta, mu, lam_v):  # type: ignore[no-untyped-def]
    """Run n iterations from number k0 on one thread; the last one leaves s."""
    for k in range(k0, k0 + n):
        keep = keep_all or k == k0 + n - 1
        for b in range(batch.shape[0]):
            factor_step(batch[b], 0, batch[b, N], par, edge_mu, mu, q, s, keep, strength, theta_t, table_at, shape, config, pull, slots, x, count)
        next_b = next_sphere_b(par, k, update_every)
        for chunk in range(len(norm2)):
            variable_step(chunk, chunk_size, par, next_b, k >= freeze_after, scale, norm2, off2, var_at, card, nbr_ptr, nbr_q, theta, mu, lam_v, q)
        advance_rho(par, k, update_every)
        if par[SPHERE] > 0:
            sphere_scales(norm2, target2, blocks, scale)


@compiled
def next_sphere_b(par, k, update_every):  # type: ignore[no-untyped-def]
    """The factor of lam_i in the next iteration's sphere projection."""
    copy = par.copy()
    advance_rho(copy, k, update_every)
    return copy[B_V]


# -- looking at the state -------------------------------------------------------------------------------------------


@compiled
def look_at_factors(row, begin, end, par, edge_mu, edge_var, labels, mu, q, s, strength, theta, table_at, shape, config, slots, x, count, out):  # type: ignore[no-untyped-def]
    """Sums over factors begin:end of a batch into out: bound, value of the labels, <theta_a, mu_a>, |c mu - s|^2, its max."""
    out[:] = 0.0
    if row[KIND] == PAIR2_COMPACT:
        _look_at_compact(row, begin, end, par, edge_mu, edge_var, labels, mu, q, s, strength, out)
    else:
        _look_at_tables(row, begin, end, par, edge_mu, edge_var, labels, mu, q, s, theta, table_at, shape, config, slots, x, count, out)


@compiled
def _look_at_compact(row, begin, end, par, edge_mu, edge_var, labels, mu, q, s, strength, out):  # type: ignore[no-untyped-def]
    n, at, e_at = row[N], row[Q_AT], row[EDGE_AT]
    for f in range(begin, end):
        m1, m2 = mu[edge_mu[e_at + f]], mu[edge_mu[e_at + n + f]]
        lam1 = par[LAST_RC] * m1 - q[at + f]
        lam2 = par[LAST_RC] * m2 - q[at + n + f]
        j = strength[row[FACTOR_AT] + f]
        out[0] += max(j + 0.5 * abs(lam1 + lam2), -j + 0.5 * abs(lam1 - lam2))
        out[1] += j if labels[edge_var[e_at + f]] == labels[edge_var[e_at + n + f]] else -j
        r1, r2 = s[at + f], s[at + n + f]
        out[2] += j * (1.0 - abs(r1 - r2)) if j >= 0.0 else j * (abs(r1 + r2) - 1.0)
        off1, off2 = m1 - r1, m2 - r2
        out[3] += 0.5 * (off1 * off1 + off2 * off2)
        out[4] = max(out[4], 0.5 * abs(off1), 0.5 * abs(off2))


@compiled
def _look_at_tables(row, begin, end, par, edge_mu, edge_var, labels, mu, q, s, theta, table_at, shape, config, slots, x, count, out):  # type: ignore[no-untyped-def]
    arity, width, n_states = row[ARITY], row[Q_WIDTH], row[N_STATES]
    sizes = shape[row[SHAPE_AT] : row[SHAPE_AT] + arity]
    widths = shape[row[SHAPE_AT] + arity : row[SHAPE_AT] + 2 * arity]
    lam = np.empty(n_states)
    digits = np.empty(arity, dtype=np.int64)
    for f in range(begin, end):
        at, e_at, a = row[Q_AT] + f * width, row[EDGE_AT] + f * arity, row[FACTOR_AT] + f
        i = o = 0
        place = 0
        for k in range(arity):
            v = edge_mu[e_at + k]
            for w in range(widths[k]):
                lam[o + w] = par[LAST_L] * (par[LAST_RC] * mu[v + w] - q[at + i + w])
                off = par[C] * mu[v + w] - s[at + i + w]
                half = 0.5 if widths[k] < sizes[k] else 1.0
                out[3] += half * off * off
                out[4] = max(out[4], half * abs(off))
            if widths[k] < sizes[k]:
                lam[o + 1] = 0.5 * lam[o]
                lam[o] = -lam[o + 1]
            place = place * sizes[k] + labels[edge_var[e_at + k]]
            i += widths[k]
            o += sizes[k]
        out[0] += largest_price(theta, table_at[a], sizes, lam, digits, row[N_CONFIGS])
        out[1] += theta[table_at[a] + place]
        if row[KIND] == PAIR2:
            out[2] += _pair2_value(theta, table_at[a], s[at + 1], s[at + 3])
        else:
            for e in range(count[a]):
                slot = slots[row[SLOT_AT] + f * row[SLOT_WIDTH] + e]
                t = slot_row(slot) * sizes[1] + slot_col(slot) if row[KIND] == FOREST else slot
                out[2] += theta[table_at[a] + t] * x[row[SLOT_AT] + f * row[SLOT_WIDTH] + e]


@compiled
def _pair2_value(theta, t, p1, p2):  # type: ignore[no-untyped-def]
    """<theta_a, mu_a> of a 2x2 factor whose marginals are given: mass goes where the coupling wants it."""
    j = theta[t] + theta[t + 3] - theta[t + 1] - theta[t + 2]
    both = min(p1, p2) if j >= 0.0 else max(0.0, p1 + p2 - 1.0)
    return (
        (1.0 - p1 - p2 + both) * theta[t] + (p2 - both) * theta[t + 1] + (p1 - both) * theta[t + 2] + both * theta[t + 3]
    )


@compiled
def largest_price(theta, table_at, sizes, lam, digits, n_configs):  # type: ignore[no-untyped-def]
    """Maximum over all configurations of theta + sum of lam: what a factor adds to the dual bound."""
    arity = len(sizes)
    last = sizes[arity - 1]
    tail = len(lam) - last
    best = -np.inf
    digits[:] = 0
    for base in range(0, n_configs, last):
        head, o = 0.0, 0
        for k in range(arity - 1):
            head += lam[o + digits[k]]
            o += sizes[k]
        top = -np.inf
        for c in range(last):
            value = theta[table_at + base + c] + lam[tail + c]
            if value > top:
                top = value
        best = max(best, head + top)
        k = arity - 2
        while k >= 0:
            digits[k] += 1
            if digits[k] < sizes[k]:
                break
            digits[k] = 0
            k -= 1
    return best


@compiled
def look_at_variables(begin, end, par, var_at, card, nbr_ptr, nbr_q, theta, mu, q, labels, out):  # type: ignore[no-untyped-def]
    """Sums over variables begin:end: bound, value of the labels, <theta_i, mu_i>; out[3] the largest distance of mu from 0/1."""
    out[:] = 0.0
    for i in range(begin, end):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        degree = nbr_ptr[i + 1] - nbr_ptr[i]
        if width == 1 and card[i] == 2:
            rest = theta[at]
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                rest -= par[LAST_RC] * mu[at] - q[nbr_q[e]]
            out[0] += 0.5 * abs(rest)
            out[1] += 0.5 * theta[at] if labels[i] == 1 else -0.5 * theta[at]
            out[2] += 0.5 * theta[at] * mu[at]
            out[3] = max(out[3], 0.5 * abs(1.0 - abs(mu[at])))
            continue
        best = -np.inf
        for w in range(width):
            rest = theta[at + w]
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                rest -= par[LAST_L] * (par[LAST_RC] * mu[at + w] - q[nbr_q[e] + w])
            best = max(best, rest)
            if mu[at + w] != 0.0:
                out[2] += theta[at + w] * mu[at + w]
            if degree > 0:
                out[3] = max(out[3], min(abs(mu[at + w]), abs(1.0 - mu[at + w])))
        out[0] += best
        out[1] += theta[at + labels[i]]


@compiled
def decode(begin, end, var_at, card, theta, mu, allowed_at, allowed, labels):  # type: ignore[no-untyped-def]
    """Labels = argmax of mu among the allowed states, ties to the smallest; returns how many changed."""
    changed = 0
    for i in range(begin, end):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        if width == 1 and card[i] == 2:
            label = 1 if mu[at] > 0.0 else 0
            if not allowed[allowed_at[i] + label]:
                label = 1 - label
        else:
            label, best = -1, 0.0
            for k in range(width):
                if allowed[allowed_at[i] + k] and (label < 0 or mu[at + k] > best):
                    label, best = k, mu[at + k]
            label = max(label, 0)
        changed += labels[i] != label
        labels[i] = label
    return changed
