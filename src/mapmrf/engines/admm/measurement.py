"""Looking at the state of ADMM: labels, their value, the dual bound, <theta, mu> and residuals."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.forest_qp import slot_col, slot_row
from mapmrf.engines.admm.penalty import (
    ARITY,
    EDGE_AT,
    FACTOR_AT,
    FOREST,
    KIND,
    LAST_L,
    LAST_RC,
    N_CONFIGS,
    N_STATES,
    PAIR2,
    Q_AT,
    Q_WIDTH,
    RHO,
    SHAPE_AT,
    SLOT_AT,
    SLOT_WIDTH,
    C,
    N,
)  # fmt: skip
from mapmrf.kernels.jit import bare, compiled, inlined


@compiled
def look_at_pairs(tasks, batch, par, edge_mu, edge_var, labels, mu, q, strength, found):
    """Look at 2x2 factors of compact variables.

    A row of `found` per task: bound, value of the labels, <theta_a, mu_a>, squared |c mu - s| and its largest entry.
    """
    for task in range(len(tasks)):
        for entry in range(5):
            found[task, entry] = 0.0
        _look_at_compact(
            batch[tasks[task, 0]],
            tasks[task, 1],
            tasks[task, 2],
            par,
            edge_mu,
            edge_var,
            labels,
            mu,
            q,
            strength,
            found[task],
        )


@compiled
def _look_at_compact(row, begin, end, par, edge_mu, edge_var, labels, mu, q, strength, out):
    n, at, e_at = row[N], row[Q_AT], row[EDGE_AT]
    for f in range(begin, end):
        m1, m2 = mu[edge_mu[e_at + f]], mu[edge_mu[e_at + n + f]]
        lam1 = par[LAST_RC] * m1 - q[at + f]
        lam2 = par[LAST_RC] * m2 - q[at + n + f]
        j = strength[row[FACTOR_AT] + f]
        out[0] += max(j + 0.5 * abs(lam1 + lam2), -j + 0.5 * abs(lam1 - lam2))
        out[1] += j if labels[edge_var[e_at + f]] == labels[edge_var[e_at + n + f]] else -j
        r1, r2 = pair2_step(m1 + lam1 / par[RHO], m2 + lam2 / par[RHO], 2.0 * j / par[RHO])
        out[2] += j * (1.0 - abs(r1 - r2)) if j >= 0.0 else j * (abs(r1 + r2) - 1.0)
        off1, off2 = m1 - r1, m2 - r2
        out[3] += 0.5 * (off1 * off1 + off2 * off2)
        out[4] = max(out[4], 0.5 * abs(off1), 0.5 * abs(off2))


@bare
def look_at_tables(
    tasks, batch, par, edge_mu, edge_var, labels, mu, q, s, theta, table_at, shape, slots, x, count, fwork, iwork, found
):
    """Look at factors of all other kinds.

    A row of `found` per task: bound, value of the labels, <theta_a, mu_a>, squared |c mu - s| and its largest entry.
    """
    for task in range(len(tasks)):
        for entry in range(5):
            found[task, entry] = 0.0
        _look_at_tables(
            batch[tasks[task, 0]],
            tasks[task, 1],
            tasks[task, 2],
            par,
            edge_mu,
            edge_var,
            labels,
            mu,
            q,
            s,
            theta,
            table_at,
            shape,
            slots,
            x,
            count,
            fwork,
            iwork,
            found[task],
        )


@bare
def _look_at_tables(
    row,
    begin,
    end,
    par,
    edge_mu,
    edge_var,
    labels,
    mu,
    q,
    s,
    theta,
    table_at,
    shape,
    slots,
    x,
    count,
    fwork,
    iwork,
    out,
):
    arity, width, n_states = row[ARITY], row[Q_WIDTH], row[N_STATES]
    sizes = shape[row[SHAPE_AT] : row[SHAPE_AT] + arity]
    widths = shape[row[SHAPE_AT] + arity : row[SHAPE_AT] + 2 * arity]
    lam, digits = fwork[0, :n_states], iwork[0]
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
def pair_marginals(row, begin, par, edge_mu, mu, q, strength, out):
    """M mu_a of some 2x2 factors of compact variables, from `begin` on: what the next factor step would give."""
    n, at, e_at = row[N], row[Q_AT], row[EDGE_AT]
    for f in range(len(strength)):
        m1, m2 = mu[edge_mu[e_at + begin + f]], mu[edge_mu[e_at + n + begin + f]]
        lam1 = par[LAST_RC] * m1 - q[at + begin + f]
        lam2 = par[LAST_RC] * m2 - q[at + n + begin + f]
        out[0, f], out[1, f] = pair2_step(m1 + lam1 / par[RHO], m2 + lam2 / par[RHO], 2.0 * strength[f] / par[RHO])


@inlined
def _pair2_value(theta, t, p1, p2):
    """<theta_a, mu_a> of a 2x2 factor whose marginals are given: mass goes where the coupling wants it."""
    j = theta[t] + theta[t + 3] - theta[t + 1] - theta[t + 2]
    both = min(p1, p2) if j >= 0.0 else max(0.0, p1 + p2 - 1.0)
    return (
        (1.0 - p1 - p2 + both) * theta[t]
        + (p2 - both) * theta[t + 1]
        + (p1 - both) * theta[t + 2]
        + both * theta[t + 3]
    )


@inlined
def largest_price(theta, table_at, sizes, lam, digits, n_configs):
    """Maximum over all configurations of theta + sum of lam: what a factor adds to the dual bound."""
    arity = len(sizes)
    last = sizes[arity - 1]
    tail = len(lam) - last
    best = -np.inf
    for k in range(arity):
        digits[k] = 0
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
def look_at_variables(begin, end, par, var_at, card, nbr_ptr, nbr_q, theta, mu, q, labels, out):
    """Sums over variables begin:end: bound, value of the labels, <theta_i, mu_i>; then the largest distance to 0/1."""
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
def decode(begin, end, var_at, card, mu, allowed_at, allowed, labels):
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
