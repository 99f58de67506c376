"""ADMM on models of binary pairs in runs: one pass over memory per iteration, on one or more threads.

A run is a range of factors whose first variables, and whose second ones, are contiguous in memory, like all horizontal
pairs of a row of an image, or all its vertical pairs. On runs, nothing is gathered through indices.

A tile is a range of variables. The factors whose lower variable lies in it are updated, then its variables, while all
of that is in cache. This is the same iteration: a factor needs mu of the last iteration, and the variables of a tile
change only after the last factor that contains one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets, short
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.factor_steps import step_pairs
from mapmrf.engines.admm.measurement import Sums, new_sums, total
from mapmrf.engines.admm.penalty import update_lam, update_rho
from mapmrf.engines.admm.structs import SAME, Iterates, PairArrays, Rounding, SphereState, TableArrays, VariableArrays
from mapmrf.engines.admm.variable_steps import BLOCK, ROOM, block_sum, update_compact_chunk, update_upsilon
from mapmrf.run.pool import Workers

if TYPE_CHECKING:
    from mapmrf.engines.admm.layout import Layout


TILE = 2048  # variables per tile: with their factors they take some 150 kB
LEAST_LENGTH = 40  # mean length from which runs are faster than indices


class Runs(NamedTuple):
    """Runs of factors: the start of each (and the end of the last), and the two variables of its first factor."""

    begin: Ints
    first: Ints
    second: Ints


class Tiles(NamedTuple):
    """A model of binary pairs in tiles of `size` variables.

    n_vars, n_constrained
        The variables that have tiles, and the number of factors that are measured, which come first. All of them,
        except in a part of a larger model, which has copies of others.
    piece_ptr, piece
        For every tile, the factors of one run whose lower variable lies in it: the first one, its two variables, and
        their number.
    part_ptr, part
        For every tile, terms summed at its variables: a position in q, its variable, and the number of consecutive
        ones.
    pairs, variables
        As in the `Layout`.
    """

    size: int
    n_vars: int
    n_constrained: int
    piece_ptr: Ints
    piece: Ints
    part_ptr: Ints
    part: Ints
    pairs: PairArrays
    variables: VariableArrays


class TiledSteps:
    """The steps of an engine on runs of binary pairs: those of `IndexedSteps`, in one pass over memory.

    The variable step of a tile takes the factor step on the way. Each of several threads has contiguous tiles, and the
    factors that reach into another thread's tiles are updated before any variable is. So every number is the same for
    any number of threads.
    """

    def __init__(
        self, layout: Layout, workers: Workers, iterates: Iterates, tables: TableArrays, rounding: Rounding
    ) -> None:
        assert layout.runs is not None
        self.layout, self.runs, self.workers = layout, layout.runs, workers
        self.iterates, self.tables, self.rounding = iterates, tables, rounding
        self.boundary: Ints = np.zeros(0, dtype=np.int64)

    @property
    def chunk_size(self) -> int:
        return TILE

    def plan(self, sphere: SphereState) -> None:
        """Divide the model into tiles that consist of whole chunks of a sphere."""
        share = self.layout.share
        size = max(1, TILE // sphere.chunk_size) * sphere.chunk_size
        self.sphere, self.lattice = sphere, cut_tiles(self.layout, self.runs, size, share.owned[0])
        self.n_tiles = len(self.lattice.piece_ptr) - 1
        spans = self.workers.spans(self.n_tiles) if len(self.boundary) == 0 else self._spans_of_part(size)
        self._crossing = [(*span, span[1] * size, self.lattice, self.iterates) for span in spans]
        self._tiles = [(*span, span[1] * size, self.lattice, sphere, self.iterates) for span in spans]
        self.found = new_sums(self.n_tiles)

    def _spans_of_part(self, size: int) -> list[tuple[int, int]]:
        """Return the spans of tiles at both ends with variables copied by other parts, and of those in between."""
        tiles = np.concatenate([[-1], np.unique(self.boundary // size), [self.n_tiles]])
        gap = int(np.diff(tiles).argmax())
        low, high = int(tiles[gap]) + 1, int(tiles[gap + 1])
        return [(0, low), (low, high), (high, self.n_tiles)]

    def iterate(self, n: int) -> bool:
        if self.workers.n == 1:
            iterate_lattice(n, self.lattice, self.sphere, self.iterates)
        return self.workers.n == 1

    def update_mu_f(self) -> None:
        self.workers.run(update_pieces, self._crossing)

    def update_mu_v(self) -> None:
        self.workers.run(update_tiles, self._tiles)

    def update_inside(self) -> None:
        """Do nothing: tiles do that on the way."""

    def update_cut(self) -> None:
        """Take the factor step of all factors between the spans, and to copies of other variables."""
        for call in self._crossing:
            update_pieces(*call)

    def update_boundary(self) -> None:
        update_tiles(*self._tiles[0])
        update_tiles(*self._tiles[2])

    def update_interior(self) -> None:
        update_tiles(*self._tiles[1])

    def measure(self, labels: Ints) -> Floats:
        arrays = self.lattice, self.iterates, labels
        spans = self.workers.spans(self.n_tiles)
        self.workers.run(measure_tiles, [(*span, *arrays, self.found[slice(*span)]) for span in spans])
        return total(self.layout.constant, new_sums(), self.found)

    def write_multipliers(self, lam: Floats) -> None:
        run_multipliers(self.runs, self.iterates, lam)


# -- Measurements on runs of binary pairs, tile by tile ----------------------------------------------------------------


N_TERMS = 5  # number of terms summed per factor or variable; they lie at fixed distances, see `variable_steps.ROOM`


@compiled
def measure_tiles(first: int, last: int, lattice: Tiles, iterates: Iterates, labels: Ints, found: Sums) -> None:
    """Compute sums over the factors and variables of tiles first:last, a record of `found` per tile."""
    sum_q, terms = np.empty(min(lattice.size, lattice.n_vars)), np.empty(N_TERMS * BLOCK)
    for tile in range(first, last):
        sums = np.zeros(N_TERMS)
        for number in range(lattice.piece_ptr[tile], lattice.piece_ptr[tile + 1]):
            at, v1, v2, n = lattice.piece[number]
            if at >= lattice.n_constrained:
                continue
            for skip in range(0, n, BLOCK):
                count = min(BLOCK, n - skip)
                place = (at + skip, v1 + skip, v2 + skip, count)
                _pair_terms(place, lattice.pairs, iterates, labels, terms)
                _add_terms(terms, count, sums)
        record = found[tile - first]
        record.primal2, record.primal_max, record.integrality = sums[3], 0.5 * sums[4], 0.0
        sums[3] = sums[4] = 0.0
        sum_parts(tile, lattice, iterates.q, sum_q)
        begin = tile * lattice.size
        for skip in range(0, min(lattice.size, lattice.n_vars - begin), BLOCK):
            count = min(BLOCK, lattice.n_vars - begin - skip, lattice.size - skip)
            _variable_terms(begin + skip, count, lattice, iterates, labels, sum_q[skip:], terms)
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
    place: tuple[int, int, int, int], pairs: PairArrays, iterates: Iterates, labels: Ints, terms: Floats
) -> None:
    """Compute the terms of consecutive factors: bound, value, relaxed, primal2, and twice the largest residual."""
    at, v1, v2, n = place
    mu, q, rho, last_rho_c = iterates.mu, iterates.q, iterates.penalty[0].rho, iterates.penalty[0].last_rho_c
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
    base: int, n: int, lattice: Tiles, iterates: Iterates, labels: Ints, total: Floats, terms: Floats
) -> None:
    """Compute the terms of n variables from `base` on: bound, value, relaxed, 0, twice the distance from 0 and 1."""
    last_rho_c = iterates.penalty[0].last_rho_c
    nbr_ptr = lattice.variables.nbr_ptr[base : base + n + 1]
    m, th, label = iterates.mu[base : base + n], lattice.variables.theta[base : base + n], labels[base : base + n]
    for i in range(n):
        rest = th[i] - (nbr_ptr[i + 1] - nbr_ptr[i]) * last_rho_c * m[i] + total[i]
        terms[i] = 0.5 * abs(rest)
        terms[BLOCK + i] = 0.5 * th[i] if label[i] == 1 else -0.5 * th[i]
        terms[2 * BLOCK + i] = 0.5 * th[i] * m[i]
        terms[3 * BLOCK + i] = 0.0
        terms[4 * BLOCK + i] = abs(1.0 - abs(m[i]))


# -- One iteration on runs of binary pairs, tile by tile ---------------------------------------------------------------


@compiled
def iterate_lattice(n: int, lattice: Tiles, sphere: SphereState, iterates: Iterates) -> None:
    """Run n iterations: the loop of `Engine.run` in one call."""
    n_tiles = len(lattice.piece_ptr) - 1
    for _ in range(n):
        update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
        update_tiles(0, n_tiles, len(iterates.mu), lattice, sphere, iterates)
        update_lam(iterates.penalty)
        update_rho(iterates.penalty)


@compiled
def update_tiles(first: int, last: int, beyond: int, lattice: Tiles, sphere: SphereState, iterates: Iterates) -> None:
    """Update mu_a, mu_i and lam_i of tiles first:last, except for mu_a of factors with a variable from `beyond` on.

    Those are handled by `update_pieces`, before any tile is updated.
    """
    total, room = np.empty(min(lattice.size, lattice.n_vars)), np.empty(ROOM)
    for tile in range(first, last):
        for number in range(lattice.piece_ptr[tile], lattice.piece_ptr[tile + 1]):
            if _highest(lattice, number) < beyond:
                _update_piece(number, lattice, iterates)
        sum_parts(tile, lattice, iterates.q, total)
        _update_tile(tile, lattice, sphere, iterates, total, room)


@compiled
def update_pieces(first: int, last: int, beyond: int, lattice: Tiles, iterates: Iterates) -> None:
    """Update mu_a of the factors of tiles first:last that have a variable from `beyond` on."""
    for number in range(lattice.piece_ptr[first], lattice.piece_ptr[last]):
        if _highest(lattice, number) >= beyond:
            _update_piece(number, lattice, iterates)


@bare
def _highest(lattice: Tiles, number: int) -> int:
    """Return the highest variable of a piece."""
    highest: int = max(lattice.piece[number, 1], lattice.piece[number, 2]) + lattice.piece[number, 3] - 1
    return highest


@bare
def _update_piece(number: int, lattice: Tiles, iterates: Iterates) -> None:
    """Take the factor step of a piece."""
    at, v1, v2, n = lattice.piece[number]
    mu, q, pairs = iterates.mu, iterates.q, lattice.pairs
    second = len(q) // 2
    for skip in range(0, n, SAME):
        count = min(SAME, n - skip)
        at1, at2 = at + skip, second + at + skip
        j_at = 0 if pairs.shared else at1
        step_pairs(
            mu[v1 + skip : v1 + skip + count],
            mu[v2 + skip : v2 + skip + count],
            q[at1 : at1 + count],
            q[at2 : at2 + count],
            pairs.strength[j_at : j_at + count],
            pairs.unit,
            iterates.penalty,
        )


@bare
def sum_parts(tile: int, lattice: Tiles, q: Floats, total: Floats) -> None:
    """Sum q at the variables of a tile."""
    begin = tile * lattice.size
    for i in range(len(total)):
        total[i] = 0.0
    for number in range(lattice.part_ptr[tile], lattice.part_ptr[tile + 1]):
        at, i, n = lattice.part[number]
        mine, here = q[at : at + n], total[i - begin : i - begin + n]
        for f in range(n):
            here[f] += mine[f]


@bare
def _update_tile(
    tile: int, lattice: Tiles, sphere: SphereState, iterates: Iterates, total: Floats, room: Floats
) -> None:
    """Take the variable step of a tile, which consists of whole chunks of the sphere."""
    size, chunk_size = lattice.size, sphere.chunk_size
    begin, end = tile * size, min((tile + 1) * size, lattice.n_vars)
    for chunk in range(begin // chunk_size, (end - 1) // chunk_size + 1):
        chunk_end = min((chunk + 1) * chunk_size, end)
        update_compact_chunk(chunk, chunk_end, begin, total, sphere, lattice.variables, iterates, room)


@compiled
def run_multipliers(runs: Runs, iterates: Iterates, lam: Floats) -> None:
    """Write the multipliers of all edges, laid out like q, which may be the output itself."""
    last_rho_c, mu, q = iterates.penalty[0].last_rho_c, iterates.mu, iterates.q
    second = len(q) // 2
    for r in range(len(runs.first)):
        begin, n = runs.begin[r], runs.begin[r + 1] - runs.begin[r]
        for f in range(n):
            lam[begin + f] = last_rho_c * mu[runs.first[r] + f] - q[begin + f]
        for f in range(n):
            lam[second + begin + f] = last_rho_c * mu[runs.second[r] + f] - q[second + begin + f]


# -- Runs and tiles of a model ----------------------------------------------------------------------------------------


def find_runs(scope: Ints) -> tuple[Runs, Ints | None] | None:
    """Find runs of pairs (n, 2), in the given order or sorted by distance; None if they would be short.

    Also return the factors in their order; None if that is the order given.
    """
    most = len(scope) // LEAST_LENGTH
    if most == 0:
        return None
    if count_runs(scope) <= most:
        return _run_arrays(scope), None
    distance = scope[:, 1].astype(np.int64) - scope[:, 0]
    order = np.argsort(distance * (int(scope.max()) + 1) + scope[:, 0], kind="stable")
    scope = frozen(scope[order])
    return (_run_arrays(scope), short(order)) if count_runs(scope) <= most else None


@compiled
def count_runs(scope: Ints) -> int:
    """Return the number of runs in the given order."""
    n = 1
    for f in range(1, len(scope)):
        n += scope[f, 0] != scope[f - 1, 0] + 1 or scope[f, 1] != scope[f - 1, 1] + 1
    return n


def _run_arrays(scope: Ints) -> Runs:
    begin = np.zeros(count_runs(scope) + 1, dtype=np.int64)
    _mark_runs(scope, begin)
    first, second = np.ascontiguousarray(scope[begin[:-1]].T, dtype=np.int64)
    return Runs(begin, first, second)


@compiled
def _mark_runs(scope: Ints, begin: Ints) -> None:
    """Mark where the runs begin, and where the last one ends."""
    r = 0
    for f in range(1, len(scope)):
        if scope[f, 0] != scope[f - 1, 0] + 1 or scope[f, 1] != scope[f - 1, 1] + 1:
            r += 1
            begin[r] = f
    begin[-1] = len(scope)


def break_runs(runs: Runs, scope: Ints, cuts: tuple[int, ...]) -> Runs:
    """Break runs at the given numbers of factors."""
    begin = np.unique(np.concatenate([runs.begin, np.array(cuts, dtype=np.int64)]))
    first, second = np.ascontiguousarray(scope[begin[:-1]].T, dtype=np.int64)
    return Runs(begin, first, second)


def cut_tiles(layout: Layout, runs: Runs, size: int, n_constrained: int) -> Tiles:
    """Divide runs into pieces and parts by tiles of `size` variables; copies of other parts' variables have none."""
    n_vars = layout.share.n_vars
    count = np.zeros((2, -(-n_vars // size)), dtype=np.int64)
    _count(runs, n_vars, size, count)
    piece_ptr, part_ptr = (offsets(row).astype(np.int64) for row in count)
    piece, part = (np.zeros((int(ptr[-1]), k), dtype=np.int64) for ptr, k in ((piece_ptr, 4), (part_ptr, 3)))
    lattice = Tiles(size, n_vars, n_constrained, piece_ptr, piece, part_ptr, part, layout.pairs, layout.variables)
    _cut(runs, lattice)
    return lattice


@compiled
def _count(runs: Runs, n_vars: int, size: int, count: Ints) -> None:
    """Count the pieces and parts of every tile."""
    for r in range(len(runs.first)):
        n = runs.begin[r + 1] - runs.begin[r]
        first, second = runs.first[r], runs.second[r]
        for tile in range(min(first, second) // size, (min(first, second) + n - 1) // size + 1):
            count[0, tile] += 1
        if first < n_vars:
            for tile in range(first // size, (first + n - 1) // size + 1):
                count[1, tile] += 1
        if second < n_vars:
            for tile in range(second // size, (second + n - 1) // size + 1):
                count[1, tile] += 1


@compiled
def _cut(runs: Runs, lattice: Tiles) -> None:
    """Write pieces and parts, those of a tile in the order of the runs."""
    size, n_factors = lattice.size, runs.begin[-1]
    piece_at, part_at = lattice.piece_ptr.copy(), lattice.part_ptr.copy()
    for r in range(len(runs.first)):
        begin, n = runs.begin[r], runs.begin[r + 1] - runs.begin[r]
        ends = (runs.first[r], runs.second[r])
        lower = min(ends[0], ends[1])
        for tile in range(lower // size, (lower + n - 1) // size + 1):
            skip = max(0, tile * size - lower)
            piece = lattice.piece[piece_at[tile]]
            piece[0], piece[1], piece[2] = begin + skip, ends[0] + skip, ends[1] + skip
            piece[3] = min(n, (tile + 1) * size - lower) - skip
            piece_at[tile] += 1
        for k in range(2):
            if ends[k] >= lattice.n_vars:
                continue
            for tile in range(ends[k] // size, (ends[k] + n - 1) // size + 1):
                skip = max(0, tile * size - ends[k])
                part = lattice.part[part_at[tile]]
                part[0], part[1] = k * n_factors + begin + skip, ends[k] + skip
                part[2] = min(n, (tile + 1) * size - ends[k]) - skip
                part_at[tile] += 1
