"""One iteration of ADMM on runs of binary pairs, tile by tile; see `mapmrf.engines.admm.runs`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.admm.couplings import SAME
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.penalty import Penalty, update_lam, update_rho
from mapmrf.engines.admm.runs import RunArrays, Tiles
from mapmrf.engines.admm.structs import Iterates, PairArrays, SphereState, VariableArrays
from mapmrf.engines.admm.variable_steps import BLOCK, ROOM, update_block, update_upsilon


class LatticeModel(NamedTuple):
    """A model of binary pairs in runs: its tiles, couplings and variables."""

    tiles: Tiles
    pairs: PairArrays
    variables: VariableArrays


@compiled
def iterate_lattice(n: int, penalty: Penalty, lattice: LatticeModel, sphere: SphereState, iterates: Iterates) -> None:
    """Run n iterations: the loop of `Engine.run` in one call."""
    n_tiles = len(lattice.tiles.piece_ptr) - 1
    for _ in range(n):
        update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
        update_tiles(0, n_tiles, len(iterates.mu), penalty, lattice, sphere, iterates)
        update_lam(penalty)
        update_rho(penalty)


@compiled
def update_tiles(
    first: int, last: int, beyond: int, penalty: Penalty, lattice: LatticeModel, sphere: SphereState, iterates: Iterates
) -> None:
    """Update mu_a, mu_i and lam_i of tiles first:last, except for mu_a of factors with a variable from `beyond` on.

    Those are handled by `update_pieces`, before any tile is updated.
    """
    tiles = lattice.tiles
    total, room = np.empty(min(tiles.size, tiles.n_vars)), np.empty(ROOM)
    for tile in range(first, last):
        for number in range(tiles.piece_ptr[tile], tiles.piece_ptr[tile + 1]):
            if _highest(tiles, number) < beyond:
                _update_piece(number, penalty, lattice, iterates)
        sum_parts(tile, tiles, iterates.q, total)
        _update_tile(tile, penalty, lattice, sphere, iterates, total, room)


@compiled
def update_pieces(
    first: int, last: int, beyond: int, penalty: Penalty, lattice: LatticeModel, iterates: Iterates
) -> None:
    """Update mu_a of the factors of tiles first:last that have a variable from `beyond` on."""
    tiles = lattice.tiles
    for number in range(tiles.piece_ptr[first], tiles.piece_ptr[last]):
        if _highest(tiles, number) >= beyond:
            _update_piece(number, penalty, lattice, iterates)


@bare
def _highest(tiles: Tiles, number: int) -> int:
    """Return the highest variable of a piece."""
    highest: int = max(tiles.piece[number, 1], tiles.piece[number, 2]) + tiles.piece[number, 3] - 1
    return highest


@bare
def _update_piece(number: int, penalty: Penalty, lattice: LatticeModel, iterates: Iterates) -> None:
    """Take the factor step of a piece."""
    at, v1, v2, n = lattice.tiles.piece[number]
    for skip in range(0, n, SAME):
        _update_pairs(at + skip, v1 + skip, v2 + skip, min(SAME, n - skip), penalty, lattice.pairs, iterates)


@inlined
def _update_pairs(at: int, v1: int, v2: int, n: int, penalty: Penalty, pairs: PairArrays, iterates: Iterates) -> None:
    """Take the factor step of consecutive factors: contiguous arrays only, and no branches."""
    mu, q = iterates.mu, iterates.q
    second = len(q) // 2
    m1, m2 = mu[v1 : v1 + n], mu[v2 : v2 + n]
    q1, q2 = q[at : at + n], q[second + at : second + at + n]
    j_at = 0 if pairs.shared else at
    strength = pairs.strength[j_at : j_at + n]
    rho, last_rho_c = penalty[0].rho, penalty[0].last_rho_c
    b = 1.0 / rho
    per_r = 2.0 / rho * pairs.unit
    mix = rho * (1.0 - penalty[0].relaxation)
    for f in range(n):
        lam1 = last_rho_c * m1[f] - q1[f]
        lam2 = last_rho_c * m2[f] - q2[f]
        r1, r2 = pair2_step(m1[f] + b * lam1, m2[f] + b * lam2, per_r * strength[f])
        q1[f] = rho * r1 - lam1 + mix * (m1[f] - r1)
        q2[f] = rho * r2 - lam2 + mix * (m2[f] - r2)


@bare
def sum_parts(tile: int, tiles: Tiles, q: Floats, total: Floats) -> None:
    """Sum q at the variables of a tile."""
    begin = tile * tiles.size
    for i in range(len(total)):
        total[i] = 0.0
    for number in range(tiles.part_ptr[tile], tiles.part_ptr[tile + 1]):
        at, i, n = tiles.part[number]
        mine, here = q[at : at + n], total[i - begin : i - begin + n]
        for f in range(n):
            here[f] += mine[f]


@bare
def _update_tile(
    tile: int,
    penalty: Penalty,
    lattice: LatticeModel,
    sphere: SphereState,
    iterates: Iterates,
    total: Floats,
    room: Floats,
) -> None:
    """Take the variable step of a tile, which consists of whole chunks of the sphere."""
    size, chunk_size = lattice.tiles.size, sphere.chunk_size
    begin, end = tile * size, min((tile + 1) * size, lattice.tiles.n_vars)
    for chunk in range(begin // chunk_size, (end - 1) // chunk_size + 1):
        norm2, off2 = 0.0, 0.0
        chunk_end = min((chunk + 1) * chunk_size, end)
        for base in range(chunk * chunk_size, chunk_end, BLOCK):
            n = min(BLOCK, chunk_end - base)
            for i in range(n):
                room[i] = total[base - begin + i]
            square, rest = update_block(base, n, sphere.scale[chunk], penalty, lattice.variables, iterates, room)
            norm2 += square
            off2 += rest
        sphere.norm2[chunk], sphere.off2[chunk] = norm2, off2


@compiled
def run_multipliers(runs: RunArrays, penalty: Penalty, iterates: Iterates, lam: Floats) -> None:
    """Write the multipliers of all edges, laid out like q, which may be the output itself."""
    last_rho_c, mu, q = penalty[0].last_rho_c, iterates.mu, iterates.q
    second = len(q) // 2
    for r in range(len(runs.first)):
        begin, n = runs.begin[r], runs.begin[r + 1] - runs.begin[r]
        for f in range(n):
            lam[begin + f] = last_rho_c * mu[runs.first[r] + f] - q[begin + f]
        for f in range(n):
            lam[second + begin + f] = last_rho_c * mu[runs.second[r] + f] - q[second + begin + f]
