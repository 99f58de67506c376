"""The steps of ADMM on models of binary pairs in runs: one pass over memory per iteration, on one or more threads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.layout import SAME, Layout
from mapmrf.engines.admm.measurement import FACTOR_SUMS, FactorSums
from mapmrf.engines.admm.penalty import Penalty, update_lam, update_rho
from mapmrf.engines.admm.stretches import TILE, RunArrays, Tiles, cut_tiles
from mapmrf.engines.admm.structs import Iterates, PairArrays, SphereState, VariableArrays
from mapmrf.engines.admm.variable_steps import BLOCK, ROOM, block_sum, update_block, update_upsilon
from mapmrf.run.pool import Workers


class LatticeSteps:
    """The steps of an engine on runs of binary pairs, in place of its factor and variable steps.

    Each of several threads has contiguous tiles, and the factors that reach into another thread's tiles are updated
    before any variable is. So every number is the same for any number of threads.
    """

    def __init__(self, layout: Layout, runs: RunArrays, workers: Workers, penalty: Penalty, iterates: Iterates) -> None:
        self.layout, self.runs, self.workers = layout, runs, workers
        self.penalty, self.iterates = penalty, iterates
        self.n_vars = layout.share.n_vars
        self.boundary: Ints = np.zeros(0, dtype=np.int64)

    @staticmethod
    def chunk_size(sphere_block: int) -> int:
        """Return the number of variables per chunk of the sphere: a block's, or a tile's."""
        return sphere_block or TILE

    def cut(self, sphere: SphereState) -> None:
        """Divide the model into tiles that consist of whole chunks of a sphere."""
        size = max(1, TILE // sphere.chunk_size) * sphere.chunk_size
        tiles = cut_tiles(self.runs, self.n_vars, size, self.layout.share.owned[0])
        self.sphere, self.lattice = sphere, LatticeModel(tiles, self.layout.pairs, self.layout.variables)
        self.n_tiles = len(tiles.piece_ptr) - 1
        spans = self.workers.spans(self.n_tiles) if len(self.boundary) == 0 else self._spans_of_part(size)
        arrays = self.penalty, self.lattice
        self._crossing = [(*span, span[1] * size, *arrays, self.iterates) for span in spans]
        self._tiles = [(*span, span[1] * size, *arrays, sphere, self.iterates) for span in spans]
        self.found: FactorSums = np.zeros(self.n_tiles, dtype=FACTOR_SUMS)

    def _spans_of_part(self, size: int) -> list[tuple[int, int]]:
        """Return the spans of tiles at both ends with variables copied by other parts, and of those in between."""
        tiles = np.concatenate([[-1], np.unique(self.boundary // size), [self.n_tiles]])
        gap = int(np.diff(tiles).argmax())
        low, high = int(tiles[gap]) + 1, int(tiles[gap + 1])
        return [(0, low), (low, high), (high, self.n_tiles)]

    def update_cut(self) -> None:
        """In a part: take the factor step of all factors between those spans, and to copies of other variables."""
        for call in self._crossing:
            update_pieces(*call)

    def update_boundary(self) -> None:
        """In a part: complete the iteration for the variables of which others have copies."""
        update_tiles(*self._tiles[0])
        update_tiles(*self._tiles[2])

    def update_interior(self) -> None:
        """In a part: complete the iteration for the others."""
        update_tiles(*self._tiles[1])

    def run(self, n: int) -> None:
        """Run n iterations."""
        if self.workers.n == 1:
            iterate_lattice(n, self.penalty, self.lattice, self.sphere, self.iterates)
            return
        sphere = self.sphere
        for _ in range(n):
            update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
            self.workers.run(update_pieces, self._crossing)
            self.workers.run(update_tiles, self._tiles)
            update_lam(self.penalty)
            update_rho(self.penalty)

    def update_mu_f(self) -> None:
        """Take the factor step alone."""
        update_pieces(0, self.n_tiles, 0, self.penalty, self.lattice, self.iterates)

    def update_mu_v(self) -> None:
        """Take the variable step alone."""
        update_tiles(0, self.n_tiles, 0, self.penalty, self.lattice, self.sphere, self.iterates)

    def measure(self, labels: Ints) -> FactorSums:
        """Compute sums over all factors and variables, a record per tile."""
        arrays = self.penalty, self.lattice, self.iterates, labels
        spans = self.workers.spans(self.n_tiles)
        self.workers.run(measure_tiles, [(*span, *arrays, self.found[slice(*span)]) for span in spans])
        return self.found

    def multipliers(self, lam: Floats) -> None:
        """Write the multipliers of all edges, laid out like q, which may be the output itself."""
        run_multipliers(self.runs, self.penalty, self.iterates, lam)


# -- Measurements on stretches of binary pairs, tile by tile -----------------------------------------------------------


N_TERMS = 5  # number of terms summed per factor or variable; they lie at fixed distances, see `variable_steps.ROOM`


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


# -- One iteration on stretches of binary pairs, tile by tile ---------------------------------------------------------


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
