"""Measurements of ADMM on runs of binary pairs, tile by tile; see `mapmrf.engines.admm.runs`."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.measurement import FactorSums
from mapmrf.engines.admm.penalty import Penalty
from mapmrf.engines.admm.structs import Iterates, PairArrays
from mapmrf.engines.admm.tile_steps import LatticeModel, sum_parts
from mapmrf.engines.admm.variable_steps import BLOCK, block_sum

N_TERMS = 5
"""Number of terms summed per factor or variable; they lie at fixed distances, see `variable_steps.ROOM`."""


@compiled
def measure_tiles(
    first: int, last: int, penalty: Penalty, lattice: LatticeModel, iterates: Iterates, labels: Ints, found: FactorSums
) -> None:
    """Compute sums over the factors and variables of tiles first:last, a record of `found` per tile."""
    tiles = lattice.tiles
    total, terms = np.empty(min(tiles.size, tiles.n_vars)), np.empty(N_TERMS * BLOCK)
    for tile in range(first, last):
        sums = np.zeros(N_TERMS)
        for number in range(tiles.piece_ptr[tile], tiles.piece_ptr[tile + 1]):
            at, v1, v2, n = tiles.piece[number]
            if at >= tiles.n_constrained:
                continue
            for skip in range(0, n, BLOCK):
                count = min(BLOCK, n - skip)
                place = (at + skip, v1 + skip, v2 + skip, count)
                _pair_terms(place, penalty, lattice.pairs, iterates, labels, terms)
                _add_terms(terms, count, sums)
        record = found[tile - first]
        record.primal2, record.primal_max, record.integrality = sums[3], 0.5 * sums[4], 0.0
        sums[3] = sums[4] = 0.0
        sum_parts(tile, tiles, iterates.q, total)
        begin = tile * tiles.size
        for skip in range(0, min(tiles.size, tiles.n_vars - begin), BLOCK):
            count = min(BLOCK, tiles.n_vars - begin - skip, tiles.size - skip)
            _variable_terms(begin + skip, count, penalty, lattice, iterates, labels, total[skip:], terms)
            _add_terms(terms, count, sums)
        record.bound, record.value, record.relaxed, record.integrality = sums[0], sums[1], sums[2], 0.5 * sums[4]


@bare
def _add_terms(terms: Floats, n: int, sums: Floats) -> None:
    """Sum the first four terms, and take the maximum of the last."""
    for k in range(N_TERMS - 1):
        sums[k] += block_sum(terms, k * BLOCK, n)
    top0, top1, at = sums[N_TERMS - 1], 0.0, (N_TERMS - 1) * BLOCK
    for i in range(0, n - 1, 2):
        top0 = max(top0, terms[at + i])
        top1 = max(top1, terms[at + i + 1])
    sums[N_TERMS - 1] = max(max(top0, top1), terms[at + n - 1])


@bare
def _pair_terms(
    place: tuple[int, int, int, int],
    penalty: Penalty,
    pairs: PairArrays,
    iterates: Iterates,
    labels: Ints,
    terms: Floats,
) -> None:
    """Compute the terms of consecutive factors: bound, value, relaxed, primal2, and twice the largest residual."""
    at, v1, v2, n = place
    mu, q, rho, last_rho_c = iterates.mu, iterates.q, penalty[0].rho, penalty[0].last_rho_c
    second, j_at = len(q) // 2, 0 if pairs.shared else at
    m1, m2, l1, l2 = mu[v1 : v1 + n], mu[v2 : v2 + n], labels[v1 : v1 + n], labels[v2 : v2 + n]
    q1, q2 = q[at : at + n], q[second + at : second + at + n]
    strength, unit = pairs.strength[j_at : j_at + n], pairs.unit
    b, per_r = 1.0 / rho, 2.0 / rho
    for f in range(n):
        lam1 = last_rho_c * m1[f] - q1[f]
        lam2 = last_rho_c * m2[f] - q2[f]
        j = unit * strength[f]
        r1, r2 = pair2_step(m1[f] + b * lam1, m2[f] + b * lam2, per_r * j)
        off1, off2 = m1[f] - r1, m2[f] - r2
        terms[f] = max(j + 0.5 * abs(lam1 + lam2), -j + 0.5 * abs(lam1 - lam2))
        terms[BLOCK + f] = j if l1[f] == l2[f] else -j
        terms[2 * BLOCK + f] = abs(j) * (1.0 - abs(r1 - np.copysign(1.0, j) * r2))
        terms[3 * BLOCK + f] = 0.5 * (off1 * off1 + off2 * off2)
        terms[4 * BLOCK + f] = max(abs(off1), abs(off2))


@bare
def _variable_terms(
    base: int,
    n: int,
    penalty: Penalty,
    lattice: LatticeModel,
    iterates: Iterates,
    labels: Ints,
    total: Floats,
    terms: Floats,
) -> None:
    """Compute the terms of n variables from `base` on: bound, value, relaxed, 0, twice the distance from 0 and 1."""
    last_rho_c = penalty[0].last_rho_c
    nbr_ptr = lattice.variables.nbr_ptr[base : base + n + 1]
    m, th, label = iterates.mu[base : base + n], lattice.variables.theta[base : base + n], labels[base : base + n]
    for i in range(n):
        rest = th[i] - (nbr_ptr[i + 1] - nbr_ptr[i]) * last_rho_c * m[i] + total[i]
        terms[i] = 0.5 * abs(rest)
        terms[BLOCK + i] = 0.5 * th[i] if label[i] == 1 else -0.5 * th[i]
        terms[2 * BLOCK + i] = 0.5 * th[i] * m[i]
        terms[3 * BLOCK + i] = 0.0
        terms[4 * BLOCK + i] = abs(1.0 - abs(m[i]))
