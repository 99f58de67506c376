"""The steps of ADMM on models of binary pairs in runs: one pass over memory per iteration, on one or more threads."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm import tile_steps
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.measurement import FACTOR_SUMS, FactorSums
from mapmrf.engines.admm.penalty import Penalty, update_lam, update_rho
from mapmrf.engines.admm.runs import TILE, RunArrays, cut_tiles
from mapmrf.engines.admm.structs import Iterates, SphereState
from mapmrf.engines.admm.tile_measurement import measure_tiles
from mapmrf.engines.admm.tile_steps import LatticeModel
from mapmrf.engines.admm.variable_steps import update_upsilon
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
            tile_steps.update_pieces(*call)

    def update_boundary(self) -> None:
        """In a part: complete the iteration for the variables of which others have copies."""
        tile_steps.update_tiles(*self._tiles[0])
        tile_steps.update_tiles(*self._tiles[2])

    def update_interior(self) -> None:
        """In a part: complete the iteration for the others."""
        tile_steps.update_tiles(*self._tiles[1])

    def run(self, n: int) -> None:
        """Run n iterations."""
        if self.workers.n == 1:
            tile_steps.iterate_lattice(n, self.penalty, self.lattice, self.sphere, self.iterates)
            return
        sphere = self.sphere
        for _ in range(n):
            update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
            self.workers.run(tile_steps.update_pieces, self._crossing)
            self.workers.run(tile_steps.update_tiles, self._tiles)
            update_lam(self.penalty)
            update_rho(self.penalty)

    def update_mu_f(self) -> None:
        """Take the factor step alone."""
        tile_steps.update_pieces(0, self.n_tiles, 0, self.penalty, self.lattice, self.iterates)

    def update_mu_v(self) -> None:
        """Take the variable step alone."""
        tile_steps.update_tiles(0, self.n_tiles, 0, self.penalty, self.lattice, self.sphere, self.iterates)

    def measure(self, labels: Ints) -> FactorSums:
        """Compute sums over all factors and variables, a record per tile."""
        arrays = self.penalty, self.lattice, self.iterates, labels
        spans = self.workers.spans(self.n_tiles)
        self.workers.run(measure_tiles, [(*span, *arrays, self.found[slice(*span)]) for span in spans])
        return self.found

    def multipliers(self, lam: Floats) -> None:
        """Write the multipliers of all edges, laid out like q, which may be the output itself."""
        tile_steps.run_multipliers(self.runs, self.penalty, self.iterates, lam)
