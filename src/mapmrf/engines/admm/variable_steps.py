"""The variable step of ADMM: update upsilon, mu_i and lam_i, and keep the norms that the sphere projection needs."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.admm.factor_steps import pair2_compact_step
from mapmrf.engines.admm.penalty import (
    B_V,
    DEN0,
    DEN1,
    G_V,
    L_V,
    LAST_L,
    LAST_RC,
    RHO_V,
    SPHERE,
    SPHERE_OFF,
    SPHERE_VARIABLES,
    C,
    G,
    advance_rho,
    next_sphere_b,
)  # fmt: skip
from mapmrf.kernels.jit import compiled


@compiled
def compact_variable_step(
    first, last, chunk_size, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q
):
    """Update chunks first:last of variables that are all compact (one number each).

    `scale[chunk]` is the factor of the sphere projection, found when the last iteration left its point's norm; this
    step leaves the squared norm of the next one in `norm2[chunk]` and the squared sphere residual in `off2[chunk]`.
    """
    pull, inverse, square, rest = np.empty(256), np.empty(256), np.empty(256), np.empty(256)
    for chunk in range(first, last):
        begin, end = chunk * chunk_size, min((chunk + 1) * chunk_size, len(nbr_ptr) - 1)
        _compact_variables(
            begin,
            end,
            chunk,
            par,
            next_b,
            frozen,
            scale,
            norm2,
            off2,
            var_at,
            nbr_ptr,
            nbr_q,
            theta,
            mu,
            lam_v,
            q,
            pull,
            inverse,
            square,
            rest,
        )


@compiled
def _compact_variables(
    begin,
    end,
    chunk,
    par,
    next_b,
    frozen,
    scale,
    norm2,
    off2,
    var_at,
    nbr_ptr,
    nbr_q,
    theta,
    mu,
    lam_v,
    q,
    pull,
    inverse,
    square,
    rest,
):
    """Variables of one number each, in blocks: gather the copies, then loops without branches that vectorise."""
    rho_v, c, b_v, l_v, g, g_v = par[RHO_V], par[C], par[B_V], par[L_V], par[G], par[G_V]
    den0, den1 = par[DEN0], par[DEN1]
    grow = scale[chunk]
    shift = var_at[begin] - begin
    size = len(pull)
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
def _sum(values, n):
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
def variable_step(
    first, last, chunk_size, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q
):
    """Update chunks first:last of variables of any width.

    `scale[chunk]` is the factor of the sphere projection, found when the last iteration left its point's norm; this
    step leaves the squared norm of the next one in `norm2[chunk]` and the squared sphere residual in `off2[chunk]`.
    """
    for chunk in range(first, last):
        begin, end = chunk * chunk_size, min((chunk + 1) * chunk_size, len(nbr_ptr) - 1)
        _any_variables(
            begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q
        )


@compiled
def _any_variables(
    begin, end, chunk, par, next_b, frozen, scale, norm2, off2, var_at, nbr_ptr, nbr_q, theta, mu, lam_v, q
):
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
def _centres(sphere, at, width, c, b_v, mu, lam_v):
    """What is taken from a point before it is scaled, and what is added after: 1/2 and 1/2, or its mean and 1/K."""
    if sphere == SPHERE_VARIABLES:
        return 0.5, 0.5
    mean = 0.0
    for w in range(at, at + width):
        mean += c * mu[w] + b_v * lam_v[w]
    return mean / width, 1.0 / width


@compiled
def _distance2(sphere, at, width, c, b_v, mu, lam_v):
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
def by_variable(scope, nbr_ptr, values):
    """The values of all edges, gathered by variable; the edges of a variable stay in order."""
    place = nbr_ptr[:-1].copy()
    out = np.empty_like(values)
    for e in range(len(scope)):
        out[place[scope[e]]] = values[e]
        place[scope[e]] += 1
    return out


@compiled
def edge_multipliers(par, var_at, nbr_ptr, nbr_q, mu, q, lam):
    """Multipliers of all edges, laid out like q, which may be the output itself."""
    for i in range(len(var_at) - 1):
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            for w in range(var_at[i + 1] - var_at[i]):
                place = nbr_q[e] + w
                lam[place] = par[LAST_L] * (par[LAST_RC] * mu[var_at[i] + w] - q[place])


@compiled
def restart(par, var_at, nbr_ptr, nbr_q, mu, q):
    """Turn multipliers in q into the q of a new start at mu, with the penalty that `par` now holds."""
    for i in range(len(var_at) - 1):
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            for w in range(var_at[i + 1] - var_at[i]):
                q[nbr_q[e] + w] = par[LAST_RC] * mu[var_at[i] + w] - q[nbr_q[e] + w]


@compiled
def sphere_norms(chunk_size, par, var_at, nbr_ptr, mu, lam_v, norm2):
    """Squared norms of the first projection, per chunk."""
    norm2[:] = 0.0
    for i in range(len(var_at) - 1):
        if nbr_ptr[i + 1] > nbr_ptr[i]:
            norm2[i // chunk_size] += _distance2(
                int(par[SPHERE]), var_at[i], var_at[i + 1] - var_at[i], par[C], par[B_V], mu, lam_v
            )


@compiled
def sphere_scales(norm2, target2, blocks, scale):
    """Factors of the projection: one for all chunks, or one each; 1 where the centre itself is to be projected."""
    total, target = 0.0, 0.0
    for chunk in range(len(norm2)):
        total += norm2[chunk]
        target += target2[chunk]
    for chunk in range(len(norm2)):
        if blocks:
            total, target = norm2[chunk], target2[chunk]
        scale[chunk] = np.sqrt(target / total) if total > 0.0 else 1.0


@compiled
def iterate_pairs(
    n,
    k0,
    update_every,
    freeze_after,
    par,
    tasks,
    batch,
    edge_mu,
    q,
    strength,
    chunk_size,
    blocks,
    target2,
    scale,
    norm2,
    off2,
    var_at,
    nbr_ptr,
    nbr_q,
    theta,
    mu,
    lam_v,
):
    """Run n iterations from number k0 on a model of compact variables and 2x2 factors.

    The whole loop in one call: on small models the calls themselves would cost more than the work.
    """
    for k in range(k0, k0 + n):
        pair2_compact_step(tasks, batch, par, edge_mu, mu, q, strength)
        next_b = next_sphere_b(par, k, update_every)
        compact_variable_step(
            0,
            len(norm2),
            chunk_size,
            par,
            next_b,
            k >= freeze_after,
            scale,
            norm2,
            off2,
            var_at,
            nbr_ptr,
            nbr_q,
            theta,
            mu,
            lam_v,
            q,
        )
        advance_rho(par, k, update_every)
        if par[SPHERE] > 0:
            sphere_scales(norm2, target2, blocks, scale)
