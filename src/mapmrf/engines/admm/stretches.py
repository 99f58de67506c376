"""Runs of pairs on a lattice, and tiles: ADMM on a model of binary pairs in one pass over memory per iteration.

A run is a range of factors whose first variables, and whose second ones, are contiguous in memory, like all horizontal
pairs of a row of an image, or all its vertical pairs. On runs, nothing is gathered through indices.

A tile is a range of variables. The factors whose lower variable lies in it are updated, then its variables, while all
of that is in cache. This is the same iteration: a factor needs mu of the last iteration, and the variables of a tile
change only after the last factor that contains one of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints, frozen, offsets, short
from mapmrf.compilation.jit import compiled

TILE = 2048  # variables per tile: with their factors they take some 150 kB
LEAST_LENGTH = 40  # mean length from which runs are faster than indices


class RunArrays(NamedTuple):
    """Runs of factors: the start of each (and the end of the last), and the two variables of its first factor."""

    begin: Ints
    first: Ints
    second: Ints


class Runs(NamedTuple):
    """Runs, and the factors in their order; None if that is the order of the batch."""

    arrays: RunArrays
    order: Ints | None


class Tiles(NamedTuple):
    """Tiles of `size` variables; those of tile t are ``piece_ptr[t]:piece_ptr[t + 1]``, likewise for parts.

    n_vars, n_constrained
        The variables that have tiles, and the number of factors that are measured, which come first. All of them,
        except in a part of a larger model, which has copies of others.
    piece
        Factors of one run whose lower variable lies in the tile: the first one, its two variables, and their number.
    part
        Terms summed at the variables of the tile: a position in q, its variable, and the number of consecutive ones.
    """

    size: int
    n_vars: int
    n_constrained: int
    piece_ptr: Ints
    piece: Ints
    part_ptr: Ints
    part: Ints


def find_runs(scope: Ints) -> Runs | None:
    """Find runs of pairs (n, 2), in the given order or sorted by distance; None if they would be short."""
    most = len(scope) // LEAST_LENGTH
    if most == 0:
        return None
    if count_runs(scope) <= most:
        return Runs(_run_arrays(scope), None)
    distance = scope[:, 1].astype(np.int64) - scope[:, 0]
    order = np.argsort(distance * (int(scope.max()) + 1) + scope[:, 0], kind="stable")
    scope = frozen(scope[order])
    return Runs(_run_arrays(scope), short(order)) if count_runs(scope) <= most else None


@compiled
def count_runs(scope: Ints) -> int:
    """Return the number of runs in the given order."""
    n = 1
    for f in range(1, len(scope)):
        n += scope[f, 0] != scope[f - 1, 0] + 1 or scope[f, 1] != scope[f - 1, 1] + 1
    return n


def _run_arrays(scope: Ints) -> RunArrays:
    begin = np.zeros(count_runs(scope) + 1, dtype=np.int64)
    _mark_runs(scope, begin)
    first, second = np.ascontiguousarray(scope[begin[:-1]].T, dtype=np.int64)
    return RunArrays(begin, first, second)


@compiled
def _mark_runs(scope: Ints, begin: Ints) -> None:
    """Mark where the runs begin, and where the last one ends."""
    r = 0
    for f in range(1, len(scope)):
        if scope[f, 0] != scope[f - 1, 0] + 1 or scope[f, 1] != scope[f - 1, 1] + 1:
            r += 1
            begin[r] = f
    begin[-1] = len(scope)


def break_runs(runs: RunArrays, scope: Ints, cuts: tuple[int, ...]) -> RunArrays:
    """Break runs at the given numbers of factors."""
    begin = np.unique(np.concatenate([runs.begin, np.array(cuts, dtype=np.int64)]))
    first, second = np.ascontiguousarray(scope[begin[:-1]].T, dtype=np.int64)
    return RunArrays(begin, first, second)


def cut_tiles(runs: RunArrays, n_vars: int, size: int, n_constrained: int | None = None) -> Tiles:
    """Divide runs into pieces and parts by tiles of `size` variables; variables from `n_vars` on have none."""
    n_tiles = -(-n_vars // size)
    count = np.zeros((2, n_tiles), dtype=np.int64)
    _count(runs, n_vars, size, count)
    piece_ptr, part_ptr = (offsets(row).astype(np.int64) for row in count)
    tiles = Tiles(
        size,
        n_vars,
        int(runs.begin[-1]) if n_constrained is None else n_constrained,
        piece_ptr,
        np.zeros((int(piece_ptr[-1]), 4), dtype=np.int64),
        part_ptr,
        np.zeros((int(part_ptr[-1]), 3), dtype=np.int64),
    )
    _cut(runs, tiles)
    return tiles


@compiled
def _count(runs: RunArrays, n_vars: int, size: int, count: Ints) -> None:
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
def _cut(runs: RunArrays, tiles: Tiles) -> None:
    """Write pieces and parts, those of a tile in the order of the runs."""
    size, n_factors = tiles.size, runs.begin[-1]
    piece_at, part_at = tiles.piece_ptr.copy(), tiles.part_ptr.copy()
    for r in range(len(runs.first)):
        begin, n = runs.begin[r], runs.begin[r + 1] - runs.begin[r]
        ends = (runs.first[r], runs.second[r])
        lower = min(ends[0], ends[1])
        for tile in range(lower // size, (lower + n - 1) // size + 1):
            skip = max(0, tile * size - lower)
            piece = tiles.piece[piece_at[tile]]
            piece[0], piece[1], piece[2] = begin + skip, ends[0] + skip, ends[1] + skip
            piece[3] = min(n, (tile + 1) * size - lower) - skip
            piece_at[tile] += 1
        for k in range(2):
            if ends[k] >= tiles.n_vars:
                continue
            for tile in range(ends[k] // size, (ends[k] + n - 1) // size + 1):
                skip = max(0, tile * size - ends[k])
                part = tiles.part[part_at[tile]]
                part[0], part[1] = k * n_factors + begin + skip, ends[k] + skip
                part[2] = min(n, (tile + 1) * size - ends[k]) - skip
                part_at[tile] += 1
