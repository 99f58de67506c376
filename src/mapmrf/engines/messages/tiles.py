"""A pass over factors on several threads, with the messages of the pass on one.

Factors of a pass depend on those before them with which they share a variable. Two numbers never fall along such a
dependency: the factor's place in the pass, and its depth, the length of the longest chain of dependencies that ends in
it. So a pass is cut by places into *bands*, and each band by depths into *tiles*: a tile can begin when the one before
it in its band, and the tile of the same depths in the band before, have ended. Threads take the bands in turn, each
some tiles behind the one before, and wait for each other only where one gets too near.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from queue import SimpleQueue

import numpy as np

from mapmrf.arrays import Ints, offsets, short
from mapmrf.engines.messages.neighbours import Neighbours
from mapmrf.engines.messages.tiles_kernels import depths_of, variable_depths
from mapmrf.workers import Workers

BANDS = (4, 8, 16)
"""Numbers of bands for each thread that are tried."""
TILES = (8, 16, 32)
"""Numbers of tiles of a band that are tried."""
CALL = 15_000.0
"""Nanoseconds that it takes to begin with a tile."""
FACTOR, ENTRY, VARIABLE = 4.0, 1.0, 40.0
"""Nanoseconds that a factor takes, each entry of its table, and a variable that is decided."""
WORTH = 0.85
"""Share of the time on one thread that must suffice, or one thread does it all."""


@dataclass(frozen=True)
class TiledPass:
    """The factors of a pass in tiles, or the variables of a labelling that is decoded.

    Attributes
    ----------
    bands
        For every band the factors of its tiles, each in the order of the pass; tiles may be empty.
    """

    bands: list[list[Ints]]

    def run(self, workers: Workers, call: Callable[[Ints, int], None], backward: bool) -> None:
        """Call a function with the factors of every tile and the number of the thread, when their turn has come."""
        bands = [band[::-1] for band in reversed(self.bands)] if backward else self.bands
        ended: list[SimpleQueue[None]] = [SimpleQueue() for _ in bands]

        def work(thread: int) -> None:
            for b in range(thread, len(bands), workers.n):
                try:
                    for tile in bands[b]:
                        if b > 0:
                            ended[b - 1].get()
                        if len(tile):
                            call(tile, thread)
                        ended[b].put(None)
                except BaseException:
                    _release(ended[b :: workers.n], len(bands[b]))
                    raise

        workers.run(work, [(thread,) for thread in range(workers.n)])


def _release(ended: list[SimpleQueue[None]], n_tiles: int) -> None:
    """Let nobody wait for the bands of a thread that has failed."""
    for queue in ended:
        for _ in range(n_tiles):
            queue.put(None)


def tiles_of(visit: Ints, scope_ptr: Ints, scope: Ints, threads: int, entries: float) -> TiledPass | None:
    """Cut a pass in the way that promises the least time; None if none of them saves enough.

    Parameters
    ----------
    visit
        The factors in the order of the pass.
    scope_ptr, scope
        The variables of the factors.
    threads
        How many threads there are.
    entries
        Table entries of a factor, on average.
    """
    depth, last = np.zeros(len(visit), dtype=np.int32), np.zeros(int(scope.max(initial=0)) + 1, dtype=np.int32)
    n_depths = int(depths_of(visit, scope_ptr, scope, last, depth))
    return _tiles(visit, depth, n_depths, threads, CALL / (FACTOR + ENTRY * entries))


def tiles_of_variables(
    decide: Ints, neighbours: Neighbours, scope_ptr: Ints, scope: Ints, threads: int
) -> TiledPass | None:
    """The same for variables that are decided one after another, each by those before it in its factors."""
    depth, last = np.zeros(len(decide), dtype=np.int32), np.zeros(len(neighbours.ptr) - 1, dtype=np.int32)
    n_depths = int(variable_depths(decide, neighbours, scope_ptr, scope, last, depth))
    return _tiles(decide, depth, n_depths, threads, CALL / VARIABLE)


def _tiles(visit: Ints, depth: Ints, n_depths: int, threads: int, call: float) -> TiledPass | None:
    """Cut what is visited by places and depths; `call` is the time to begin with a tile, in units of a visit."""
    best, least = None, WORTH * len(visit)
    for bands, tiles in product(BANDS, TILES):
        cut = _cut(depth, n_depths, bands * threads, tiles)
        sizes = np.bincount(cut, minlength=bands * threads * tiles).reshape(-1, tiles)
        time = _time(sizes, threads, call)
        if time < least:
            best, least = (cut, sizes), time
    return None if best is None else _collect(visit, *best)


def _cut(depth: Ints, n_depths: int, bands: int, tiles: int) -> Ints:
    """The tile of every factor, numbered band by band."""
    n = len(depth)
    band = np.arange(n) * bands // max(1, n)
    return np.asarray(band * tiles + depth.astype(np.int64) * tiles // max(1, n_depths))


def _time(sizes: Ints, threads: int, call: float) -> float:
    """When the last thread ends, in units of a factor."""
    before, free = [0.0] * sizes.shape[1], [0.0] * threads
    for b, band in enumerate(sizes.tolist()):
        now = free[b % threads]
        for d, size in enumerate(band):
            now = max(now, before[d])
            now += size + call if size else 0.0
            before[d] = now
        free[b % threads] = now
    return max(free)


def _collect(visit: Ints, cut: Ints, sizes: Ints) -> TiledPass:
    """The factors of every tile."""
    factors = short(visit[np.argsort(cut, kind="stable")])
    ptr = offsets(sizes.ravel()).tolist()
    tiles = [factors[ptr[t] : ptr[t + 1]] for t in range(sizes.size)]
    width = sizes.shape[1]
    return TiledPass([tiles[begin : begin + width] for begin in range(0, len(tiles), width)])
