"""The variable step of ADMM with the sphere projection before it, and the whole loop for models of pairs.

The variable step reads mu, lam_i and q once, as its cost is memory traffic. So one kernel does everything that concerns
a variable: it forms upsilon_i (its scale is known), updates mu_i and lam_i, and accumulates the norm that the next
projection needs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.admm.factor_steps import update_compact_pairs
from mapmrf.engines.admm.penalty import SphereKind, next_rho, target_weight, update_lam, update_rho
from mapmrf.engines.admm.structs import Batches, ItemArrays, Iterates, PairArrays, SphereState, VariableArrays

BLOCK = 256  # compact variables updated together


ROOM = 4 * BLOCK
"""Scratch of a block: for every variable the sum of its q, 1 / denominator, and terms of the two norms.

They lie in one array at fixed distances. For separate arrays, the compiler would have to check that none overlaps
another, and it does not vectorise a loop with so many checks.
"""


@bare
def update_upsilon(norm2: Floats, target2: Floats, scale: Floats, blocks: bool) -> None:
    """Algorithm 1, upsilon = P_S(c mu_v + lam_v / rho) = 1/2 + scale (a - 1/2): the scale, sqrt(n) / 2 / |a - 1/2|.

    One scale for all chunks, or one each (`blocks`). P_S is undefined at the centre: there the scale is 1.
    """
    total, target = 0.0, 0.0
    for chunk in range(len(norm2)):
        total += norm2[chunk]
        target += target2[chunk]
    for chunk in range(len(norm2)):
        if blocks:
            total, target = norm2[chunk], target2[chunk]
        scale[chunk] = np.sqrt(target / total) if total > 0.0 else 1.0


@compiled
def update_compact_variables(
    first: int, last: int, sphere: SphereState, variables: VariableArrays, iterates: Iterates
) -> None:
    """Update mu_i and lam_i of chunks first:last of compact variables; see `update_variables`."""
    room = np.empty(ROOM)
    for chunk in range(first, last):
        end = min((chunk + 1) * sphere.chunk_size, len(variables.nbr_ptr) - 1)
        update_compact_chunk(chunk, end, 0, None, sphere, variables, iterates, room)


@inlined  # spheres on single variables have as many chunks: a call each took half as long again
def update_compact_chunk(
    chunk: int,
    end: int,
    total_at: int,
    total: Floats | None,
    sphere: SphereState,
    variables: VariableArrays,
    iterates: Iterates,
    room: Floats,
) -> None:
    """Update variables of one number each, in blocks: branch-free loops that vectorise.

    `total` has the sums of q from variable `total_at` on; if it is None, they are gathered here.
    """
    norm2, off2 = 0.0, 0.0
    for base in range(chunk * sphere.chunk_size, end, BLOCK):
        n = min(BLOCK, end - base)
        if total is None:
            _gather(base, n, variables, iterates.q, room)
        else:
            for i in range(n):
                room[i] = total[base - total_at + i]
        square, rest = _update_block(base, n, sphere.scale[chunk], variables, iterates, room)
        norm2 += square
        off2 += rest
    sphere.norm2[chunk], sphere.off2[chunk] = norm2, off2


@bare
def _gather(base: int, n: int, variables: VariableArrays, q: Floats, total_q: Floats) -> None:
    """Sum q of n variables from `base` on."""
    nbr_ptr, nbr_q = variables.nbr_ptr, variables.nbr_q
    for i in range(n):
        first, last = nbr_ptr[base + i], nbr_ptr[base + i + 1]
        if last - first == 4:
            total = (q[nbr_q[first]] + q[nbr_q[first + 1]]) + (q[nbr_q[first + 2]] + q[nbr_q[first + 3]])
        else:
            total = 0.0
            for e in range(first, last):
                total += q[nbr_q[e]]
        total_q[i] = total


@bare
def _update_block(
    base: int, n: int, scale: float, variables: VariableArrays, iterates: Iterates, room: Floats
) -> tuple[float, float]:
    """Update mu_i and lam_i of n compact variables from `base` on, sums of q in `room`; return both norm terms."""
    p = iterates.penalty[0]
    rho_v, c, leak_v, target_lam_v, q_weight_v = p.rho_v, p.c, p.leak_v, p.target_lam_v, p.q_weight_v
    q_weight, on, frozen = p.q_weight, p.sphere != SphereKind.OFF, 1.0 if p.k >= p.freeze_after else 0.0
    denominator, denominator_edge = p.denominator, p.denominator_edge
    next_lam = target_weight(iterates.penalty, p.sphere_weight * next_rho(iterates.penalty))
    m, lam, th = iterates.mu[base : base + n], iterates.lam_v[base : base + n], variables.theta[base : base + n]
    nbr_ptr = variables.nbr_ptr[base : base + n + 1]
    for i in range(n):
        degree = nbr_ptr[i + 1] - nbr_ptr[i]
        room[BLOCK + i] = 1.0 / (denominator + denominator_edge * degree) if degree > 0 else 0.0
    if not on:
        for i in range(n):
            inverse = room[BLOCK + i]
            m[i] = m[i] if inverse == 0.0 else (th[i] + q_weight * room[i]) * inverse
        return 0.0, 0.0
    for i in range(n):
        upsilon = scale * (c * m[i] + target_lam_v * lam[i])
        q_v = rho_v * upsilon - lam[i]
        inverse = room[BLOCK + i]
        alone = inverse == 0.0  # without factors
        new = m[i] if alone else (th[i] + q_weight * room[i] + q_weight_v * q_v) * inverse
        new_lam = 0.0 if alone else frozen * lam[i] + (1.0 - frozen) * leak_v * (rho_v * c * new - q_v)
        a = c * new + next_lam * new_lam
        m[i] = new
        lam[i] = new_lam
        room[2 * BLOCK + i] = 0.0 if alone else 0.5 * a * a
        room[3 * BLOCK + i] = 0.0 if alone else 0.5 * (c * new - upsilon) * (c * new - upsilon)
    return block_sum(room, 2 * BLOCK, n), block_sum(room, 3 * BLOCK, n)


@bare
def block_sum(values: Floats, at: int, n: int) -> float:
    """Sum n values with four accumulators: a fixed order without a dependency chain."""
    a = b = c = d = 0.0
    whole = n - n % 4
    for i in range(at, at + whole, 4):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
    for i in range(at + whole, at + n):
        a += values[i]
    return (a + b) + (c + d)


@bare
def update_variables(
    first: int, last: int, sphere: SphereState, variables: VariableArrays, items: ItemArrays | None, iterates: Iterates
) -> None:
    """Update mu_i and lam_i of chunks first:last of variables of any width; items of constraints count like edges.

    mu_i   = [theta_i + c (rho upsilon_i - lam_i + sum_a (rho M_ia mu_a - lam_ia))]
             / [epsilon (d_i + 2) + c^2 rho (d_i + 1)]
    lam_i += rho (c mu_i - upsilon_i)

    in the tied variant; `PENALTY` has the coefficients of both. Leaves the squared norm of the next projection's points
    in ``norm2[chunk]`` and the squared sphere residual in ``off2[chunk]``.
    """
    for chunk in range(first, last):
        _update_chunk(chunk, sphere, variables, items, iterates)


@bare
def _update_chunk(
    chunk: int, sphere: SphereState, variables: VariableArrays, items: ItemArrays | None, iterates: Iterates
) -> None:
    p = iterates.penalty[0]
    rho_v, c, leak_v, target_lam_v, q_weight_v = p.rho_v, p.c, p.leak_v, p.target_lam_v, p.q_weight_v
    q_weight, denominator, denominator_edge = p.q_weight, p.denominator, p.denominator_edge
    kind, frozen = p.sphere, p.k >= p.freeze_after
    next_lam = target_weight(iterates.penalty, p.sphere_weight * next_rho(iterates.penalty))
    mu, lam_v, q = iterates.mu, iterates.lam_v, iterates.q
    var_at, nbr_ptr, nbr_q, theta = variables.var_at, variables.nbr_ptr, variables.nbr_q, variables.theta
    begin, end = chunk * sphere.chunk_size, min((chunk + 1) * sphere.chunk_size, len(nbr_ptr) - 1)
    scale = sphere.scale[chunk]
    total, off = 0.0, 0.0
    for i in range(begin, end):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        degree = nbr_ptr[i + 1] - nbr_ptr[i]
        if degree == 0 and not has_items(at, width, items):
            continue
        inverse = 1.0 / (denominator + denominator_edge * degree)
        centre, shift = 0.0, 0.0
        if kind != SphereKind.OFF and width > 1:
            centre, shift = _centres(kind, at, width, c, target_lam_v, mu, lam_v)
        for w in range(at, at + width):
            pull = 0.0
            if items is not None:
                count, pull = _pull_of_items(w, p.rho, items, q)
                inverse = 1.0 / (denominator + denominator_edge * (degree + count))
                if degree == 0 and count == 0.0:  # a forbidden state, which the variable's simplex excludes
                    mu[w], lam_v[w] = 0.0, 0.0
                    continue
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                pull += q[nbr_q[e] + w - at]
            pull = theta[w] + q_weight * pull
            if kind == SphereKind.OFF:
                mu[w] = pull * inverse
                continue
            upsilon = shift + scale * (c * mu[w] + target_lam_v * lam_v[w] - centre)
            q_v = rho_v * upsilon - lam_v[w]
            mu[w] = (pull + q_weight_v * q_v) * inverse
            if not frozen:
                lam_v[w] = leak_v * (rho_v * c * mu[w] - q_v)
            rest = c * mu[w] - upsilon
            off += rest * rest if width > 1 else 0.5 * rest * rest
        if kind != SphereKind.OFF:
            total += _distance2(kind, at, width, c, next_lam, mu, lam_v)
    sphere.norm2[chunk], sphere.off2[chunk] = total, off


@inlined
def has_items(at: int, width: int, items: ItemArrays | None) -> bool:
    """Return whether a variable is in a constraint."""
    if items is None:
        return False
    found: bool = items.ptr[at + width] > items.ptr[at]
    return found


@bare
def _pull_of_items(w: int, rho: float, items: ItemArrays, q: Floats) -> tuple[float, float]:
    """Return the number of edges that the items of a number of mu count as, and the sum of their q."""
    degree, pull = 0.0, 0.0
    for place in range(items.ptr[w], items.ptr[w + 1]):
        j = items.item[place]
        here = q[items.q_at + j]
        if items.sign[j] == 0.0:
            degree += 1.0
            pull += here
        else:
            degree += 0.5
            pull += items.sign[j] * (here - 0.5 * rho)
    return degree, pull


@bare
def _centres(
    kind: int, at: int, width: int, c: float, target_lam_v: float, mu: Floats, lam_v: Floats
) -> tuple[float, float]:
    """Return what is subtracted from a point before scaling, and added after: 1/2 and 1/2, or its mean and 1/K."""
    if kind == SphereKind.VARIABLES:
        return 0.5, 0.5
    mean = 0.0
    for w in range(at, at + width):
        mean += c * mu[w] + target_lam_v * lam_v[w]
    return mean / width, 1.0 / width


@bare
def _distance2(kind: int, at: int, width: int, c: float, target_lam_v: float, mu: Floats, lam_v: Floats) -> float:
    """Return the squared distance of a variable's point from the centre; a compact one counts half its square."""
    if width == 1:
        a: float = c * mu[at] + target_lam_v * lam_v[at]
        return 0.5 * a * a
    centre, _ = _centres(kind, at, width, c, target_lam_v, mu, lam_v)
    total = 0.0
    for w in range(at, at + width):
        a = c * mu[w] + target_lam_v * lam_v[w] - centre
        total += a * a
    return total


@compiled
def sphere_norms(sphere: SphereState, variables: VariableArrays, items: ItemArrays | None, iterates: Iterates) -> None:
    """Squared norms of the first projection's points, per chunk."""
    p = iterates.penalty[0]
    var_at, nbr_ptr = variables.var_at, variables.nbr_ptr
    sphere.norm2[:] = 0.0
    for i in range(len(var_at) - 1):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        if nbr_ptr[i + 1] > nbr_ptr[i] or has_items(at, width, items):
            sphere.norm2[i // sphere.chunk_size] += _distance2(
                p.sphere, at, width, p.c, p.target_lam_v, iterates.mu, iterates.lam_v
            )


@compiled
def write_multipliers(variables: VariableArrays, items: ItemArrays | None, iterates: Iterates, lam: Floats) -> None:
    """Write the multipliers of all edges and items, laid out like q, which may be the output itself."""
    last_leak, last_rho_c = iterates.penalty[0].last_leak, iterates.penalty[0].last_rho_c
    var_at, nbr_ptr, nbr_q = variables.var_at, variables.nbr_ptr, variables.nbr_q
    for i in range(len(var_at) - 1):
        for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
            for w in range(var_at[i + 1] - var_at[i]):
                place = nbr_q[e] + w
                lam[place] = last_leak * (last_rho_c * iterates.mu[var_at[i] + w] - iterates.q[place])
    if items is not None:
        for j in range(len(items.at)):
            lam[items.q_at + j] = item_multiplier(j, items, iterates)


@compiled
def squared_change(
    variables: VariableArrays, items: ItemArrays | None, card: Ints, before: Floats, mu: Floats
) -> float:
    """Return the squared change of mu_i, summed over all edges and items; that of a compact variable counts half."""
    var_at, nbr_ptr = variables.var_at, variables.nbr_ptr
    total = 0.0
    for i in range(len(card)):
        change = 0.0
        for s in range(var_at[i], var_at[i + 1]):
            change += (mu[s] - before[s]) * (mu[s] - before[s])
        total += change * (nbr_ptr[i + 1] - nbr_ptr[i]) * (0.5 if var_at[i + 1] - var_at[i] < card[i] else 1.0)
    of_items = 0.0
    if items is not None:
        for j in range(len(items.at)):
            change = item_value(j, items, mu) - item_value(j, items, before)
            of_items += change * change
    return total + of_items


@bare
def item_value(j: int, items: ItemArrays, mu: Floats) -> float:
    """Return the value of an item in mu."""
    here: float = mu[items.at[j]]
    return here if items.sign[j] == 0.0 else 0.5 + 0.5 * items.sign[j] * here


@bare
def item_multiplier(j: int, items: ItemArrays, iterates: Iterates) -> float:
    """Return the multiplier of an item, by the last iteration's penalty."""
    p = iterates.penalty[0]
    lam: float = p.last_leak * (p.last_rho_c * item_value(j, items, iterates.mu) - iterates.q[items.q_at + j])
    return lam


@compiled
def by_variable(scope: Ints, nbr_ptr: Ints, values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Gather the values of all edges by variable; the edges of a variable stay in order."""
    place = nbr_ptr[:-1].copy()
    out = np.empty_like(values)
    for e in range(len(scope)):
        out[place[scope[e]]] = values[e]
        place[scope[e]] += 1
    return out


@compiled
def iterate_pairs(
    n: int, tasks: Batches, pairs: PairArrays, sphere: SphereState, variables: VariableArrays, iterates: Iterates
) -> None:
    """Run n iterations on a model of compact variables and 2x2 factors: the loop of `Engine.run` in one call."""
    for _ in range(n):
        update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
        update_compact_pairs(tasks, pairs, iterates)
        update_compact_variables(0, len(sphere.norm2), sphere, variables, iterates)
        update_lam(iterates.penalty)
        update_rho(iterates.penalty)
