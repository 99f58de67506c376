"""A pass over factors on several threads, with the messages of the pass on one.

Factors of a pass depend on those before them with which they share a variable. Two numbers never fall along such a
dependency: the factor's place in the pass, and its depth, the length of the longest chain of dependencies that ends in
it. So both are cut into bands, a *tile* is one band of each, and tiles for which the two numbers of the bands have the
same sum cannot depend on each other. They are a *group*: threads share out its tiles, and meet before the next group.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Ints, short
from mapmrf.engines.messages.tiles_kernels import depths_of

BANDS = (8, 16, 32, 64)
"""Numbers of bands that are tried."""
MEETING = 40_000.0
"""Nanoseconds that a meeting of the threads takes."""
FACTOR, ENTRY = 4.0, 1.0
"""Nanoseconds that a factor takes, and each entry of its table."""
WORTH = 0.85
"""Share of the time on one thread that must suffice, or one thread does it all."""


@dataclass(frozen=True)
class TiledPass:
    """The factors of a pass in groups.

    Attributes
    ----------
    groups
        For every group, in order, the factors of each thread in their order.
    """

    groups: list[list[Ints]]


@dataclass(frozen=True)
class _Cut:
    """A way to cut a pass: the number of every factor's group and tile, and whether tiles may be cut further."""

    group: Ints
    tile: Ints
    divisible: bool


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
    if len(visit) == 0:
        return None
    depth = np.zeros(len(visit), dtype=np.int32)
    last = np.zeros(int(scope.max(initial=0)) + 1, dtype=np.int32)
    n_depths = int(depths_of(visit, scope_ptr, scope, last, depth))
    meeting = MEETING / (FACTOR + ENTRY * entries)
    best, least = None, WORTH * len(visit)
    for cut in _cuts(depth, n_depths):
        groups = _groups(visit, cut, threads)
        time = sum(max(map(len, parts)) + meeting for parts in groups)
        if time < least:
            best, least = TiledPass(groups), time
    return best


def _cuts(depth: Ints, n_depths: int) -> list[_Cut]:
    """Ways to cut, those with the fewest groups first."""
    n = len(depth)
    if n_depths <= BANDS[-1]:
        return [_Cut(depth, np.zeros(n, dtype=np.int32), divisible=True)]
    cuts = []
    for bands in BANDS:
        place = (np.arange(n) * bands // n).astype(np.int32)
        below = (depth.astype(np.int64) * bands // n_depths).astype(np.int32)
        cuts.append(_Cut(place + below, place, divisible=False))
    return cuts


def _groups(visit: Ints, cut: _Cut, threads: int) -> list[list[Ints]]:
    """The factors of every thread in every group."""
    n_tiles = int(cut.tile.max()) + 1
    key = cut.group.astype(np.int64) * n_tiles + cut.tile
    order = np.argsort(key, kind="stable")
    key, factors = key[order], visit[order]
    starts = np.flatnonzero(np.diff(key // n_tiles, prepend=-1))
    groups = []
    for begin, end in zip(starts.tolist(), [*starts[1:].tolist(), len(key)], strict=True):
        ends = _ends(np.diff(key[begin:end]) != 0, cut.divisible, threads)
        groups.append([short(part) for part in np.split(factors[begin:end], ends) if len(part)])
    return groups


def _ends(changes: Bools, divisible: bool, threads: int) -> list[int]:
    """Where to cut a group for its threads: anywhere, or between tiles; `changes` says which neighbours are apart."""
    n = len(changes) + 1
    wanted = [n * part // threads for part in range(1, threads)]
    if divisible:
        return wanted
    between = np.concatenate([[0], np.flatnonzero(changes) + 1, [n]])
    return [int(between[np.argmin(np.abs(between - end))]) for end in wanted]
