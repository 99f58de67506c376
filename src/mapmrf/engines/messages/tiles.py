"""A pass over factors on several threads, with the same messages as on one.

A factor of a pass depends on those before it with which it shares a variable. Two numbers never decrease along such a
dependency: the factor's position in the pass, and its depth, the length of the longest chain of dependencies that ends
in it. So a pass is divided by position into *bands*, and each band by depth into *tiles*: a tile can start when the
previous one in its band, and the tile of the same depths in the previous band, have ended. Threads take the bands in
turn, each some tiles behind the previous one, and wait for each other only where one gets too close.
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
from mapmrf.run.workers import Workers

BANDS = (4, 8, 16)
"""Numbers of bands per thread that are tried."""
TILES = (8, 16, 32)
"""Numbers of tiles per band that are tried."""
CALL = 15_000.0
"""Overhead of a tile in nanoseconds."""
FACTOR, ENTRY, VARIABLE = 4.0, 1.0, 40.0
"""Nanoseconds per factor, per entry of its table, and per decoded variable."""
WORTH = 0.85
"""Maximum share of the single-threaded time for which several threads are used."""


@dataclass(frozen=True)
class TiledPass:
    """The factors of a pass in tiles, or the variables of a decoding.

    Attributes
    ----------
    bands
        For every band the factors of its tiles, each in the order of the pass; tiles may be empty.
    """

    bands: list[list[Ints]]

    def run(self, workers: Workers, call: Callable[[Ints, int], None], backward: bool) -> None:
        """Call a function with the factors of every tile and the number of the thread, in a valid order."""
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
    """Release all threads that wait for the bands of a failed one."""
    for queue in ended:
        for _ in range(n_tiles):
            queue.put(None)


def tiles_of(visit: Ints, scope_ptr: Ints, scope: Ints, threads: int, entries: float) -> TiledPass | None:
    """Divide a pass such that the predicted time is lowest; None if that saves too little.

    Parameters
    ----------
    visit
        The factors in the order of the pass.
    scope_ptr, scope
        The variables of the factors.
    threads
        Number of threads.
    entries
        Average number of table entries of a factor.
    """
    depth, last = np.zeros(len(visit), dtype=np.int32), np.zeros(int(scope.max(initial=0)) + 1, dtype=np.int32)
    n_depths = int(depths_of(visit, scope_ptr, scope, last, depth))
    return _tiles(visit, depth, n_depths, threads, CALL / (FACTOR + ENTRY * entries))


def tiles_of_variables(
    decide: Ints, neighbours: Neighbours, scope_ptr: Ints, scope: Ints, threads: int
) -> TiledPass | None:
    """Do the same for variables decoded one after another, each given those before it in its factors."""
    depth, last = np.zeros(len(decide), dtype=np.int32), np.zeros(len(neighbours.ptr) - 1, dtype=np.int32)
    n_depths = int(variable_depths(decide, neighbours, scope_ptr, scope, last, depth))
    return _tiles(decide, depth, n_depths, threads, CALL / VARIABLE)


def _tiles(visit: Ints, depth: Ints, n_depths: int, threads: int, call: float) -> TiledPass | None:
    """Divide visits by position and depth; `call` is the overhead of a tile, in units of a visit."""
    best, least = None, WORTH * len(visit)
    for bands, tiles in product(BANDS, TILES):
        cut = _cut(depth, n_depths, bands * threads, tiles)
        sizes = np.bincount(cut, minlength=bands * threads * tiles).reshape(-1, tiles)
        time = _time(sizes, threads, call)
        if time < least:
            best, least = (cut, sizes), time
    return None if best is None else _collect(visit, *best)


def _cut(depth: Ints, n_depths: int, bands: int, tiles: int) -> Ints:
    """Return the tile of every factor, numbered band by band."""
    n = len(depth)
    band = np.arange(n) * bands // max(1, n)
    return np.asarray(band * tiles + depth.astype(np.int64) * tiles // max(1, n_depths))


def _time(sizes: Ints, threads: int, call: float) -> float:
    """Predict when the last thread ends, in units of a factor."""
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
    """Collect the factors of every tile."""
    factors = short(visit[np.argsort(cut, kind="stable")])
    ptr = offsets(sizes.ravel()).tolist()
    tiles = [factors[ptr[t] : ptr[t + 1]] for t in range(sizes.size)]
    width = sizes.shape[1]
    return TiledPass([tiles[begin : begin + width] for begin in range(0, len(tiles), width)])
